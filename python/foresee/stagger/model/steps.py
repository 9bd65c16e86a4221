# SPDX-License-Identifier: Apache-2.0
"""Simulation of jobs that share their data, step by step, where closed forms end.

It supports any number of jobs and starts, a cache that does not reach back to a follower, and a follower that is held
before it catches up. The duration of a step is fixed at its start, so times differ from the closed forms by some steps.
The simulator is in the Rust core; this module converts units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from foresee import _native
from foresee.errors import ConfigError
from foresee.stagger.model.pair import Compat
from foresee.stagger.model.times import JobTimes, company_faults

__all__ = ["STATES", "STEPS_MAX", "Played", "Run", "State", "simulate"]

State = Literal["alone", "together", "behind", "cached"]

STATES: tuple[State, ...] = ("alone", "together", "behind", "cached")
"""Sources of a step's data: the storage, read alone or together with others; the cache, behind a job that is
still reading them in or with all of them there."""

STEPS_MAX = 10**9
"""Most steps of all jobs together."""

_SECONDS_BELOW = 2**63 / 1e9


@dataclass(frozen=True)
class Run:
    """Result of one job; times are seconds on the clock of ``starts``."""

    start: float
    end: float
    """End of its last step."""
    first_epoch: float
    """End of its first epoch."""
    caught: float | None
    """Time at which it first caught up with another job, or None."""
    steps: Mapping[State, int]
    """Number of its steps in each state."""
    seconds: Mapping[State, float]
    """Their seconds."""
    held: float
    """Seconds for which it was held."""
    stall: float
    """Seconds without compute, ``held`` included."""
    hits: float
    """Bytes from the cache or from another job's transfer, in data sets."""
    reads: float
    """Bytes from the storage, in data sets."""


@dataclass(frozen=True)
class Played:
    """Results of all jobs."""

    runs: tuple[Run, ...]
    """In the order given."""
    makespan: float
    """Seconds from the first start to the last end."""
    gpu_seconds: float
    """All runs together."""


def simulate(
    jobs: Sequence[JobTimes],
    starts: Sequence[float],
    *,
    compat: Compat = "physical",
    cache: float = 1.0,
    read: float | None = None,
    hold: float | None = None,
) -> Played:
    """Simulate ``jobs`` from ``starts`` to their ends.

    Args:
        jobs: one or more; all read the same samples in the same order.
        starts: seconds, finite, 0 or more; one per job.
        compat: the reading of the paper, as in :func:`predict`.
        cache: share of the data that the cache keeps, in (0, 1]. A follower further behind reads by itself.
        read: seconds in which the origin delivers the data set once, behind a cache that coalesces; finite, > 0.
            None: reads compete, and each job takes its measured time.
        hold: share of the data that must be in the cache beyond the next step of a follower that came near before it
            continues; 0 to 1. None: no job is held. Unused with ``read``.

    Raises:
        ConfigError: an argument outside its range, or more than 10**9 steps.
        NotMeasured: several jobs compete, and ``wait_conc`` of one is None.

    >>> a = JobTimes(name="a", compute=1, wait=7, wait_cached=2, wait_conc=7, steps=10, epochs=4)
    >>> b = JobTimes(name="b", compute=1, wait=7, wait_cached=1, wait_conc=3, steps=10)
    >>> simulate([a, b], [0, 60]).makespan
    170.0
    """
    faults = _faults(jobs, starts, cache, read, hold)
    if compat not in {"physical", "paper"}:
        faults.append(f"compat is {compat!r}; physical or paper expected")
    if faults:
        raise ConfigError(faults)
    if read is None and len(jobs) > 1:
        for job in jobs:
            job.conc_epoch()
    samples = math.lcm(*(job.steps for job in jobs))
    if samples >= 2**62:
        raise ConfigError(
            f"steps are {', '.join(str(job.steps) for job in jobs)}; no batches of whole samples have them: give "
            "steps of one data set"
        )
    results = _native.jobs_simulate(
        [
            (
                _nanos(job.compute),
                _nanos(job.wait),
                _nanos(job.wait_cached),
                [] if job.wait_conc is None else [_nanos(job.wait_conc)],
                samples // job.steps,
                job.epochs,
                _nanos(start),
            )
            for job, start in zip(jobs, starts, strict=True)
        ],
        samples,
        max(math.floor(cache * samples), 1),
        compat=compat,
        read=None if read is None else _nanos(read),
        hold=None if hold is None else math.ceil(hold * samples),
    )
    runs = tuple(
        Run(
            start=each["start"] / 1e9,
            end=each["end"] / 1e9,
            first_epoch=each["first_epoch"] / 1e9,
            caught=None if each["caught"] is None else each["caught"] / 1e9,
            steps={state: each[state][0] for state in STATES},
            seconds={state: each[state][1] / 1e9 for state in STATES},
            held=each["held"][1] / 1e9,
            stall=each["stall"] / 1e9,
            hits=each["hits"] / samples,
            reads=each["reads"] / samples,
        )
        for each in results
    )
    return Played(
        runs=runs,
        makespan=max(run.end for run in runs) - min(run.start for run in runs),
        gpu_seconds=sum(run.end - run.start for run in runs),
    )


def _faults(
    jobs: Sequence[JobTimes], starts: Sequence[float], cache: float, read: float | None, hold: float | None
) -> list[str]:
    faults = company_faults(jobs, "starts", starts, read, cache)
    if hold is not None and (
        isinstance(hold, bool) or not isinstance(hold, (int, float)) or not 0 <= hold <= 1
    ):
        faults.append(f"hold is {hold!r}; a share of the data expected, from 0 to 1, or None")
    steps = sum(job.steps * job.epochs for job in jobs)
    if steps > STEPS_MAX:
        faults.append(f"all jobs together have {steps} steps; at most 10**9 are played")
    if not faults:
        times = [(f"starts[{at}]", start) for at, start in enumerate(starts)]
        times += [] if read is None else [("read", read)]
        times += [
            (f"{job.name}: {name}", value)
            for job in jobs
            for name in ("compute", "wait", "wait_cached", "wait_conc")
            if (value := getattr(job, name)) is not None
        ]
        faults += [
            f"{name} is {value!r}; less than 2**63 ns expected"
            for name, value in times
            if value >= _SECONDS_BELOW
        ]
    return faults


def _nanos(seconds: float) -> int:
    return round(seconds * 1e9)
