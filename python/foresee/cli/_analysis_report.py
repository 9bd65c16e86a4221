# SPDX-License-Identifier: Apache-2.0
"""Text report of ``foresee analyze`` and ``foresee bench storage``: the table and the answers of the JSON object."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from foresee._loading.summary import shown_bytes

_ROWS, _ROWS_AT_RATE = 10, 3
#: From here on seconds have one decimal: four digits would be printed with an exponent.
_PLAIN_FROM = 1000.0


def report(facts: dict[str, Any], *, has_rates: bool) -> str:
    """Return the table and the answers; ``has_rates``: whether the inputs have cache rates."""
    classes = facts["classes"]
    several = len(facts["tables"]) > 1
    heads = "".join(f"{name:>12}" for name in [*classes, "total"])
    lines = [f"{'seconds of':<24}{heads}  bottleneck"]
    for table in facts["tables"]:
        if several:
            lines.append(_slowest(f"slowest at {table['rate']:g}", table["slowest"], classes))
        else:
            lines += _rows(table, classes)
        if table["what_if"] is not None:
            lines += _changed_rows(table, classes, most=_ROWS_AT_RATE if several else _ROWS)
        for name, value in table["sums_of_all_ranks"].items():
            lines.append(f"{name}: not measured by process; {_seconds(value)} s in sum")
    for epoch in facts["epochs"] or ():
        lines.append(_slowest(f"slowest in epoch {epoch['epoch']}", epoch["slowest"], classes))
    lines += [line for waits in facts.get("waits", ()) for line in _waits(waits, several=several)]
    lines += [_node_cache(cache, several=several) for cache in facts.get("node_caches", ())]
    if facts["best_rate"] is not None:
        lines.append(f"fastest at a cache rate of {facts['best_rate']:g}")
    if facts["goal"] is not None:
        has_changes = facts["what_if"] is not None
        lines += ["", *_goal_lines(facts["goal"], has_rates=has_rates, has_changes=has_changes)]
    lines += ["", *(f"- {limit}" for limit in facts["limits"])]
    return "\n".join(lines)


def _rows(table: dict[str, Any], classes: list[str]) -> list[str]:
    """Format the slowest processes."""
    rows = list(zip(table["processes"], table["seconds"], strict=True))
    rows.sort(key=lambda row: -sum(value or 0.0 for value in row[1]))
    return [_row(*row, classes) for row in rows[:_ROWS]] + _others(len(rows) - _ROWS)


def _changed_rows(table: dict[str, Any], classes: list[str], *, most: int) -> list[str]:
    """Format the slowest processes with the changes, each with its seconds without them."""
    after = table["what_if"]
    order = sorted(range(len(table["processes"])), key=lambda at: -after["totals"][at])
    lines = ["with the changes:"]
    for at in order[:most]:
        row = _row(f"  {table['processes'][at]}", after["seconds_by_process"][at], classes)
        lines.append(f"{row} (was {_seconds(table['totals'][at])})")
    return lines + _others(len(order) - most)


def _row(process: str, seconds: list[float | None], classes: list[str]) -> str:
    cells = "".join(f"{'?':>12}" if value is None else f"{_seconds(value):>12}" for value in seconds)
    known = [value for value in seconds if value is not None]
    if len(known) < len(seconds):
        return f"{process:<24}{cells}{'?':>12}"
    return f"{process:<24}{cells}{_seconds(sum(known)):>12}  {classes[known.index(max(known))]}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds >= _PLAIN_FROM else f"{seconds:,.4g}"


def _others(count: int) -> list[str]:
    return [f"and {count:,} more that are not slower (--json has them)"] if count > 0 else []


def _slowest(label: str, slowest: dict[str, Any] | None, classes: list[str]) -> str:
    if slowest is None:
        return f"{label:<24}not measured by process"
    cells = "".join(f"{_seconds(slowest['by_class'].get(name, 0.0)):>12}" for name in classes)
    total = f"{_seconds(slowest['seconds']):>12}"
    return f"{label:<24}{cells}{total}  {slowest['bottleneck']} ({slowest['process']})"


def _waits(waits: dict[str, Any], *, several: bool) -> list[str]:
    """Format the causes of waiting of the rank that waited longest."""
    if not waits["ranks"]:
        return []
    rank, causes = max(waits["ranks"].items(), key=lambda each: sum(each[1].values()))
    parts = [
        f"{cause} {seconds:,.4g}"
        for cause, seconds in causes.items()
        if seconds >= 0.01 * sum(causes.values())
    ]
    where = f" in {waits['path']}" if several else ""
    return [f"waited longest{where}: {rank}, {sum(causes.values()):,.4g} s ({', '.join(parts)})"]


def _node_cache(cache: dict[str, Any], *, several: bool) -> str:
    """Format a cache that ranks of one node shared, and the bytes that they did not read from the origin."""
    where = f" in {cache['path']}" if several else ""
    count = len(cache["ranks"])
    host = "a service" if cache["is_service"] else "of the job"
    if cache["host_rank"] is not None:
        host = f"in rank {cache['host_rank']}"
    delivered, origin, saved = (
        shown_bytes(cache[f"{name}_bytes"]) for name in ("delivered", "origin", "saved")
    )
    return (
        f"{count} rank{'' if count == 1 else 's'} shared one cache{where} (host: {host}): {delivered} delivered, "
        f"{origin} read from the origin, {saved} saved"
    )


def _goal_lines(goal: dict[str, Any], *, has_rates: bool, has_changes: bool) -> list[str]:
    def at(answer: dict[str, Any]) -> str:
        return f", at a cache rate of {answer['rate']:g}" if has_rates else ""

    if goal["minimum_rate"] is not None:
        least = f", at a cache rate of {goal['minimum_rate']:g} and maybe at higher ones" if has_rates else ""
        lines = [f"goal {goal['seconds']:g} s: met{least}"]
    else:
        lines = [f"goal {goal['seconds']:g} s: not met, {_seconds(goal['best'])} s at best"]
    for alone in goal["alone"]:
        gains = ", ".join(f"{name} {_gain(percent)}" for name, percent in alone["percent"].items())
        lines.append(f"one class alone{at(alone)}: {gains}")
    lines += _set_lines(goal["sets"] or [], at)
    for pair in goal["pair"] or []:
        names = " and ".join(pair["classes"])
        if "best" in pair:
            lines.append(f"{names}{at(pair)}: cannot; the rest takes {_seconds(pair['best'])} s")
        else:
            corners = ", ".join(" with ".join(map(_gain, corner)) for corner in pair["corners"])
            lines.append(f"{names}{at(pair)}: {corners}; between them on a line in 100 / (100 + N)")
    if goal["offers"] is not None and "cheapest" in goal["offers"]:
        for i, choice in enumerate(goal["offers"]["front"]):
            bought = ", ".join(f"{name} {_gain(percent)}" for name, percent in choice["percent"].items())
            what = f"{bought}{' on top of the changes' if has_changes else ''}" if bought else "no change"
            word = "cheapest" if i == 0 else "or"
            lines.append(
                f"{word}: {choice['price']:,.6g} for {what}{at(choice)}: {_seconds(choice['seconds'])} s"
            )
    elif goal["offers"] is not None:
        lines.append(f"no offers meet it; {_seconds(goal['offers']['best'])} s at best")
    return lines


def _set_lines(sets: list[dict[str, Any]], at: Callable[[dict[str, Any]], str]) -> list[str]:
    """Format the set with the least gain for each number of classes, as long as more classes need to gain less."""
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
