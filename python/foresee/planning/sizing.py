# SPDX-License-Identifier: Apache-2.0
"""Search for the smallest values that meet a goal, along one axis or several, and their costs.

Every axis goes from its cheapest end to its dearest, in notches. At each combination of coarse notches of all axes but
the last, halving finds the least value of the last axis, and then that of each other axis, so that no axis of a point
could have a notch less. Points that another one undercuts on every axis are left out. The caller decides whether a
point meets the goal; in ``foresee size`` that is the simulator.

Halving assumes that more of an axis is no worse. This holds for placement by next use with samples of one size; with
other policies a smaller value might meet the goal too. Each returned point meets it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from foresee.errors import ConfigError

__all__ = ["Axis", "Values", "cells", "cost", "least", "questions", "tight", "undominated"]

Values: TypeAlias = tuple[float, ...]
"""One value of each axis."""

#: Notches of the axis that is halved: seven questions find one in 1 % of its length.
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
    """Of 1, 0 or more."""
    whole: bool = False
    """Whether only whole numbers are."""

    def __post_init__(self) -> None:
        faults = []
        if self.low == self.high:
            faults.append(f"{self.name}: both ends are {self.low:g}; two values expected")
        if not self.price >= 0:
            faults.append(f"{self.name}: price {self.price:g}; 0 or more expected")
        if faults:
            raise ConfigError(faults)

    def notches(self, count: int) -> list[float]:
        """Values from end to end, both among them: ``count + 1``, or fewer where whole numbers lie no closer."""
        span = self.high - self.low
        if self.whole:
            count = min(count, round(abs(span)))
            return [self.low + round(span * at / count) for at in range(count + 1)]
        return [self.low + span * at / count for at in range(count)] + [self.high]


def cells(axes: Sequence[Axis], steps: int) -> list[Values]:
    """All combinations of ``steps + 1`` notches of all axes but the last, the cheapest first; of one, an empty one."""
    return list(itertools.product(*(axis.notches(steps) for axis in axes[:-1])))


def least(axis: Axis, meets: Callable[[float], bool]) -> float | None:
    """The first notch of ``axis`` that meets the goal, by halving; None if its dearest end does not.

    >>> least(Axis("ram", 0, 128), lambda size: size >= 40)
    40.0
    """
    *notches, last = axis.notches(_FINE)
    return _halved(notches, last, meets) if meets(last) else None


def tight(axes: Sequence[Axis], point: Values, meets: Callable[[Values], bool]) -> Values:
    """A point that meets the goal with the least of each axis but the last, one after the other; the last is the least.

    An axis that was made less stays the least while others become less, as more of any is no worse.

    >>> tight([Axis("ram", 0, 128), Axis("rate", 0, 128)], (64, 40), lambda at: at[0] >= 50 and at[1] >= 40)
    (50.0, 40)
    """
    found = list(point)
    for place, axis in enumerate(axes[:-1]):

        def there(number: float, place: int = place) -> bool:
            return meets((*found[:place], number, *found[place + 1 :]))

        found[place] = _halved(_cheaper(axis, found[place]), found[place], there)
    return tuple(found)


def _cheaper(axis: Axis, value: float) -> list[float]:
    """The notches that cost less than a value."""
    return [notch for notch in axis.notches(_FINE) if abs(notch - axis.low) < abs(value - axis.low)]


def _halved(notches: Sequence[float], holds: float, meets: Callable[[float], bool]) -> float:
    """The first of ``notches`` that meets the goal; ``holds``, which is known to, if none does."""
    fails, at = -1, len(notches)
    while at - fails > 1:
        middle = (fails + at) // 2
        if meets(notches[middle]):
            at = middle
        else:
            fails = middle
    return notches[at] if at < len(notches) else holds


def questions(axes: Sequence[Axis], steps: int) -> int:
    """Return the largest number of queries of :func:`least` and :func:`tight`, over all :func:`cells`."""
    each = [len(axis.notches(_FINE)).bit_length() for axis in axes]
    return len(cells(axes, steps)) * (sum(each) + 1)


def undominated(axes: Sequence[Axis], points: Iterable[Values]) -> list[Values]:
    """Those of which no other asks for less or as much on every axis, the cheapest of the first axis first.

    >>> undominated([Axis("ram", 0, 9), Axis("rate", 0, 9)], [(1, 5), (2, 5), (3, 2)])
    [(1, 5), (3, 2)]
    """
    ways = [1 if axis.high > axis.low else -1 for axis in axes]
    asked = {tuple(way * value for way, value in zip(ways, point, strict=True)): point for point in points}
    kept = [
        mine
        for mine in asked
        if not any(
            other != mine and all(less <= more for less, more in zip(other, mine, strict=True))
            for other in asked
        )
    ]
    return [asked[mine] for mine in sorted(kept)]


def cost(axes: Sequence[Axis], point: Values) -> float | None:
    """Return the cost of a point's values together; None if no axis has a price."""
    if not any(axis.price for axis in axes):
        return None
    return sum(axis.price * value for axis, value in zip(axes, point, strict=True))
