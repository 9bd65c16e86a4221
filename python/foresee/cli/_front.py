# SPDX-License-Identifier: Apache-2.0
"""What of two things meets a goal together, as SVG: curves, of which what lies beyond each meets it.

Separate from ``_bars``, which draws seconds. One size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foresee.cli._svg import COLOURS, GRID, curve, dot, frame, label, page, stroke, upright

__all__ = ["Axis", "Curve", "svg"]

_WIDTH, _HEIGHT = 760, 500
_LEFT, _TOP, _SIDE_X, _SIDE_Y = 80, 64, 480, 360
_LINES = 5


@dataclass(frozen=True)
class Axis:
    """One of the two."""

    name: str
    low: float
    high: float
    """Above ``low``; points beyond are cut off."""
    unit: str = ""

    def share(self, value: float) -> float:
        """How far along it a value lies: 0 to 1 between its ends."""
        return (value - self.low) / (self.high - self.low)

    def word(self, share: float) -> str:
        """The value there."""
        return f"{self.low + share * (self.high - self.low):g} {self.unit}".rstrip()


@dataclass(frozen=True)
class Curve:
    """The least of both."""

    name: str
    """As the legend has it."""
    points: Sequence[tuple[float, float]]
    """Values on the first and the second axis, by the first."""
    joined: bool = True
    """Whether what lies between two points is known, so that a line is drawn; else there are dots only."""


def svg(title: str, axes: tuple[Axis, Axis], curves: Sequence[Curve]) -> str:
    """A page of its own."""
    parts = [
        f'<clipPath id="frame"><rect x="{_LEFT}" y="{_TOP}" width="{_SIDE_X}" height="{_SIDE_Y}"/></clipPath>',
    ]
    right, bottom = _LEFT + _SIDE_X, _TOP + _SIDE_Y
    for i in range(_LINES + 1):
        x, y = _LEFT + _SIDE_X * i / _LINES, bottom - _SIDE_Y * i / _LINES
        parts.append(stroke(x, _TOP, x, bottom, GRID))
        parts.append(stroke(_LEFT, y, right, y, GRID))
        parts.append(label(x, bottom + 18, axes[0].word(i / _LINES), anchor="middle"))
        parts.append(label(_LEFT - 8, y + 4, axes[1].word(i / _LINES), anchor="end"))
    parts.append(label(_LEFT + _SIDE_X / 2, bottom + 42, axes[0].name, anchor="middle"))
    parts.append(upright(18, _TOP + _SIDE_Y / 2, axes[1].name))
    for i, one in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        points = [
            (_LEFT + _SIDE_X * axes[0].share(x), bottom - _SIDE_Y * axes[1].share(y)) for x, y in one.points
        ]
        y = _TOP + 14 + 20 * i
        if one.joined:
            parts.append(curve(points, colour, one.name, clip="frame"))
            parts.append(stroke(right + 16, y - 4, right + 46, y - 4, colour, width=2))
        else:
            told = [
                f"{axes[0].word(axes[0].share(x))}, {axes[1].word(axes[1].share(y_))}" for x, y_ in one.points
            ]
            parts += [dot(*point, colour, words) for point, words in zip(points, told, strict=True)]
            parts.append(dot(right + 31, y - 4, colour, one.name))
        parts.append(label(right + 54, y, one.name))
    parts.append(frame(_LEFT, _TOP, _SIDE_X, _SIDE_Y))
    return page((_WIDTH, _HEIGHT), _LEFT, title, (), parts)
