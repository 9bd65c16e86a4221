# SPDX-License-Identifier: Apache-2.0
"""Values of a run from the results of its ranks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .sizes import Size
from .task import Result

#: Counts of the requests of a cache, by their outcome.
REQUESTS = ("cache_hits", "cache_joins", "cache_misses")


def values_of(
    size: Size, results: Sequence[Result], counted: Mapping[str, Any], read: int
) -> dict[str, float]:
    """Return the values of a run whose ranks trained.

    Args:
        size: the part.
        results: of all ranks.
        counted: counters of the proxy.
        read: samples of each epoch that a rank read; times are scaled to the whole epoch.
    """
    scale = size.samples / size.ranks / read
    epochs = [result.epochs for result in results]
    delivered = sum(epoch.samples for each in epochs for epoch in each)
    values = {
        "waited_s": scale * statistics.mean(sum(sum(epoch.waits_s) for epoch in each) for each in epochs),
        "seconds": scale * max(sum(epoch.seconds for epoch in each) for each in epochs),
        "cpu_s_per_sample": sum(result.cpu_s for result in results) / delivered,
        "requests": counted["requests_total"],
        "origin_over_delivered": counted["body_bytes"] / (delivered * size.sample_bytes),
    }
    for number, name in enumerate(("first", "second")[: size.epochs]):
        values[f"{name}_epoch_s"] = scale * max(each[number].seconds for each in epochs)
        values[f"{name}_waited_s"] = scale * statistics.mean(sum(each[number].waits_s) for each in epochs)
    if size.is_figures:
        values |= miss_rates(results[0])
    if size.theme == "recipe":
        values["step_s"] = step_s(results[0])
    for result in results:
        for name, count in result.values.items():
            values[name] = values.get(name, 0) + count
    return values


def miss_rates(result: Result) -> dict[str, float]:
    """Return the shares of each epoch's requests that a rank's cache did not have, and that joined a read in flight.

    A request that joins is a miss of the paper's cache, so it is part of the miss rate.
    """
    values = {}
    before = dict.fromkeys(REQUESTS, 0.0)
    for name, epoch in zip(("first", "second"), result.epochs, strict=False):
        if not epoch.counts:
            continue
        counts = {each: epoch.counts[each] - before[each] for each in REQUESTS}
        requests = sum(counts.values())
        values[f"{name}_miss_rate"] = (counts["cache_misses"] + counts["cache_joins"]) / requests
        values[f"{name}_join_rate"] = counts["cache_joins"] / requests
        before = epoch.counts
    return values


def step_s(result: Result) -> float:
    """Return the mean time of a step of a rank, without the first step of each epoch."""
    seconds = sum(epoch.seconds - epoch.steps_s[0] for epoch in result.epochs)
    steps = sum(len(epoch.steps_s) - 1 for epoch in result.epochs)
    return seconds / steps
