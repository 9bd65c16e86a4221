# SPDX-License-Identifier: Apache-2.0
"""Text report of ``foresee simulate``: a row per policy, and in detail its epochs and its reads by source.

The command's JSON object has the same numbers. Times are per rank; samples and bytes are sums over all ranks.
"""

from __future__ import annotations

import itertools
from typing import Any

_POLICY = 19


def text(facts: dict[str, Any], *, details: bool) -> str:
    """Return a table per point of a sweep; with ``details``, also its sources and epochs."""
    ranks = next((one["ranks"] for one in facts["runs"] if "ranks" in one), None)
    lines = [
        (
            f"{facts['job']}: {facts['data'] or 'data set'}, {ranks or '?'} ranks; compat {facts['compat']}, "
            f"order {facts['order']}"
        ),
        "times in seconds, per rank; later: each of the epochs after the first, in the mean",
    ]
    if facts["interrupted"]:
        lines.append("interrupted: ~ marks what is not the whole run")
    for at, group in itertools.groupby(facts["runs"], key=lambda one: one.get("at")):
        runs = list(group)
        lines.append("")
        if at:
            lines.append("  ".join(f"{key} = {value}" for key, value in at.items()))
        lines.append(
            f"{'policy':<{_POLICY}}{'total':>12}{'init':>10}{'epoch 1':>11}{'later':>11}{'stall':>11}{'others':>10}"
            f"{'hits':>7}{'from origin':>13}{'requests':>13}{'coverage':>10}"
        )
        lines += [_row(one) for one in runs]
        complete = [one for one in runs if "total_s" in one]
        if details and complete:
            lines += ["", *_sources(complete), "", *_epochs(complete)]
    if len(facts["sweep"]) == 2:
        lines.append("\n--plot draws two swept keys as a heat map")
    return "\n".join(lines)


def _row(one: dict[str, Any]) -> str:
    if "unsupported" in one:
        return f"{one['policy']:<{_POLICY}}no answer: {one['unsupported']}"
    if "not_begun" in one:
        return f"{one['policy']:<{_POLICY}}not begun"
    ranks = one["ranks"]
    epochs = _epoch_seconds(one)
    first = _seconds(epochs[0], 1) if epochs else "-"
    later = _seconds(sum(epochs[1:]), len(epochs) - 1) if len(epochs) > 1 else "-"
    total = f"{'' if one['finished'] else '~'}{one['total_s']:,.2f}"
    hits = "-" if one["hit_rate"] is None else f"{one['hit_rate']:.1%}"
    return (
        f"{one['policy']:<{_POLICY}}{total:>12}{one['init_s']:>10,.2f}{first:>11}{later:>11}"
        f"{_seconds(one['stall_s'], ranks):>11}{_seconds(one['barrier_s'], ranks):>10}{hits:>7}"
        f"{_bytes(one['origin_bytes']):>13}{one['origin_requests']:>13,}{one['coverage']:>10.1%}"
    )


def _sources(runs: list[dict[str, Any]]) -> list[str]:
    """Return a row per policy and source; reads that fill a cache go from the origin into a tier."""
    lines = [
        "by source; samples and bytes of all ranks, time of all threads of a rank, stall: how long training waited",
        f"{'policy':<{_POLICY}}{'source':<26}{'samples':>15}{'bytes':>12}{'time':>14}{'stall':>12}",
    ]
    for one in runs:
        rows = [(each["source"], each) for each in one["reads"]]
        rows += [(f"origin, into {each['source']}", each) for each in one["loads"]]
        lines += [
            f"{_name(one):<{_POLICY}}{source:<26}{each['samples']:>15,}{_bytes(each['bytes']):>12}"
            f"{_seconds(each['seconds'], one['ranks']):>14}{_seconds(each['waited_s'], one['ranks']):>12}"
            for source, each in rows
        ] or [f"{_name(one):<{_POLICY}}none"]
    return lines


def _epochs(runs: list[dict[str, Any]]) -> list[str]:
    """Return a row per policy and finished epoch; equal rows are merged."""
    lines = [
        "by epoch; alike ones in one row",
        f"{'policy':<{_POLICY}}{'epochs':<12}{'time':>12}{'stall':>12}{'samples from origin':>21}",
    ]
    for one in runs:
        cells = [
            f"{_seconds(seconds, 1):>12}{_seconds(epoch['stall_s'], one['ranks']):>12}{epoch['origin_samples']:>21,}"
            for seconds, epoch in zip(_epoch_seconds(one), one["epochs"], strict=True)
        ]
        number = 1
        for cell, group in itertools.groupby(cells):
            last = number + len(list(group)) - 1
            which = f"{number}" if last == number else f"{number}-{last}"
            lines.append(f"{_name(one):<{_POLICY}}{which:<12}{cell}")
            number = last + 1
        if not cells:
            lines.append(f"{_name(one):<{_POLICY}}none")
    return lines


def _name(one: dict[str, Any]) -> str:
    return f"{'' if one['finished'] else '~'}{one['policy']}"


def _epoch_seconds(one: dict[str, Any]) -> list[float]:
    """Return the seconds of each epoch, without the initialization before training."""
    ends = [one["init_s"], *(epoch["end_s"] for epoch in one["epochs"])]
    return [end - before for before, end in itertools.pairwise(ends)]


def _seconds(value: float, count: int) -> str:
    return f"{value / count:,.2f}"


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:,.4g} {unit}"
        count /= 1000
    return f"{count:,.4g} PB"
