#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the newest results as SVG in docs/figures.

The numbers are in docs/benchmarks/stagger.md. Run this with .bench-venv, which has matplotlib.

Exit status: 0 drawn (figures without results are listed), 2 bad arguments.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import drawing  # noqa: E402 - needs the path above
from common.drawing import sheet  # noqa: E402
from support.runs import Run, Runs, read  # noqa: E402

#: Colours of the two orders of a pair.
ORDERS = (drawing.BLUE, drawing.ORANGE)
#: Colours of the bars of runs without a search.
KINDS = {"measured": drawing.BLUE, "predicted": drawing.GREY}


def starts(runs: Runs) -> Figure | None:
    """Draw the makespan by the second job's start: both orders of each pair, measured and predicted."""
    return _by_start(
        runs, "Makespan by the second job's start", "makespan, s", lambda run: run.makespan, True
    )


def seconds(runs: Runs) -> Figure | None:
    """Draw how long the second job uses its GPU, by its start."""
    return _by_start(
        runs, "Seconds of the second job by its start", "seconds", lambda run: run.seconds[1], False
    )


def several(runs: Runs) -> Figure | None:
    """Draw the measured and predicted makespan of networks that train, and of three and four jobs."""
    found = [run for part in ("networks", "several", "command") for run in runs.of(part)]
    found = [run for run in found if run.predicted is not None]
    if not found:
        return None
    groups = drawing.unique(map(_name, found))
    figure, (axis,) = sheet(title="Makespan of other runs: measured and predicted")
    figure.set_size_inches(11, 4.2)

    def value(group: str, kind: str) -> list[float]:
        same = [run for run in found if _name(run) == group]
        if kind == "measured":
            return [run.makespan for run in same]
        return [run.predicted for run in same if run.predicted is not None]

    drawing.bars(axis, groups, KINDS, value)
    axis.set_ylabel("s")
    axis.tick_params(axis="x", labelsize=6)
    return figure


def _by_start(
    runs: Runs, title: str, what: str, of: Callable[[Run], float], predicted: bool
) -> Figure | None:
    orders = runs.orders("pairs")
    pairs = drawing.unique(" and ".join(sorted(jobs)) for jobs in orders)
    if not pairs:
        return None
    figure, axes = sheet(len(pairs), title=title)
    for axis, pair in zip(axes, pairs, strict=True):
        same = [jobs for jobs in orders if " and ".join(sorted(jobs)) == pair]
        for jobs, colour in zip(same, ORDERS, strict=False):
            _draw_order(axis, runs, jobs, colour, of, predicted)
        axis.set_title(pair, fontsize=9)
        axis.set_xlabel("start of the second job, s")
        axis.legend(fontsize=7)
    axes[0].set_ylabel(what)
    return figure


def _draw_order(
    axis: Axes, runs: Runs, jobs: list[str], colour: str, of: Callable[[Run], float], predicted: bool
) -> None:
    searched = [arm for arm in runs.arms("pairs", jobs) if arm.isdigit()]
    by_arm = [runs.of("pairs", arm=arm, jobs=jobs) for arm in sorted(searched, key=int)]
    at = [statistics.median(run.starts[1] for run in same) for same in by_arm]
    drawing.points(axis, colour, at, [[of(run) for run in same] for same in by_arm], f"{jobs[0]} first")
    if predicted:
        predictions = [[run.predicted for run in same if run.predicted is not None] for same in by_arm]
        line = [(x, statistics.median(found)) for x, found in zip(at, predictions, strict=True) if found]
        axis.plot(*zip(*line, strict=True), color=colour, lw=1, label="predicted")
    for run in runs.of("pairs", arm="best", jobs=jobs)[:1]:
        axis.axvline(run.starts[1], color=colour, lw=0.8, ls=":")


def _name(run: Run) -> str:
    """Return the label of a bar: the jobs, and for networks also their start."""
    first = run.arm if run.part == "networks" else run.part
    return f"{first}:\n" + "\n".join(run.jobs)


if __name__ == "__main__":
    sys.exit(
        drawing.draw_all(HERE, "stagger", read, {"starts": starts, "seconds": seconds, "several": several})
    )
