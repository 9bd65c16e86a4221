# SPDX-License-Identifier: Apache-2.0
"""Bottlenecks of a job in its storage, and changes that meet a goal: seconds of I/O by process and class.

A table has a row per process and a column per class: reading and metadata of the origin (``GFS-READ``, ``GFS-META``)
and of the local tier (``LFS-READ``, ``LFS-META``), or any others. A job ends with its slowest process, so rows are
added up first and compared last: what speeds one up may make another the slowest. There is one table per cache rate,
the share of the data that the local tier holds.

An improvement is in percent of throughput, by class: ``+100`` halves its seconds, ``t * 100 / (100 + N)``. That is
linear in ``u = 100 / (100 + N)``, hence exact answers below without a search: what one class must gain
(:func:`sufficient`), what two must gain together (:func:`front`), which offers are the cheapest (:func:`choose`).
Without prices, ``storage_sets`` has the smallest sets of classes; ``storage_goal`` starts from a training goal.

A goal is met by seconds that exceed it by a rounding error alone, one part in 10^12: the same seconds, added in another
order, differ by less. All answers agree on that, so a goal met exactly is met in each.

Every answer is an optimistic bound: it takes scaling to be linear and classes to be independent. A NaN means that a
class was not measured, and is asked for by name when needed. Needs numpy only.

Source: Fukai et al., "Analyzing I/O Performance of a Hierarchical HPC Storage System for Distributed Deep Learning",
sections 4.3 and 4.4, where a factor of (4) is left out in print; front, offers and the inverse are ours.
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
    "Choice",
    "Choices",
    "Front",
    "Infeasible",
    "Offer",
    "Slowest",
    "at_rate",
    "best_rate",
    "choose",
    "front",
    "latest",
    "minimum_rate",
    "prune",
    "slowest",
    "sufficient",
    "totals",
]

CLASSES = ("GFS-READ", "GFS-META", "LFS-READ", "LFS-META")
"""Of the origin and of the local tier: time in reads, and in everything else."""

Floats = NDArray[np.float64]
_COMBINATIONS_MAX = 2_000_000
_CHUNK = 2**20
#: Of a goal: what a sum of its size may be off by rounding, and far more. Sums of doubles are off by 1e-16 a term.
_ROUNDING = 1e-12


class Slowest(NamedTuple):
    """The process that a job waits for."""

    seconds: float
    """Its total."""
    process: int
    """Its row; of equal ones the first."""
    bottleneck: int
    """Its largest class; of equal ones the first."""


class Offer(NamedTuple):
    """A possible improvement of one class."""

    improvement: float
    """Percent of throughput, above -100."""
    price: float
    """0 or more."""


class Choice(NamedTuple):
    """One way to meet a goal."""

    price: float
    """Of all offers and the cache together."""
    seconds: float
    """The slowest process with it."""
    rate: float
    """The cache rate."""
    improvement: tuple[float, ...]
    """Percent by class, of the offers alone."""


@dataclass(frozen=True)
class Choices:
    """Every way to meet a goal that no other one makes needless."""

    cheapest: Choice
    """Of equal prices the fastest."""
    front: tuple[Choice, ...]
    """By price: lowering any offer of one at its cache rate misses the goal."""


@dataclass(frozen=True)
class Infeasible:
    """Nothing on offer meets the goal. A value, not an error: it is what was asked."""

    goal: float
    """The goal, seconds."""
    best: float
    """The least that can be reached; approached, where an improvement may be without limit."""


def totals(seconds: ArrayLike, improvement: ArrayLike | None = None) -> Floats:
    """Seconds of each process with some classes improved.

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
    table = _table(seconds)
    added: Floats = table @ _scale(improvement, table.shape[1])
    return added


def slowest(seconds: ArrayLike, improvement: ArrayLike | None = None) -> Slowest:
    """The process that the job waits for, and its bottleneck. Arguments and errors are those of :func:`totals`.

    >>> measured = [[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]]
    >>> slowest(measured).process, slowest(measured, [0, 50, 0, 0]).process
    (0, 1)
    >>> CLASSES[slowest(measured, [0, 50, 0, 0]).bottleneck]
    'LFS-READ'
    """
    table = _table(seconds) * _scale(improvement, _table(seconds).shape[1])
    added = table.sum(axis=1)
    process = int(added.argmax())
    return Slowest(float(added[process]), process, int(table[process].argmax()))


def sufficient(
    seconds: ArrayLike, goal: float, classes: int | Sequence[int], improvement: ArrayLike | None = None
) -> float:
    """The least percent by which a class, or several by as much, must gain to meet a goal; infinite if none does.

    ``max over p of 100 (t[p] of the classes / (goal - the rest of p) - 1)``, at least 0: exact.

    Args:
        seconds: as in :func:`totals`.
        goal: seconds of the slowest process, > 0, finite.
        classes: column, or columns, counted from 0; each once.
        improvement: as in :func:`totals`, of the other classes; what it says of ``classes`` does not count.

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
    scaled = table * _scale(improvement, table.shape[1])
    part = table[:, chosen].sum(axis=1)
    room = goal - np.delete(scaled, chosen, axis=1).sum(axis=1)
    short = part > room + slack
    if np.any(short & (room <= slack)):
        return math.inf
    return float(np.max(100 * (part[short] / room[short] - 1), initial=0.0))


@dataclass(frozen=True)
class Front:
    """Gains that two classes need together, exactly: for each gain of the first the least of the second.

    Between neighbouring ``corners`` it is a straight line in ``100 / (100 + N)``.
    """

    corners: tuple[tuple[float, float], ...]
    """Gains of first and second in percent, by the first; the last one's second is the least there is. A gain may be
    infinite: it is approached.
    """

    def least(self, first: float) -> float:
        """The least gain of the second class at a gain of the first, percent, 0 or more; infinite where none does."""
        if math.isnan(first) or first < 0:
            raise ConfigError(f"first = {first!r}; percent expected, 0 or more")
        us = [_u(corner[0]) for corner in self.corners]
        vs = [_u(corner[1]) for corner in self.corners]
        u = _u(first)
        if u > us[0]:
            return math.inf
        for i in range(1, len(us)):
            if u >= us[i]:
                share = (us[i - 1] - u) / (us[i - 1] - us[i])
                return _percent(vs[i - 1] + share * (vs[i] - vs[i - 1]))
        return _percent(vs[-1])


def front(
    seconds: ArrayLike, goal: float, first: int, second: int, improvement: ArrayLike | None = None
) -> Front | Infeasible:
    """All least pairs of gains of two classes that meet a goal.

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
    scaled = table * _scale(improvement, table.shape[1])
    rest = np.delete(scaled, pair, axis=1).sum(axis=1)
    room = goal - rest
    a, b = table[:, first], table[:, second]
    binding = a + b > room + slack
    # Where nothing is left for the two, they must be gone, which gains only approach.
    if np.any((room < -slack) | (binding & (room <= slack))):
        return Infeasible(goal, float(rest.max()))
    if not binding.any():
        return Front(((0.0, 0.0),))
    lines = _outermost(a[binding] / room[binding], b[binding] / room[binding])
    corners = [(u, v) for u, v in _candidates(lines) if _allowed(lines, u, v)]
    kept = [one for one in corners if not any(_beats(other, one) for other in corners)]
    # The largest shares are the least gains.
    return Front(
        tuple((_percent(u), _percent(v)) for u, v in sorted(set(kept), key=lambda uv: (-uv[0], uv[1])))
    )


def prune(seconds: ArrayLike) -> NDArray[np.intp]:
    """Rows that may be the slowest under some improvement: no other one takes as long in every class.

    Of equal rows the first stays. Ascending. Arguments and errors are those of :func:`totals`.

    >>> prune([[1, 2], [1, 1], [2, 0], [1, 2]]).tolist()
    [0, 2]
    """
    table = _table(seconds)
    kept: list[int] = []
    # By descending totals a row can only be dominated by one before it.
    for row in np.lexsort((np.arange(len(table)), -table.sum(axis=1))):
        if not any(np.all(table[other] >= table[row]) for other in kept):
            kept.append(int(row))
    return np.array(sorted(kept), dtype=np.intp)


def best_rate(tables: Mapping[float, ArrayLike], improvement: ArrayLike | None = None) -> float:
    """The cache rate with the fastest slowest process; of equal ones the smallest.

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
    """The smallest measured cache rate that meets a goal; larger ones need not. As :func:`best_rate` else.

    >>> minimum_rate({0.0: [[3, 0]], 0.5: [[1, 1]], 1.0: [[0, 2]]}, 2.5)
    0.5
    """
    limit = latest(goal)
    times = _by_rate(tables, improvement)
    return min(
        (rate for rate in times if times[rate] <= limit), default=Infeasible(goal, min(times.values()))
    )


def at_rate(tables: Mapping[float, ArrayLike], rate: float) -> Floats:
    """The table at a rate between measured ones, linear in it: for a policy whose hit rate is not its cache rate.

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


def choose(
    tables: Mapping[float, ArrayLike],
    goal: float,
    offers: Mapping[int, Sequence[Offer]],
    *,
    improvement: ArrayLike | None = None,
    cache_prices: Mapping[float, float] | None = None,
) -> Choices | Infeasible:
    """The cheapest set of offers, one per class, and a cache rate that meet a goal; and all that none makes needless.

    Exact: every combination is tried, dominated offers and processes apart.

    Args:
        tables: seconds by cache rate, as :func:`totals` has them, with the same classes; at least one.
        goal: seconds of the slowest process, > 0, finite.
        offers: of a class (its column), what can be had for it; improvement 0 for nothing is always there.
        improvement: what is there before anything is bought, as in :func:`totals`; an offer's percent are of the
            throughput with it, so 50 % on 100 % is three times the measured one.
        cache_prices: of a cache rate, what its capacity costs; 0 where not given.

    Raises:
        ConfigError: an argument outside its range, or too many combinations.
        NotMeasured: a NaN among the seconds.

    >>> measured = [[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]]
    >>> meta = [Offer(50, 40), Offer(100, 90)]
    >>> read = [Offer(30, 50), Offer(50, 80), Offer(100, 150)]
    >>> [(way.price, way.improvement) for way in choose({0.5: measured}, 5.0, {1: meta, 2: read}).front]
    [(120.0, (0.0, 50.0, 50.0, 0.0)), (140.0, (0.0, 100.0, 30.0, 0.0))]
    """
    limit = latest(goal)
    if not tables:
        raise ConfigError("no table; one or more expected")
    prices = cache_prices or {}
    if faults := [
        f"cache price of {rate:g} = {price!r}; 0 or more expected"
        for rate, price in prices.items()
        if not 0 <= price < math.inf
    ]:
        raise ConfigError(faults)
    ways: list[Choice] = []
    best = math.inf
    for rate in sorted(tables):
        table = _table(tables[rate])
        table = table * _scale(improvement, table.shape[1])
        kinds = _offers(offers, table.shape[1])
        met, least = _combinations(table[prune(table)], limit, kinds)
        best = min(best, least)
        ways += [
            Choice(price + prices.get(rate, 0.0), seconds, rate, improvement)
            for price, seconds, improvement in met
        ]
    if not ways:
        return Infeasible(goal, best)
    ways.sort(key=lambda way: (way.price, way.seconds, way.rate))
    return Choices(ways[0], tuple(ways))


def _combinations(
    table: Floats, limit: float, kinds: list[list[Offer]]
) -> tuple[list[tuple[float, float, tuple[float, ...]]], float]:
    """Combinations within ``limit`` of which no part can be lowered; and the least seconds of any."""
    sizes = [len(kind) for kind in kinds]
    if math.prod(sizes) > _COMBINATIONS_MAX:
        raise ConfigError(
            f"{math.prod(sizes):,} combinations of offers; at most {_COMBINATIONS_MAX:,} expected"
        )
    times = np.empty(sizes)
    flat = times.reshape(-1)
    step = max(1, _CHUNK // len(table))
    scales = [np.array([_u(offer.improvement) for offer in kind]) for kind in kinds]
    for start in range(0, flat.size, step):
        at = np.unravel_index(np.arange(start, min(start + step, flat.size)), sizes)
        shares = np.stack([scale[index] for scale, index in zip(scales, at, strict=True)], axis=1)
        flat[start : start + step] = (shares @ table.T).max(axis=1)
    met = times <= limit
    needless = np.zeros_like(met)
    for axis, size in enumerate(sizes):  # offers rise along each axis, so one step lower tells
        if size > 1:
            lower = np.roll(met, 1, axis=axis)
            lower[tuple(0 if i == axis else slice(None) for i in range(len(sizes)))] = False
            needless |= lower
    ways = []
    for index in np.argwhere(met & ~needless):
        chosen = [kind[i] for kind, i in zip(kinds, index, strict=True)]
        price = float(sum(offer.price for offer in chosen))
        ways.append((price, float(times[tuple(index)]), tuple(float(offer.improvement) for offer in chosen)))
    return ways, float(times.min())


def _offers(offers: Mapping[int, Sequence[Offer]], classes: int) -> list[list[Offer]]:
    """Offers of each class by improvement, dominated ones left out: rising prices for rising improvements."""
    faults = [
        f"offers of class {key!r}; a column from 0 to {classes - 1} expected"
        for key in offers
        if key not in range(classes)
    ]
    kinds: list[list[Offer]] = []
    for column in range(classes):
        kept: list[Offer] = []
        for offer in sorted(
            [Offer(0.0, 0.0), *(Offer(*each) for each in offers.get(column, ()))],
            key=lambda each: (each.price, -each.improvement),
        ):
            if not -100 < offer.improvement < math.inf or not 0 <= offer.price < math.inf:
                faults.append(
                    f"offer of class {column}: {offer.improvement!r} % for {offer.price!r}; above -100 % for 0 or more "
                    "expected"
                )
            elif not kept or offer.improvement > kept[-1].improvement:
                kept.append(offer)
        kinds.append(kept)
    if faults:
        raise ConfigError(faults)
    return kinds


def _outermost(a: Floats, b: Floats) -> list[tuple[float, float]]:
    """Of the bounds ``a u + b v <= 1`` on shares u and v those that none, and no mixture of others, implies."""
    kept: list[tuple[float, float]] = []
    for x, y in sorted(set(zip(a.tolist(), b.tolist(), strict=True)), reverse=True):
        if kept and y <= kept[-1][1]:
            continue
        while len(kept) > 1 and _turns_in(kept[-2], kept[-1], (x, y)):
            kept.pop()
        kept.append((x, y))
    return kept


def _turns_in(one: tuple[float, float], middle: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether ``middle`` lies on or below the line between its neighbours, ``one`` being to the right."""
    return (middle[0] - one[0]) * (other[1] - one[1]) <= (middle[1] - one[1]) * (other[0] - one[0])


def _candidates(lines: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points at which the border of what is allowed may turn: shares of the first and the second, 0 to 1."""
    points = [(0.0, 1.0), (1.0, 0.0)]
    for (a, b), (c, d) in itertools.combinations([*lines, (1.0, 0.0), (0.0, 1.0)], 2):
        determinant = a * d - b * c
        if determinant != 0:
            points.append(((d - b) / determinant, (a - c) / determinant))
    for a, b in lines:  # where one of them has to be gone
        points += [(1 / a, 0.0)] if a > 0 else []
        points += [(0.0, 1 / b)] if b > 0 else []
    return [(u, v) for u, v in points if 0 <= u <= 1 and 0 <= v <= 1]


def _allowed(lines: list[tuple[float, float]], u: float, v: float) -> bool:
    return all(a * u + b * v <= 1 + 1e-12 for a, b in lines)


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether ``one`` needs no more of both, and less of one."""
    return one != other and one[0] >= other[0] and one[1] >= other[1]


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
        raise NotMeasured(f"{name} of process {process}", "take a log that tells it, or leave the class out")
    wrong = ~(np.isfinite(table) & (table >= 0))
    if wrong.any():
        process, column = (int(at) for at in np.argwhere(wrong)[0])
        raise ConfigError(
            f"seconds[{process}, {column}] = {table[process, column]}; 0 or more, finite, expected"
        )
    return table


def _scale(improvement: ArrayLike | None, classes: int) -> Floats:
    if improvement is None:
        return np.ones(classes)
    percent = np.asarray(improvement, dtype=np.float64)
    if percent.shape != (classes,):
        raise ConfigError(f"improvement has shape {percent.shape}; ({classes},) expected, percent by class")
    if not np.all(percent > -100):
        raise ConfigError(f"improvement = {percent.tolist()}; percent above -100 expected")
    scale: Floats = 100 / (100 + percent)
    return scale


def _columns(classes: int | Sequence[int], count: int) -> list[int]:
    chosen = [classes] if isinstance(classes, int) else list(classes)
    if not chosen or len(set(chosen)) != len(chosen) or any(column not in range(count) for column in chosen):
        raise ConfigError(f"classes = {classes!r}; columns from 0 to {count - 1} expected, each once")
    return chosen


def latest(goal: float) -> float:
    """The most seconds that still meet a goal: the goal and a rounding error.

    Raises:
        ConfigError: the goal is no time above 0.
    """
    if not 0 < goal < math.inf:
        raise ConfigError(f"goal = {goal!r}; seconds expected, above 0")
    return goal * (1 + _ROUNDING)


def _u(percent: float) -> float:
    """The share of its seconds that a class keeps."""
    return 100 / (100 + percent)


def _percent(u: float) -> float:
    return math.inf if u <= 0 else max(0.0, 100 / u - 100)
