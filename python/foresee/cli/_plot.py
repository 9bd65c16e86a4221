# SPDX-License-Identifier: Apache-2.0
"""Curves over a logarithmic axis of bandwidths, as text for a terminal and as SVG for a page.

Separate from the command, which knows what the curves mean. One size, and a dash pattern each, because curves of
policies often lie on each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from foresee.cli._svg import GRID, curve, frame, label, page, stroke, upright

__all__ = ["Bar", "Curve", "bit_rate", "svg", "text"]

_WIDTH, _HEIGHT = 980, 476
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 70, 84, 520, 320
_BARS_LEFT, _BARS_WIDTH = 730, 150
_LEGEND_WIDTH = 172
_COLUMNS, _ROWS = 72, 17


@dataclass(frozen=True)
class Curve:
    """One curve."""

    name: str
    """As the legend has it."""
    mark: str
    """One letter, for the terminal."""
    colour: str
    """As SVG has it."""
    dash: str
    """Lengths of strokes and gaps as SVG has them; empty for a solid line."""
    x: Sequence[float]
    """Bytes per second, ascending, > 0."""
    y: Sequence[float]
    """Shares, 0 to 1."""


@dataclass(frozen=True)
class Bar:
    """One bar beside the curves, in the colour of its curve."""

    name: str
    colour: str
    value: float | None
    """Bytes per second; None where there is none."""


def bit_rate(bytes_per_second: float) -> str:
    """Three digits and a unit.

    >>> bit_rate(125e6), bit_rate(3.0), bit_rate(1.5625e6)
    ('1 Gbit/s', '24 bit/s', '12.5 Mbit/s')
    """
    rate, unit = bytes_per_second * 8, "bit/s"
    for factor, name in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if rate >= 0.9995 * factor:
            rate, unit = rate / factor, name
            break
    return f"{float(f'{rate:.3g}'):g} {unit}"


def text(curves: Sequence[Curve]) -> str:
    """Shares against bandwidth, for a terminal of 80 columns; where curves meet, the first one's letter stands."""
    low, high = _range(curves)
    canvas = [[" "] * _COLUMNS for _ in range(_ROWS)]
    for one in reversed(curves):
        for column in range(_COLUMNS):
            x = low * (high / low) ** (column / (_COLUMNS - 1))
            row = round((1 - _at(one, x)) * (_ROWS - 1))
            canvas[row][column] = one.mark
    lines = []
    for row, cells in enumerate(canvas):
        quarter = row % ((_ROWS - 1) // 4) == 0
        share = f"{100 - 100 * row // (_ROWS - 1):3d} %" if quarter else "     "
        lines.append(f"{share} |{''.join(cells)}".rstrip())
    axis = [" "] * (_COLUMNS + 1)
    ruler = ["-"] * _COLUMNS
    free = 0
    for tick in _ticks(low, high):
        column = round(math.log(tick / low) / math.log(high / low) * (_COLUMNS - 1))
        ruler[column] = "+"
        rate = bit_rate(tick)
        start = min(max(column - len(rate) // 2, free), len(axis) - len(rate))
        if start >= free:
            axis[start : start + len(rate)] = rate
            free = start + len(rate) + 2
    lines += [f"      +{''.join(ruler)}", f"       {''.join(axis)}".rstrip()]
    lines.append("       " + "   ".join(f"{one.mark} {one.name}" for one in curves))
    return "\n".join(lines)


def svg(
    title: str, lines: Sequence[str], curves: Sequence[Curve], bars: Sequence[Bar], bars_title: str
) -> str:
    """A page of its own: curves on the left, bars on the right; one or two ``lines`` below the title."""
    parts = [
        *_frame(curves),
        *(_line(one, *_range(curves)) for one in curves),
        *_legend(curves),
        *_bars(bars, bars_title),
    ]
    return page((_WIDTH, _HEIGHT), _LEFT, title, lines, parts)


def _frame(curves: Sequence[Curve]) -> list[str]:
    low, high = _range(curves)
    bottom, right = _TOP + _PLOT_HEIGHT, _LEFT + _PLOT_WIDTH
    parts = []
    for quarter in range(5):
        y = bottom - _PLOT_HEIGHT * quarter / 4
        parts.append(stroke(_LEFT, y, right, y, GRID))
        parts.append(label(_LEFT - 8, y + 4, f"{25 * quarter} %", anchor="end"))
    for tick in _ticks(low, high):
        x = _x(tick, low, high)
        parts.append(stroke(x, _TOP, x, bottom, GRID))
        parts.append(label(x, bottom + 18, bit_rate(tick), anchor="middle"))
    parts.append(frame(_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT))
    parts.append(label(_LEFT + _PLOT_WIDTH / 2, bottom + 40, "bandwidth of one direction", anchor="middle"))
    parts.append(upright(18, _TOP + _PLOT_HEIGHT / 2, "share of the speed without a network"))
    return parts


def _line(one: Curve, low: float, high: float) -> str:
    points = [(_x(x, low, high), _TOP + _PLOT_HEIGHT * (1 - y)) for x, y in zip(one.x, one.y, strict=True)]
    return curve(points, one.colour, one.name, dash=one.dash)


def _legend(curves: Sequence[Curve]) -> list[str]:
    # Curves rise to the right, so the lower right corner is theirs the least.
    height = 20 * len(curves) + 8
    left, top = _LEFT + _PLOT_WIDTH - _LEGEND_WIDTH - 8, _TOP + _PLOT_HEIGHT - height - 8
    box = f'width="{_LEGEND_WIDTH}" height="{height}" fill="white" fill-opacity="0.85" stroke="{GRID}"'
    parts = [f'<rect x="{left}" y="{top}" {box}/>']
    for i, one in enumerate(curves):
        y = top + 18 + 20 * i
        parts.append(stroke(left + 8, y - 4, left + 40, y - 4, one.colour, width=2, dash=one.dash))
        parts.append(label(left + 48, y, one.name))
    return parts


def _bars(bars: Sequence[Bar], title: str) -> list[str]:
    largest = max((bar.value for bar in bars if bar.value is not None), default=0.0)
    parts = [label(_BARS_LEFT - 80, _TOP + 12, title)]
    for i, bar in enumerate(bars):
        y = _TOP + 40 + 52 * i
        parts.append(label(_BARS_LEFT - 8, y + 17, bar.name, anchor="end"))
        if bar.value is None:
            parts.append(label(_BARS_LEFT, y + 17, "out of reach"))
            continue
        width = _BARS_WIDTH * bar.value / largest if largest else 0.0
        parts.append(
            f'<rect x="{_BARS_LEFT}" y="{y}" width="{width:.1f}" height="26" fill="{bar.colour}" '
            f'fill-opacity="0.8"><title>{escape(bar.name)}</title></rect>'
        )
        parts.append(label(_BARS_LEFT + width + 6, y + 17, bit_rate(bar.value)))
    return parts


def _range(curves: Sequence[Curve]) -> tuple[float, float]:
    return min(one.x[0] for one in curves), max(one.x[-1] for one in curves)


def _at(one: Curve, x: float) -> float:
    """The curve at ``x``, linear in its logarithm between points, flat outside."""
    for i in range(1, len(one.x)):
        if x <= one.x[i]:
            before, after = one.x[i - 1], one.x[i]
            part = max(math.log(x / before) / math.log(after / before), 0.0)
            return one.y[i - 1] + part * (one.y[i] - one.y[i - 1])
    return one.y[-1]


def _ticks(low: float, high: float) -> list[float]:
    """Decades of bits per second; where there are few, halves and fifths of them too."""
    steps = (1.0,) if high / low >= 100 else (1.0, 2.0, 5.0)
    decades = range(math.floor(math.log10(low * 8)), math.ceil(math.log10(high * 8)) + 1)
    ticks = [10.0**decade * step / 8 for decade in decades for step in steps]
    inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    return inside if len(inside) >= 2 else [low, high]


def _x(rate: float, low: float, high: float) -> float:
    return _LEFT + _PLOT_WIDTH * math.log(rate / low) / math.log(high / low)
