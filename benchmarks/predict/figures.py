#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the newest results as SVG in docs/figures.

The numbers are in docs/benchmarks/predict.md. Run this with .bench-venv, which has matplotlib.

Exit status: 0 drawn, 2 bad arguments.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import drawing  # noqa: E402 - needs the path above
from common.drawing import GREY, sheet  # noqa: E402
from support.lines import EPOCH_WITHIN, Comparison, Stall, comparisons  # noqa: E402
from support.setups import PERFECT  # noqa: E402

COLOURS = {
    PERFECT: drawing.BLACK,
    "naive": drawing.RED,
    "staging_buffer": drawing.ORANGE,
    "nopfs_on_access": drawing.GREEN,
    "foresee": drawing.BLUE,
}
#: Markers of the first epoch and of the later ones.
MARKERS = {"first": "o", "later": "s"}


def read(lines: Path) -> list[Comparison]:
    """Read the comparisons that have valid runs."""
    made = comparisons(json.loads(line) for line in lines.read_text().splitlines())
    return [one for one in made if one.runs]


def set_ups(found: list[Comparison]) -> Figure | None:
    """Draw a later epoch of each set-up and policy: bars as measured, marks as predicted."""
    if not found:
        return None
    by = {(one.setup, one.policy): one for one in found}
    groups = drawing.unique(one.setup for one in found)
    figure, (axis,) = sheet(title="A later epoch: measured (bars), predicted (marks)")
    figure.set_size_inches(11, 4.2)

    def value(setup: str, policy: str) -> list[float]:
        one = by.get((setup, policy))
        return [one.low.later_s, one.measured.later_s, one.high.later_s] if one else []

    drawing.bars(axis, groups, COLOURS, value, mark=lambda *which: by[which].predicted.later_s)
    axis.set_ylabel("s")
    axis.tick_params(axis="x", labelsize=7)
    return figure


def against(found: list[Comparison]) -> Figure | None:
    """Draw predicted against measured: epochs, stalls of the mean rank, stalls of the job."""
    if not found:
        return None
    figure, (times, stalls, jobs) = sheet(3, title="Predicted against measured, first and later epochs")
    shown: tuple[tuple[Axes, str, Callable[[Comparison, str], tuple[float, float] | None]], ...] = (
        (times, "epoch time, s", _epochs),
        (stalls, "stall of the mean rank, s", lambda one, part: _of(one.stall(part))),
        (jobs, "stall of the job, s", lambda one, part: _of(one.job_stall(part))),
    )
    for axis, name, value in shown:
        ends = []
        for one in found:
            if one.policy == PERFECT and axis is not times:
                continue
            for part, marker in MARKERS.items():
                both = value(one, part)
                if both is None:
                    continue
                measured, predicted = both
                axis.plot(measured, predicted, marker, color=COLOURS[one.policy], ms=4, mfc="none")
                ends += [measured, predicted]
        low, high = min(end for end in ends if end > 0), max(ends)
        axis.plot([low, high], [low, high], color=GREY, lw=0.8)
        if axis is times:
            for factor in (1 - EPOCH_WITHIN, 1 + EPOCH_WITHIN):
                axis.plot([low, high], [low * factor, high * factor], color=GREY, lw=0.5, ls=":")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(f"measured {name}")
        axis.set_ylabel(f"predicted {name}")
    for policy, colour in COLOURS.items():
        times.plot([], [], "o", color=colour, ms=4, label=policy)
    times.legend(fontsize=7)
    for part, marker in MARKERS.items():
        stalls.plot([], [], marker, color=GREY, ms=4, mfc="none", label=f"{part} epoch")
    stalls.legend(fontsize=7)
    return figure


def _epochs(one: Comparison, part: str) -> tuple[float, float]:
    return getattr(one.measured, f"{part}_s"), getattr(one.predicted, f"{part}_s")


def _of(stall: Stall | None) -> tuple[float, float] | None:
    return None if stall is None else (stall.measured, stall.predicted)


if __name__ == "__main__":
    sys.exit(drawing.draw_all(HERE, "predict", read, {"set-ups": set_ups, "against": against}))
