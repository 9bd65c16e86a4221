# SPDX-License-Identifier: Apache-2.0
"""The pictures of ``foresee analyze`` and ``foresee bench storage``: seconds by rate, process or epoch, and gains.

Between the answers and the drawing: what becomes a bar, a curve, an axis. Refuses to draw, which is what
``_bars``, ``_front`` and ``_panels`` do. They are figures 1 to 4 of the paper that ``foresee.storage.model`` names:
:func:`epochs`, :func:`bars` and :func:`epoch_bars` (what would be is faint in them, figure 3), :func:`pair`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from foresee import storage
from foresee.cli import _bars, _front, _panels, _svg
from foresee.storage.analysis import IoTable, answers

__all__ = ["bars", "epoch_bars", "epochs", "in_words", "pair"]

_BARS, _POINTS = 64, 200
_EPOCHS, _BESIDE = 12, 3
"""Of a page at most, and of a row of it."""


def bars(tables: dict[float, IoTable], facts: dict[str, Any]) -> str:
    """The slowest process of each cache rate, or of one rate the slowest processes; ``facts`` as they are printed."""
    classes = next(iter(tables.values())).classes
    goal = None if facts["goal"] is None else facts["goal"]["seconds"]
    if len(tables) > 1:
        answers.measured(tables)
        groups = [_group(told["rate"], told["slowest"], told["what_if"], classes) for told in facts["tables"]]
        return _bars.svg(
            "I/O time of the slowest process", _subtitle(facts), "cache rate", classes, groups, goal
        )
    groups = []
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


def epochs(rates: Sequence[Mapping[str, Any]], inputs: Sequence[str]) -> str:
    """Of each epoch how long it took, and the I/O time of its slowest process beside it, against the cache rate.

    Args:
        rates: ascending, one or more; each with its ``rate`` and its ``epochs``, one or more, with ``epoch``,
            ``seconds`` and ``slowest`` as :func:`foresee.storage.analysis.answers.slowest` has it.
        inputs: what they are of, in words.
    """
    panels = []
    by_epoch = _by_epoch(rates)
    for epoch, at in list(by_epoch.items())[:_EPOCHS]:
        took = [each["seconds"] for each in at.values()]
        io = [each["slowest"]["seconds"] for each in at.values()]
        lines = [
            _panels.Line("the epoch", _svg.COLOURS[0], list(at), took, points="circle"),
            _panels.Line("I/O of the slowest process", _svg.COLOURS[1], list(at), io, points="triangle"),
        ]
        panels.append(_panels.Panel(f"epoch {epoch}", "cache rate", "seconds", lines))
    rows = [panels[at : at + _BESIDE] for at in range(0, len(panels), _BESIDE)]
    return _panels.svg("Epochs and their I/O time", _inputs(inputs, by_epoch), rows)


def epoch_bars(
    rates: Sequence[Mapping[str, Any]], inputs: Sequence[str], *, changes: str = "", goal: float | None = None
) -> str:
    """Of each epoch the slowest process by class, against the cache rate.

    Args:
        rates: as :func:`epochs` has them; epochs may have a ``what_if``, which is drawn beside.
        inputs: what they are of, in words.
        changes: what the ``what_if`` are with, in words; empty where there are none.
        goal: seconds.
    """
    by_epoch = _by_epoch(rates)
    classes = list(
        dict.fromkeys(
            name for at in by_epoch.values() for each in at.values() for name in each["slowest"]["by_class"]
        )
    )
    plots = {
        f"epoch {epoch}": [
            _group(rate, each["slowest"], each.get("what_if"), classes) for rate, each in at.items()
        ]
        for epoch, at in list(by_epoch.items())[:_EPOCHS]
    }
    words = [*_inputs(inputs, by_epoch), *([f"faint: with {changes}"] if changes else [])]
    title = "I/O time of the slowest process by epoch"
    return _bars.column(title, [" · ".join(words)], "cache rate", classes, plots, goal)


def _by_epoch(rates: Sequence[Mapping[str, Any]]) -> dict[int, dict[float, Mapping[str, Any]]]:
    """By epoch, then by rate."""
    found: dict[int, dict[float, Mapping[str, Any]]] = {}
    for at in rates:
        for each in at["epochs"]:
            found.setdefault(each["epoch"], {})[at["rate"]] = each
    return dict(sorted(found.items()))


def _inputs(inputs: Sequence[str], by_epoch: Mapping[int, object]) -> list[str]:
    cut = [f"the first {_EPOCHS} of {len(by_epoch)} epochs"] if len(by_epoch) > _EPOCHS else []
    return [", ".join(inputs)[:100], *cut]


def _group(
    rate: float,
    slowest: Mapping[str, Any] | None,
    what_if: Mapping[str, Any] | None,
    classes: Sequence[str],
) -> _bars.Group:
    stacks = [
        _bars.Stack([which["by_class"].get(name, 0.0) for name in classes], faint=faint)
        for which, faint in ((slowest, False), (what_if, True))
        if which is not None
    ]
    return _bars.Group(f"{rate:g}", stacks)


def pair(tables: dict[float, IoTable], question: answers.Question) -> str:
    """The least gains of two classes, a curve per cache rate."""
    assert question.pair is not None
    assert question.goal is not None
    fronts = {}
    for rate, table in tables.items():
        one, other = (table.column(name) for name in question.pair)
        told = storage.front(table.seconds, question.goal, one, other, question.change)
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
    first, second = (
        _front.Axis(f"{name.upper()} faster by", 0.0, end, "%")
        for name, end in zip(question.pair, ends, strict=True)
    )
    title = f"What meets {question.goal:g} s: on the line and above"
    return _front.svg(title, (first, second), curves)


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
    return [", ".join(facts["inputs"])[:140], f"faint: with {in_words(facts['what_if'])}"]


def in_words(percent: Mapping[str, float]) -> str:
    """Percent by class, in words."""
    return ", ".join(f"{name} {each:+g} %" for name, each in percent.items() if each)
