# SPDX-License-Identifier: Apache-2.0
"""Answers from a job's tables, as plain values: slowest processes, what-if, changes that meet a goal.

Between the tables, which know processes and classes by name, and ``foresee.storage.model``, which knows numbers. Null
stands for what was not measured, and for a gain without limit. Everything that is printed or drawn comes from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.errors import NotMeasured
from foresee.storage import model, smallest_sets
from foresee.storage.analysis.offers import Offers
from foresee.storage.analysis.table import IoTable

__all__ = ["Question", "answer", "measured", "slowest"]

_BOUND = "improvements are taken to be linear and classes independent: an optimistic bound"
_MANY = f"more than {smallest_sets.CLASSES_MAX} classes took any time: too many to find the sets that meet the goal"


@dataclass(frozen=True)
class Question:
    """The questions to the tables."""

    change: Sequence[float] | None = None
    """Percent of throughput by class; offers are bought on top of it."""
    goal: float | None = None
    """Seconds of the slowest process, > 0."""
    pair: tuple[str, str] | None = None
    """Two classes that may gain together to meet the goal."""
    offers: Offers | None = None
    """Offers that could meet it."""


def answer(tables: Mapping[float, IoTable], question: Question) -> dict[str, Any]:
    """The answers, in seconds and percent.

    Args:
        tables: by cache rate, with the same classes; at least one.
        question: what is asked.

    Raises:
        ConfigError: a class that the tables do not have.
        NotMeasured: the question needs figures that the tables do not have.
    """
    change, goal = question.change, question.goal
    if change is not None or goal is not None:
        measured(tables)
    classes = next(iter(tables.values())).classes
    toward = None if goal is None else _toward(tables, goal, question)
    limits = list(dict.fromkeys(limit for table in tables.values() for limit in table.limits))
    if toward is not None and toward["sets"] is None:
        limits.append(_MANY)
    if change is not None or goal is not None:
        limits.append(_BOUND)
    return {
        "classes": list(classes),
        "what_if": None if change is None else dict(zip(classes, change, strict=True)),
        "tables": [_of_rate(rate, table, change) for rate, table in tables.items()],
        "best_rate": _best(tables, change) if len(tables) > 1 else None,
        "goal": toward,
        "limits": limits,
    }


def _of_rate(rate: float, table: IoTable, change: Sequence[float] | None) -> dict[str, Any]:
    sums = np.nansum(table.seconds, axis=0)
    untold = {table.classes[at]: table.shared[at] + float(sums[at]) for at in _untold(table)}
    return {
        "rate": rate,
        "processes": list(table.processes),
        "seconds": _rows(table.seconds),
        "totals": _cells(table.seconds.sum(axis=1)),
        "sums": {name: float(sums[at]) for at, name in enumerate(table.classes) if name not in untold},
        "sums_of_all_ranks": untold,
        "slowest": slowest(table, None),
        "what_if": None if change is None else _changed(table, change),
    }


def _changed(table: IoTable, change: Sequence[float]) -> dict[str, Any]:
    """The slowest process with the changes, and every one's seconds, in the order of the table."""
    told = slowest(table, change)
    assert told is not None, "a change is asked of measured tables only"
    seconds = table.seconds * _shares(change)
    return {**told, "seconds_by_process": _rows(seconds), "totals": _cells(seconds.sum(axis=1))}


def _shares(change: Sequence[float]) -> NDArray[np.float64]:
    """Of each class the share of its seconds that a change leaves."""
    shares: NDArray[np.float64] = 100 / (100 + np.asarray(change, dtype=np.float64))
    return shares


def _rows(seconds: NDArray[np.float64]) -> list[list[float | None]]:
    return [_cells(row) for row in seconds]


def _cells(seconds: NDArray[np.float64]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in seconds.tolist()]


def slowest(table: IoTable, change: Sequence[float] | None = None) -> dict[str, Any] | None:
    """The process that a job waits for, with its seconds by class; None where not all of them were measured."""
    if not table.known:
        return None
    told = model.slowest(table.seconds, change)
    row = table.seconds[told.process]
    spent = (row if change is None else row * _shares(change)).tolist()
    return {
        "process": table.processes[told.process],
        "seconds": told.seconds,
        "by_class": dict(zip(table.classes, spent, strict=True)),
        "bottleneck": table.classes[told.bottleneck],
    }


def _best(tables: Mapping[float, IoTable], change: Sequence[float] | None) -> float | None:
    if not all(table.known for table in tables.values()):
        return None
    return model.best_rate({rate: table.seconds for rate, table in tables.items()}, change)


def _toward(tables: Mapping[float, IoTable], goal: float, question: Question) -> dict[str, Any]:
    """Return the changes that would meet the goal."""
    change = question.change
    seconds = {rate: table.seconds for rate, table in tables.items()}
    least = model.minimum_rate(seconds, goal, change)
    reached = not isinstance(least, model.Infeasible)
    facts: dict[str, Any] = {
        "seconds": goal,
        "met": reached,
        "minimum_rate": least if reached else None,
        "best": min(model.slowest(table, change).seconds for table in seconds.values()),
        "alone": [
            {
                "rate": rate,
                "percent": {
                    name: _finite(model.sufficient(table.seconds, goal, at, change))
                    for at, name in enumerate(table.classes)
                },
            }
            for rate, table in tables.items()
        ],
        "sets": [] if reached else _sets(tables, goal, change),
        "pair": None,
        "offers": None,
    }
    if question.pair is not None:
        facts["pair"] = [_pair(rate, table, change, goal, question.pair) for rate, table in tables.items()]
    if question.offers is not None:
        facts["offers"] = _offered(tables, goal, question.offers, change)
        facts["met"] = reached or "cheapest" in facts["offers"]
    return facts


def _sets(
    tables: Mapping[float, IoTable], goal: float, change: Sequence[float] | None
) -> list[dict[str, Any]] | None:
    """Sets of classes that meet the goal at some rate, fewest first, then the least gain; None: too many to try."""
    if any(
        len(smallest_sets.contributing(table.seconds)) > smallest_sets.CLASSES_MAX
        for table in tables.values()
    ):
        return None
    found = [
        {"rate": rate, "percent": {table.classes[at]: each.improvement for at in each.classes}}
        for rate, table in tables.items()
        for each in smallest_sets.smallest(table.seconds, goal, change)
    ]
    return sorted(found, key=lambda each: (len(each["percent"]), max(each["percent"].values()), each["rate"]))


def _pair(
    rate: float, table: IoTable, change: Sequence[float] | None, goal: float, names: Sequence[str]
) -> dict[str, Any]:
    first, second = (table.column(name) for name in names)
    told = model.front(table.seconds, goal, first, second, change)
    facts: dict[str, Any] = {"rate": rate, "classes": [name.upper() for name in names]}
    if isinstance(told, model.Infeasible):
        return facts | {"best": told.best}
    return facts | {"corners": [[_finite(gain) for gain in corner] for corner in told.corners]}


def _offered(
    tables: Mapping[float, IoTable], goal: float, book: Offers, change: Sequence[float] | None
) -> dict[str, Any]:
    classes = next(iter(tables.values())).classes
    seconds = {rate: table.seconds for rate, table in tables.items()}
    told = model.choose(
        seconds, goal, book.by_class(classes), improvement=change, cache_prices=book.cache_prices
    )
    if isinstance(told, model.Infeasible):
        return {"best": told.best}
    ways = [
        {
            "price": way.price,
            "seconds": way.seconds,
            "rate": way.rate,
            "percent": {name: gain for name, gain in zip(classes, way.improvement, strict=True) if gain},
        }
        for way in told.front
    ]
    return {"cheapest": ways[0], "front": ways}


def _finite(percent: float) -> float | None:
    return percent if math.isfinite(percent) else None


def measured(tables: Mapping[float, IoTable]) -> None:
    """Refuse a question that needs figures which the tables do not have.

    Raises:
        NotMeasured: some table has a process with an unknown class.
    """
    for table in tables.values():
        if not table.known:
            missing = sorted({table.classes[at] for at in _untold(table)})
            raise NotMeasured(
                f"{', '.join(missing)} of each process",
                "; ".join(limit for limit in table.limits if "not measured" in limit)
                or "take a log that tells it",
            )


def _untold(table: IoTable) -> list[int]:
    return [int(at) for at in np.flatnonzero(np.isnan(table.seconds).any(axis=0))]
