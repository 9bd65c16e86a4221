# SPDX-License-Identifier: Apache-2.0
"""Figures of the commands, drawn with matplotlib: stacked bars, panels of lines, curves over bandwidths, heat maps.

This module imports matplotlib, so commands import it only when a figure is requested. It knows no command: callers
decide what a bar or a line stands for. pyplot is not used, and equal inputs give equal bytes.
"""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foresee._schema import files
from foresee.errors import PackageMissing

try:
    import matplotlib as mpl
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import PercentFormatter, StrMethodFormatter
    from matplotlib.transforms import ScaledTranslation
except ModuleNotFoundError as error:
    raise PackageMissing(
        "pictures are drawn with matplotlib; install matplotlib, or foresee[plot]"
    ) from error

INK, GRID = "#333333", "#dddddd"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of lines, in their order (Okabe and Ito)."""
_STACKED = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#999999")
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "grid.color": GRID,
    "svg.fonttype": "none",
    "svg.hashsalt": "foresee",
    "text.color": INK,
    "text.parse_math": False,  # a "$" in the name of a job is a "$"
    "xtick.color": INK,
    "ytick.color": INK,
}
#: Inches: a line of the title and of the text below it; a panel; a row of bars; from a panel to its legend.
_TITLE, _LINE, _MARGIN = 0.25, 0.19, 0.15
_PANEL, _BARS, _LEGEND = (5.0, 2.9), (10.4, 4.0), 0.45
#: Letters that stand next to each other below a row of bars, and slanted names that do.
_LETTERS, _SLANTED = 100, 40


@dataclass(frozen=True)
class Stack:
    """One bar: a value of 0 or more for each class, in the order of the legend."""

    values: Sequence[float]
    faint: bool = False
    """Whether the bar is a prediction next to a measured one."""


@dataclass(frozen=True)
class Group:
    """Bars that stand together above one label."""

    label: str
    stacks: Sequence[Stack]


@dataclass(frozen=True)
class Bar:
    """One horizontal bar next to curves."""

    name: str
    colour: str
    value: float | None
    """Bytes per second; None if no bandwidth suffices."""


@dataclass(frozen=True)
class Line:
    """One line of a panel, or points."""

    name: str
    """Its text in the legend."""
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    dash: str = "-"
    """A line style of matplotlib; ``none`` for points only."""
    points: str = ""
    """The marker at each point, as in matplotlib; empty for none."""


@dataclass(frozen=True)
class Mark:
    """A vertical line of a panel."""

    x: float
    colour: str
    name: str = ""
    """Text next to it."""


@dataclass(frozen=True)
class Axis:
    """One axis of a panel."""

    name: str
    low: float | None = None
    """Its lower end; by default the least value for ``x`` and 0 for ``y``."""
    high: float | None = None
    """Its upper end; by default it follows from the largest value."""
    unit: str = ""
    """Unit of its tick labels."""


@dataclass(frozen=True)
class Panel:
    """One plot of a page; its legend stands below it."""

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()


def write(path: str, figure: Figure) -> None:
    """Write ``figure`` in the format of the suffix of ``path``, without a date.

    Raises:
        OSError: the file cannot be written.
    """
    suffix = os.path.splitext(path)[1][1:].lower()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    content = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(content, format=suffix, metadata=dates.get(suffix), dpi=150)
    files.write(path, content.getvalue())


@mpl.rc_context(_STYLE)
def bars(
    title: str,
    lines: Sequence[str],
    axis: str,
    classes: Sequence[str],
    rows: Mapping[str, Sequence[Group]],
    goal: float | None = None,
    unit: str = "seconds",
) -> Figure:
    """Draw rows of stacked bars by name, on one scale; ``goal``, in ``unit``, is a dashed line."""
    figure = _page(title, lines, (_BARS[0], _BARS[1] * len(rows)))
    colours = {name: _STACKED[i % len(_STACKED)] for i, name in enumerate(classes)}
    plots = figure.subplots(len(rows), 1, squeeze=False, sharey=True)[:, 0]
    for axes, (name, groups) in zip(plots, rows.items(), strict=True):
        _stacks(axes, groups, colours)
        _labels(axes, [group.label for group in groups])
        axes.set_title(name, loc="left", fontsize=10)
        axes.set(xlabel=axis, ylabel=unit, xlim=(-0.5, len(groups) - 0.5))
        axes.grid(visible=False, axis="x")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        if goal is not None:
            axes.axhline(goal, color=INK, linestyle="--", linewidth=1)
            axes.annotate(
                "goal",
                (1.0, goal),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
    heights = [sum(stack.values) for groups in rows.values() for group in groups for stack in group.stacks]
    plots[0].set_ylim(0.0, 1.05 * max([*heights, goal or 0.0]) or 1.0)
    # As in a stack, the last class is the highest.
    names = classes[::-1]
    handles = [Patch(facecolor=colours[name]) for name in names]
    _legend(plots[0], names, handles, loc="upper left", bbox_to_anchor=(1.05, 1.0))
    return figure


@mpl.rc_context(_STYLE)
def panels(
    title: str, lines: Sequence[str], rows: Sequence[Sequence[Panel]], *, size: tuple[float, float] = _PANEL
) -> Figure:
    """Draw panels, row by row; ``size`` of one is in inches."""
    columns = max(map(len, rows), default=1)
    figure = _page(title, lines, (max(6.4, size[0] * columns), size[1] * len(rows)))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for i, row in enumerate(rows):
        for j, axes in enumerate(grid[i]):
            if j < len(row):
                _panel(axes, row[j])
                _line_legend(axes, row[j].lines)
            else:
                axes.remove()
    return figure


@mpl.rc_context(_STYLE)
def bandwidths(
    title: str,
    lines: Sequence[str],
    panel: Panel,
    ticks: Mapping[float, str],
    bars: Mapping[str, Sequence[Bar]],
    shown: Callable[[float], str],
) -> Figure:
    """Draw curves over a logarithmic axis of bandwidths, and next to them horizontal bars below a title.

    Args:
        title: the title of the page.
        lines: lines below it.
        panel: the curves; ``x`` in bytes per second, ``y`` as shares.
        ticks: labels of the horizontal axis by their values.
        bars: by their title, one entry.
        shown: the text of a bandwidth.
    """
    figure = _page(title, lines, (10.4, 4.4))
    left, right = figure.subplots(1, 2, width_ratios=[2.4, 1])
    _panel(left, panel)
    left.set_xscale("log")
    left.set_xticks(list(ticks), list(ticks.values()))
    left.set_xticks([], minor=True)
    left.set_ylim(0, 1)
    left.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    _line_legend(left, panel.lines)
    ((name, listed),) = bars.items()
    values = [bar.value or 0.0 for bar in listed]
    right.barh([bar.name for bar in listed], values, color=[bar.colour for bar in listed], alpha=0.8)
    for place, bar in enumerate(listed):
        text = "out of reach" if bar.value is None else shown(bar.value)
        right.annotate(
            text, (bar.value or 0.0, place), xytext=(4, 0), textcoords="offset points", va="center"
        )
    right.set_xlim(0, 1.6 * max(values) or 1.0)
    right.set_xticks([])
    right.invert_yaxis()
    right.grid(visible=False)
    right.spines[["top", "right", "bottom"]].set_visible(False)
    right.set_title(name, loc="center", fontsize=9)
    return figure


@mpl.rc_context(_STYLE)
def heat_map(
    title: str,
    lines: Sequence[str],
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
    values: Sequence[Sequence[float | None]],
    partial: Collection[tuple[int, int]] = (),
) -> Figure:
    """Draw a table of numbers, darker where they are larger.

    Args:
        title: the title of the page.
        lines: lines below it.
        rows: name and values of the key that goes down.
        columns: name and values of the key that goes across.
        values: by row and column; None where there is none.
        partial: places, by row and column, of values of unfinished runs; ``~`` marks them.
    """
    figure = _page(title, lines, (max(6.4, 2 + 0.95 * len(columns[1])), 0.9 + 0.4 * len(rows[1])))
    axes = figure.subplots()
    known = [value for row in values for value in row if value is not None]
    least, most = min(known, default=0.0), max(known, default=1.0)
    numbers = [[math.nan if value is None else value for value in row] for row in values]
    axes.pcolormesh(
        numbers, cmap="Blues", vmin=least, vmax=max(most, least + 1e-300), edgecolors="white", linewidth=1
    )
    for down, row in enumerate(values):
        for across, value in enumerate(row):
            share = 0.0 if value is None or most == least else (value - least) / (most - least)
            mark = "~" if (down, across) in partial else ""
            text = "-" if value is None else f"{mark}{value:.4g}"
            colour = "white" if share > 0.55 else INK
            axes.text(across + 0.5, down + 0.5, text, ha="center", va="center", color=colour)
    axes.set_xticks([0.5 + i for i in range(len(columns[1]))], columns[1])
    axes.set_yticks([0.5 + i for i in range(len(rows[1]))], rows[1])
    axes.set(xlabel=columns[0], ylabel=rows[0])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.invert_yaxis()
    return figure


def _page(title: str, lines: Sequence[str], size: tuple[float, float]) -> Figure:
    """Return an empty page: ``size`` in inches for the plots, and what title and lines need above them."""
    width = size[0]
    titles = textwrap.wrap(title, int(width * 9))
    below = [part for line in lines for part in textwrap.wrap(line, int(width * 13))]
    head = _MARGIN + _TITLE * len(titles) + _LINE * len(below)
    height = size[1] + head
    figure = Figure(figsize=(width, height), layout="constrained")
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0.0, 0.0, 1.0, size[1] / height), w_pad=0.1, h_pad=0.1)  # type: ignore[call-arg]
    y = height - _MARGIN
    for text, step, points in [(text, _TITLE, 12) for text in titles] + [(text, _LINE, 9) for text in below]:
        figure.text(_MARGIN / width, y / height, text, fontsize=points, va="top")
        y -= step
    return figure


def _stacks(axes: Axes, groups: Sequence[Group], colours: Mapping[str, str]) -> None:
    """Draw each class as one collection of rectangles, which is much faster than a patch for each of them."""
    for at, (name, colour) in enumerate(colours.items()):
        boxes, fills = [], []
        for place, group in enumerate(groups):
            width = 0.8 / len(group.stacks)
            for i, stack in enumerate(group.stacks):
                if stack.values[at] > 0:
                    left, low = place - 0.4 + i * width, sum(stack.values[:at])
                    right, high = left + width, low + stack.values[at]
                    boxes.append([(left, low), (left, high), (right, high), (right, low)])
                    fills.append(to_rgba(colour, 0.45 if stack.faint else 0.9))
        axes.add_collection(PolyCollection(boxes, facecolors=fills, label=name))


def _labels(axes: Axes, names: Sequence[str]) -> None:
    """Name groups of bars: numbers that do not fit are left out, names that do not fit are slanted."""
    fitting = _LETTERS // (max(map(len, names), default=0) + 2) or 1
    numbers = all(name.replace(".", "").isdigit() for name in names)
    slanted = not numbers and len(names) > fitting
    every = -(-len(names) // (_SLANTED if slanted else fitting)) or 1
    axes.set_xticks(range(0, len(names), every), names[::every])
    if slanted:
        for text in axes.get_xticklabels():
            text.set(rotation=35, ha="right", rotation_mode="anchor")


def _panel(axes: Axes, panel: Panel) -> None:
    xs = [x for line in panel.lines for x in line.x] + [mark.x for mark in panel.marks]
    ys = [y for line in panel.lines for y in line.y]
    low = min(xs, default=0.0) if panel.x.low is None else panel.x.low
    high = max(xs, default=1.0) if panel.x.high is None else panel.x.high
    top = (1.08 * max(ys, default=0.0) or 1.0) if panel.y.high is None else panel.y.high
    axes.set(
        xlim=(low, high if high > low else low + 1.0),
        ylim=(panel.y.low or 0.0, top),
        xlabel=panel.x.name,
        ylabel=panel.y.name,
    )
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.xaxis.set_major_formatter(StrMethodFormatter(f"{{x:,g}} {panel.x.unit}".rstrip()))
    axes.yaxis.set_major_formatter(StrMethodFormatter(f"{{x:,g}} {panel.y.unit}".rstrip()))
    for mark in panel.marks:
        axes.axvline(mark.x, color=mark.colour, linestyle=":", linewidth=1.2)
        left = mark.x < (low + high) / 2
        axes.annotate(
            mark.name,
            (mark.x, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3 if left else -3, -3),
            textcoords="offset points",
            ha="left" if left else "right",
            va="top",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1},
        )
    for line in panel.lines:
        axes.plot(line.x, line.y, color=line.colour, linestyle=line.dash, marker=line.points, label=line.name)


def _line_legend(axes: Axes, lines: Sequence[Line]) -> None:
    """Name lines below their panel, in rows of five."""
    if lines:
        below = axes.transAxes + ScaledTranslation(0.0, -_LEGEND, axes.figure.dpi_scale_trans)
        handles = [
            Line2D([], [], color=line.colour, linestyle=line.dash, marker=line.points) for line in lines
        ]
        _legend(
            axes,
            [line.name for line in lines],
            handles,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            bbox_transform=below,
            ncols=min(len(lines), 5),
        )


def _legend(axes: Axes, names: Sequence[str], handles: Sequence[Artist], **place: Any) -> None:
    # matplotlib leaves out a label that starts with "_" if it is passed here.
    legend = axes.legend(handles, [" "] * len(handles), borderaxespad=0, frameon=False, **place)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)
