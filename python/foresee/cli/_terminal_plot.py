# SPDX-License-Identifier: Apache-2.0
"""Curves over a logarithmic axis of bandwidths as text for a terminal, and the labels of such an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_COLUMNS, _ROWS = 72, 17


@dataclass(frozen=True)
class Curve:
    """One curve."""

    name: str
    """Its text in the legend."""
    mark: str
    """The letter that draws it."""
    x: Sequence[float]
    """Bytes per second, ascending, > 0."""
    y: Sequence[float]
    """Shares, 0 to 1."""


def bit_rate(bytes_per_second: float) -> str:
    """Format a bandwidth with three digits and a unit.

    >>> bit_rate(125e6), bit_rate(3.0), bit_rate(1.5625e6)
    ('1 Gbit/s', '24 bit/s', '12.5 Mbit/s')
    """
    rate, unit = bytes_per_second * 8, "bit/s"
    for factor, name in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if rate >= 0.9995 * factor:
            rate, unit = rate / factor, name
            break
    return f"{float(f'{rate:.3g}'):g} {unit}"


def ticks(low: float, high: float) -> list[float]:
    """Return round values for an axis: decades of bits per second, in a short range also 2 and 5 times these."""
    steps = (1.0,) if high / low >= 100 else (1.0, 2.0, 5.0)
    decades = range(math.floor(math.log10(low * 8)), math.ceil(math.log10(high * 8)) + 1)
    values = [10.0**decade * step / 8 for decade in decades for step in steps]
    inside = [value for value in values if low * 0.999 <= value <= high * 1.001]
    return inside if len(inside) >= 2 else [low, high]


def text(curves: Sequence[Curve]) -> str:
    """Draw shares against bandwidth in 80 columns; the letter of the first curve covers the others."""
    low, high = min(curve.x[0] for curve in curves), max(curve.x[-1] for curve in curves)
    canvas = [[" "] * _COLUMNS for _ in range(_ROWS)]
    for curve in reversed(curves):
        for column in range(_COLUMNS):
            x = low * (high / low) ** (column / (_COLUMNS - 1))
            row = round((1 - _value_at(curve, x)) * (_ROWS - 1))
            canvas[row][column] = curve.mark
    lines = []
    for row, cells in enumerate(canvas):
        quarter = row % ((_ROWS - 1) // 4) == 0
        share = f"{100 - 100 * row // (_ROWS - 1):3d} %" if quarter else "     "
        lines.append(f"{share} |{''.join(cells)}".rstrip())
    axis = [" "] * (_COLUMNS + 1)
    ruler = ["-"] * _COLUMNS
    free = 0
    for tick in ticks(low, high):
        column = round(math.log(tick / low) / math.log(high / low) * (_COLUMNS - 1))
        ruler[column] = "+"
        rate = bit_rate(tick)
        start = min(max(column - len(rate) // 2, free), len(axis) - len(rate))
        if start >= free:
            axis[start : start + len(rate)] = rate
            free = start + len(rate) + 2
    lines += [f"      +{''.join(ruler)}", f"       {''.join(axis)}".rstrip()]
    lines.append("       " + "   ".join(f"{curve.mark} {curve.name}" for curve in curves))
    return "\n".join(lines)


def _value_at(curve: Curve, x: float) -> float:
    """Return the curve at ``x``: linear in its logarithm between points, constant outside of them."""
    import numpy as np

    return float(np.interp(math.log(x), np.log(curve.x), curve.y))
