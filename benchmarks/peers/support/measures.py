# SPDX-License-Identifier: Apache-2.0
"""Values of a run from the results of its ranks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .sizes import Size
from .task import Epoch, Result


def values_of(size: Size, results: Sequence[Result], counted: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of a run.

    Args:
        size: the part.
        results: of all ranks.
        counted: counters of the proxy.
    """
    by_epoch = list(zip(*(result.epochs for result in results), strict=True))
    every = [epoch for epochs in by_epoch for epoch in epochs]
    seconds = max(epoch.ended for epoch in every) - min(epoch.began for epoch in every)
    values = {
        "seconds": seconds,
        "waited_s": statistics.mean(sum(sum(epoch.waits_s) for epoch in result.epochs) for result in results),
        "barriers_s": statistics.mean(sum(epoch.barriers_s for epoch in result.epochs) for result in results),
        "later_wait_share": wait_share(by_epoch[1:]),
        "requests": counted["requests_total"],
        "origin_bytes": counted["body_bytes"],
        "origin_over_data": counted["body_bytes"] / size.data_bytes,
        "link_over_data": received_per_epoch(by_epoch[1:]) / size.data_bytes,
        "cpu_s_per_sample": sum(result.cpu_s for result in results) / sum(epoch.samples for epoch in every),
        "nodes_that_met": sum(result.met_s is not None for result in results),
    }
    if size.bound_s:
        values["run_over_bound"] = seconds / size.bound_s
    for number, epochs in enumerate(by_epoch, 1):
        values[f"epoch_{number}_s"] = seconds_of(epochs)
    values |= origin_samples(by_epoch)
    met = [result.met_s for result in results if result.met_s is not None]
    if met:
        values["met_s"] = max(met)
    for result in results:
        for name, count in result.counts.items():
            values[name] = values.get(name, 0) + count
    return values


def origin_samples(by_epoch: Sequence[Sequence[Epoch]]) -> dict[str, float]:
    """Return the samples that all ranks had from the origin, by epoch; nothing for a loader that does not count them."""
    totals = [sum(one.counts.get("from_origin", 0.0) for one in epochs) for epochs in by_epoch]
    if not any(totals):
        return {}
    before = [0.0, *totals]
    return {f"origin_samples_{number}": total - before[number - 1] for number, total in enumerate(totals, 1)}


def seconds_of(epochs: Sequence[Epoch]) -> float:
    """Return the time of an epoch from the first rank's begin to the last one's end."""
    return max(epoch.ended for epoch in epochs) - min(epoch.began for epoch in epochs)


def wait_share(by_epoch: Sequence[Sequence[Epoch]]) -> float:
    """Return the waited time of the rank that waits longest in each step, over the time of the epochs.

    Ranks train in step, so each step waits for that rank.
    """
    waited: float = sum(
        max(waits) for epochs in by_epoch for waits in zip(*(one.waits_s for one in epochs), strict=True)
    )
    return waited / sum(seconds_of(epochs) for epochs in by_epoch)


def received_per_epoch(by_epoch: Sequence[Sequence[Epoch]]) -> float:
    """Return the mean over epochs of the bytes that the interfaces of all nodes received."""
    return sum(one.received_bytes for epochs in by_epoch for one in epochs) / len(by_epoch)
