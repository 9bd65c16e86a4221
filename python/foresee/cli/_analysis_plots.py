# SPDX-License-Identifier: Apache-2.0
"""The pictures of ``foresee analyze``: bars of seconds by cache rate or process, and what two classes must gain.

Between the answers and the drawing: what becomes a bar, a curve, an axis. Refuses to draw, which is what
``_bars`` and ``_front`` do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from foresee.analysis import IoTable, answers
from foresee.cli import _bars, _front
from foresee.models import storage

__all__ = ["bars", "pair"]

_BARS, _POINTS = 64, 200


def bars(tables: dict[float, IoTable], facts: dict[str, Any]) -> str:
    """The slowest process of each cache rate, or of one rate the slowest processes; ``facts`` as they are printed."""
    classes = next(iter(tables.values())).classes
    goal = None if facts["goal"] is None else facts["goal"]["seconds"]
    groups = []
    if len(tables) > 1:
        answers.measured(tables)
        for told in facts["tables"]:
            stacks = [
                _bars.Stack(list(which["by_class"].values()), faint=faint)
                for which, faint in ((told["slowest"], False), (told["what_if"], True))
                if which is not None
            ]
            groups.append(_bars.Group(f"{told['rate']:g}", stacks))
        return _bars.svg(
            "I/O time of the slowest process", _subtitle(facts), "cache rate", classes, groups, goal
        )
    (table,) = tables.values()
    change = facts["what_if"]
    shares = None if change is None else 100 / (100 + np.array([change[name] for name in classes]))
    seconds = np.nan_to_num(table.seconds)
    order = np.argsort(-seconds.sum(axis=1), kind="stable")[:_BARS]
    for row in order.tolist():
        stacks = [_bars.Stack(seconds[row].tolist())]
        if shares is not None:
            stacks.append(_bars.Stack((seconds[row] * shares).tolist(), faint=True))
        groups.append(_bars.Group(table.processes[row].removeprefix("rank "), stacks))
    axis = f"process, the slowest {len(groups)} of {len(table.processes)}"
    return _bars.svg("I/O time by process", _subtitle(facts), axis, classes, groups, goal)


def pair(tables: dict[float, IoTable], question: answers.Question) -> str:
    """The least gains of two classes, a curve per cache rate."""
    assert question.pair is not None
    assert question.goal is not None
    fronts = {}
    for rate, table in tables.items():
        first, second = (table.column(name) for name in question.pair)
        told = storage.front(table.seconds, question.goal, first, second, question.change)
        if isinstance(told, storage.Front):
            fronts[rate] = told
    gains = [corner for front in fronts.values() for corner in front.corners]
    ends = tuple(_end([corner[i] for corner in gains]) for i in (0, 1))
    steps = [ends[0] * i / _POINTS for i in range(_POINTS + 1)]
    curves = []
    for rate, front in fronts.items():
        exact = [corner[0] for corner in front.corners if math.isfinite(corner[0])]
        points = [(gain, front.least(gain)) for gain in sorted({*steps, *exact})]
        points = [(gain, least) for gain, least in points if math.isfinite(least)]
        # From above: less of the first no gain of the second makes good.
        points = [(points[0][0], max(2 * ends[1], points[0][1])), *points]
        curves.append(_front.Curve(f"cache rate {rate:g}" if len(tables) > 1 else "least gains", points))
    axes = (question.pair[0].upper(), question.pair[1].upper())
    title = f"What meets {question.goal:g} s: on the line and above"
    return _front.svg(title, axes, curves, (ends[0], ends[1]))


def _end(gains: list[float]) -> float:
    """Where an axis ends: somewhat above the largest gain, far above it where there is none; one digit."""
    largest = max((gain for gain in gains if math.isfinite(gain)), default=0.0)
    if largest <= 0:
        return 100.0
    beyond = largest * (1.2 if all(map(math.isfinite, gains)) else 4.0)
    step = 10.0 ** math.floor(math.log10(beyond))
    return math.ceil(beyond / step) * step


def _subtitle(facts: dict[str, Any]) -> list[str]:
    if facts["what_if"] is None:
        return [", ".join(facts["inputs"])[:140]]
    changes = ", ".join(f"{name} {percent:+g} %" for name, percent in facts["what_if"].items() if percent)
    return [", ".join(facts["inputs"])[:140], f"faint: with {changes}"]
