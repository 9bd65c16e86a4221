# SPDX-License-Identifier: Apache-2.0
"""Calibration: jobs run for some steps, alone and in pairs, and their times go into the catalog.

There are three kinds of runs. *Cold*, alone, after the data were evicted from memory: compute and wait. *Warm*, the
same steps right after: ``wait_cached``. *Pair*, two jobs released together, cold: ``wait_conc`` of both. Only values
that are missing or stale in the catalog are measured, and each run is stored at its end.

The short calibration takes the rate of the storage from one job that waits for it. Other jobs run warm only, and their
waits are derived and marked as estimates. If no job waits for the storage, everything is measured.

Source: Assogba et al., HiPC 2023, section VI-B (K steps; alone cold, alone pre-cached, together cold). The warm-up
steps, the gate, the short form and all checks are additions.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foresee._runtime.step_times import CACHE_SUBFOLDER
from foresee.errors import ConfigError, PageCacheKept
from foresee.jobspec import Job
from foresee.stagger.catalog import Catalog
from foresee.stagger.catalog_entry import Entry
from foresee.stagger.clock import SYSTEM, Clock
from foresee.stagger.inputs import common_facts, steps_per_epoch
from foresee.stagger.job_monitor import JobMonitor
from foresee.stagger.local_job import LocalJob, command
from foresee.stagger.measurement import Measurement
from foresee.stagger.model import Figure, wait_from_storage
from foresee.stagger.pooling import rate
from foresee.stagger.reports import agree
from foresee.stagger.termination import defer_signals, ignore_signals, stop_all
from foresee.storage import page_cache

__all__ = ["Calibration", "CalibrationOptions", "Storage"]

#: K as in the paper; of the short form so that two jobs with 1500 steps per epoch lose less than 5 % of their time.
_LONG, _SHORT = 100, 50
#: Fewer steps have no standard deviation.
_STEPS_LEAST = 2
#: A warm run of the short form ends from so many steps, at a standard error of this share of the mean: equal makespans
#: may differ by as much. The means of both halves must agree too, since a pipeline is full at the start.
_SETTLED_STEPS = 20
_SETTLED = 0.005
_HALVES = 2 * _SETTLED
#: Seconds between two polls of a run: a warm run of 60 short steps takes half a second.
_POLL_SECONDS = 0.01


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """Options of a calibration."""

    steps: int | None = None
    """K, the steps of a run that count; 2 or more. None: 100, of the short form 50."""
    warmup: int = 10
    """Steps before those, which fill pipelines; 0 or more."""
    short: bool = False
    """Whether waits are derived from one cold run, and warm runs end when their mean is stable."""
    coalesces: bool | None = None
    """With ``short``: whether jobs share their reads, so that company costs nothing. None: True for files, which share
    the page cache; False for a bucket."""
    patience: float = 300.0
    """Seconds for a job to begin, and between two of its steps; above 0."""
    data: tuple[str, ...] = ()
    """Files and folders of the data, which the catalog stores; empty: those of the jobs' index."""
    drop_machine: bool = False
    """Whether to drop the whole page cache of the host if dropping files is not enough."""

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {value!r}; a whole number of {least} or more expected"
            for name, value, least in (("steps", self.counted, 2), ("warmup", self.warmup, 0))
            if value < least
        ]
        if not self.patience > 0:
            faults.append(f"patience is {self.patience!r}; seconds above 0 expected")
        if self.coalesces is not None and not self.short:
            faults.append("coalesces without short: only the short form derives the cost of company")
        if faults:
            raise ConfigError(faults)

    @property
    def counted(self) -> int:
        """K."""
        if self.steps is not None:
            return self.steps
        return _SHORT if self.short else _LONG


class Storage(Protocol):
    """The data's storage and the page cache in front of it; ``foresee.storage.page_cache`` is this host's."""

    def find_files(self, jobs: Sequence[Job], paths: Iterable[str]) -> list[str] | None:
        """Return the files that jobs read; None: the data are not in a file system."""

    def evict(self, files: Sequence[str], *, machine: bool = False) -> page_cache.Eviction:
        """Evict files from memory, and check that they are gone."""

    def drop(self, files: Sequence[str]) -> None:
        """Evict files from memory as far as possible."""

    def has_resident(self, files: Iterable[str]) -> bool:
        """Return whether any of the files is in memory."""


class Calibration:
    """The runs that measure what ``catalog`` lacks of jobs, alone and in pairs.

    Args:
        jobs: two or more that share their data, each with a command.
        catalog: open for writing.
        machine: the machine's name in the catalog.
        options: length and form of the runs.
        folder: exists; gets logs and steps.
        program: version of Foresee.
        log: gets a line before each run.
        clock: times the runs.
        start: starts a job, as :class:`LocalJob` does.
        storage: the storage of the data.

    Raises:
        ConfigError: jobs that do not share their data or their order, a missing key, a command that does not exist,
            more steps than an epoch has.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        catalog: Catalog,
        machine: str,
        options: CalibrationOptions,
        folder: str,
        *,
        program: str,
        log: Callable[[str], None] = lambda _: None,
        clock: Clock = SYSTEM,
        start: Callable[..., JobMonitor] = LocalJob,
        storage: Storage = page_cache,
    ) -> None:
        common = common_facts(jobs, machine)
        self._jobs = tuple(jobs)
        self._names = common.names
        self._keys = [key for key in common.keys if key is not None]
        self._catalog, self._options, self._folder = catalog, options, folder
        self._program, self._log = program, log
        self._clock, self._start_job, self._storage = clock, start, storage
        self._machine = machine
        self._data = common.data
        self._steps = options.warmup + options.counted
        faults: list[str] = []
        for job, name in zip(jobs, self._names, strict=True):
            try:
                command(job)
            except ConfigError as error:
                faults += error.faults
            if (epoch := steps_per_epoch(job)) < self._steps:
                faults.append(
                    f"{self._steps} steps ({options.warmup} before {options.counted} that count), but an epoch of "
                    f"{name} has {epoch}; only the first epoch is cold: measure fewer"
                )
        if faults:
            raise ConfigError(faults)
        self._files = storage.find_files(jobs, options.data)
        self._is_eviction_known = False
        self._number = 0
        self._caches: set[str] = set()
        self._ran: list[Measurement] = []
        self._started: list[JobMonitor] = []

    def run(self) -> list[Measurement]:
        """Measure the missing values; return the runs in order, none if the catalog has everything.

        Raises:
            JobFailed: a job ends too early, or takes no steps.
            PageCacheKept: the data stay in memory, or the jobs read other data than was evicted.
            ConfigError, CatalogInvalid, CatalogBusy: as above, and as :meth:`Catalog.open`.
        """
        if self._files is None:
            self._log(
                "the data are not in a file system of this host, so none are evicted from memory; a cache in between "
                "stays warm"
            )
        try:
            (self._short if self._options.short else self._full)()
        finally:
            for cache in self._caches:
                shutil.rmtree(cache, ignore_errors=True)
            if self._started and self._files is not None:
                # Otherwise the next run would not be cold.
                self._storage.drop(self._files)
        # Only now, after the jobs have read there.
        if places := [path for path in map(os.path.realpath, self._options.data) if path.isprintable()]:
            self._catalog.put_places(self._machine, self._data, places)
        return self._ran

    def _full(self) -> None:
        for at in range(len(self._jobs)):
            if self._missing(at):
                self._cold(at)
            if "wait_cached" in self._missing(at):
                self._warm(at)
        for a, b in itertools.combinations(range(len(self._jobs)), 2):
            pair = ((a, b), (b, a))
            if not any("wait_conc" in self._missing(one, beside=other) for one, other in pair):
                continue
            for (one, other), ran in zip(pair, self._run("pair", a, b), strict=True):
                self._store(one, ran, {"wait_conc": ran.wait}, beside=other)

    def _short(self) -> None:
        """Run each job warm, and cold ones until one waits for the storage."""
        pairs = list(itertools.permutations(range(len(self._jobs)), 2))
        if not any(self._missing(a, beside=b) for a, b in pairs):
            return
        # The largest batch first: it reads the data of the others in as many steps.
        for at in sorted(range(len(self._jobs)), key=lambda at: -self._keys[at].batch):
            missing = self._missing(at)
            known = self._rate() is not None
            if not missing or (known and missing == ("wait",)):
                continue
            if not known or not self._ran:
                # Otherwise nothing is in memory for a warm run.
                self._cold(at)
            if {"compute", "wait_cached"} & set(self._missing(at)):
                self._warm(at)
        sample = self._rate()
        if sample is None:
            self._log(
                f"{' and '.join(self._names)} hardly wait for the storage, so its rate is unknown: missing values are "
                "measured"
            )
            self._full()
            return
        for at, key in enumerate(self._keys):
            if "wait" in self._missing(at):
                self._derive(at, "wait", wait_from_storage(self._known(at, "compute"), sample * key.batch))
        company = [(a, b) for a, b in pairs if "wait_conc" in self._missing(a, beside=b)]
        if company:
            self._check_order()
        coalesces = self._files is not None if self._options.coalesces is None else self._options.coalesces
        for a, b in company:
            compute, wait = self._known(a, "compute"), self._known(a, "wait")
            both = wait_from_storage(compute, sample * self._keys[a].batch, readers=2)
            self._derive(a, "wait_conc", wait if coalesces else max(both, wait), beside=b)

    def _missing(self, at: int, *, beside: int | None = None) -> tuple[Figure, ...]:
        """Return the values of a job that the catalog lacks; derived ones suffice for the short form."""
        other = None if beside is None else self._keys[beside]
        return self._catalog.missing(self._keys[at], beside=other, measured=not self._options.short)

    def _known(self, at: int, name: Figure) -> float:
        entry = self._catalog.get(self._keys[at], name)
        assert entry is not None
        return entry.seconds

    def _rate(self) -> float | None:
        """Return the storage's seconds per sample from the catalog: of these jobs, else of others."""
        own = sorted(self._keys, key=lambda key: -key.batch)
        kept = self._catalog.keys()
        alike = [key for key in kept if (key.machine, key.data) == (self._machine, self._data)]
        return rate(self._catalog, dict.fromkeys((*own, *alike)))

    def _cold(self, at: int) -> None:
        (ran,) = self._run("cold", at)
        self._store(at, ran, {"compute": ran.compute, "wait": ran.wait})

    def _warm(self, at: int) -> None:
        (ran,) = self._run("warm", at)
        # Compute is stored only without a cold run, whose compute belongs to its wait.
        self._store(at, ran, {"compute": ran.compute, "wait_cached": ran.wait})

    def _check_order(self) -> None:
        """Start jobs that did not run, up to their first step: derived waits hold only for one order."""
        seen = [self._keys[self._names.index(process.name)] for process in self._started]
        left = {key: at for at, key in enumerate(self._keys) if key not in seen}
        if not left:
            return
        self._log(f"order: {' and '.join(self._names[at] for at in left.values())}, no step")
        processes: list[JobMonitor] = []
        try:
            self._start(processes, "order", left.values())
            self._wait_for_reports(processes)
        finally:
            self._end(processes)

    def _run(self, kind: str, *which: int) -> list[Measurement]:
        """Run jobs until each has done its steps; return their measurements."""
        names = [self._names[at] for at in which]
        self._log(f"{kind}: {' and '.join(names)}, {self._steps} steps")
        self._number += kind != "warm"
        processes: list[JobMonitor] = []
        began = self._clock.now()
        ready = self._is_settled if kind == "warm" and self._options.short else self._is_done
        try:
            self._start(processes, kind, which)
            if kind != "warm" and self._files is not None:
                # While the jobs load: they read nothing before their release.
                evicted = self._storage.evict(self._files, machine=self._options.drop_machine)
                self._is_eviction_known = evicted.resident is not None
            self._wait_for_reports(processes)
            before = [process.read_bytes() for process in processes]
            for process in processes:
                process.release()
                process.last_step = self._clock.now()
            self._wait(processes, ready)
            read = [_since(one, process.read_bytes()) for one, process in zip(before, processes, strict=True)]
        finally:
            self._end(processes)
        lasted = self._clock.now() - began
        if kind != "warm":
            self._check_cold(names, read)
        measured = []
        until = min(_first_epoch_end(process) for process in processes)
        for process, name, bytes_ in zip(processes, names, read, strict=True):
            steps = process.steps()[self._options.warmup : self._steps]
            # After one job has read everything the jobs no longer compete.
            steps = steps[steps[:, 0] < until]
            if len(steps) < _STEPS_LEAST:
                raise ConfigError(
                    f"{name} has taken {len(steps)} steps that count before the end of the other job's first epoch; "
                    f"measure fewer steps than {self._options.counted}, or fewer before them than "
                    f"{self._options.warmup}"
                )
            beside = next((other for other in names if other != name), None)
            measured.append(
                Measurement(
                    kind=kind,
                    name=name,
                    beside=beside,
                    compute=_mean_and_deviation(steps[:, 2]),
                    wait=_mean_and_deviation(steps[:, 1]),
                    steps=len(steps),
                    lasted=lasted,
                    read_bytes=bytes_,
                )
            )
        self._ran += measured
        return measured

    def _start(self, processes: list[JobMonitor], kind: str, which: Iterable[int]) -> None:
        """Start jobs, held before their first step, and append them to ``processes``."""
        folder = os.path.join(self._folder, f"{len(self._ran) + 1}-{kind}")
        os.makedirs(folder)
        for at in which:
            with defer_signals():
                environment = {CACHE_SUBFOLDER: self._apart()}
                processes.append(
                    self._start_job(
                        self._jobs[at],
                        self._names[at],
                        folder,
                        environment=environment,
                        held=True,
                        clock=self._clock,
                    )
                )

    def _apart(self) -> str:
        """Return the name of the jobs' own folder of caches on disk, which is cold."""
        return f"calibrate-{os.getpid()}-{self._number}"

    def _wait_for_reports(self, processes: Sequence[JobMonitor]) -> None:
        """Wait until all are before their first step, and compare their reports with all earlier jobs."""
        self._wait(processes, lambda process: process.head is not None)
        # Earlier runs count too: a job with another order in each run shares nothing.
        self._started += processes
        agree(self._started)

    def _end(self, processes: Sequence[JobMonitor]) -> None:
        with ignore_signals():
            stop_all(processes)
        for process in processes:
            self._caches |= {cache for cache in process.caches() if os.path.basename(cache) == self._apart()}

    def _is_done(self, process: JobMonitor) -> bool:
        return process.done >= self._steps

    def _is_settled(self, process: JobMonitor) -> bool:
        """Whether a job has done its steps, or enough for a stable mean."""
        done = process.done - self._options.warmup
        if done >= self._options.counted or done < _SETTLED_STEPS:
            return done >= self._options.counted
        each = process.steps()[self._options.warmup :, 1:].sum(axis=1)
        mean, sd = _mean_and_deviation(each)
        halves = abs(np.mean(each[: len(each) // 2]) - np.mean(each[len(each) // 2 :]))
        return bool(sd / len(each) ** 0.5 <= _SETTLED * mean and halves <= _HALVES * mean)

    def _wait(self, processes: Iterable[JobMonitor], ready: Callable[[JobMonitor], bool]) -> None:
        """Wait until all are ready; jobs that are ready continue."""
        waited = list(processes)
        while True:
            codes = [(process, process.poll()) for process in waited]
            if all(ready(process) for process in waited):
                return
            for process, code in codes:
                # A job that is ready may end.
                if code is not None and not ready(process):
                    raise process.exit_error(code)
                if not ready(process) and self._clock.now() - process.last_step > self._options.patience:
                    raise process.stall_error(self._options.patience)
            self._clock.sleep(_POLL_SECONDS)

    def _check_cold(self, names: Sequence[str], read: Sequence[int | None]) -> None:
        """Check that the storage was read: by the kernel's count, and by the data in memory since the eviction.

        Unknown counts, as of a process that has just ended, are ignored.

        Raises:
            PageCacheKept: nothing was read, or nothing of the evicted data.
        """
        if self._files is None:
            return
        who, files = " and ".join(names), f"{self._files[0]} and others"
        nothing = all(bytes_ == 0 for bytes_ in read)
        if not self._is_eviction_known:
            if nothing:
                raise PageCacheKept(
                    f"{who} read nothing from storage, so the data were in memory ({files}): the kernel reports this "
                    "only to the owner, and drops only clean pages; run as their owner, or with --drop-caches as root"
                )
        elif self._storage.has_resident(self._files):
            if nothing:
                self._log(
                    f"{who} read nothing from storage by the kernel's count, though data came into memory: another "
                    "process reads for them, such as a client of a network file system, or they read before their "
                    "first step, so that it was not cold"
                )
        elif nothing:
            raise PageCacheKept(
                f"{who} read nothing from storage, and none of the evicted data ({files}) are in memory again: their "
                "data are in another folder, name it with --data"
            )
        else:
            self._log(
                f"none of the evicted data ({files}) are in memory again after {who}: unless they bypass the page "
                "cache, their data are in another folder, name it with --data"
            )

    def _store(
        self,
        at: int,
        ran: Measurement,
        figures: dict[Figure, tuple[float, float]],
        *,
        beside: int | None = None,
    ) -> None:
        """Store the values that the catalog lacks."""
        missing = self._missing(at, beside=beside)
        for name, (mean, sd) in figures.items():
            if name in missing:
                entry = Entry(seconds=mean, sd=sd, steps=ran.steps, date=_today(), program=self._program)
                self._put(at, name, entry, beside)

    def _derive(self, at: int, name: Figure, seconds: float, *, beside: int | None = None) -> None:
        self._put(at, name, Entry(seconds=seconds, date=_today(), program=self._program), beside)

    def _put(self, at: int, name: Figure, entry: Entry, beside: int | None) -> None:
        company = None if beside is None else self._keys[beside]
        self._catalog.put(self._keys[at], name, entry, beside=company)


def _since(before: int | None, after: int | None) -> int | None:
    """Return the bytes read in between; None: unknown, as after the end of a process."""
    return None if before is None or after is None or after < before else after - before


def _first_epoch_end(process: JobMonitor) -> float:
    """Return the time at which a job had read everything; infinite if not yet."""
    epoch = steps_per_epoch(process.job)
    steps = process.steps()
    return float(steps[epoch - 1].sum()) if len(steps) >= epoch else np.inf


def _today() -> dt.date:
    return dt.datetime.now().astimezone().date()


def _mean_and_deviation(seconds: NDArray[np.float64]) -> tuple[float, float]:
    return float(np.mean(seconds)), float(np.std(seconds, ddof=1))
