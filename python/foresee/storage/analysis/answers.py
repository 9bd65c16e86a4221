# SPDX-License-Identifier: Apache-2.0
"""Answers from a job's tables, as plain values: slowest processes, what-if, changes that meet a goal.

This module translates between tables, which have names of processes and classes, and ``foresee.storage.model``, which
has numbers. Null means "not measured", or a gain without limit. All reports and figures show these values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.errors import NotMeasured
from foresee.storage import model, purchases, smallest_sets
from foresee.storage.analysis.offers import Offers
from foresee.storage.analysis.table import IoTable

__all__ = ["Question", "answer", "remaining_shares", "require_measured", "slowest"]

_BOUND = "improvements are taken to be linear and classes independent: an optimistic bound"
_TOO_MANY = f"more than {smallest_sets.CLASSES_MAX} classes took any time: too many to find the sets that meet the goal"


@dataclass(frozen=True)
class Question:
    """A question to the tables."""

    change: Sequence[float] | None = None
    """Percent of throughput by class; offers are bought on top of it."""
    goal: float | None = None
    """Seconds of the slowest process, > 0."""
    pair: tuple[str, str] | None = None
    """Two classes that gain together to meet the goal."""
    offers: Offers | None = None
    """Offers that may meet the goal."""


def answer(tables: Mapping[float, IoTable], question: Question) -> dict[str, Any]:
    """Return the answers, in seconds and percent.

    Args:
        tables: by cache rate, with the same classes; at least one.
        question: the question.

    Raises:
        ConfigError: a class that the tables do not have.
        NotMeasured: the question needs values that the tables do not have.
    """
    change, goal = question.change, question.goal
    if change is not None or goal is not None:
        require_measured(tables)
    classes = next(iter(tables.values())).classes
    goal_facts = None if goal is None else _goal_facts(tables, goal, question)
    best_rate = None
    if len(tables) > 1 and all(table.known for table in tables.values()):
        best_rate = model.best_rate({rate: table.seconds for rate, table in tables.items()}, change)
    limits = list(dict.fromkeys(limit for table in tables.values() for limit in table.limits))
    if goal_facts is not None and goal_facts["sets"] is None:
        limits.append(_TOO_MANY)
    if change is not None or goal is not None:
        limits.append(_BOUND)
    return {
        "classes": list(classes),
        "what_if": None if change is None else dict(zip(classes, change, strict=True)),
        "tables": [_rate_facts(rate, table, change) for rate, table in tables.items()],
        "best_rate": best_rate,
        "goal": goal_facts,
        "limits": limits,
    }


def _rate_facts(rate: float, table: IoTable, change: Sequence[float] | None) -> dict[str, Any]:
    sums = np.nansum(table.seconds, axis=0)
    unmeasured = {table.classes[at]: table.shared[at] + float(sums[at]) for at in _unmeasured_columns(table)}
    return {
        "rate": rate,
        "processes": list(table.processes),
        "seconds": [_cells(row) for row in table.seconds],
        "totals": _cells(table.seconds.sum(axis=1)),
        "sums": {name: float(sums[at]) for at, name in enumerate(table.classes) if name not in unmeasured},
        "sums_of_all_ranks": unmeasured,
        "slowest": slowest(table, None),
        "what_if": None if change is None else _changed_facts(table, change),
    }


def _changed_facts(table: IoTable, change: Sequence[float]) -> dict[str, Any]:
    """Return the slowest process with the changes, and the seconds of all processes in the order of the table."""
    process = slowest(table, change)
    assert process is not None, "changes need measured tables"
    seconds = table.seconds * remaining_shares(change)
    by_process = [_cells(row) for row in seconds]
    return {**process, "seconds_by_process": by_process, "totals": _cells(seconds.sum(axis=1))}


def remaining_shares(change: Sequence[float]) -> NDArray[np.float64]:
    """Return the share of each class's seconds that remains after a change in percent."""
    shares: NDArray[np.float64] = 100 / (100 + np.asarray(change, dtype=np.float64))
    return shares


def _cells(seconds: NDArray[np.float64]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in seconds.tolist()]


def slowest(table: IoTable, change: Sequence[float] | None = None) -> dict[str, Any] | None:
    """Return the process that a job waits for, with its seconds by class; None if a class was not measured."""
    if not table.known:
        return None
    found = model.slowest(table.seconds, change)
    row = table.seconds[found.process]
    spent = (row if change is None else row * remaining_shares(change)).tolist()
    return {
        "process": table.processes[found.process],
        "seconds": found.seconds,
        "by_class": dict(zip(table.classes, spent, strict=True)),
        "bottleneck": table.classes[found.bottleneck],
    }


def _goal_facts(tables: Mapping[float, IoTable], goal: float, question: Question) -> dict[str, Any]:
    """Return the changes that would meet the goal."""
    change = question.change
    seconds = {rate: table.seconds for rate, table in tables.items()}
    least = model.minimum_rate(seconds, goal, change)
    is_met = not isinstance(least, model.Infeasible)
    facts: dict[str, Any] = {
        "seconds": goal,
        "met": is_met,
        "minimum_rate": least if is_met else None,
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
        "sets": [] if is_met else _sets(tables, goal, change),
        "pair": None,
        "offers": None,
    }
    if question.pair is not None:
        facts["pair"] = [
            _pair_facts(rate, table, change, goal, question.pair) for rate, table in tables.items()
        ]
    if question.offers is not None:
        facts["offers"] = _offer_facts(tables, goal, question.offers, change)
        facts["met"] = is_met or "cheapest" in facts["offers"]
    return facts


def _sets(
    tables: Mapping[float, IoTable], goal: float, change: Sequence[float] | None
) -> list[dict[str, Any]] | None:
    """Return sets of classes that meet the goal at some rate, the fewest and least gains first; None: too many."""
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


def _pair_facts(
    rate: float, table: IoTable, change: Sequence[float] | None, goal: float, names: Sequence[str]
) -> dict[str, Any]:
    first, second = (table.column(name) for name in names)
    front = model.front(table.seconds, goal, first, second, change)
    facts: dict[str, Any] = {"rate": rate, "classes": [name.upper() for name in names]}
    if isinstance(front, model.Infeasible):
        return facts | {"best": front.best}
    return facts | {"corners": [[_finite(gain) for gain in corner] for corner in front.corners]}


def _offer_facts(
    tables: Mapping[float, IoTable], goal: float, offers: Offers, change: Sequence[float] | None
) -> dict[str, Any]:
    classes = next(iter(tables.values())).classes
    seconds = {rate: table.seconds for rate, table in tables.items()}
    choices = purchases.choose(
        seconds, goal, offers.by_class(classes), improvement=change, cache_prices=offers.cache_prices
    )
    if isinstance(choices, model.Infeasible):
        return {"best": choices.best}
    front = [
        {
            "price": choice.price,
            "seconds": choice.seconds,
            "rate": choice.rate,
            "percent": {name: gain for name, gain in zip(classes, choice.improvement, strict=True) if gain},
        }
        for choice in choices.front
    ]
    return {"cheapest": front[0], "front": front}


def _finite(percent: float) -> float | None:
    return percent if math.isfinite(percent) else None


def require_measured(tables: Mapping[float, IoTable]) -> None:
    """Refuse tables with missing values.

    Raises:
        NotMeasured: a table has a process with an unknown class.
    """
    for table in tables.values():
        if not table.known:
            missing = sorted({table.classes[at] for at in _unmeasured_columns(table)})
            raise NotMeasured(
                f"{', '.join(missing)} of each process",
                "; ".join(limit for limit in table.limits if "not measured" in limit)
                or "take a log that has it",
            )


def _unmeasured_columns(table: IoTable) -> list[int]:
    return [int(at) for at in np.flatnonzero(np.isnan(table.seconds).any(axis=0))]
