# SPDX-License-Identifier: Apache-2.0
"""Panels of lines over linear axes, as one page of SVG.

Separate from the commands, which know what the lines mean, and from ``_plot``, whose axis is a bandwidth. One size of
panel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from foresee.cli._svg import GRID, curve, frame, label, page, stroke, upright

__all__ = ["Line", "Mark", "Panel", "svg", "ticks"]

_WIDTH, _HEIGHT = 470, 240
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 30, 14, 62
_HEAD = 78


@dataclass(frozen=True)
class Line:
    """One line."""

    name: str
    """As the legend has it."""
    colour: str
    """As SVG has it."""
    x: Sequence[float]
    """Finite, in the panel's unit."""
    y: Sequence[float]
    """Finite, 0 or more."""
    dash: str = ""
    """Lengths of strokes and gaps as SVG has them; empty for a solid line."""
    points: Literal["", "circle", "triangle"] = ""
    """What stands on each point; empty for nothing."""


@dataclass(frozen=True)
class Mark:
    """A vertical line."""

    x: float
    """Finite, in the panel's unit."""
    colour: str
    name: str = ""
    """What stands beside it."""


@dataclass(frozen=True)
class Panel:
    """One picture of the page; the legend stands below it."""

    title: str
    x_name: str
    y_name: str
    lines: Sequence[Line]
    """One or more, with one or more points each."""
    marks: Sequence[Mark] = ()


def svg(title: str, words: Sequence[str], rows: Sequence[Sequence[Panel]]) -> str:
    """A page of its own: ``words`` below the title, then the panels, row by row."""
    columns = max(map(len, rows))
    size = columns * _WIDTH + 20, _HEAD + len(rows) * (_HEIGHT + 12)
    parts = []
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            parts += [
                f'<g transform="translate({10 + j * _WIDTH} {_HEAD + i * (_HEIGHT + 12)})">',
                *_panel(panel),
                "</g>",
            ]
    return page(size, 20, title, words, parts, font=11)


def ticks(low: float, high: float) -> list[float]:
    """Some four to eight round values from ``low`` to ``high``.

    >>> ticks(0, 1174.5)
    [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]
    """
    rough = (high - low) / 6
    step = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= rough or factor == 10)
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _panel(panel: Panel) -> list[str]:
    xs = [x for line in panel.lines for x in line.x] + [mark.x for mark in panel.marks]
    low, high = min(xs), max(xs)
    top = 1.08 * max(y for line in panel.lines for y in line.y) or 1.0
    high = high if high > low else low + 1.0
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def across(x: float) -> float:
        return _LEFT + (right - _LEFT) * (x - low) / (high - low)

    def up(y: float) -> float:
        return bottom - (bottom - _TOP) * y / top

    parts = [label(_LEFT, _TOP - 10, panel.title, size=13)]
    for value in ticks(0.0, top):
        parts.append(stroke(_LEFT, up(value), right, up(value), GRID))
        parts.append(label(_LEFT - 6, up(value) + 4, f"{value:g}", anchor="end"))
    for value in ticks(low, high):
        parts.append(stroke(across(value), _TOP, across(value), bottom, GRID))
        parts.append(label(across(value), bottom + 15, f"{value:g}", anchor="middle"))
    parts.append(frame(_LEFT, _TOP, right - _LEFT, bottom - _TOP))
    parts.append(label((_LEFT + right) / 2, bottom + 31, panel.x_name, anchor="middle"))
    parts.append(upright(14, (_TOP + bottom) / 2, panel.y_name))
    for mark in panel.marks:
        x = across(mark.x)
        parts.append(stroke(x, _TOP, x, bottom, mark.colour, dash="2 3"))
        if mark.name:
            left = x < (_LEFT + right) / 2
            parts.append(
                label(x + (4 if left else -4), _TOP + 12, mark.name, anchor="start" if left else "end")
            )
    for line in panel.lines:
        points = [(across(x), up(y)) for x, y in zip(line.x, line.y, strict=True)]
        parts.append(curve(points, line.colour, line.name, width=1.8, dash=line.dash))
        parts += [_point(x, y, line) for x, y in points if line.points]
    return parts + _legend(panel.lines)


def _legend(lines: Sequence[Line]) -> list[str]:
    parts = []
    room = (_WIDTH - _LEFT - _RIGHT) / len(lines)
    for i, line in enumerate(lines):
        x, y = _LEFT + i * room, _HEIGHT - 10
        parts.append(stroke(x, y - 4, x + 18, y - 4, line.colour, width=1.8, dash=line.dash))
        parts += [_point(x + 9, y - 4, line)] if line.points else []
        parts.append(label(x + 22, y, line.name))
    return parts


def _point(x: float, y: float, line: Line) -> str:
    if line.points == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{line.colour}"/>'
    return f'<path d="M{x:.1f} {y - 4:.1f}l4 7h-8z" fill="{line.colour}"/>'
