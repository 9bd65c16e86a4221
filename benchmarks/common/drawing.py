# SPDX-License-Identifier: Apache-2.0
"""Shared plotting helpers: figures, medians with their spread, and SVG files in docs/figures.

The same raw lines give the same bytes. Needs matplotlib, which .bench-venv has.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = [
    "BLACK",
    "BLUE",
    "GREEN",
    "GREY",
    "LIGHT_BLUE",
    "ORANGE",
    "PINK",
    "RED",
    "YELLOW",
    "bars",
    "draw_all",
    "points",
    "sheet",
    "spread",
    "unique",
]

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"
#: Colours that colour-blind readers can distinguish (Okabe and Ito).
BLACK, BLUE, ORANGE, YELLOW, LIGHT_BLUE, GREEN, RED, PINK = (
    "#000000",
    "#0072b2",
    "#e69f00",
    "#f0e442",
    "#56b4e9",
    "#009e73",
    "#d55e00",
    "#cc79a7",
)
GREY = "#777777"

_Lines = TypeVar("_Lines")


def sheet(columns: int = 1, rows: int = 1, *, title: str, share: bool = False) -> tuple[Figure, list[Axes]]:
    """Create rows of plots under one title; the plots come row by row."""
    size = (3.2 + 3.4 * columns, 3.8 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, sharey=share, squeeze=False)
    figure.suptitle(title, fontsize=11)
    return figure, list(axes.flat)


def spread(values: Sequence[float]) -> tuple[float, list[list[float]]]:
    """Return the median, and the distances of the minimum and the maximum from it."""
    middle = statistics.median(values)
    return middle, [[middle - min(values)], [max(values) - middle]]


def points(
    axis: Axes, colour: str, x: Sequence[float], values: Sequence[Sequence[float]], label: str
) -> None:
    """Plot medians with their spread."""
    for at, found in zip(x, values, strict=True):
        middle, error = spread(found)
        axis.errorbar(at, middle, yerr=error, color=colour, marker="o", ms=4, capsize=2)
    axis.plot([], [], "o", color=colour, ms=4, label=label)


def bars(
    axis: Axes,
    groups: Sequence[str],
    colours: Mapping[str, str],
    value: Callable[[str, str], Sequence[float]],
    mark: Callable[[str, str], float] | None = None,
) -> None:
    """Plot one bar per group and arm of ``colours``, with its spread; arms without values have no bar.

    ``mark``: a height to mark at each bar.
    """
    width = 0.8 / max(1, len(colours))
    for nth, (arm, colour) in enumerate(colours.items()):
        for place, group in enumerate(groups):
            found = value(group, arm)
            if found:
                middle, error = spread(found)
                at = place + (nth - (len(colours) - 1) / 2) * width
                axis.bar(at, middle, width, yerr=error, color=colour, capsize=2)
                if mark is not None:
                    axis.plot(at, mark(group, arm), "_", color=PINK, ms=9, mew=2)
        axis.bar(0, 0, color=colour, label=arm)
    axis.set_xticks(range(len(groups)), groups)
    axis.legend(fontsize=7)


def unique(names: Iterable[str]) -> list[str]:
    """Return the distinct names in order of first occurrence."""
    return list(dict.fromkeys(names))


def draw_all(
    here: Path,
    name: str,
    read: Callable[[Path], _Lines],
    figures: Mapping[str, Callable[[_Lines], Figure | None]],
) -> int:
    """Run the command line of a benchmark's ``figures.py``: draw each figure that has raw lines, and list the others.

    Args:
        here: folder of the benchmark.
        name: name of the benchmark, the prefix of all file names.
        read: reads raw lines from a file.
        figures: functions that draw, by name of the figure; they return None without raw lines for it.

    Returns:
        0; bad arguments end the process with status 2.
    """
    parser = argparse.ArgumentParser(description="Draw the figures of the newest results.")
    newest = sorted((here / "results").glob(f"{name}_*.jsonl"))[-1:]
    parser.add_argument(
        "lines", type=Path, nargs="?", default=newest[0] if newest else None, help="raw lines"
    )
    parser.add_argument("--into", type=Path, default=FIGURES, help="folder (default: docs/figures)")
    args = parser.parse_args()
    if args.lines is None or not args.lines.exists():
        parser.error("there are no raw lines yet: run.py writes them")
    plt.rcParams.update(
        {
            "svg.hashsalt": "foresee",
            "svg.fonttype": "none",
            "font.size": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    lines = read(args.lines)
    args.into.mkdir(parents=True, exist_ok=True)
    for which, draw in figures.items():
        figure = draw(lines)
        if figure is None:
            print(f"figures: nothing was measured for {which}", file=sys.stderr)
            continue
        path = args.into / f"{name}-{which}.svg"
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        print(f"figures: {path.name}", file=sys.stderr)
    return 0
