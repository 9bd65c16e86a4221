#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the newest results as SVG in docs/figures: the time of each loader over the limit of its origin.

The numbers are in docs/benchmarks/loading.md. Run this with .bench-venv, which has matplotlib.

Exit status: 0 drawn, 2 bad arguments.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import drawing  # noqa: E402 - needs the path above
from support.lines import Runs  # noqa: E402
from support.table import read  # noqa: E402

#: Workloads whose origin has a limit, and their labels.
WORKLOADS = {
    "disk-110k": "110 KB files,\ndisk",
    "disk-12m": "12 MiB files,\ndisk",
    "disk-none": "110 KB files,\ndisk, no cache",
    "s3-1k": "1 KB objects,\nS3",
}
#: Arms with exact order, then two with approximate order.
COLOURS = {
    "ours": drawing.BLUE,
    "torch": drawing.ORANGE,
    "spdl": drawing.GREEN,
    "grain": drawing.PINK,
    "streaming": drawing.GREY,
    "litdata": drawing.LIGHT_BLUE,
}
NAMES = {
    "ours": "Foresee",
    "torch": "PyTorch DataLoader",
    "spdl": "SPDL",
    "grain": "Grain",
    "streaming": "MosaicML Streaming (approximate order)",
    "litdata": "LitData (approximate order)",
}
#: End of the axis; longer bars are cut, with the value above them.
HIGHEST = 1.6


def limits(runs: Runs) -> Figure | None:
    """Draw the time of all epochs over the time that the origin's limits allow, by loader."""
    figure, (axis,) = drawing.sheet(
        title="Training time over the limit of the storage, one file or object per sample"
    )
    figure.set_size_inches(8, 3.4)
    names = {label: arm for arm, label in NAMES.items()}
    colours = {NAMES[arm]: colour for arm, colour in COLOURS.items()}
    workloads = {shown: workload for workload, shown in WORKLOADS.items()}

    def over(shown: str, label: str) -> list[float]:
        workload = workloads[shown]
        loop_pass_s = runs.loop_pass_s(workload)
        return [run.seconds / run.bound_s(loop_pass_s) for run in runs.of(workload, names[label])]

    drawing.bars(axis, list(workloads), colours, over)
    axis.axhline(1, color=drawing.BLACK, lw=1)
    axis.set_ylim(0.8, HIGHEST)
    for bar in axis.patches:
        if isinstance(bar, Rectangle) and bar.get_height() > HIGHEST:
            axis.text(
                bar.get_x() + bar.get_width() / 2,
                HIGHEST,
                f"{bar.get_height():.1f}",
                ha="center",
                va="bottom",
                fontsize=6,
            )
    axis.set_ylabel("time / limit")
    axis.legend(fontsize=6, loc="upper left", ncols=2)
    return figure


if __name__ == "__main__":
    sys.exit(drawing.draw_all(HERE, "loading", read, {"limits": limits}))
