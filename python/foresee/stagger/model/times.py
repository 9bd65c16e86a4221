# SPDX-License-Identifier: Apache-2.0
"""Times of one job per step, alone and in company: the input of every prediction of staggering.

Missing measurements are None, and a prediction that needs one raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from foresee.errors import ConfigError, NotMeasured

__all__ = [
    "EQUAL",
    "FIGURES",
    "Figure",
    "JobTimes",
    "cache_faults",
    "company_faults",
    "seconds_fault",
    "wait_from_storage",
]

Figure = Literal["compute", "wait", "wait_cached", "wait_conc"]

FIGURES: tuple[Figure, ...] = ("compute", "wait", "wait_cached", "wait_conc")
"""The measured times of a job, per step."""

EQUAL = 1e-12
"""Makespans that differ by less than this share are equal; rounding errors are a thousandth of it."""

_STEPS_MAX = 2**40
#: Share of a step by which the mean of a hundred may be off: a throttled disk grants its rate in slices.
_NOISE = 0.05


@dataclass(frozen=True, kw_only=True)
class JobTimes:
    """Seconds per step, steps and epochs of one job.

    Compared jobs read the same data in the same order, that is with the same seed. Their batches, and so their steps
    per epoch, may differ.

    Raises:
        ConfigError: values outside their range; all faults at once, each with the job's name.

    >>> job = JobTimes(name="resnet", compute=0.3036, wait=0.4493, wait_cached=0.04, steps=1560)
    >>> round(job.alone(), 3)
    1174.524
    """

    name: str = "job"
    """For messages and tables; printable, not empty."""
    compute: float
    """I: seconds of a step without waiting for data; finite, > 0."""
    wait: float
    """W: seconds per step that it waits for data, alone, with a cold cache; finite, 0 or more."""
    wait_cached: float
    """W:cached: the same with a warm cache; finite, 0 or more."""
    wait_conc: float | None = None
    """W:conc: the same while the other job also reads cold data; None: not measured. Needed only if the follower
    catches up."""
    steps: int
    """Steps per epoch, 1 to 2**40."""
    epochs: int = 1
    """1 to 2**40."""
    estimated: frozenset[Figure] = frozenset()
    """Values that were derived instead of measured; tables mark them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "estimated", frozenset(self.estimated))
        faults: list[str] = []
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            faults.append(f"name is {self.name!r}; printable text expected, not empty")
        for figure in FIGURES:
            value = getattr(self, figure)
            if value is None and figure == "wait_conc":
                continue
            fault = seconds_fault(f"{self.name}: {figure}", value, above_zero=figure == "compute")
            if fault:
                faults.append(fault)
        for count in ("steps", "epochs"):
            value = getattr(self, count)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _STEPS_MAX:
                faults.append(f"{self.name}: {count} is {value!r}; a whole number from 1 to 2**40 expected")
        faults += [
            f"{self.name}: estimated has {figure!r}; known figures are {', '.join(FIGURES)}"
            for figure in sorted(self.estimated - set(FIGURES))
        ]
        if faults:
            raise ConfigError(faults)

    def cold_epoch(self) -> float:
        """Return the seconds of an epoch alone with a cold cache: ``steps * (compute + wait)``."""
        return self.steps * (self.compute + self.wait)

    def cached_epoch(self) -> float:
        """Return the seconds of an epoch with all data in the cache: ``steps * (compute + wait_cached)``."""
        return self.steps * (self.compute + self.wait_cached)

    def conc_epoch(self) -> float:
        """Return the seconds of an epoch in which both jobs read cold data: ``steps * (compute + wait_conc)``.

        Raises:
            NotMeasured: ``wait_conc`` is None.
        """
        if self.wait_conc is None:
            raise NotMeasured(
                f"{self.name}: wait_conc",
                "run the jobs together with a cold cache for some steps and give each one's wait per step; where the "
                "cache coalesces reads it is that of wait",
            )
        return self.steps * (self.compute + self.wait_conc)

    def later_epoch(self, cache: float = 1.0) -> float:
        """Return the seconds of a later epoch, if the cache keeps the share ``cache`` of the data, in [0, 1].

        ``wait_cached`` counts for that share and ``wait`` for the rest.
        """
        wait = cache * self.wait_cached + (1 - cache) * self.wait
        return self.steps * (self.compute + wait)

    def alone(self, cache: float = 1.0) -> float:
        """Return the seconds of the whole job, alone, from a cold cache."""
        return self.cold_epoch() + (self.epochs - 1) * self.later_epoch(cache)

    def doubts(self) -> tuple[str, ...]:
        """Return warnings for times that contradict each other by more than 5 % of a step."""
        found = []
        noise = _NOISE * (self.compute + self.wait)
        if self.wait_cached > self.wait + noise:
            found.append(
                f"{self.name}: wait_cached {self.wait_cached:g} s is longer than wait {self.wait:g} s; was the cache "
                "really cold for the one and warm for the other?"
            )
        if self.wait_conc is not None and self.wait_conc < self.wait - noise:
            found.append(
                f"{self.name}: wait_conc {self.wait_conc:g} s is shorter than wait {self.wait:g} s; were both jobs "
                "reading cold data all the time?"
            )
        return tuple(found)


def wait_from_storage(compute: float, read: float, *, readers: int = 1) -> float:
    """Return the wait per step, ``max(0, readers * read - compute)``, since reads overlap with compute.

    One rate per storage replaces a measurement per job: in the paper's Table I compute and wait of four models add up
    to one pipeline time.

    Args:
        compute: seconds of a step without waiting; finite, > 0.
        read: seconds in which the storage delivers the data of one step to a job that only reads; finite, > 0.
        readers: jobs that read cold data at once, each by itself; 1 or more. 1 for a cache that coalesces.

    Raises:
        ConfigError: an argument outside its range.

    >>> round(wait_from_storage(0.3036, 0.748), 4), round(wait_from_storage(0.3036, 0.748, readers=2), 4)
    (0.4444, 1.1924)
    """
    faults = [
        fault
        for name, value in (("compute", compute), ("read", read))
        if (fault := seconds_fault(name, value, above_zero=True))
    ]
    if isinstance(readers, bool) or not isinstance(readers, int) or readers < 1:
        faults.append(f"readers is {readers!r}; a whole number of 1 or more expected")
    if faults:
        raise ConfigError(faults)
    return max(0.0, readers * read - compute)


def seconds_fault(field: str, value: object, *, above_zero: bool = False) -> str | None:
    """Return the fault of ``value`` as a number of seconds, or None."""
    rule = "finite and above 0" if above_zero else "finite and 0 or more"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        right = number and math.isfinite(float(value)) and (value > 0 if above_zero else value >= 0)  # type: ignore[arg-type,operator]
    except OverflowError:
        right = False
    return None if right else f"{field} is {value!r}; seconds expected, {rule}"


def cache_faults(cache: object) -> list[str]:
    """Return the faults of ``cache`` as the share of the data that a cache holds."""
    if isinstance(cache, bool) or not isinstance(cache, (int, float)) or not 0 < cache <= 1:
        return [f"cache is {cache!r}; the share of the data that it keeps expected, above 0 and at most 1"]
    return []


def company_faults(
    jobs: Sequence[JobTimes], moments: str, times: Sequence[float], read: float | None, cache: float
) -> list[str]:
    """Return the faults of jobs, one of the ``moments`` (starts, arrivals) for each, their storage and their cache."""
    faults = [] if jobs else ["jobs is empty; one or more expected"]
    if len(times) != len(jobs):
        faults.append(f"{len(times)} {moments} for {len(jobs)} jobs; one of each expected")
    values = [(f"{moments}[{at}]", time, False) for at, time in enumerate(times)]
    if read is not None:
        values.append(("read", read, True))
    faults += [
        fault for name, time, above in values if (fault := seconds_fault(name, time, above_zero=above))
    ]
    return faults + cache_faults(cache)
