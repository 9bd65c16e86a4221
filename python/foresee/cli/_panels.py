# SPDX-License-Identifier: Apache-2.0
"""Panels of lines over linear axes, as one page of SVG.

Separate from the commands, which know what the lines mean, and from ``_plot``, whose axis is a bandwidth. Written by
hand, so that a picture needs no further package. Refuses to style: one size of panel, colours that the colour-blind
can tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["COLOURS", "Line", "Mark", "Panel", "svg", "ticks"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
"""Of lines, in turn."""

_WIDTH, _HEIGHT = 470, 240
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 30, 14, 62
_HEAD = 78
_INK, _GRID = "#333333", "#dddddd"


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
    width, height = columns * _WIDTH + 20, _HEAD + len(rows) * (_HEIGHT + 12)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="11" fill="{_INK}">'
    )
    parts = [
        head,
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _label(20, 26, title, size=16),
        *(_label(20, 46 + 16 * i, line) for i, line in enumerate(words)),
    ]
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            parts += [
                f'<g transform="translate({10 + j * _WIDTH} {_HEAD + i * (_HEIGHT + 12)})">',
                *_panel(panel),
                "</g>",
            ]
    return "\n".join([*parts, "</svg>"]) + "\n"


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

    parts = [_label(_LEFT, _TOP - 10, panel.title, size=13)]
    for value in ticks(0.0, top):
        parts.append(_stroke(_LEFT, up(value), right, up(value), _GRID))
        parts.append(_label(_LEFT - 6, up(value) + 4, f"{value:g}", anchor="end"))
    for value in ticks(low, high):
        parts.append(_stroke(across(value), _TOP, across(value), bottom, _GRID))
        parts.append(_label(across(value), bottom + 15, f"{value:g}", anchor="middle"))
    parts.append(
        f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}" fill="none" stroke="{_INK}"/>'
    )
    parts.append(_label((_LEFT + right) / 2, bottom + 31, panel.x_name, anchor="middle"))
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text transform="translate(14 {middle:g}) rotate(-90)" text-anchor="middle">{escape(panel.y_name)}</text>'
    )
    for mark in panel.marks:
        x = across(mark.x)
        parts.append(_stroke(x, _TOP, x, bottom, mark.colour, ' stroke-dasharray="2 3"'))
        if mark.name:
            left = x < (_LEFT + right) / 2
            parts.append(
                _label(x + (4 if left else -4), _TOP + 12, mark.name, anchor="start" if left else "end")
            )
    for line in panel.lines:
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="1.8"{dash}>'
            f"<title>{escape(line.name)}</title></polyline>"
        )
    return parts + _legend(panel.lines)


def _legend(lines: Sequence[Line]) -> list[str]:
    parts = []
    room = (_WIDTH - _LEFT - _RIGHT) / len(lines)
    for i, line in enumerate(lines):
        x, y = _LEFT + i * room, _HEIGHT - 10
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        parts.append(_stroke(x, y - 4, x + 18, y - 4, line.colour, f' stroke-width="1.8"{dash}'))
        parts.append(_label(x + 22, y, line.name))
    return parts


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str, rest: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{rest}/>'


def _label(x: float, y: float, words: str, *, anchor: str = "start", size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
