# SPDX-License-Identifier: Apache-2.0
"""Values of a run from the results of its ranks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .sizes import Size
from .task import Result


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
    if size.theme == "recipe":
        values["step_s"] = step_s(results[0])
    for result in results:
        for name, count in result.values.items():
            values[name] = values.get(name, 0) + count
    return values


def step_s(result: Result) -> float:
    """Return the mean time of a step of a rank, without its first step."""
    seconds = sum(epoch.seconds for epoch in result.epochs)
    steps = sum(len(epoch.steps_s) for epoch in result.epochs)
    return (seconds - result.epochs[0].steps_s[0]) / (steps - 1)
