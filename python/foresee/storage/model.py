# SPDX-License-Identifier: Apache-2.0
"""Bottlenecks of a job in its storage, and changes that meet a goal: seconds of I/O by process and class.

A table has a row per process and a column per class: reading and metadata of the origin (``GFS-READ``, ``GFS-META``)
and of the local tier (``LFS-READ``, ``LFS-META``), or others. There is one table per cache rate, the share of the data
in the local tier. A job ends with its slowest process, and another process may become the slowest after a change.

An improvement is in percent of throughput, by class: ``+100`` halves its seconds, ``t * 100 / (100 + N)``. That is
linear in ``u = 100 / (100 + N)``, so :func:`sufficient` (one class) and :func:`front` (two classes) are exact.

Seconds may exceed a goal by one part in 10^12, more than rounding: a goal that is met exactly is met in every answer.
Every answer is an optimistic bound, because scaling is assumed to be linear and classes to be independent. NaN means
that a class was not measured.

Source: Fukai et al., "Analyzing I/O Performance of a Hierarchical HPC Storage System for Distributed Deep Learning",
sections 4.3 and 4.4, where a factor of (4) is missing in print; front and the inverse are ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foresee.errors import ConfigError, NotMeasured

__all__ = [
    "CLASSES",
    "Floats",
    "Front",
    "Infeasible",
    "Slowest",
    "at_rate",
    "best_rate",
    "front",
    "improved",
    "latest",
    "minimum_rate",
    "prune",
    "slowest",
    "sufficient",
    "totals",
]

CLASSES = ("GFS-READ", "GFS-META", "LFS-READ", "LFS-META")
"""Reads and all other operations of the origin and of the local tier."""

Floats = NDArray[np.float64]
#: Share of a goal above the rounding errors of its sums, which are 1e-16 per term.
_ROUNDING = 1e-12


class Slowest(NamedTuple):
    """The process that a job waits for."""

    seconds: float
    """Its total."""
    process: int
    """Its row; the first of equal ones."""
    bottleneck: int
    """Its largest class; the first of equal ones."""


@dataclass(frozen=True)
class Infeasible:
    """Nothing meets the goal. A value, not an error: it is an answer."""

    goal: float
    """The goal, seconds."""
    best: float
    """The least seconds; a limit if improvements are unlimited."""


def totals(seconds: ArrayLike, improvement: ArrayLike | None = None) -> Floats:
    """Return the seconds of each process with some classes improved.

    Args:
        seconds: shape (processes, classes), >= 0, finite. Read only.
        improvement: shape (classes,), percent of throughput, above -100; None: as measured.

    Raises:
        ConfigError: a shape or a value outside the above; the message shows it.
        NotMeasured: a NaN among ``seconds``.

    >>> measured = [[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]]
    >>> totals(measured, [0, 50, 0, 0]).round(6).tolist()
    [5.5, 6.066667, 5.533333]
    """
    sums: Floats = improved(seconds, improvement).sum(axis=1)
    return sums


def improved(seconds: ArrayLike, improvement: ArrayLike | None = None) -> Floats:
    """Return the table with some classes improved. Arguments and errors are those of :func:`totals`."""
    table = _table(seconds)
    if improvement is None:
        return table
    percent = np.asarray(improvement, dtype=np.float64)
    classes = table.shape[1]
    if percent.shape != (classes,):
        raise ConfigError(f"improvement has shape {percent.shape}; ({classes},) expected, percent by class")
    if not np.all(percent > -100):
        raise ConfigError(f"improvement = {percent.tolist()}; percent above -100 expected")
    scaled: Floats = table * (100 / (100 + percent))
    return scaled


def slowest(seconds: ArrayLike, improvement: ArrayLike | None = None) -> Slowest:
    """Return the process that the job waits for. Arguments and errors are those of :func:`totals`.

    >>> measured = [[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]]
    >>> slowest(measured).process, slowest(measured, [0, 50, 0, 0]).process
    (0, 1)
    >>> CLASSES[slowest(measured, [0, 50, 0, 0]).bottleneck]
    'LFS-READ'
    """
    table = improved(seconds, improvement)
    sums = table.sum(axis=1)
    process = int(sums.argmax())
    return Slowest(float(sums[process]), process, int(table[process].argmax()))


def sufficient(
    seconds: ArrayLike, goal: float, classes: int | Sequence[int], improvement: ArrayLike | None = None
) -> float:
    """Return the least percent that one class, or several equally, must gain to meet a goal; infinite if none suffices.

    It is exact: ``max over p of 100 (t[p] of the classes / (goal - the rest of p) - 1)``, at least 0.

    Args:
        seconds: as in :func:`totals`.
        goal: seconds of the slowest process, > 0, finite.
        classes: one column or several distinct ones, from 0.
        improvement: as in :func:`totals`; its values for ``classes`` are ignored.

    Raises:
        ConfigError: an argument outside its range.
        NotMeasured: a NaN among ``seconds``.

    >>> measured = [[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]]
    >>> round(sufficient(measured, 5.5, CLASSES.index("LFS-READ")), 9)
    100.0
    """
    table = _table(seconds)
    chosen = _columns(classes, table.shape[1])
    slack = latest(goal) - goal
    scaled = improved(seconds, improvement)
    part = table[:, chosen].sum(axis=1)
    budget = goal - np.delete(scaled, chosen, axis=1).sum(axis=1)
    exceeds = part > budget + slack
    if np.any(exceeds & (budget <= slack)):
        return math.inf
    return float(np.max(100 * (part[exceeds] / budget[exceeds] - 1), initial=0.0))


@dataclass(frozen=True)
class Front:
    """The least gain of a second class for each gain of a first one, exactly.

    Neighbouring ``corners`` are connected by a straight line in ``100 / (100 + N)``.
    """

    corners: tuple[tuple[float, float], ...]
    """Gains of the first and second class in percent, ordered by the first. An infinite gain is a limit."""

    def least(self, first: float) -> float:
        """Return the least gain of the second class at a gain of the first, percent, >= 0; it may be infinite."""
        if math.isnan(first) or first < 0:
            raise ConfigError(f"first = {first!r}; percent expected, 0 or more")
        us = [_u(corner[0]) for corner in self.corners]
        vs = [_u(corner[1]) for corner in self.corners]
        u = _u(first)
        return math.inf if u > us[0] else _percent(float(np.interp(u, us[::-1], vs[::-1])))


def front(
    seconds: ArrayLike, goal: float, first: int, second: int, improvement: ArrayLike | None = None
) -> Front | Infeasible:
    """Return all least pairs of gains of two classes that meet a goal.

    Args:
        seconds: as in :func:`totals`.
        goal: seconds of the slowest process, > 0, finite.
        first: a column.
        second: another column.
        improvement: of the other classes, as in :func:`sufficient`.

    Raises:
        ConfigError: an argument outside its range.
        NotMeasured: a NaN among ``seconds``.

    >>> measured = [[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]]
    >>> pairs = front(measured, 5.0, CLASSES.index("GFS-META"), CLASSES.index("LFS-READ"))
    >>> [round(pairs.least(gain), 3) for gain in (0, 20, 40, 50, 60, 80, 100, 200)]
    [300.0, 100.0, 47.368, 36.364, 29.496, 26.959, 25.0, 19.469]
    """
    table = _table(seconds)
    if first == second:
        raise ConfigError(f"first = second = {first}; two classes expected")
    pair = _columns([first, second], table.shape[1])
    slack = latest(goal) - goal
    scaled = improved(seconds, improvement)
    rest = np.delete(scaled, pair, axis=1).sum(axis=1)
    budget = goal - rest
    a, b = table[:, first], table[:, second]
    binding = a + b > budget + slack
    # Without a budget for the two classes only infinite gains would do.
    if np.any((budget < -slack) | (binding & (budget <= slack))):
        return Infeasible(goal, float(rest.max()))
    if not binding.any():
        return Front(((0.0, 0.0),))
    lines = _outermost(a[binding] / budget[binding], b[binding] / budget[binding])
    corners = {(u, v) for u, v in _candidates(lines) if all(a * u + b * v <= 1 + _ROUNDING for a, b in lines)}
    # The largest shares are the least gains. A corner with less of both is dominated.
    minimal = [
        (u, v)
        for u, v in sorted(corners, key=lambda corner: (-corner[0], corner[1]))
        if not any((u, v) != other and other[0] >= u and other[1] >= v for other in corners)
    ]
    return Front(tuple((_percent(u), _percent(v)) for u, v in minimal))


def prune(seconds: ArrayLike) -> NDArray[np.intp]:
    """Return the rows that may be the slowest under some improvement, ascending; of equal rows the first.

    No other row takes as long in every class. Arguments and errors are those of :func:`totals`.

    >>> prune([[1, 2], [1, 1], [2, 0], [1, 2]]).tolist()
    [0, 2]
    """
    table = _table(seconds)
    rows: list[int] = []
    # In the order of descending totals, only an earlier row can dominate a row.
    for row in np.lexsort((np.arange(len(table)), -table.sum(axis=1))):
        if not any(np.all(table[other] >= table[row]) for other in rows):
            rows.append(int(row))
    return np.array(sorted(rows), dtype=np.intp)


def best_rate(tables: Mapping[float, ArrayLike], improvement: ArrayLike | None = None) -> float:
    """Return the cache rate with the fastest slowest process; the smallest of equal ones.

    Args:
        tables: seconds by cache rate; at least one.
        improvement: as in :func:`totals`.

    Raises:
        ConfigError: no table, or one outside the ranges of :func:`totals`.
        NotMeasured: a NaN among the seconds.

    >>> best_rate({0.0: [[3, 0]], 0.5: [[1, 1]], 1.0: [[0, 2]]})
    0.5
    """
    times = _by_rate(tables, improvement)
    return min(times, key=lambda rate: (times[rate], rate))


def minimum_rate(
    tables: Mapping[float, ArrayLike], goal: float, improvement: ArrayLike | None = None
) -> float | Infeasible:
    """Return the smallest measured cache rate that meets a goal; larger ones may miss it. Errors: :func:`best_rate`.

    >>> minimum_rate({0.0: [[3, 0]], 0.5: [[1, 1]], 1.0: [[0, 2]]}, 2.5)
    0.5
    """
    limit = latest(goal)
    times = _by_rate(tables, improvement)
    return min(
        (rate for rate in times if times[rate] <= limit), default=Infeasible(goal, min(times.values()))
    )


def at_rate(tables: Mapping[float, ArrayLike], rate: float) -> Floats:
    """Interpolate the table at a rate between measured ones, for a policy whose hit rate is not its cache rate.

    Raises:
        ConfigError: no table, tables of several shapes, or a rate outside the measured ones.
        NotMeasured: a NaN among the seconds.

    >>> at_rate({0.0: [[4, 0]], 1.0: [[0, 2]]}, 0.75).tolist()
    [[1.0, 1.5]]
    """
    read = {at: _table(tables[at]) for at in sorted(tables)}
    if not read or len({table.shape for table in read.values()}) != 1:
        raise ConfigError(f"{len(read)} tables; one or more of one shape expected")
    rates = list(read)
    if math.isnan(rate) or not rates[0] <= rate <= rates[-1]:
        raise ConfigError(f"rate = {rate!r}; measured are {rates[0]:g} to {rates[-1]:g}")
    for low, high in itertools.pairwise(rates):
        if rate < high:
            share = (rate - low) / (high - low)
            between: Floats = (1 - share) * read[low] + share * read[high]
            return between
    return read[rates[-1]]


def _outermost(a: Floats, b: Floats) -> list[tuple[float, float]]:
    """Return the bounds ``a u + b v <= 1`` on shares u and v that no combination of others implies: a convex hull."""
    hull: list[tuple[float, float]] = []
    for x, y in sorted(set(zip(a.tolist(), b.tolist(), strict=True)), reverse=True):
        if hull and y <= hull[-1][1]:
            continue
        while len(hull) > 1 and _is_below(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    return hull


def _is_below(right: tuple[float, float], middle: tuple[float, float], left: tuple[float, float]) -> bool:
    """Return whether ``middle`` is on or below the line between its neighbours."""
    return (middle[0] - right[0]) * (left[1] - right[1]) <= (middle[1] - right[1]) * (left[0] - right[0])


def _candidates(lines: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the possible corners of the feasible region: shares of the first and the second class, 0 to 1."""
    points = [(0.0, 1.0), (1.0, 0.0)]
    for (a, b), (c, d) in itertools.combinations([*lines, (1.0, 0.0), (0.0, 1.0)], 2):
        determinant = a * d - b * c
        if determinant != 0:
            points.append(((d - b) / determinant, (a - c) / determinant))
    for a, b in lines:  # where the share of one class is 0
        points += [(1 / a, 0.0)] if a > 0 else []
        points += [(0.0, 1 / b)] if b > 0 else []
    return [(u, v) for u, v in points if 0 <= u <= 1 and 0 <= v <= 1]


def _by_rate(tables: Mapping[float, ArrayLike], improvement: ArrayLike | None) -> dict[float, float]:
    if not tables:
        raise ConfigError("no table; one or more expected")
    return {rate: slowest(table, improvement).seconds for rate, table in tables.items()}


def _table(seconds: ArrayLike) -> Floats:
    table = np.asarray(seconds, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise ConfigError(
            f"seconds has shape {table.shape}; (processes, classes) expected, one or more of each"
        )
    if np.isnan(table).any():
        process, column = (int(at) for at in np.argwhere(np.isnan(table))[0])
        name = CLASSES[column] if table.shape[1] == len(CLASSES) else f"class {column}"
        raise NotMeasured(f"{name} of process {process}", "take a log that has it, or leave the class out")
    wrong = ~(np.isfinite(table) & (table >= 0))
    if wrong.any():
        process, column = (int(at) for at in np.argwhere(wrong)[0])
        raise ConfigError(
            f"seconds[{process}, {column}] = {table[process, column]}; 0 or more, finite, expected"
        )
    return table


def _columns(classes: int | Sequence[int], count: int) -> list[int]:
    chosen = [classes] if isinstance(classes, int) else list(classes)
    if not chosen or len(set(chosen)) != len(chosen) or any(column not in range(count) for column in chosen):
        raise ConfigError(f"classes = {classes!r}; columns from 0 to {count - 1} expected, each once")
    return chosen


def latest(goal: float) -> float:
    """Return the most seconds that still meet a goal: the goal and a rounding error.

    Raises:
        ConfigError: the goal is no time above 0.
    """
    if not 0 < goal < math.inf:
        raise ConfigError(f"goal = {goal!r}; seconds expected, above 0")
    return goal * (1 + _ROUNDING)


def _u(percent: float) -> float:
    """Return the share of a class's seconds that remains."""
    return 100 / (100 + percent)


def _percent(u: float) -> float:
    return math.inf if u <= 0 else max(0.0, 100 / u - 100)
