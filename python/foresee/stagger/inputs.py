# SPDX-License-Identifier: Apache-2.0
"""Times that predictions need, for each job: from the job file, else the catalog, else the storage's rate.

It checks that the jobs read the same data in the same order, since no prediction holds otherwise.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foresee.errors import ConfigError, ForeseeError, NotMeasured
from foresee.jobspec import Job, rank_share
from foresee.stagger.catalog import Catalog
from foresee.stagger.catalog_entry import Key, UsedValue
from foresee.stagger.model import Figure, JobTimes, wait_from_storage
from foresee.stagger.pooling import ColdStep, pool_waits
from foresee.storage.page_cache import is_local

__all__ = ["CommonFacts", "StaggerInputs", "common_facts", "steps_per_epoch", "times"]

_MEASURE = "measure it by `foresee stagger calibrate JOB.toml ...`"


@dataclass(frozen=True)
class StaggerInputs:
    """The input of predictions for jobs that share their data."""

    data: str
    """The data set: its name, or the path of its index."""
    jobs: tuple[JobTimes, ...]
    """In the order given, names distinct."""
    doubts: tuple[str, ...]
    """Reasons to doubt a prediction."""
    used: tuple[UsedValue, ...] = ()
    """Values from the catalog, which a wrong prediction contradicts."""


@dataclass(frozen=True)
class CommonFacts:
    """Common facts of jobs, and their names and keys; one entry per job, in the order given."""

    data: str
    """The data set: its name, or the path of its index."""
    names: tuple[str, ...]
    """Names of the jobs in tables."""
    keys: tuple[Key | None, ...]
    """Keys of the catalog; None without a machine."""


def common_facts(jobs: Sequence[Job], machine: str | None) -> CommonFacts:
    """Return the common facts of jobs that share their data.

    Raises:
        ConfigError: fewer than two jobs, other data, another order, or a key that is missing.
    """
    if len(jobs) < 2:
        raise ConfigError(f"{len(jobs)} job; two or more that share their data expected")
    data = _equal(
        [_data(job) for job in jobs], jobs, "data sets differ", "all jobs have to read the same data"
    )
    _equal(
        [str(job.train.seed) for job in jobs], jobs, "orders differ", "give all jobs the same [train] seed"
    )
    keys = tuple(_key(job, data, machine) for job in jobs)
    _check_models(jobs, keys)
    return CommonFacts(data=data, names=tuple(_names(jobs)), keys=keys)


def times(
    jobs: Sequence[Job],
    *,
    catalog: Catalog | None = None,
    machine: str | None = None,
    read: float | None = None,
    coalesces: bool = False,
) -> StaggerInputs:
    """Return the times of jobs that share their data.

    Args:
        jobs: two or more, as read from their files.
        catalog: has the values that files do not give.
        machine: the machine's name in the catalog; needed with it.
        read: seconds in which the origin delivers the data set once; other missing waits are derived from it.
        coalesces: whether the jobs' cache coalesces, so that company costs nothing. The page cache does for files,
            and data in an unknown place count as files.

    Raises:
        ConfigError: fewer than two jobs, other data, another order, or a key that is missing.
        NotMeasured: a value is in none of these; with its job and a remedy.
        CatalogInvalid, CatalogBusy: as :meth:`Catalog.open`.
    """
    common = common_facts(jobs, machine)
    made: list[JobTimes] = []
    cold: list[ColdStep | None] = []
    doubts: list[str] = []
    used: list[UsedValue] = []
    coalesces = coalesces or (read is not None and _in_files(jobs))
    for at, (job, name, key) in enumerate(zip(jobs, common.names, common.keys, strict=True)):
        others = [*common.keys[:at], *common.keys[at + 1 :]]
        found = _JobFigures(job, name, catalog, key, others, read, coalesces)
        one = found.times()
        made.append(one)
        cold.append(found.cold(one))
        doubts += found.doubts
        used += found.used
    one_rate = tuple(pool_waits(made, cold))
    return StaggerInputs(data=common.data, jobs=one_rate, doubts=tuple(doubts), used=tuple(used))


class _JobFigures:
    """The values of one job from all sources."""

    def __init__(
        self,
        job: Job,
        name: str,
        catalog: Catalog | None,
        key: Key | None,
        others: Sequence[Key | None],
        read: float | None,
        coalesces: bool,
    ) -> None:
        self._job, self._name = job, name
        self._catalog, self._key, self._besides = catalog, key, others
        self._read, self._coalesces = read, coalesces
        self._estimated: set[Figure] = set()
        self.doubts: list[str] = []
        self.used: list[UsedValue] = []

    def times(self) -> JobTimes:
        (epochs,) = self._job.need("train.epochs")
        steps = steps_per_epoch(self._job)
        compute = self._compute()
        given = self._job.stagger
        step_read = None if self._read is None else self._read / steps
        wait = self._figure("wait", given.wait)
        if wait is None and step_read is not None:
            wait = wait_from_storage(compute, step_read)
            self._estimated.add("wait")
        cached = self._figure("wait_cached", given.wait_cached)
        conc = given.wait_conc
        if conc is None and wait is not None:
            conc = self._company_wait(wait)
            if conc is None and self._coalesces:
                conc = wait
                self._estimated.add("wait_conc")
            elif conc is None and step_read is not None:
                conc = max(wait, wait_from_storage(compute, step_read, readers=1 + len(self._besides)))
                self._estimated.add("wait_conc")
        for figure, value in (("wait", wait), ("wait_cached", cached)):
            if value is None:
                raise NotMeasured(f"{figure} of {self._name}", f"write [stagger] {figure}, or {_MEASURE}")
        assert wait is not None
        assert cached is not None
        found = JobTimes(
            name=self._name,
            compute=compute,
            wait=wait,
            wait_cached=cached,
            wait_conc=conc,
            steps=steps,
            epochs=int(epochs),
            estimated=frozenset(self._estimated),
        )
        self.doubts += found.doubts()
        if conc is not None and conc < wait and given.wait_conc is None:
            # Company that costs less than nothing is noise of a measurement.
            found = replace(found, wait_conc=wait)
        return found

    def cold(self, times: JobTimes) -> ColdStep | None:
        """Return the catalog's cold step; None if the file gives it, or the job does not wait."""
        given = self._job.stagger
        if self._catalog is None or self._key is None or (given.wait, given.wait_conc) != (None, None):
            return None
        wait, compute = (self._catalog.get(self._key, name) for name in ("wait", "compute"))
        if wait is None or wait.steps is None or wait.sd is None:
            return None
        sd = math.hypot(wait.sd, (compute.sd or 0.0) if compute is not None else 0.0)
        error = sd / math.sqrt(wait.steps)
        batch = self._key.batch
        if wait.seconds <= error:
            return None
        return ColdStep(seconds=(times.compute + wait.seconds) / batch, error=error / batch, batch=batch)

    def _compute(self) -> float:
        train = self._job.train
        if train.compute_step is not None:
            return train.compute_step
        if train.compute_rate is not None and self._job.data.size is not None:
            (batch,) = self._job.need("train.batch")
            return float(batch * self._job.data.size / train.compute_rate)
        compute = self._figure("compute", None)
        if compute is None:
            raise NotMeasured(f"compute of {self._name}", f"write [train] compute_step, or {_MEASURE}")
        return compute

    def _company_wait(self, wait: float) -> float | None:
        """Return the wait along with all others: measured for one, added up for more, as they share one storage."""
        before = len(self.used)
        each = [self._entry("wait_conc", beside) for beside in self._besides if beside is not None]
        known = [seconds for seconds in each if seconds is not None]
        if not known or len(known) < len(self._besides):
            del self.used[before:]
            return None
        if len(known) == 1:
            return known[0]
        self._estimated.add("wait_conc")
        return wait + math.fsum(max(0.0, seconds - wait) for seconds in known)

    def _figure(self, name: Figure, given: float | None) -> float | None:
        return self._entry(name, None) if given is None else given

    def _entry(self, name: Figure, beside: Key | None) -> float | None:
        if self._catalog is None or self._key is None:
            return None
        entry = self._catalog.get(self._key, name, beside=beside)
        if entry is None:
            return None
        self.used.append(UsedValue(self._key, name, beside))
        if entry.steps is None:
            self._estimated.add(name)
        if entry.stale is not None:
            self.doubts.append(
                f"{self._name}: {name} of {entry.date} is stale: {entry.stale}; measure it again"
            )
        return entry.seconds


def _in_files(jobs: Sequence[Job]) -> bool:
    try:
        return is_local(jobs)
    except (ForeseeError, OSError):
        # The code that needs the index reports its errors.
        return True


def _data(job: Job) -> str:
    if job.data.name is not None:
        return job.data.name
    if job.data.index is not None:
        return os.path.realpath(job.data.index)
    raise ConfigError(
        f"{_where(job)}data.name is missing; the name of the data set expected, equal in all jobs that share it"
    )


def steps_per_epoch(job: Job) -> int:
    """Return the steps per epoch, which are equal on all ranks.

    Raises:
        ConfigError: a key that is missing, or not one whole step.
    """
    train = job.train
    if train.steps_per_epoch is not None:
        return train.steps_per_epoch
    job.need("train.batch")
    samples = job.data.samples
    if samples is None and job.data.index is not None:
        from foresee._native import Index

        samples = len(Index.open(job.data.index))
    if samples is None:
        (samples,) = job.need("data.samples")
    steps = rank_share(job, int(samples), job.cluster.ranks or 1).steps
    assert steps is not None, "the job has a batch"
    return steps


def _key(job: Job, data: str, machine: str | None) -> Key | None:
    if machine is None:
        return None
    (batch,) = job.need("train.batch")
    model = job.stagger.model or _stem(job)
    return Key(machine=machine, data=data, model=model, batch=batch, loader=job.stagger.loader)


def _check_models(jobs: Sequence[Job], keys: Sequence[Key | None]) -> None:
    """Refuse two job files whose models would have one key in the catalog.

    Raises:
        ConfigError: likewise.
    """
    for (one, key), (other, same) in itertools.combinations(zip(jobs, keys, strict=True), 2):
        unnamed = one.stagger.model is None or other.stagger.model is None
        if key is not None and key == same and unnamed and _path(one) != _path(other):
            raise ConfigError(
                f"{one.file} and {other.file} would be one model, {key.model!r}, in the catalog; write [stagger] model "
                "in both, equal only where they train the same one"
            )


def _path(job: Job) -> str | None:
    return os.path.realpath(job.file) if job.file else None


def _stem(job: Job) -> str:
    return os.path.splitext(os.path.basename(job.file))[0] if job.file else "job"


def _names(jobs: Sequence[Job]) -> list[str]:
    """Return the names of the jobs in tables: their models, numbered if equal."""
    names = [job.stagger.model or _stem(job) for job in jobs]
    if len(set(names)) == len(names):
        return names
    return [f"{name} #{number}" for number, name in enumerate(names, 1)]


def _equal(values: list[str], jobs: Sequence[Job], what: str, remedy: str) -> str:
    if len(set(values)) > 1:
        found = ", ".join(
            f"{value} in {job.file or 'a job'}" for value, job in zip(values, jobs, strict=True)
        )
        raise ConfigError(f"{what}: {found}; {remedy}")
    return values[0]


def _where(job: Job) -> str:
    return f"{job.file}: " if job.file else ""
