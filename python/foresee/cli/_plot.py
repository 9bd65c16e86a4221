# SPDX-License-Identifier: Apache-2.0
"""Curves over a logarithmic axis of bandwidths, as text for a terminal and as SVG for a page.

Separate from the command, which knows what the curves mean. Written by hand, so that a picture needs no further
package. Refuses to style: one size, colours that the colour-blind can tell apart, and a dash pattern each, because
curves of policies often lie on each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "Curve", "bit_rate", "svg", "text"]

_WIDTH, _HEIGHT = 980, 476
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 70, 84, 520, 320
_BARS_LEFT, _BARS_WIDTH = 730, 150
_LEGEND_WIDTH = 172
_COLUMNS, _ROWS = 72, 17
_INK, _GRID = "#333333", "#dddddd"


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
    for curve in reversed(curves):
        for column in range(_COLUMNS):
            x = low * (high / low) ** (column / (_COLUMNS - 1))
            row = round((1 - _at(curve, x)) * (_ROWS - 1))
            canvas[row][column] = curve.mark
    lines = []
    for row, cells in enumerate(canvas):
        quarter = row % ((_ROWS - 1) // 4) == 0
        label = f"{100 - 100 * row // (_ROWS - 1):3d} %" if quarter else "     "
        lines.append(f"{label} |{''.join(cells)}".rstrip())
    axis = [" "] * (_COLUMNS + 1)
    ruler = ["-"] * _COLUMNS
    free = 0
    for tick in _ticks(low, high):
        column = round(math.log(tick / low) / math.log(high / low) * (_COLUMNS - 1))
        ruler[column] = "+"
        label = bit_rate(tick)
        start = min(max(column - len(label) // 2, free), len(axis) - len(label))
        if start >= free:
            axis[start : start + len(label)] = label
            free = start + len(label) + 2
    lines += [f"      +{''.join(ruler)}", f"       {''.join(axis)}".rstrip()]
    lines.append("       " + "   ".join(f"{curve.mark} {curve.name}" for curve in curves))
    return "\n".join(lines)


def svg(
    title: str, lines: Sequence[str], curves: Sequence[Curve], bars: Sequence[Bar], bars_title: str
) -> str:
    """A page of its own: curves on the left, bars on the right; one or two ``lines`` below the title."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{_INK}">'
    )
    parts = [
        head,
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _label(_LEFT, 26, title, size=16),
        *(_label(_LEFT, 48 + 18 * i, line) for i, line in enumerate(lines)),
        *_frame(curves),
        *(_line(curve, *_range(curves)) for curve in curves),
        *_legend(curves),
        *_bars(bars, bars_title),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _frame(curves: Sequence[Curve]) -> list[str]:
    low, high = _range(curves)
    bottom, right = _TOP + _PLOT_HEIGHT, _LEFT + _PLOT_WIDTH
    parts = []
    for quarter in range(5):
        y = bottom - _PLOT_HEIGHT * quarter / 4
        parts.append(_stroke(_LEFT, y, right, y, _GRID))
        parts.append(_label(_LEFT - 8, y + 4, f"{25 * quarter} %", anchor="end"))
    for tick in _ticks(low, high):
        x = _x(tick, low, high)
        parts.append(_stroke(x, _TOP, x, bottom, _GRID))
        parts.append(_label(x, bottom + 18, bit_rate(tick), anchor="middle"))
    parts.append(
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_PLOT_WIDTH}" height="{_PLOT_HEIGHT}" fill="none" stroke="{_INK}"/>'
    )
    parts.append(_label(_LEFT + _PLOT_WIDTH / 2, bottom + 40, "bandwidth of one direction", anchor="middle"))
    middle = _TOP + _PLOT_HEIGHT / 2
    parts.append(
        f'<text transform="translate(18 {middle:g}) rotate(-90)" text-anchor="middle">'
        "share of the speed without a network</text>"
    )
    return parts


def _line(curve: Curve, low: float, high: float) -> str:
    points = " ".join(
        f"{_x(x, low, high):.1f},{_TOP + _PLOT_HEIGHT * (1 - y):.1f}"
        for x, y in zip(curve.x, curve.y, strict=True)
    )
    dash = f' stroke-dasharray="{curve.dash}"' if curve.dash else ""
    return (
        f'<polyline points="{points}" fill="none" stroke="{curve.colour}" stroke-width="2"{dash}>'
        f"<title>{escape(curve.name)}</title></polyline>"
    )


def _legend(curves: Sequence[Curve]) -> list[str]:
    # Curves rise to the right, so the lower right corner is theirs the least.
    height = 20 * len(curves) + 8
    left, top = _LEFT + _PLOT_WIDTH - _LEGEND_WIDTH - 8, _TOP + _PLOT_HEIGHT - height - 8
    box = f'width="{_LEGEND_WIDTH}" height="{height}" fill="white" fill-opacity="0.85" stroke="{_GRID}"'
    parts = [f'<rect x="{left}" y="{top}" {box}/>']
    for i, curve in enumerate(curves):
        y = top + 18 + 20 * i
        dash = f' stroke-dasharray="{curve.dash}"' if curve.dash else ""
        parts.append(_stroke(left + 8, y - 4, left + 40, y - 4, curve.colour, f' stroke-width="2"{dash}'))
        parts.append(_label(left + 48, y, curve.name))
    return parts


def _bars(bars: Sequence[Bar], title: str) -> list[str]:
    largest = max((bar.value for bar in bars if bar.value is not None), default=0.0)
    parts = [_label(_BARS_LEFT - 80, _TOP + 12, title)]
    for i, bar in enumerate(bars):
        y = _TOP + 40 + 52 * i
        parts.append(_label(_BARS_LEFT - 8, y + 17, bar.name, anchor="end"))
        if bar.value is None:
            parts.append(_label(_BARS_LEFT, y + 17, "out of reach"))
            continue
        width = _BARS_WIDTH * bar.value / largest if largest else 0.0
        parts.append(
            f'<rect x="{_BARS_LEFT}" y="{y}" width="{width:.1f}" height="26" fill="{bar.colour}" '
            f'fill-opacity="0.8"><title>{escape(bar.name)}</title></rect>'
        )
        parts.append(_label(_BARS_LEFT + width + 6, y + 17, bit_rate(bar.value)))
    return parts


def _range(curves: Sequence[Curve]) -> tuple[float, float]:
    return min(curve.x[0] for curve in curves), max(curve.x[-1] for curve in curves)


def _at(curve: Curve, x: float) -> float:
    """The curve at ``x``, linear in its logarithm between points, flat outside."""
    for i in range(1, len(curve.x)):
        if x <= curve.x[i]:
            before, after = curve.x[i - 1], curve.x[i]
            part = max(math.log(x / before) / math.log(after / before), 0.0)
            return curve.y[i - 1] + part * (curve.y[i] - curve.y[i - 1])
    return curve.y[-1]


def _ticks(low: float, high: float) -> list[float]:
    """Decades of bits per second; where there are few, halves and fifths of them too."""
    steps = (1.0,) if high / low >= 100 else (1.0, 2.0, 5.0)
    decades = range(math.floor(math.log10(low * 8)), math.ceil(math.log10(high * 8)) + 1)
    ticks = [10.0**decade * step / 8 for decade in decades for step in steps]
    inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    return inside if len(inside) >= 2 else [low, high]


def _x(rate: float, low: float, high: float) -> float:
    return _LEFT + _PLOT_WIDTH * math.log(rate / low) / math.log(high / low)


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str, rest: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{rest}/>'


def _label(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
