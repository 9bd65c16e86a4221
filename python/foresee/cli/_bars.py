# SPDX-License-Identifier: Apache-2.0
"""Stacked bars as SVG: seconds or counts by class, one bar per cache rate or process, beside it what they would be.

Separate from the command, which knows what the bars mean, and from ``_plot``, which draws curves. One size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from foresee.cli._svg import GRID, INK, frame, label, page, stroke, upright

__all__ = ["Group", "Stack", "column", "svg"]

_WIDTH, _HEIGHT = 1006, 514
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 96, 84, 700, 320
_NEXT = _HEIGHT - 52
_LEGEND_LEFT = _LEFT + _PLOT_WIDTH + 44
_COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#999999")
#: Pixels of a letter, somewhat more than one of Helvetica takes, and between two labels.
_LETTER, _GAP = 7.0, 8.0
#: Rows of labels at most, and their distance.
_ROWS_MAX, _ROW = 4, 16
#: Numbers from which labels of the vertical axis have an exponent.
_PLAIN_BELOW = 1e7


@dataclass(frozen=True)
class Stack:
    """One bar: by class, in the order of the legend, >= 0."""

    values: Sequence[float]
    faint: bool = False
    """Whether it is drawn as what would be, not what was."""


@dataclass(frozen=True)
class Group:
    """Bars that stand together over one label."""

    label: str
    stacks: Sequence[Stack]


def svg(
    title: str,
    lines: Sequence[str],
    axis: str,
    classes: Sequence[str],
    groups: Sequence[Group],
    goal: float | None = None,
    unit: str = "seconds",
) -> str:
    """A page of its own; ``goal``, in ``unit``, is a dashed line."""
    top, step = _scale(groups, goal)
    parts = _plot(top, step, axis, classes, groups, goal, unit)
    return page((_WIDTH, _HEIGHT), _LEFT, title, lines, parts)


def column(
    title: str,
    lines: Sequence[str],
    axis: str,
    classes: Sequence[str],
    plots: Mapping[str, Sequence[Group]],
    goal: float | None = None,
) -> str:
    """A page of plots below each other, by name, one or more; in seconds, and of one scale so that they compare."""
    top, step = _scale([group for groups in plots.values() for group in groups], goal)
    parts = []
    for at, (name, groups) in enumerate(plots.items()):
        parts.append(f'<g transform="translate(0 {at * _NEXT})">')
        parts.append(label(_LEFT, _TOP - 6, name))
        parts += [*_plot(top, step, axis, classes, groups, goal, "seconds"), "</g>"]
    return page((_WIDTH, _HEIGHT + (len(plots) - 1) * _NEXT), _LEFT, title, lines, parts)


def _scale(groups: Sequence[Group], goal: float | None) -> tuple[float, float]:
    """Where the axis ends, and the distance of its lines."""
    highest = max([sum(stack.values) for group in groups for stack in group.stacks] + [goal or 0.0])
    step = _step(highest)
    return max(step, math.ceil(highest / step - 1e-9) * step), step


def _plot(
    top: float,
    step: float,
    axis: str,
    classes: Sequence[str],
    groups: Sequence[Group],
    goal: float | None,
    unit: str,
) -> list[str]:
    rows, every = _labels([group.label for group in groups], _PLOT_WIDTH / len(groups))
    parts = [
        *_frame(top, step, axis, unit, rows),
        *_bars(groups, classes, top, unit, rows, every),
        *_legend(classes),
    ]
    if goal is not None:
        y = _y(goal, top)
        parts.append(stroke(_LEFT, y, _LEFT + _PLOT_WIDTH, y, INK, dash="6 4"))
        parts.append(label(_LEFT + _PLOT_WIDTH + 6, y + 4, "goal"))
    return parts


def _frame(top: float, step: float, axis: str, unit: str, rows: int) -> list[str]:
    bottom, right = _TOP + _PLOT_HEIGHT, _LEFT + _PLOT_WIDTH
    parts = []
    for i in range(round(top / step) + 1):
        y = _y(i * step, top)
        parts.append(stroke(_LEFT, y, right, y, GRID))
        parts.append(label(_LEFT - 8, y + 4, _plain(i * step), anchor="end"))
    parts.append(frame(_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT))
    parts.append(label(_LEFT + _PLOT_WIDTH / 2, bottom + 40 + _ROW * (rows - 1), axis, anchor="middle"))
    parts.append(upright(18, _TOP + _PLOT_HEIGHT / 2, unit))
    return parts


def _bars(
    groups: Sequence[Group], classes: Sequence[str], top: float, unit: str, rows: int, every: int
) -> list[str]:
    parts = []
    short = "s" if unit == "seconds" else unit
    room = _PLOT_WIDTH / len(groups)
    for at, group in enumerate(groups):
        left = _LEFT + at * room
        width = 0.8 * room / len(group.stacks)
        for i, stack in enumerate(group.stacks):
            x, below = left + 0.1 * room + i * width, 0.0
            for name, colour, value in zip(classes, _colours(len(classes)), stack.values, strict=True):
                if value > 0:
                    y = _y(below + value, top)
                    told = escape(f"{group.label} {name}: {value:.4g} {short}")
                    parts.append(
                        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{_y(below, top) - y:.2f}" '
                        f'fill="{colour}" fill-opacity="{0.45 if stack.faint else 0.9}"><title>{told}</title></rect>'
                    )
                below += value
        if at % every == 0:
            y = _TOP + _PLOT_HEIGHT + 18 + _ROW * (at // every % rows)
            parts.append(label(left + room / 2, y, group.label, anchor="middle"))
    return parts


def _labels(words: Sequence[str], room: float) -> tuple[int, int]:
    """In how many rows labels stand, and of how many bars one has a label, so that no two overlap.

    >>> _labels(["9", "10", "11"], 30.0), _labels(["naive", "deepio_optimistic"], 70.0), _labels(["1000"] * 70, 10.0)
    ((1, 1), (2, 1), (1, 4))
    """
    widest = max(map(len, words)) * _LETTER + _GAP
    needed = math.ceil(widest / room - 1e-9)
    # Numbers are read as an axis; of names none is left out before there are as many rows as there is room for.
    rows = 1 if all(word.replace(".", "").isdigit() for word in words) else min(needed, _ROWS_MAX)
    return rows, -(-needed // rows)


def _plain(value: float) -> str:
    """A number of the vertical axis.

    >>> _plain(250000.0), _plain(0.5), _plain(2.5e7)
    ('250,000', '0.5', '2.5e+07')
    """
    return f"{value:,.0f}" if value == int(value) and value < _PLAIN_BELOW else f"{value:g}"


def _legend(classes: Sequence[str]) -> list[str]:
    parts = []
    for i, (name, colour) in enumerate(zip(classes, _colours(len(classes)), strict=True)):
        y = _TOP + 20 * (len(classes) - i)
        parts.append(f'<rect x="{_LEGEND_LEFT}" y="{y - 11}" width="14" height="14" fill="{colour}"/>')
        parts.append(label(_LEGEND_LEFT + 22, y, name))
    return parts


def _colours(count: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(count)]


def _step(highest: float) -> float:
    """A round distance between lines, such that there are four to ten."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(power * part for part in (0.1, 0.2, 0.25, 0.5, 1.0) if highest / (power * part) <= 10)


def _y(value: float, top: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - value / top)
