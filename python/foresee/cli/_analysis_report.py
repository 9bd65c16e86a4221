# SPDX-License-Identifier: Apache-2.0
"""Text report of ``foresee analyze`` and ``foresee bench storage``: the table and the answers.

It computes nothing: the JSON object has every number that the report shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = ["report"]

_ROWS, _ROWS_AT_RATE = 10, 3
_PLAIN_FROM = 1000.0
"""Seconds from which a figure has one decimal instead of four digits, which would be printed with an exponent."""


def report(facts: dict[str, Any], *, rated: bool) -> str:
    """The table and the answers; ``rated`` where cache rates were told."""
    classes = facts["classes"]
    several = len(facts["tables"]) > 1
    lines: list[str] = []
    head = f"{'seconds of':<24}" + "".join(f"{name:>12}" for name in classes) + f"{'total':>12}  bottleneck"
    lines.append(head)
    for told in facts["tables"]:
        if several:
            lines += _of_one(f"slowest at {told['rate']:g}", told["slowest"], classes)
        else:
            lines += _rows(told, classes)
        if told["what_if"] is not None:
            lines += _changed(told, classes, most=_ROWS_AT_RATE if several else _ROWS)
        for name, value in told["sums_of_all_ranks"].items():
            lines.append(f"{name}: not measured by process; {_figure(value)} s in sum")
    for told in facts["epochs"] or ():
        lines += _of_one(f"slowest in epoch {told['epoch']}", told["slowest"], classes)
    lines += [line for told in facts.get("waits", ()) for line in _waits(told, several=several)]
    if facts["best_rate"] is not None:
        lines.append(f"fastest at a cache rate of {facts['best_rate']:g}")
    if facts["goal"] is not None:
        lines += ["", *_goal_lines(facts["goal"], rated=rated, changed=facts["what_if"] is not None)]
    lines += ["", *(f"- {limit}" for limit in facts["limits"])]
    return "\n".join(lines)


def _rows(told: dict[str, Any], classes: list[str]) -> list[str]:
    """The slowest processes."""
    order = sorted(
        range(len(told["processes"])),
        key=lambda at: -sum(value or 0.0 for value in told["seconds"][at]),
    )
    lines = [_row(told["processes"][at], told["seconds"][at], classes) for at in order[:_ROWS]]
    return lines + _others(len(order) - _ROWS)


def _changed(told: dict[str, Any], classes: list[str], *, most: int) -> list[str]:
    """The slowest processes with the changes, each with what it takes without."""
    after = told["what_if"]
    order = sorted(range(len(told["processes"])), key=lambda at: -after["totals"][at])
    lines = ["with the changes:"]
    for at in order[:most]:
        row = _row(f"  {told['processes'][at]}", after["seconds_by_process"][at], classes)
        lines.append(f"{row} (was {_figure(told['totals'][at])})")
    return lines + _others(len(order) - most)


def _row(process: str, seconds: list[float | None], classes: list[str]) -> str:
    cells = "".join(f"{'?':>12}" if value is None else f"{_figure(value):>12}" for value in seconds)
    known = [value for value in seconds if value is not None]
    if len(known) < len(seconds):
        return f"{process:<24}{cells}{'?':>12}"
    return f"{process:<24}{cells}{_figure(sum(known)):>12}  {classes[known.index(max(known))]}"


def _figure(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds >= _PLAIN_FROM else f"{seconds:,.4g}"


def _others(count: int) -> list[str]:
    return [f"and {count:,} more that are not slower (--json has them)"] if count > 0 else []


def _of_one(label: str, slowest: dict[str, Any] | None, classes: list[str]) -> list[str]:
    if slowest is None:
        return [f"{label:<24}not measured by process"]
    cells = "".join(f"{_figure(slowest['by_class'].get(name, 0.0)):>12}" for name in classes)
    return [
        f"{label:<24}{cells}{_figure(slowest['seconds']):>12}  {slowest['bottleneck']} ({slowest['process']})"
    ]


def _waits(told: dict[str, Any], *, several: bool) -> list[str]:
    """Format the causes of waiting of the rank that waited longest."""
    if not told["ranks"]:
        return []
    rank, causes = max(told["ranks"].items(), key=lambda each: sum(each[1].values()))
    parts = [
        f"{cause} {seconds:,.4g}"
        for cause, seconds in causes.items()
        if seconds >= 0.01 * sum(causes.values())
    ]
    where = f" in {told['path']}" if several else ""
    return [f"waited longest{where}: {rank}, {sum(causes.values()):,.4g} s ({', '.join(parts)})"]


def _goal_lines(goal: dict[str, Any], *, rated: bool, changed: bool) -> list[str]:
    def at(told: dict[str, Any]) -> str:
        return f", at a cache rate of {told['rate']:g}" if rated else ""

    if goal["minimum_rate"] is not None:
        least = f", at a cache rate of {goal['minimum_rate']:g} and maybe at higher ones" if rated else ""
        lines = [f"goal {goal['seconds']:g} s: met{least}"]
    else:
        lines = [f"goal {goal['seconds']:g} s: not met, {_figure(goal['best'])} s at best"]
    for alone in goal["alone"]:
        gains = ", ".join(f"{name} {_gain(percent)}" for name, percent in alone["percent"].items())
        lines.append(f"one class alone{at(alone)}: {gains}")
    lines += _set_lines(goal["sets"] or [], at)
    for pair in goal["pair"] or []:
        names = " and ".join(pair["classes"])
        if "best" in pair:
            lines.append(f"{names}{at(pair)}: cannot; the rest takes {_figure(pair['best'])} s")
        else:
            corners = ", ".join(" with ".join(map(_gain, corner)) for corner in pair["corners"])
            lines.append(f"{names}{at(pair)}: {corners}; between them on a line in 100 / (100 + N)")
    if goal["offers"] is not None and "cheapest" in goal["offers"]:
        for i, way in enumerate(goal["offers"]["front"]):
            bought = ", ".join(f"{name} {_gain(percent)}" for name, percent in way["percent"].items())
            what = f"{bought}{' on top of the changes' if changed else ''}" if bought else "no change"
            word = "cheapest" if i == 0 else "or"
            lines.append(f"{word}: {way['price']:,.6g} for {what}{at(way)}: {_figure(way['seconds'])} s")
    elif goal["offers"] is not None:
        lines.append(f"no offers meet it; {_figure(goal['offers']['best'])} s at best")
    return lines


def _set_lines(sets: list[dict[str, Any]], at: Callable[[dict[str, Any]], str]) -> list[str]:
    """Of as many classes the set with the least gain, from the fewest on; more of them only where they gain less."""
    lines: list[str] = []
    least = math.inf
    for each in sets:
        gain = max(each["percent"].values())
        if gain >= least:
            continue
        least = gain
        *rest, last = each["percent"]
        names = f"{', '.join(rest)} and {last}" if rest else last
        word = "fewest changes" if not lines else f"or {len(each['percent'])} classes"
        lines.append(f"{word}{at(each)}: {names} {_gain(gain)}{' each' if rest else ''}")
    return lines


def _gain(percent: float | None) -> str:
    if percent is None:
        return "without limit"
    return f"+{percent:,.4g} %"
