# SPDX-License-Identifier: Apache-2.0
"""The cheapest purchases that meet a goal: offers of improvements by class, and capacity of the local tier.

Tables, improvements and goals are those of ``storage.model``, and so are the assumptions. The search is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foresee.errors import ConfigError
from foresee.storage.model import Floats, Infeasible, improved, latest, prune

__all__ = ["Choice", "Choices", "Offer", "choose"]

_COMBINATIONS_MAX = 2_000_000
_CHUNK = 2**20


class Offer(NamedTuple):
    """A possible improvement of one class."""

    improvement: float
    """Percent of throughput, above -100."""
    price: float
    """0 or more."""


class Choice(NamedTuple):
    """One way to meet a goal."""

    price: float
    """All offers and the cache together."""
    seconds: float
    """The slowest process with it."""
    rate: float
    """The cache rate."""
    improvement: tuple[float, ...]
    """Percent by class, of the offers alone."""


@dataclass(frozen=True)
class Choices:
    """All minimal choices that meet a goal."""

    cheapest: Choice
    """The fastest of equal prices."""
    front: tuple[Choice, ...]
    """By price; with any lower offer at its cache rate, a choice misses the goal."""


def choose(
    tables: Mapping[float, ArrayLike],
    goal: float,
    offers: Mapping[int, Sequence[Offer]],
    *,
    improvement: ArrayLike | None = None,
    cache_prices: Mapping[float, float] | None = None,
) -> Choices | Infeasible:
    """Choose the cheapest offers, at most one per class, and cache rate that meet a goal; also all other minimal ones.

    It is exact: every combination is tried, except dominated offers and processes.

    Args:
        tables: seconds by cache rate, as in ``storage.model``, with the same classes; at least one.
        goal: seconds of the slowest process, > 0, finite.
        offers: by column; no improvement for no price is always an offer.
        improvement: before any purchase; an offer's percent apply to the throughput with it, so 50 % on 100 % is three
            times the measured one.
        cache_prices: price of the capacity by cache rate; 0 by default.

    Raises:
        ConfigError: an argument outside its range, or too many combinations.
        NotMeasured: a NaN among the seconds.

    >>> measured = [[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]]
    >>> meta = [Offer(50, 40), Offer(100, 90)]
    >>> read = [Offer(30, 50), Offer(50, 80), Offer(100, 150)]
    >>> [(choice.price, choice.improvement) for choice in choose({0.5: measured}, 5.0, {1: meta, 2: read}).front]
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
    choices: list[Choice] = []
    best = math.inf
    for rate in sorted(tables):
        table = improved(tables[rate], improvement)
        by_class = _undominated_offers(offers, table.shape[1])
        found, least = _combinations(table[prune(table)], limit, by_class, rate, prices.get(rate, 0.0))
        best = min(best, least)
        choices += found
    if not choices:
        return Infeasible(goal, best)
    choices.sort(key=lambda choice: (choice.price, choice.seconds, choice.rate))
    return Choices(choices[0], tuple(choices))


def _combinations(
    table: Floats, limit: float, by_class: list[list[Offer]], rate: float, cache_price: float
) -> tuple[list[Choice], float]:
    """Return the minimal combinations within ``limit``, and the least seconds of any combination."""
    sizes = [len(offers) for offers in by_class]
    if math.prod(sizes) > _COMBINATIONS_MAX:
        raise ConfigError(
            f"{math.prod(sizes):,} combinations of offers; at most {_COMBINATIONS_MAX:,} expected"
        )
    times = np.empty(sizes)
    flat = times.reshape(-1)
    step = max(1, _CHUNK // len(table))
    scales = [np.array([100 / (100 + offer.improvement) for offer in offers]) for offers in by_class]
    for start in range(0, flat.size, step):
        at = np.unravel_index(np.arange(start, min(start + step, flat.size)), sizes)
        shares = np.stack([scale[index] for scale, index in zip(scales, at, strict=True)], axis=1)
        flat[start : start + step] = (shares @ table.T).max(axis=1)
    met = times <= limit
    is_minimal = met.copy()
    for axis, size in enumerate(sizes):  # offers rise along each axis, so the next lower one decides
        if size > 1:
            lower = np.roll(met, 1, axis=axis)
            lower[tuple(0 if i == axis else slice(None) for i in range(len(sizes)))] = False
            is_minimal &= ~lower
    choices = []
    for index in np.argwhere(is_minimal):
        chosen = [offers[i] for offers, i in zip(by_class, index, strict=True)]
        price = float(sum(offer.price for offer in chosen)) + cache_price
        improvement = tuple(float(offer.improvement) for offer in chosen)
        choices.append(Choice(price, float(times[tuple(index)]), rate, improvement))
    return choices, float(times.min())


def _undominated_offers(offers: Mapping[int, Sequence[Offer]], classes: int) -> list[list[Offer]]:
    """Return the undominated offers of each class, by rising improvement and price."""
    faults = [
        f"offers of class {key!r}; a column from 0 to {classes - 1} expected"
        for key in offers
        if key not in range(classes)
    ]
    by_class: list[list[Offer]] = []
    for column in range(classes):
        undominated: list[Offer] = []
        for offer in sorted(
            [Offer(0.0, 0.0), *(Offer(*each) for each in offers.get(column, ()))],
            key=lambda each: (each.price, -each.improvement),
        ):
            if not -100 < offer.improvement < math.inf or not 0 <= offer.price < math.inf:
                faults.append(
                    f"offer of class {column}: {offer.improvement!r} % for {offer.price!r}; above -100 % for 0 or more "
                    "expected"
                )
            elif not undominated or offer.improvement > undominated[-1].improvement:
                undominated.append(offer)
        by_class.append(undominated)
    if faults:
        raise ConfigError(faults)
    return by_class
