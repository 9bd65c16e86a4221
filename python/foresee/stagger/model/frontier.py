# SPDX-License-Identifier: Apache-2.0
"""Any number of jobs behind one frontier: the latest starts at which no job catches up.

One job leads and reads from the origin; its progress is the frontier. Every other job starts so late that it finds all
its data in the cache, but ends no later than the last job. If no job waits less for being behind, all start as early as
they can. ``pair`` models two jobs that meet.

No schedule has a shorter makespan if the cache coalesces, since company then costs no time; staggering only saves GPU
time. The result is exact while the cache holds the data set. A smaller cache limits how far a follower may be behind. A
plan reports a job that falls further behind, and ``steps`` simulates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foresee.errors import ConfigError
from foresee.stagger.model.times import EQUAL, JobTimes, company_faults

__all__ = ["Plan", "led_by", "plan"]


@dataclass(frozen=True)
class Plan:
    """Starts of the jobs, and the resulting times. Tuples have one entry per job, in the order given."""

    leader: int
    """Index of the job that starts first and reads from the origin."""
    starts: tuple[float, ...]
    """Seconds after the first arrival."""
    runs: tuple[float, ...]
    """Seconds of each job, from its own start."""
    makespan: float
    """Seconds from the first arrival until all have ended."""
    gpu_seconds: float
    """All runs together."""
    gpu_seconds_simultaneous: float | None
    """The same if all started at 0 behind a cache that coalesces. None without such a cache, or with late arrivals."""
    sequential: float
    """Seconds until all have ended if each starts at the end of the one before, the leader first."""
    within_cache: tuple[bool, ...]
    """Whether the cache always reaches back to each job; without coalescing, so far that the job need not catch up."""


def plan(
    jobs: Sequence[JobTimes],
    read: float | None = None,
    *,
    arrivals: Sequence[float] | None = None,
    cache: float = 1.0,
) -> Plan:
    """Return the latest starts with the smallest makespan at which no job catches up.

    The job with the smallest makespan leads, of equal ones that with the fewest GPU-seconds. If the cache coalesces and
    all jobs arrive at 0, no schedule at all has a shorter makespan.

    Args:
        jobs: one or more, which read the same samples in the same order. ``wait`` counts without ``read``, or with a
            ``cache`` below 1; ``wait_conc`` never.
        read: seconds in which the origin delivers the data set once, to one job or to many; finite, > 0. None: the
            cache does not coalesce, and each leader reads at its own rate.
        arrivals: seconds before which a job cannot start, finite, 0 or more; one per job. None: all 0.
        cache: share of the data that the cache keeps, in (0, 1].

    Raises:
        ConfigError: no job, or an argument outside its range.

    >>> def job(step, epochs):
    ...     return JobTimes(compute=step, wait=0.75 - step, wait_cached=0, steps=1000, epochs=epochs)
    >>> jobs = [job(0.30, 1), job(0.25, 1), job(0.50, 2)]
    >>> made = plan(jobs, 750)
    >>> made.leader, made.starts, made.makespan
    (2, (950.0, 1000.0, 0.0), 1250.0)
    >>> made.gpu_seconds, made.gpu_seconds_simultaneous, made.sequential
    (1800.0, 2750.0, 1800.0)
    >>> plan(jobs, 750, arrivals=[0, 0, 100]).starts
    (0.0, 1000.0, 250.0)
    """
    there = [0.0] * len(jobs) if arrivals is None else [*arrivals]
    faults = company_faults(jobs, "arrivals", there, read, cache)
    if faults:
        raise ConfigError(faults)
    first = min(there)
    there = [float(arrival - first) for arrival in there]
    cached = [job.cached_epoch() for job in jobs]
    led = [_led_by(leader, jobs, there, read, cache) for leader in range(len(jobs))]
    shortest = min(each.makespan for each in led) * (1 + EQUAL)
    # Of equal plans that of the fastest leader, then the first.
    made = min(
        (each for each in led if each.makespan <= shortest),
        key=lambda each: (each.gpu_seconds, cached[each.leader]),
    )
    if read is None or max(there) > 0:
        return made
    at_once = sum(
        max(read, own) + (job.epochs - 1) * job.later_epoch(cache)
        for own, job in zip(cached, jobs, strict=True)
    )
    return replace(made, gpu_seconds_simultaneous=at_once)


def led_by(
    leader: int,
    jobs: Sequence[JobTimes],
    earliest: Sequence[float],
    read: float | None = None,
    *,
    cache: float = 1.0,
) -> Plan:
    """Return the plan of :func:`plan` for a given leader, which may run before.

    ``earliest`` of a job that has started is its start; its planned start has no meaning.

    Args:
        leader: index of the job.
        jobs: as for :func:`plan`.
        earliest: seconds before which a job cannot start, finite, 0 or more; one per job.
        read: as for :func:`plan`.
        cache: share of the data that the cache keeps, in (0, 1].

    Raises:
        ConfigError: an argument outside its range.
    """
    faults = company_faults(jobs, "earliest", earliest, read, cache)
    if not faults and not 0 <= leader < len(jobs):
        faults.append(f"leader is {leader}; the place of one of {len(jobs)} jobs expected")
    if faults:
        raise ConfigError(faults)
    return _led_by(leader, jobs, earliest, read, cache)


def _led_by(
    leader: int, jobs: Sequence[JobTimes], there: Sequence[float], read: float | None, cache: float
) -> Plan:
    """Return the plan with this leader, without checks."""
    lead = jobs[leader]
    lead_epoch = lead.cold_epoch() if read is None else max(read, lead.cached_epoch())
    begin = there[leader]
    all_read = begin + lead_epoch
    cached = [lead_epoch if i == leader else job.cached_epoch() for i, job in enumerate(jobs)]
    later = [(job.epochs - 1) * job.later_epoch(cache) for job in jobs]
    # No job starts before the leader: it would read from the origin.
    earliest = [max(arrival, begin) for arrival in there]
    ends = [
        max(start + own, all_read) + rest for start, own, rest in zip(earliest, cached, later, strict=True)
    ]
    makespan = max(ends)
    starts, runs, within = [], [], []
    for i, (own, rest) in enumerate(zip(cached, later, strict=True)):
        reach = np.inf if i == leader else _reach(lead_epoch, own, cache)
        # A follower slower than the leader falls back all the time, and a small cache loses it later if it starts
        # earlier. A faster one that a small cache makes start early waits for the leader at the frontier.
        latest = begin if i == leader else min(makespan - own - rest, begin + reach)
        starts.append(max(latest, earliest[i]))
        runs.append(max(own, all_read - starts[i]) + rest)
        behind = 0.0 if read is not None else max(lead_epoch - own, 0.0)
        within.append(reach >= behind and begin + reach >= earliest[i])
    if all(own >= lead_epoch for own in cached):
        starts = earliest
    last = begin + runs[leader]
    for i, job in enumerate(jobs):
        if i != leader:
            last = max(last, there[i]) + job.epochs * job.later_epoch(cache)
    return Plan(
        leader=leader,
        starts=tuple(starts),
        runs=tuple(runs),
        makespan=makespan,
        gpu_seconds=sum(runs),
        gpu_seconds_simultaneous=None,
        sequential=last,
        within_cache=tuple(within),
    )


def _reach(lead_epoch: float, first: float, cache: float) -> float:
    """Return the latest start within the cache's reach behind a leader with ``lead_epoch`` seconds per epoch."""
    if cache == 1:
        return np.inf
    if first <= lead_epoch:
        return cache * lead_epoch
    return lead_epoch - (1 - cache) * first
