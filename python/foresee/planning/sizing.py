# SPDX-License-Identifier: Apache-2.0
"""Search for the smallest values that meet a goal, along one axis or several, and their costs.

Every axis is a grid from its cheapest end to its dearest. At each combination of coarse grid values of all axes but the
last, bisection finds the least value of the last axis, and then that of each other axis. Dominated points are left out.
The caller decides whether a point meets the goal; in ``foresee size`` that is the simulator.

Bisection assumes that more of an axis is no worse. This holds for placement by next use with samples of one size; with
other policies a smaller value might meet the goal too. Each returned point meets it.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from foresee.errors import ConfigError

__all__ = ["Axis", "Values", "cells", "cost", "count_queries", "least", "tighten", "undominated"]

Values: TypeAlias = tuple[float, ...]
"""One value of each axis."""

#: Grid intervals of a bisected axis: seven queries find a value to 1 % of the range.
_FINE = 128


@dataclass(frozen=True)
class Axis:
    """The range of one resource.

    Raises:
        ConfigError: its ends are one, or its price is negative.
    """

    name: str
    low: float
    """The cheapest end."""
    high: float
    """The dearest; below ``low`` where less is better, as of a latency."""
    price: float = 0.0
    """Of one unit, 0 or more."""
    whole: bool = False
    """Whether values are whole numbers."""

    def __post_init__(self) -> None:
        faults = []
        if self.low == self.high:
            faults.append(f"{self.name}: both ends are {self.low:g}; two values expected")
        if not self.price >= 0:
            faults.append(f"{self.name}: price {self.price:g}; 0 or more expected")
        if faults:
            raise ConfigError(faults)

    def grid(self, count: int) -> list[float]:
        """Return ``count + 1`` values from end to end, both included, or all whole numbers if those are fewer."""
        span = self.high - self.low
        if self.whole:
            count = min(count, round(abs(span)))
            return [self.low + round(span * at / count) for at in range(count + 1)]
        return [self.low + span * at / count for at in range(count)] + [self.high]


def cells(axes: Sequence[Axis], steps: int) -> list[Values]:
    """Return all combinations of ``steps + 1`` values of all axes but the last, the cheapest first."""
    return list(itertools.product(*(axis.grid(steps) for axis in axes[:-1])))


def least(axis: Axis, meets: Callable[[float], bool]) -> float | None:
    """Bisect for the first grid value of ``axis`` that meets the goal; None if its dearest end does not.

    >>> least(Axis("ram", 0, 128), lambda size: size >= 40)
    40.0
    """
    *cheaper, last = axis.grid(_FINE)
    return _bisect(cheaper, last, meets) if meets(last) else None


def tighten(axes: Sequence[Axis], point: Values, meets: Callable[[Values], bool]) -> Values:
    """Minimize each axis but the last, one after the other, at a point that meets the goal.

    An axis stays minimal while others become less, as more of any is no worse.

    >>> tighten([Axis("ram", 0, 128), Axis("rate", 0, 128)], (64, 40), lambda at: at[0] >= 50 and at[1] >= 40)
    (50.0, 40)
    """
    found = list(point)
    for place, axis in enumerate(axes[:-1]):

        def meets_at(number: float, place: int = place) -> bool:
            return meets((*found[:place], number, *found[place + 1 :]))

        cheaper = [
            value for value in axis.grid(_FINE) if abs(value - axis.low) < abs(found[place] - axis.low)
        ]
        found[place] = _bisect(cheaper, found[place], meets_at)
    return tuple(found)


def _bisect(values: Sequence[float], last: float, meets: Callable[[float], bool]) -> float:
    """Return the first of ``values`` that meets the goal; ``last``, which is known to, if none does."""
    at = bisect.bisect_left(values, True, key=meets)
    return values[at] if at < len(values) else last


def count_queries(axes: Sequence[Axis], steps: int) -> int:
    """Return the largest number of queries of :func:`least` and :func:`tighten`, over all :func:`cells`."""
    return len(cells(axes, steps)) * (1 + sum(len(axis.grid(_FINE)).bit_length() for axis in axes))


def undominated(axes: Sequence[Axis], points: Iterable[Values]) -> list[Values]:
    """Return the points that no other point undercuts or equals on every axis, the cheapest of the first axis first.

    >>> undominated([Axis("ram", 0, 9), Axis("rate", 0, 9)], [(1, 5), (2, 5), (3, 2)])
    [(1, 5), (3, 2)]
    """
    signs = [1 if axis.high > axis.low else -1 for axis in axes]
    by_amount = {
        tuple(sign * value for sign, value in zip(signs, point, strict=True)): point for point in points
    }
    return [
        by_amount[amount]
        for amount in sorted(by_amount)
        if not any(
            other != amount and all(less <= more for less, more in zip(other, amount, strict=True))
            for other in by_amount
        )
    ]


def cost(axes: Sequence[Axis], point: Values) -> float | None:
    """Return the cost of a point's values together; None if no axis has a price."""
    if not any(axis.price for axis in axes):
        return None
    return sum(axis.price * value for axis, value in zip(axes, point, strict=True))
