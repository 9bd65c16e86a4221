# SPDX-License-Identifier: Apache-2.0
"""Times that predictions need, for each job: from the job file, else the catalog, else the storage's rate.

The jobs must read the same data in the same order, which is checked here: no prediction holds otherwise.
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
from foresee.stagger.pooling import Cold, pool_waits
from foresee.storage.page_cache import is_local

__all__ = ["Shared", "StaggerInputs", "shared", "steps_per_epoch", "times"]

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
    """Values that come from the catalog, which a wrong prediction contradicts."""


@dataclass(frozen=True)
class Shared:
    """Common facts of jobs, and their names and keys; one entry per job, in the order given."""

    data: str
    """The data set: its name, or the path of its index."""
    names: tuple[str, ...]
    """Names of the jobs in tables."""
    keys: tuple[Key | None, ...]
    """Keys of the catalog; None without a machine."""


def shared(jobs: Sequence[Job], machine: str | None) -> Shared:
    """Return the common facts of jobs that share their data.

    Raises:
        ConfigError: fewer than two jobs, other data, another order, or a key that is missing.
    """
    if len(jobs) < 2:
        raise ConfigError(f"{len(jobs)} job; two or more that share their data expected")
    data = _shared(
        [_data(job) for job in jobs], jobs, "data sets differ", "all jobs have to read the same data"
    )
    _shared(
        [str(job.train.seed) for job in jobs], jobs, "orders differ", "give all jobs the same [train] seed"
    )
    keys = tuple(_key(job, data, machine) for job in jobs)
    _tell_apart(jobs, keys)
    return Shared(data=data, names=tuple(_names(jobs)), keys=keys)


def times(
    jobs: Sequence[Job],
    *,
    catalog: Catalog | None = None,
    machine: str | None = None,
    read: float | None = None,
    coalesces: bool = False,
) -> StaggerInputs:
    """The figures of jobs that share their data.

    Args:
        jobs: two or more, as read from their files.
        catalog: where figures are that files do not give.
        machine: whose figures of the catalog; needed with it.
        read: seconds in which the origin delivers the data set once; waits that are nowhere else follow from it.
        coalesces: whether the jobs' cache coalesces, so that company costs nothing. Where their data are files the
            page cache does, for jobs of one order: what one has read another finds. Data of which nothing says where
            they lie are taken for files, as a calibration does.

    Raises:
        ConfigError: fewer than two jobs, other data, another order, or a key that is missing.
        NotMeasured: a figure is nowhere; which, of which job, and how to come by it.
        CatalogInvalid, CatalogBusy: as :meth:`Catalog.open`.
    """
    common = shared(jobs, machine)
    made: list[JobTimes] = []
    cold: list[Cold | None] = []
    doubts: list[str] = []
    used: list[UsedValue] = []
    coalesces = coalesces or (read is not None and _in_files(jobs))
    for at, (job, name, key) in enumerate(zip(jobs, common.names, common.keys, strict=True)):
        besides = [*common.keys[:at], *common.keys[at + 1 :]]
        found = _Found(job, name, catalog, key, besides, read, coalesces)
        one = found.times()
        made.append(one)
        cold.append(found.cold(one))
        doubts += found.doubts
        used += found.used
    one_rate = tuple(pool_waits(made, cold))
    return StaggerInputs(data=common.data, jobs=one_rate, doubts=tuple(doubts), used=tuple(used))


class _Found:
    """The figures of one job, wherever they are."""

    def __init__(
        self,
        job: Job,
        name: str,
        catalog: Catalog | None,
        key: Key | None,
        besides: Sequence[Key | None],
        read: float | None,
        coalesces: bool,
    ) -> None:
        self._job, self._name = job, name
        self._catalog, self._key, self._besides = catalog, key, besides
        self._read, self._coalesces = read, coalesces
        self._estimated: set[Figure] = set()
        self.doubts: list[str] = []
        self.used: list[UsedValue] = []

    def times(self) -> JobTimes:
        (epochs,) = self._job.need("train.epochs")
        steps = steps_per_epoch(self._job)
        compute = self._compute()
        asked = self._job.stagger
        step_read = None if self._read is None else self._read / steps
        wait = self._figure("wait", asked.wait)
        if wait is None and step_read is not None:
            wait = wait_from_storage(compute, step_read)
            self._estimated.add("wait")
        cached = self._figure("wait_cached", asked.wait_cached)
        conc = asked.wait_conc
        if conc is None and wait is not None:
            conc = self._company(wait)
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
        if conc is not None and conc < wait and asked.wait_conc is None:
            # Jobs of one order may share what they read, and company then costs nothing; less than nothing is noise.
            found = replace(found, wait_conc=wait)
        return found

    def cold(self, times: JobTimes) -> Cold | None:
        """Return the catalog's cold step; None if a file gives it instead, or the job does not wait."""
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
        return Cold(seconds=(times.compute + wait.seconds) / batch, error=error / batch, batch=batch)

    def _compute(self) -> float:
        train = self._job.train
        if train.compute_step is not None:
            return train.compute_step
        if train.compute_rate is not None and self._job.data.size is not None:
            (batch,) = self._job.need("train.batch")
            return float(batch * self._job.data.size / train.compute_rate)
        kept = self._figure("compute", None)
        if kept is None:
            raise NotMeasured(f"compute of {self._name}", f"write [train] compute_step, or {_MEASURE}")
        return kept

    def _company(self, wait: float) -> float | None:
        """The wait beside all others. What two do to each other is measured; of more it adds up, as it does where each
        of them takes its share of one storage.
        """
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
        # Code that needs the index reports what is wrong with it.
        return True


def _data(job: Job) -> str:
    if job.data.name is not None:
        return job.data.name
    if job.data.index is not None:
        return os.path.realpath(job.data.index)
    raise ConfigError(
        f"{_where(job)}data.name is missing; the name of the data set expected, the same in all jobs that share it"
    )


def steps_per_epoch(job: Job) -> int:
    """Steps per epoch, of one rank as of all.

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


def _tell_apart(jobs: Sequence[Job], keys: Sequence[Key | None]) -> None:
    """Two files of one name may be two models, which a catalog would take for one.

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


def _shared(values: list[str], jobs: Sequence[Job], what: str, remedy: str) -> str:
    if len(set(values)) > 1:
        told = ", ".join(f"{value} in {job.file or 'a job'}" for value, job in zip(values, jobs, strict=True))
        raise ConfigError(f"{what}: {told}; {remedy}")
    return values[0]


def _where(job: Job) -> str:
    return f"{job.file}: " if job.file else ""
