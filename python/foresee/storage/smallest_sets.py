# SPDX-License-Identifier: Apache-2.0
"""The smallest sets of classes that would have to gain for a goal to be met, without prices.

The closed form of ``storage.model`` answers for one given set. This module compares sets: fewer classes first, then the
least gain. ``storage.choose`` compares them by price. Every class of a set gains by the same amount, which is the least
value of the largest gain in the set; ``storage.front`` has all combinations of two classes. The effort of a gain is not
considered.

It is an optimistic bound, as all of ``storage``. Source: the closed form of Fukai et al. (see there), inverted; ours.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foresee.errors import ConfigError
from foresee.storage import model

__all__ = ["CLASSES_MAX", "Gains", "contributing", "smallest"]

CLASSES_MAX = 12
"""Of classes that took any time: all 4,095 sets of so many are tried in a fraction of a second."""

_SMALLER = 1 - 1e-9
"""A gain that is less by rounding alone does not make a set with one more class worth it."""


class Gains(NamedTuple):
    """One set that meets a goal, and by which no class of it is needless."""

    classes: tuple[int, ...]
    """Columns, ascending, one or more."""
    improvement: float
    """Percent of throughput by which each of them has to gain; above 0, finite."""


def contributing(seconds: ArrayLike) -> list[int]:
    """Columns in which any process spent any time: a gain of another one changes nothing.

    Arguments and errors are those of :func:`foresee.storage.model.totals`.
    """
    model.totals(seconds)
    return [int(column) for column in np.flatnonzero(np.asarray(seconds, dtype=np.float64).any(axis=0))]


def smallest(seconds: ArrayLike, goal: float, improvement: ArrayLike | None = None) -> list[Gains]:
    """Sets of classes whose gain meets a goal: fewest classes first, of as many the least gain first.

    Every set is tried by :func:`foresee.storage.model.sufficient`. One is left out if some of its classes alone need
    to gain no more, so a larger set is there only for its smaller gain.

    Args:
        seconds: as in :func:`foresee.storage.model.totals`.
        goal: seconds of the slowest process, > 0, finite.
        improvement: as in ``sufficient``: of the classes outside a set; a set's own gain counts from ``seconds``.

    Returns:
        Empty if the goal is met already, and only then: all classes together always meet it, though perhaps by an
        unrealistic gain.

    Raises:
        ConfigError: an argument outside its range, or more than ``CLASSES_MAX`` classes that took any time.
        NotMeasured: a NaN among ``seconds``.

    >>> measured = [[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]]
    >>> [(found.classes, round(found.improvement, 3)) for found in smallest(measured, 5.5)][:3]
    [((2,), 100.0), ((1,), 900.0), ((1, 2), 25.0)]
    """
    classes = contributing(seconds)
    if len(classes) > CLASSES_MAX:
        raise ConfigError(
            f"{len(classes)} classes that took any time; at most {CLASSES_MAX} expected, leave the smallest out"
        )
    met = model.slowest(seconds, improvement).seconds <= model.latest(goal)
    least: dict[tuple[int, ...], float] = {(): 0.0 if met else math.inf}
    found = []
    for count in range(1, len(classes) + 1):
        for chosen in itertools.combinations(classes, count):
            need = model.sufficient(seconds, goal, chosen, improvement)
            part = min(least[chosen[:at] + chosen[at + 1 :]] for at in range(count))
            if need < part * _SMALLER:
                found.append(Gains(chosen, need))
            least[chosen] = min(need, part)
    return sorted(found, key=lambda each: (len(each.classes), each.improvement, each.classes))
