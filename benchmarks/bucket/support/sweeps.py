# SPDX-License-Identifier: Apache-2.0
"""Measure the points of the paper's figures, each next to its prediction."""

from __future__ import annotations

import dataclasses

from common.report import show

from . import data
from .predictions import Times, predicted
from .session import Session
from .sizes import Size
from .trials import THREADS, trials


def measure(session: Session, size: Size, repeats: int, *, quick: bool) -> None:
    """Measure all points of a part; each is predicted before it runs."""
    samples = data.make(size, session.home, session.seed)
    reads = session.measure(size, samples, "reads", {"threads": THREADS}, 0)
    if reads.void:
        show(f"{size.part}: left out, as the time of a read is unknown: {reads.void}")
        return
    times = Times.of(reads.values)
    compute_s = size.compute_s(1 / times.read_s)
    for repeat in range(repeats):
        for trial in trials(size, quick=quick):
            known = {f"figure_{figure}": 1.0 for figure in trial.figures} | {
                "partition": float(size.partition)
            }
            known |= predicted(size, trial, times, compute_s, session.seed)
            session.measure(
                dataclasses.replace(size, latency_ms=0.0) if trial.is_untimed else size,
                samples,
                trial.arm,
                trial.settings,
                repeat,
                compute_s=0.0 if trial.is_untimed else compute_s,
                known=known,
            )
