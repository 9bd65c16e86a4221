# SPDX-License-Identifier: Apache-2.0
"""Figures of ``foresee analyze`` and ``foresee bench storage``: seconds by cache rate, process or epoch, and gains.

They are figures 1 to 4 of the paper that ``foresee.storage.model`` cites: :func:`epochs`, :func:`bars` and
:func:`epoch_bars` (with faint bars for predictions, figure 3), and :func:`pair`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foresee import storage
from foresee.cli import _figures
from foresee.cli._figures import Axis, Group, Line, Panel, Stack
from foresee.storage.analysis import IoTable, answers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BARS, _POINTS = 64, 200
_EPOCHS, _COLUMNS = 12, 3
"""Largest number of epochs on a page, and of panels in a row of it."""
_PAIR_SIZE = 7.6, 4.6
"""Inches."""


def bars(tables: dict[float, IoTable], facts: dict[str, Any]) -> Figure:
    """Draw the slowest process of each cache rate, or the slowest processes of one rate; ``facts`` are the JSON object.

    Raises:
        NotMeasured: a table of several rates has a process with an unknown class.
    """
    classes = next(iter(tables.values())).classes
    goal = None if facts["goal"] is None else facts["goal"]["seconds"]
    if len(tables) > 1:
        answers.require_measured(tables)
        groups = [_group(row["rate"], row["slowest"], row["what_if"], classes) for row in facts["tables"]]
        title = "I/O time of the slowest process"
        return _figures.bars(title, _subtitle(facts), "cache rate", classes, {"": groups}, goal)
    groups = []
    (table,) = tables.values()
    change = facts["what_if"]
    shares = None if change is None else answers.remaining_shares([change[name] for name in classes])
    seconds = np.nan_to_num(table.seconds)
    order = np.argsort(-seconds.sum(axis=1), kind="stable")[:_BARS]
    for row in order.tolist():
        stacks = [Stack(seconds[row].tolist())]
        if shares is not None:
            stacks.append(Stack((seconds[row] * shares).tolist(), faint=True))
        groups.append(Group(table.processes[row].removeprefix("rank "), stacks))
    axis = f"process, the slowest {len(groups)} of {len(table.processes)}"
    return _figures.bars("I/O time by process", _subtitle(facts), axis, classes, {"": groups}, goal)


def epochs(rates: Sequence[Mapping[str, Any]], inputs: Sequence[str]) -> Figure:
    """Draw the duration of each epoch and the I/O time of its slowest process against the cache rate.

    Args:
        rates: as :func:`foresee.storage.analysis.epochs.read` returns them, one or more.
        inputs: names of the inputs.
    """
    panels = []
    by_epoch = _by_epoch(rates)
    for epoch, at in list(by_epoch.items())[:_EPOCHS]:
        seconds = [each["seconds"] for each in at.values()]
        io = [each["slowest"]["seconds"] for each in at.values()]
        lines = [
            Line("the epoch", _figures.COLOURS[0], list(at), seconds, points="o"),
            Line("I/O of the slowest process", _figures.COLOURS[1], list(at), io, points="^"),
        ]
        panels.append(Panel(f"epoch {epoch}", Axis("cache rate"), Axis("seconds"), lines))
    rows = [panels[at : at + _COLUMNS] for at in range(0, len(panels), _COLUMNS)]
    return _figures.panels("Epochs and their I/O time", _inputs(inputs, by_epoch), rows)


def epoch_bars(
    rates: Sequence[Mapping[str, Any]],
    inputs: Sequence[str],
    *,
    change: Mapping[str, float] | None = None,
    goal: float | None = None,
) -> Figure:
    """Draw the slowest process of each epoch by class against the cache rate.

    Args:
        rates: as in :func:`epochs`; epochs with a ``what_if`` have a second, faint bar.
        inputs: names of the inputs.
        change: percent by class that the ``what_if`` assume; None without them.
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
    words = [*_inputs(inputs, by_epoch), *([] if change is None else [_faint(change)])]
    title = "I/O time of the slowest process by epoch"
    return _figures.bars(title, [" · ".join(words)], "cache rate", classes, plots, goal)


def _by_epoch(rates: Sequence[Mapping[str, Any]]) -> dict[int, dict[float, Mapping[str, Any]]]:
    """Return the entries by epoch, then by rate."""
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
) -> Group:
    stacks = [
        Stack([which["by_class"].get(name, 0.0) for name in classes], faint=faint)
        for which, faint in ((slowest, False), (what_if, True))
        if which is not None
    ]
    return Group(f"{rate:g}", stacks)


def pair(tables: dict[float, IoTable], question: answers.Question) -> Figure:
    """Draw the least gains of two classes as one curve per cache rate."""
    assert question.pair is not None
    assert question.goal is not None
    fronts = {}
    for rate, table in tables.items():
        first_column, second_column = (table.column(name) for name in question.pair)
        front = storage.front(table.seconds, question.goal, first_column, second_column, question.change)
        if isinstance(front, storage.Front):
            fronts[rate] = front
    gains = [corner for front in fronts.values() for corner in front.corners]
    ends = tuple(_axis_end([corner[i] for corner in gains]) for i in (0, 1))
    steps = [ends[0] * i / _POINTS for i in range(_POINTS + 1)]
    lines = []
    for number, (rate, front) in enumerate(fronts.items()):
        exact = [corner[0] for corner in front.corners if math.isfinite(corner[0])]
        points = [(gain, front.least(gain)) for gain in sorted({*steps, *exact})]
        points = [(gain, least) for gain, least in points if math.isfinite(least)]
        # The line starts vertically: below this gain of the first class, no gain of the second suffices.
        points = [(points[0][0], max(2 * ends[1], points[0][1])), *points]
        name = f"cache rate {rate:g}" if len(tables) > 1 else "least gains"
        colour = _figures.COLOURS[number % len(_figures.COLOURS)]
        lines.append(Line(name, colour, [x for x, _ in points], [y for _, y in points]))
    first, second = (
        Axis(f"{name.upper()} faster by", 0.0, end, "%")
        for name, end in zip(question.pair, ends, strict=True)
    )
    title = f"What meets {question.goal:g} s: on the line and above"
    return _figures.panels(title, (), [[Panel("", first, second, lines)]], size=_PAIR_SIZE)


def _axis_end(gains: list[float]) -> float:
    """Return an end with one digit: above the largest finite gain, or far above it if other gains are infinite."""
    largest = max((gain for gain in gains if math.isfinite(gain)), default=0.0)
    if largest <= 0:
        return 100.0
    beyond = largest * (1.2 if all(map(math.isfinite, gains)) else 4.0)
    step = 10.0 ** math.floor(math.log10(beyond))
    return math.ceil(beyond / step) * step


def _subtitle(facts: dict[str, Any]) -> list[str]:
    change = facts["what_if"]
    return [", ".join(facts["inputs"])[:140], *([] if change is None else [_faint(change)])]


def _faint(change: Mapping[str, float]) -> str:
    return "faint: with " + ", ".join(f"{name} {percent:+g} %" for name, percent in change.items() if percent)
