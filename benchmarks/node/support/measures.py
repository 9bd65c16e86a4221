# SPDX-License-Identifier: Apache-2.0
"""Values of a run from the results of its ranks, and the proof that they delivered the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from common.samples import Truth

from .origins import Counted
from .processes import ProcessFailed
from .task import Result


def check(results: Sequence[Result], truth: Truth) -> None:
    """Check that the ranks of one job together delivered each sample once in every epoch, unchanged in the last one.

    Raises:
        ProcessFailed: they did not; the message has the epoch.
    """
    for number, epochs in enumerate(zip(*(result.epochs for result in results), strict=True)):
        found = tuple(sum(getattr(epoch, name) for epoch in epochs) for name in ("samples", "bytes", "ids"))
        expected = (truth.samples, truth.bytes, truth.ids)
        if found != expected:
            raise ProcessFailed(
                f"epoch {number} delivered {found} samples, bytes and sum of ids, expected {expected}"
            )
    if sum(result.checksum for result in results) % 2**64 != truth.checksum:
        raise ProcessFailed("the checked epoch delivered other bytes than the data set has")


def times(results: Sequence[Result], service_cpu_s: float = 0.0, *, first_epoch: int = 0) -> dict[str, float]:
    """Return the time, the rate and the CPU time of all ranks.

    Args:
        results: of all ranks.
        service_cpu_s: CPU time of the service in that time.
        first_epoch: epoch from which time and rate count.
    """
    counted = [result.epochs[first_epoch:] for result in results]
    # The first epoch begins when its loader opens.
    began = min(
        epochs[0].began if first_epoch else result.opened
        for result, epochs in zip(results, counted, strict=True)
    )
    seconds = max(epochs[-1].ended for epochs in counted) - began
    samples = sum(epoch.samples for epochs in counted for epoch in epochs)
    delivered = sum(epoch.samples for result in results for epoch in result.epochs)
    cpu_s = sum(result.cpu_s for result in results) + service_cpu_s
    return {
        "seconds": seconds,
        "samples_per_s": samples / seconds,
        "cpu_s_per_sample": cpu_s / delivered,
        "first_batch_s": max(result.first_batch - result.opened for result in results),
    }


def at_origin(counted: Counted, data_bytes: int) -> dict[str, float]:
    """Return the counts at the origin."""
    return {
        "origin_over_data": counted.bytes / data_bytes,
        "requests": counted.requests,
        "listings": counted.listings,
        "refused": counted.refused,
    }


def job_s(result: Result) -> float:
    """Return the time of a job of one rank, from its own opening."""
    return result.epochs[-1].ended - result.opened


def ahead_steps(first: Result, second: Result) -> list[tuple[int, int]]:
    """Return epoch and number of each step that ``first`` had ended before ``second`` requested it."""
    return [
        (epoch, step)
        for epoch, (one, other) in enumerate(zip(first.epochs, second.epochs, strict=True))
        for step, (ended, requested) in enumerate(zip(one.computed, other.requested, strict=True))
        if ended <= requested
    ]


def steps_s(result: Result, steps: Iterable[tuple[int, int]]) -> float:
    """Return the time of some steps of a rank, from their requests to the ends of their compute."""
    epochs = result.epochs
    return sum(epochs[epoch].computed[step] - epochs[epoch].requested[step] for epoch, step in steps)


def used_share(answered: Sequence[tuple[float, int]], cap: int, window_s: float) -> float:
    """Return the largest share of ``cap`` that was answered in a window; 0 if none is long enough.

    Args:
        answered: seconds and answers so far, in order of time.
        cap: answers per second.
        window_s: shortest window.
    """
    shares = [0.0]
    begin = 0
    for at, (now, count) in enumerate(answered):
        while begin + 1 < at and now - answered[begin + 1][0] >= window_s:
            begin += 1
        since, before = answered[begin]
        if now - since >= window_s:
            shares.append((count - before) / ((now - since) * cap))
    return max(shares)
