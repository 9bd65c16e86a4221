# SPDX-License-Identifier: Apache-2.0
"""Any number of jobs behind one frontier: the latest starts that cost no time.

The origin delivers the data set once, in ``read`` seconds at best; how far it has come is the frontier. The cache
coalesces: jobs at the frontier share one transfer, jobs behind it read from the cache. Then nobody is slowed by
company, every start up to a point gives the same makespan, and staggering saves GPU time only. Apart from ``pair``,
which takes two jobs and what they were measured to do to each other.

Exact while the cache holds the data set. A smaller cache limits how far a follower may be behind; where a job slower
than the leader falls further behind than that, the plan says so, and the simulator has the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foresee.errors import ConfigError
from foresee.models.stagger.times import JobTimes, seconds_fault

__all__ = ["Plan", "plan"]


@dataclass(frozen=True)
class Plan:
    """When each job starts, and what it comes to. Tuples have one entry per job, in the order given."""

    leader: int
    """Which job starts at 0 and reads from the origin."""
    starts: tuple[float, ...]
    """Seconds after the leader."""
    runs: tuple[float, ...]
    """Seconds of each job, from its own start."""
    makespan: float
    """Seconds until all have ended; no schedule has less."""
    gpu_seconds: float
    """All runs together."""
    gpu_seconds_simultaneous: float
    """The same if all started at 0; the makespan would not be shorter."""
    within_cache: tuple[bool, ...]
    """Whether the cache reaches back to each job all the time."""


def plan(jobs: Sequence[JobTimes], read: float, *, cache: float = 1.0) -> Plan:
    """The latest starts with the smallest makespan.

    The slowest job that still keeps up with the origin leads, because it loses the least by waiting for it; every
    other one starts so that it ends with the last. No follower reaches the frontier then.

    Args:
        jobs: one or more; of each count compute, ``wait_cached``, steps and epochs, and ``wait`` if ``cache`` is
            below 1. All read the same samples in the same order.
        read: seconds in which the origin delivers the data set once, to one job or to many; finite, > 0.
        cache: share of the data that the cache keeps, in (0, 1].

    Raises:
        ConfigError: no job, or an argument outside its range.

    >>> def job(step, epochs):
    ...     return JobTimes(compute=step, wait=0.75 - step, wait_cached=0, steps=1000, epochs=epochs)
    >>> made = plan([job(0.30, 1), job(0.25, 1), job(0.50, 2)], 750)
    >>> made.leader, made.starts, made.makespan
    (2, (950.0, 1000.0, 0.0), 1250.0)
    >>> made.gpu_seconds, made.gpu_seconds_simultaneous
    (1800.0, 2750.0)
    """
    faults = [] if jobs else ["jobs is empty; one or more expected"]
    fault = seconds_fault("read", read, above_zero=True)
    faults += [fault] if fault else []
    if isinstance(cache, bool) or not isinstance(cache, (int, float)) or not 0 < cache <= 1:
        faults.append(
            f"cache is {cache!r}; the share of the data that it keeps expected, above 0 and at most 1"
        )
    if faults:
        raise ConfigError(faults)
    cached = [job.cached_epoch() for job in jobs]
    later = [(job.epochs - 1) * job.later_epoch(cache) for job in jobs]
    at_once = [max(read, first) + rest for first, rest in zip(cached, later, strict=True)]
    makespan = max(at_once)
    keeping_up = [i for i in range(len(jobs)) if cached[i] <= read]
    # Of equal ones the first: `max` and `min` keep it.
    leader = (
        max(keeping_up, key=lambda i: cached[i])
        if keeping_up
        else min(range(len(jobs)), key=lambda i: cached[i])
    )
    pace = max(read, cached[leader])
    starts, within = [], []
    for i, (first, rest) in enumerate(zip(cached, later, strict=True)):
        reach = _reach(pace, first, cache)
        latest = 0.0 if i == leader else makespan - first - rest
        # A follower slower than the leader falls back all the time: a cache that is too small loses it less the
        # earlier it starts.
        starts.append(max(min(latest, reach), 0.0))
        within.append(i == leader or reach >= 0)
    runs = [max(first, read - start) + rest for start, first, rest in zip(starts, cached, later, strict=True)]
    return Plan(
        leader=leader,
        starts=tuple(starts),
        runs=tuple(runs),
        makespan=makespan,
        gpu_seconds=sum(runs),
        gpu_seconds_simultaneous=sum(at_once),
        within_cache=tuple(within),
    )


def _reach(pace: float, first: float, cache: float) -> float:
    """The latest start at which the cache reaches from the leader, an epoch in ``pace``, back to the follower."""
    if cache == 1:
        return float("inf")
    if first <= pace:
        return cache * pace
    return pace - (1 - cache) * first
