# SPDX-License-Identifier: Apache-2.0
"""What two classes must gain together, as SVG: one curve per cache rate; what lies above it meets the goal.

Separate from ``_bars``, which draws seconds. Refuses to style, as it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Curve", "svg"]

_WIDTH, _HEIGHT = 760, 500
_LEFT, _TOP, _SIDE_X, _SIDE_Y = 80, 64, 480, 360
_INK, _GRID = "#333333", "#dddddd"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
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
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{_INK}">'
    )
    parts = [
        head,
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _label(_LEFT, 28, title, size=16),
        f'<clipPath id="frame"><rect x="{_LEFT}" y="{_TOP}" width="{_SIDE_X}" height="{_SIDE_Y}"/></clipPath>',
    ]
    right, bottom = _LEFT + _SIDE_X, _TOP + _SIDE_Y
    for i in range(_LINES + 1):
        x, y = _LEFT + _SIDE_X * i / _LINES, bottom - _SIDE_Y * i / _LINES
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{_GRID}"/>')
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{_GRID}"/>')
        parts.append(_label(x, bottom + 18, f"{ends[0] * i / _LINES:g} %", anchor="middle"))
        parts.append(_label(_LEFT - 8, y + 4, f"{ends[1] * i / _LINES:g} %", anchor="end"))
    parts.append(_label(_LEFT + _SIDE_X / 2, bottom + 42, f"{axes[0]} faster by", anchor="middle"))
    parts.append(
        f'<text transform="translate(18 {_TOP + _SIDE_Y / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(axes[1])} faster by</text>"
    )
    for i, curve in enumerate(curves):
        colour = _COLOURS[i % len(_COLOURS)]
        told = " ".join(
            f"{_LEFT + _SIDE_X * x / ends[0]:.1f},{bottom - _SIDE_Y * y / ends[1]:.1f}"
            for x, y in curve.points
        )
        parts.append(
            f'<polyline points="{told}" fill="none" stroke="{colour}" stroke-width="2" clip-path="url(#frame)">'
            f"<title>{escape(curve.name)}</title></polyline>"
        )
        y = _TOP + 14 + 20 * i
        parts.append(
            f'<line x1="{right + 16}" y1="{y - 4}" x2="{right + 46}" y2="{y - 4}" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(_label(right + 54, y, curve.name))
    parts.append(
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE_X}" height="{_SIDE_Y}" fill="none" stroke="{_INK}"/>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _label(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
