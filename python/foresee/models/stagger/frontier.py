# SPDX-License-Identifier: Apache-2.0
"""Any number of jobs behind one frontier: the latest starts at which nobody catches up.

One job leads and reads from the origin; how far it has come is the frontier. Every other job starts so late that it
finds everything in the cache, and no later than that it ends with the last. Apart from ``pair``, which knows what two
jobs do to each other once they meet: here nobody meets, so it does not matter.

Where the cache coalesces, company costs no time anyway: no schedule has a shorter makespan then, and all that
staggering saves is GPU time. Exact while the cache holds the data set. A smaller cache limits how far a follower may
be behind; where a job slower than the leader falls further behind than that, the plan says so, and the simulation of
steps has the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    """Seconds until all have ended."""
    gpu_seconds: float
    """All runs together."""
    gpu_seconds_simultaneous: float | None
    """The same if all started at 0 behind a cache that coalesces; the makespan would not be shorter. None where the
    cache does not, and all would wait for each other."""
    sequential: float
    """Seconds until all have ended if each starts at the end of the one before, the leader first."""
    within_cache: tuple[bool, ...]
    """Whether the cache reaches back to each job all the time; and, if it does not coalesce, so far that the job need
    not catch up."""


def plan(jobs: Sequence[JobTimes], read: float | None = None, *, cache: float = 1.0) -> Plan:
    """The latest starts with the smallest makespan at which nobody catches up.

    With ``read`` the cache coalesces. The slowest job that still keeps up with the origin leads, because it loses the
    least by waiting for it, and no schedule at all has a shorter makespan. Without, each leader reads at its own pace
    alone, and the one with the smallest makespan leads, among equal ones that with the fewest GPU-seconds.

    Args:
        jobs: one or more. Of each count compute, ``wait_cached``, steps and epochs; without ``read``, or with a
            ``cache`` below 1, ``wait`` too. All read the same samples in the same order.
        read: seconds in which the origin delivers the data set once, to one job or to many; finite, > 0. None: the
            cache does not coalesce.
        cache: share of the data that the cache keeps, in (0, 1].

    Raises:
        ConfigError: no job, or an argument outside its range.

    >>> def job(step, epochs):
    ...     return JobTimes(compute=step, wait=0.75 - step, wait_cached=0, steps=1000, epochs=epochs)
    >>> made = plan([job(0.30, 1), job(0.25, 1), job(0.50, 2)], 750)
    >>> made.leader, made.starts, made.makespan
    (2, (950.0, 1000.0, 0.0), 1250.0)
    >>> made.gpu_seconds, made.gpu_seconds_simultaneous, made.sequential
    (1800.0, 2750.0, 1800.0)
    """
    faults = [] if jobs else ["jobs is empty; one or more expected"]
    fault = None if read is None else seconds_fault("read", read, above_zero=True)
    faults += [fault] if fault else []
    if isinstance(cache, bool) or not isinstance(cache, (int, float)) or not 0 < cache <= 1:
        faults.append(
            f"cache is {cache!r}; the share of the data that it keeps expected, above 0 and at most 1"
        )
    if faults:
        raise ConfigError(faults)
    if read is None:
        made = [
            _led_by(leader, jobs, job.cold_epoch(), cache, coalesces=False) for leader, job in enumerate(jobs)
        ]
        return min(made, key=lambda each: (each.makespan, each.gpu_seconds))  # of equal ones the first
    cached = [job.cached_epoch() for job in jobs]
    leader = max(
        range(len(jobs)), key=lambda i: (cached[i] <= read, cached[i] if cached[i] <= read else -cached[i])
    )
    led = _led_by(leader, jobs, max(read, cached[leader]), cache, coalesces=True)
    at_once = sum(
        max(read, first) + (job.epochs - 1) * job.later_epoch(cache)
        for first, job in zip(cached, jobs, strict=True)
    )
    return replace(led, gpu_seconds_simultaneous=at_once)


def _led_by(leader: int, jobs: Sequence[JobTimes], pace: float, cache: float, *, coalesces: bool) -> Plan:
    """The plan with this leader, whose first epoch takes ``pace`` seconds."""
    cached = [job.cached_epoch() for job in jobs]
    later = [(job.epochs - 1) * job.later_epoch(cache) for job in jobs]
    makespan = max(max(pace, first) + rest for first, rest in zip(cached, later, strict=True))
    starts, runs, within = [], [], []
    for i, (first, rest) in enumerate(zip(cached, later, strict=True)):
        if i == leader:
            starts.append(0.0)
            runs.append(pace + rest)
            within.append(True)
            continue
        reach = _reach(pace, first, cache)
        # A follower slower than the leader falls back all the time: a cache that is too small loses it less the
        # earlier it starts. One that a small cache makes start early waits for the leader at the frontier.
        start = max(min(makespan - first - rest, reach), 0.0)
        starts.append(start)
        runs.append(max(first, pace - start) + rest)
        within.append(reach >= (0.0 if coalesces else max(pace - first, 0.0)))
    return Plan(
        leader=leader,
        starts=tuple(starts),
        runs=tuple(runs),
        makespan=makespan,
        gpu_seconds=sum(runs),
        gpu_seconds_simultaneous=None,
        sequential=runs[leader]
        + sum(job.epochs * job.later_epoch(cache) for i, job in enumerate(jobs) if i != leader),
        within_cache=tuple(within),
    )


def _reach(pace: float, first: float, cache: float) -> float:
    """The latest start at which the cache reaches from the leader, an epoch in ``pace``, back to the follower."""
    if cache == 1:
        return float("inf")
    if first <= pace:
        return cache * pace
    return pace - (1 - cache) * first
