# SPDX-License-Identifier: Apache-2.0
"""What two classes must gain together, as SVG: one curve per cache rate; what lies above it meets the goal.

Separate from ``_bars``, which draws seconds. One size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foresee.cli._svg import COLOURS, GRID, curve, frame, label, page, stroke, upright

__all__ = ["Curve", "svg"]

_WIDTH, _HEIGHT = 760, 500
_LEFT, _TOP, _SIDE_X, _SIDE_Y = 80, 64, 480, 360
_LINES = 5


@dataclass(frozen=True)
class Curve:
    """The least gains of one cache rate."""

    name: str
    """As the legend has it."""
    points: Sequence[tuple[float, float]]
    """Percent of the first and the second class, 0 or more, by the first."""


def svg(title: str, axes: tuple[str, str], curves: Sequence[Curve], ends: tuple[float, float]) -> str:
    """A page of its own; axes go from 0 to ``ends``, percent > 0, and points beyond are cut off."""
    parts = [
        f'<clipPath id="frame"><rect x="{_LEFT}" y="{_TOP}" width="{_SIDE_X}" height="{_SIDE_Y}"/></clipPath>',
    ]
    right, bottom = _LEFT + _SIDE_X, _TOP + _SIDE_Y
    for i in range(_LINES + 1):
        x, y = _LEFT + _SIDE_X * i / _LINES, bottom - _SIDE_Y * i / _LINES
        parts.append(stroke(x, _TOP, x, bottom, GRID))
        parts.append(stroke(_LEFT, y, right, y, GRID))
        parts.append(label(x, bottom + 18, f"{ends[0] * i / _LINES:g} %", anchor="middle"))
        parts.append(label(_LEFT - 8, y + 4, f"{ends[1] * i / _LINES:g} %", anchor="end"))
    parts.append(label(_LEFT + _SIDE_X / 2, bottom + 42, f"{axes[0]} faster by", anchor="middle"))
    parts.append(upright(18, _TOP + _SIDE_Y / 2, f"{axes[1]} faster by"))
    for i, one in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        points = [(_LEFT + _SIDE_X * x / ends[0], bottom - _SIDE_Y * y / ends[1]) for x, y in one.points]
        parts.append(curve(points, colour, one.name, clip="frame"))
        y = _TOP + 14 + 20 * i
        parts.append(stroke(right + 16, y - 4, right + 46, y - 4, colour, width=2))
        parts.append(label(right + 54, y, one.name))
    parts.append(frame(_LEFT, _TOP, _SIDE_X, _SIDE_Y))
    return page((_WIDTH, _HEIGHT), _LEFT, title, (), parts)
