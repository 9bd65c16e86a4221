# SPDX-License-Identifier: Apache-2.0
"""Figures of ``foresee simulate``: bars stacked by where the time went, or a heat map of two swept keys.

Bars consist of computing, waiting for a sample (by its source: a tier, another rank, the origin), waiting for other
ranks, and the initialization before training.

Source: Dryden et al., "Clairvoyant Prefetching for Distributed Machine Learning I/O", SC 2021, figure 8: execution time
stacked by I/O location.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foresee.cli import _figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PEERS = "peers"


def figure(facts: dict[str, Any], tiers: Sequence[str]) -> Figure:
    """Draw one or more simulated runs; ``tiers`` by name, the fastest first.

    Results of interrupted runs are marked with ``~``.
    """
    runs = [one for one in facts["runs"] if "total_s" in one]
    title = f"{facts['job']}: {facts['data'] or 'data set'}"
    lines = [f"{runs[0]['ranks']} ranks, compat {facts['compat']}; seconds per rank"]
    if facts["interrupted"]:
        title += ", interrupted"
        lines[0] += "; ~: not the whole run"
    return _map(facts, runs, title, lines) if len(facts["sweep"]) == 2 else _stacks(runs, tiers, title, lines)


def _map(facts: dict[str, Any], runs: list[dict[str, Any]], title: str, lines: list[str]) -> Figure:
    (down, rows), (across, columns) = facts["sweep"].items()
    by_point = {tuple(one["at"].values()): one for one in runs}
    cells = [[by_point.get((row, column)) for column in columns] for row in rows]
    values = [[None if one is None else one["total_s"] for one in row] for row in cells]
    partial = {
        (y, x)
        for y, row in enumerate(cells)
        for x, one in enumerate(row)
        if one is not None and not one["finished"]
    }
    title = f"{title}, {runs[0]['policy']}: total seconds"
    return _figures.heat_map(title, lines, (down, rows), (across, columns), values, partial)


def _stacks(runs: list[dict[str, Any]], tiers: Sequence[str], title: str, lines: list[str]) -> Figure:
    stalls = [_stalls(one) for one in runs]
    # Some policies cache samples in memory although the job has no tiers.
    sources = [
        source
        for source in [*(tiers or ["ram"]), _PEERS, "origin"]
        if any(source in stall for stall in stalls)
    ]
    groups: dict[str, list[_figures.Stack]] = {}
    for one, stall in zip(runs, stalls, strict=True):
        ranks = one["ranks"]
        parts = [one["compute_s"], *(stall.get(source, 0.0) for source in sources), one["barrier_s"]]
        label = " ".join([one["policy"], ", ".join(one.get("at", {}).values())]).strip()
        mark = "" if one["finished"] else "~"
        groups.setdefault(mark + label, []).append(
            _figures.Stack([*(part / ranks for part in parts), one["init_s"]])
        )
    classes = ["compute", *(f"stall: {source}" for source in sources), "other ranks", "init"]
    bars = [_figures.Group(label, stacks) for label, stacks in groups.items()]
    return _figures.bars(title, lines, "policy", classes, {"": bars})


def _stalls(one: dict[str, Any]) -> dict[str, float]:
    """Return the seconds that all ranks waited, by the source of the sample; other ranks' tiers are one source."""
    stalls: dict[str, float] = defaultdict(float)
    for each in one["reads"]:
        if each["waited_s"] > 0:
            stalls[_PEERS if each["source"].startswith("peer ") else each["source"]] += each["waited_s"]
    return stalls
