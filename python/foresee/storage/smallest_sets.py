# SPDX-License-Identifier: Apache-2.0
"""The smallest sets of classes whose gain meets a goal, without prices.

``storage.model`` answers for one given set. This module orders sets by the number of classes, then by the least gain.
Every class of a set gains by the same amount, which is the least value of the largest gain in the set.

The answers are optimistic bounds, as in ``storage.model``. Source: the closed form of Fukai et al., inverted; ours.
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
"""Classes with any seconds: all 4,095 sets of 12 classes take a fraction of a second."""

_SMALLER = 1 - 1e-9
"""A gain that is less by rounding alone does not justify one more class."""


class Gains(NamedTuple):
    """A minimal set of classes that meets a goal."""

    classes: tuple[int, ...]
    """Columns, ascending, one or more."""
    improvement: float
    """Percent of throughput that each of them has to gain; above 0, finite."""


def contributing(seconds: ArrayLike) -> list[int]:
    """Return the columns with any seconds: a gain of another class changes nothing.

    Arguments and errors are those of :func:`foresee.storage.model.totals`.
    """
    model.totals(seconds)
    return [int(column) for column in np.flatnonzero(np.asarray(seconds, dtype=np.float64).any(axis=0))]


def smallest(seconds: ArrayLike, goal: float, improvement: ArrayLike | None = None) -> list[Gains]:
    """Return the sets of classes whose gain meets a goal, ordered by the number of classes, then by the gain.

    Every set is tried by :func:`foresee.storage.model.sufficient`. A set is left out if some of its classes alone need
    no larger gain.

    Args:
        seconds: as in :func:`foresee.storage.model.totals`.
        goal: seconds of the slowest process, > 0, finite.
        improvement: of the classes outside a set, as in ``sufficient``; a set's own gain counts from ``seconds``.

    Returns:
        The sets; empty only if the goal is met already, since all classes together can always meet it.

    Raises:
        ConfigError: an argument outside its range, or more than ``CLASSES_MAX`` classes with any seconds.
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
