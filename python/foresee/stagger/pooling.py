# SPDX-License-Identifier: Apache-2.0
"""Average of the storage rates that several jobs measured, if they differ by chance only.

A hundred cold steps of 20 ms are twenty slices in which a throttled disk grants its rate, and a fraction of a slice is
1 to 2 % of a job's rate. That difference looks like a faster reader, which would lead, and predictions would start both
jobs at once for a gain that does not exist. But jobs take the same cold time per sample from one storage.

Only a job that waits for the storage measures this rate. Rates that differ by more than chance are not averaged, since
loaders that read in another way have rates of their own.

Source: Assogba et al., HiPC 2023, Table I, where compute and wait of four models add up to one time per step. The
average, its test and the test of waiting are additions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from foresee.stagger.catalog import Catalog
from foresee.stagger.catalog_entry import Entry, Key
from foresee.stagger.model import JobTimes

__all__ = ["ColdStep", "pool_waits", "rate"]

#: Standard errors by which two means may be apart by chance.
_ERRORS = 2.0
#: And the share of the smaller one: a job with a larger difference reads in another way.
_APART = 0.05
#: A job waits for the storage if its cold wait exceeds the warm one by this share of a step. Less comes from late
#: batches and from bursts of a storage that is faster than the job.
_BOUND = 0.05


@dataclass(frozen=True)
class ColdStep:
    """Measured cold time of a job per sample."""

    seconds: float
    """Mean; compute and wait."""
    error: float
    """Standard error of that."""
    batch: int
    """Samples of a step, 1 or more."""


def pool_waits(jobs: Sequence[JobTimes], cold: Sequence[ColdStep | None]) -> list[JobTimes]:
    """Return ``jobs`` with waits at one rate.

    Args:
        jobs: jobs that read the same data; ``wait_conc`` is not below ``wait``.
        cold: one measurement per job; None: it does not wait for the storage, or was not measured.

    Returns:
        In the same order; unchanged if two measurements differ by more than chance.
    """
    known = [each for each in cold if each is not None]
    if len(known) < 2 or not all(_alike(one, other) for one, other in itertools.combinations(known, 2)):
        return list(jobs)
    mean = math.fsum(each.seconds for each in known) / len(known)
    return [
        job if each is None else _at(job, each.batch * mean) for job, each in zip(jobs, cold, strict=True)
    ]


def _alike(one: ColdStep, other: ColdStep) -> bool:
    apart = abs(one.seconds - other.seconds)
    chance = _ERRORS * math.hypot(one.error, other.error)
    return apart <= min(chance, _APART * min(one.seconds, other.seconds))


def _at(job: JobTimes, step: float) -> JobTimes:
    """Return a job with cold steps of ``step`` seconds; the cost of company stays."""
    wait = max(0.0, step - job.compute)
    conc = None if job.wait_conc is None else wait + (job.wait_conc - job.wait)
    return replace(job, wait=wait, wait_conc=conc)


def rate(catalog: Catalog, keys: Iterable[Key]) -> float | None:
    """Return the storage's seconds per sample, by the first of ``keys`` that was measured to wait for it.

    Args:
        catalog: has the values; stale and derived ones do not count.
        keys: jobs of one data set on one machine, the preferred ones first.

    Returns:
        None: none of them was measured cold and warm, or none waits for the storage.

    Raises:
        CatalogInvalid, CatalogBusy: as :meth:`Catalog.open`.
    """
    for key in keys:
        compute, wait, cached = (
            _measured(catalog.get(key, name)) for name in ("compute", "wait", "wait_cached")
        )
        if compute is None or wait is None or cached is None:
            continue
        step = compute.seconds + wait.seconds
        more = wait.seconds - cached.seconds
        if more > max(_ERRORS * math.hypot(_error(wait), _error(cached)), _BOUND * step):
            return step / key.batch
    return None


def _measured(entry: Entry | None) -> Entry | None:
    return None if entry is None or entry.steps is None or entry.stale is not None else entry


def _error(entry: Entry) -> float:
    """Return the standard error of the mean; 0 if the deviation is unknown."""
    return 0.0 if entry.sd is None or entry.steps is None else entry.sd / math.sqrt(entry.steps)
