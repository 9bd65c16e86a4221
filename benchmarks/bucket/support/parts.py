# SPDX-License-Identifier: Apache-2.0
"""One part at one latency: the native client's rate, the grids, and the interleaved repeats."""

from __future__ import annotations

import dataclasses

from common.report import show

from . import data, sweeps
from .session import Session
from .sizes import ARMS, Settings, Size, grid

#: The grid of the peers reads one of so many samples.
GRID_DIVISOR = 4


def measure(session: Session, size: Size, repeats: int, *, quick: bool) -> None:
    """Measure all arms of a part."""
    if size.is_figures:
        sweeps.measure(session, size, repeats, quick=quick)
        return
    samples = data.make(size, session.home, session.seed)
    gets_per_s = 0.0
    if size.is_deli:
        native = session.measure(size, samples, "native", {}, 0)
        if native.void:
            show(f"{size.part}: left out, as the rate of a native client is unknown: {native.void}")
            return
        gets_per_s = native.values["gets_per_s"]
    compute_s = size.compute_s(gets_per_s)
    chosen = {arm: _best(session, size, samples, arm, compute_s, quick=quick) for arm in ARMS[size.theme]}
    for repeat in range(repeats):
        for arm, settings in chosen.items():
            session.measure(size, samples, arm, settings, repeat, compute_s=compute_s)


def _best(
    session: Session, size: Size, samples: data.Data, arm: str, compute_s: float, *, quick: bool
) -> Settings:
    """Return the best setting of an arm's grid: the one that waits least, or the first if all are void."""
    settings = grid(size.theme, arm, quick=quick)
    if len(settings) == 1:
        return settings[0]
    if size.theme == "peers":
        # The first samples of the same folder.
        size = dataclasses.replace(size, samples=size.samples // GRID_DIVISOR)
    found = [
        session.measure(size, samples, arm, one, 0, compute_s=compute_s, is_trial=True) for one in settings
    ]
    waited = [run.values["waited_s"] if not run.void else float("inf") for run in found]
    return settings[waited.index(min(waited))]
