# SPDX-License-Identifier: Apache-2.0
"""Calibration: jobs run for some steps alone and in pairs, from a cold cache and from a warm one, into the catalog.

Three kinds of runs. *Cold*, alone, the data driven out of memory before: compute and wait. *Warm*, the same steps of
the same job right after: ``wait_cached``. *Pair*, two jobs at once, cold, let go together: ``wait_conc`` of both. Only
what the catalog lacks, or has marked stale, is measured, and each run's figures are kept as soon as it has ended. What
a short calibration has derived counts as lacking, but to another short one.

The short calibration takes the rate of the storage from a job that was measured to wait for it, now or before, and
measures the others warm; their waits, and those in company, follow and are marked as estimates. Where no job waits for
the storage nothing follows, and everything is measured.

Source: Assogba et al., HiPC 2023, section VI-B (K steps; alone cold, alone pre-cached, together cold); the steps before
those that count, the gate, the short form and all checks are ours.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from foresee._runtime.step_times import CACHE_SUBFOLDER
from foresee.errors import ConfigError, PageCacheKept
from foresee.jobspec import Job
from foresee.stagger.catalog import Catalog
from foresee.stagger.catalog_entry import Entry
from foresee.stagger.clock import SYSTEM, Clock
from foresee.stagger.inputs import shared, steps_per_epoch
from foresee.stagger.job_monitor import Watched
from foresee.stagger.local_job import Process, command
from foresee.stagger.model import Figure, wait_from_storage
from foresee.stagger.pooling import rate
from foresee.stagger.reports import agree
from foresee.stagger.termination import at_once, stop_all, undisturbed
from foresee.storage import page_cache

__all__ = ["Plan", "Ran", "Storage", "calibrate", "facts"]

#: K, of each form: as in the paper; and so many that two jobs of 1500 steps an epoch lose less than 5 % of their time.
_LONG, _SHORT = 100, 50
#: Fewer have no spread.
_STEPS_LEAST = 2
#: Steps after which a warm run of the short form may end, and the standard error of their mean at which it does, as a
#: share of it: as much as makespans may differ by and be equal. The means of both halves may not be further apart than
#: chance has them, for a pipeline that was full at the start is not yet one that keeps up.
_SETTLED_STEPS = 20
_SETTLED = 0.005
_HALVES = 2 * _SETTLED
#: Seconds between two looks at a run, which ends half of that late: a warm run of 60 short steps takes half a second.
_LOOK = 0.01


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Options of a calibration."""

    steps: int | None = None
    """K: that count, of each run; 2 or more. None: 100, of the short form 50."""
    warmup: int = 10
    """Steps before them, which fill pipelines; 0 or more."""
    short: bool = False
    """Whether waits that follow from one cold run are derived, and warm runs end when their steps are alike."""
    coalesces: bool | None = None
    """With ``short``: whether jobs share what they read, so that company costs nothing. None: of files they do, since
    jobs of one order find in the page cache what another one has read; of a bucket they do not."""
    patience: float = 300.0
    """Seconds for a job to begin, and between two of its steps; above 0."""
    data: tuple[str, ...] = ()
    """Files and folders of the data, which the catalog keeps; empty: where the jobs' index has them."""
    drop_machine: bool = False
    """Whether the page cache of the whole machine may be dropped, where dropping files is not enough."""

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {value!r}; a whole number of {least} or more expected"
            for name, value, least in (("steps", self.counted, 2), ("warmup", self.warmup, 0))
            if value < least
        ]
        if not self.patience > 0:
            faults.append(f"patience is {self.patience!r}; seconds above 0 expected")
        if self.coalesces is not None and not self.short:
            faults.append("coalesces without short: a run in company measures what it costs")
        if faults:
            raise ConfigError(faults)

    @property
    def counted(self) -> int:
        """K, chosen by the user or by default."""
        if self.steps is not None:
            return self.steps
        return _SHORT if self.short else _LONG


class Storage(Protocol):
    """The data's storage and the page cache in front of it; ``foresee.storage.page_cache`` is this machine's."""

    def find_files(self, jobs: Sequence[Job], paths: Iterable[str]) -> list[str] | None:
        """The files that jobs read; None: the data lie in no file system of this machine."""

    def evict(self, files: Sequence[str], *, machine: bool = False) -> page_cache.Eviction:
        """Drive files out of memory, and check that they are gone."""

    def drop(self, files: Sequence[str]) -> None:
        """Drive files out of memory as far as that goes."""

    def has_resident(self, files: Iterable[str]) -> bool:
        """Whether any of the files is in memory."""


@dataclass(frozen=True)
class Ran:
    """One job's part in a run; seconds."""

    kind: str
    """``cold``, ``warm`` or ``pair``."""
    name: str
    """Which job."""
    beside: str | None
    """The other one of a pair."""
    compute: tuple[float, float]
    """Per step: mean and standard deviation."""
    wait: tuple[float, float]
    """Likewise."""
    steps: int
    """That counted."""
    lasted: float
    """From the start of the process to its end."""
    read_bytes: int | None
    """That its processes had the storage read from their first step on; None: the kernel does not tell, or did not of
    one that has ended."""


def calibrate(
    jobs: Sequence[Job],
    catalog: Catalog,
    machine: str,
    plan: Plan,
    folder: str,
    *,
    program: str,
    tell: Callable[[str], None] = lambda _: None,
    clock: Clock = SYSTEM,
    start: Callable[..., Watched] = Process,
    storage: Storage = page_cache,
) -> list[Ran]:
    """Measure what ``catalog`` lacks of ``jobs``, alone and of each two of them.

    Args:
        jobs: two or more that share their data, each with a command.
        catalog: open for writing.
        machine: whose figures these are.
        plan: how.
        folder: exists; gets logs and steps.
        program: version of Foresee.
        tell: gets a line before each run.
        clock: that the runs are timed with.
        start: starts a job, as :class:`Process` does.
        storage: where the data lie.

    Returns:
        What was run, in order; nothing if the catalog has everything.

    Raises:
        ConfigError: jobs that do not share their data or their order, a missing key, a command that does not exist,
            more steps than an epoch has.
        JobFailed: a job ends too early, or takes no steps.
        PageCacheKept: the data stay in memory, or the jobs read other data than was driven out.
        CatalogInvalid, CatalogBusy: as :meth:`Catalog.open`.
    """
    return _Calibration(
        jobs, catalog, machine, plan, folder, program, tell, clock=clock, start=start, storage=storage
    ).run()


class _Calibration:
    """The runs of one call."""

    def __init__(
        self,
        jobs: Sequence[Job],
        catalog: Catalog,
        machine: str,
        plan: Plan,
        folder: str,
        program: str,
        tell: Callable[[str], None],
        *,
        clock: Clock,
        start: Callable[..., Watched],
        storage: Storage,
    ) -> None:
        common = shared(jobs, machine)
        self._jobs = tuple(jobs)
        self._names = common.names
        self._keys = [key for key in common.keys if key is not None]
        self._catalog, self._plan, self._folder = catalog, plan, folder
        self._program, self._tell = program, tell
        self._clock, self._starter, self._storage = clock, start, storage
        self._machine = machine
        self._data = common.data
        self._want = plan.warmup + plan.counted
        faults: list[str] = []
        for job, name in zip(jobs, self._names, strict=True):
            try:
                command(job)
            except ConfigError as error:
                faults += error.faults
            if (epoch := steps_per_epoch(job)) < self._want:
                faults.append(
                    f"{self._want} steps ({plan.warmup} before {plan.counted} that count), but an epoch of {name} has "
                    f"{epoch}; only the first epoch is cold: measure fewer"
                )
        if faults:
            raise ConfigError(faults)
        self._files = storage.find_files(jobs, plan.data)
        self._seen_gone = False
        self._number = 0
        self._caches: set[str] = set()
        self._ran: list[Ran] = []
        self._all: list[Watched] = []

    def run(self) -> list[Ran]:
        """Everything that is missing."""
        if self._files is None:
            self._tell(
                "the data are in no file system of this machine, so that none are driven out of memory; a cache "
                "between it and them is not known of here"
            )
        try:
            (self._short if self._plan.short else self._full)()
        finally:
            for cache in self._caches:
                shutil.rmtree(cache, ignore_errors=True)
            if self._all and self._files is not None:
                # Else the next run would begin with what these have read.
                self._storage.drop(self._files)
        # Not before the jobs were seen to read there.
        if places := [path for path in map(os.path.realpath, self._plan.data) if path.isprintable()]:
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
                self._keep(one, ran, {"wait_conc": ran.wait}, beside=other)

    def _short(self) -> None:
        """Each job warm, and as many cold as it takes to find one that waits for the storage."""
        pairs = list(itertools.permutations(range(len(self._jobs)), 2))
        if not any(self._missing(a, beside=b) for a, b in pairs):
            return
        # The largest batch first: it reads what the others need in as many steps.
        for at in sorted(range(len(self._jobs)), key=lambda at: -self._keys[at].batch):
            missing = self._missing(at)
            known = self._rate() is not None
            if not missing or (known and missing == ("wait",)):
                continue
            if not known or not self._ran:
                # Else nothing is in memory yet for a warm run to find.
                self._cold(at)
            if {"compute", "wait_cached"} & set(self._missing(at)):
                self._warm(at)
        sample = self._rate()
        if sample is None:
            self._tell(
                f"{' and '.join(self._names)} hardly wait for the storage, so that its rate is not seen and nothing "
                "follows from it: what is missing is measured"
            )
            self._full()
            return
        for at, key in enumerate(self._keys):
            if "wait" in self._missing(at):
                self._derive(at, "wait", wait_from_storage(self._known(at, "compute"), sample * key.batch))
        company = [(a, b) for a, b in pairs if "wait_conc" in self._missing(a, beside=b)]
        if company:
            self._compare()
        coalesces = self._files is not None if self._plan.coalesces is None else self._plan.coalesces
        for a, b in company:
            compute, wait = self._known(a, "compute"), self._known(a, "wait")
            both = wait_from_storage(compute, sample * self._keys[a].batch, readers=2)
            self._derive(a, "wait_conc", wait if coalesces else max(both, wait), beside=b)

    def _missing(self, at: int, *, beside: int | None = None) -> tuple[Figure, ...]:
        """Return the values of a job that the catalog lacks; derived ones suffice for the short form."""
        other = None if beside is None else self._keys[beside]
        return self._catalog.missing(self._keys[at], beside=other, measured=not self._plan.short)

    def _known(self, at: int, name: Figure) -> float:
        entry = self._catalog.get(self._keys[at], name)
        assert entry is not None
        return entry.seconds

    def _rate(self) -> float | None:
        """Seconds in which the storage delivers a sample, by what the catalog has of these jobs, else of others."""
        own = sorted(self._keys, key=lambda key: -key.batch)
        kept = self._catalog.keys()
        alike = [key for key in kept if (key.machine, key.data) == (self._machine, self._data)]
        return rate(self._catalog, dict.fromkeys((*own, *alike)))

    def _cold(self, at: int) -> None:
        (ran,) = self._run("cold", at)
        self._keep(at, ran, {"compute": ran.compute, "wait": ran.wait})

    def _warm(self, at: int) -> None:
        (ran,) = self._run("warm", at)
        # Compute only if no cold run has said it: that belongs to the wait of the same steps.
        self._keep(at, ran, {"compute": ran.compute, "wait_cached": ran.wait})

    def _compare(self) -> None:
        """Start jobs that did not run, up to their first step: what follows of company holds for one order alone."""
        seen = [self._keys[self._names.index(process.name)] for process in self._all]
        left = {key: at for at, key in enumerate(self._keys) if key not in seen}
        if not left:
            return
        self._tell(f"order: {' and '.join(self._names[at] for at in left.values())}, no step")
        processes: list[Watched] = []
        try:
            self._start(processes, "order", left.values())
            self._begun(processes)
        finally:
            self._end(processes)

    def _run(self, kind: str, *which: int) -> list[Ran]:
        """Run jobs until each has done its steps."""
        names = [self._names[at] for at in which]
        self._tell(f"{kind}: {' and '.join(names)}, {self._want} steps")
        self._number += kind != "warm"
        processes: list[Watched] = []
        began = self._clock.now()
        ready = self._settled if kind == "warm" and self._plan.short else self._through
        try:
            self._start(processes, kind, which)
            if kind != "warm" and self._files is not None:
                # While they start, for neither waits for the other; they read nothing before they are released.
                evicted = self._storage.evict(self._files, machine=self._plan.drop_machine)
                self._seen_gone = evicted.resident is not None
            self._begun(processes)
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
        told = []
        until = min(_first_epoch_end(process) for process in processes)
        for process, name, bytes_ in zip(processes, names, read, strict=True):
            steps = process.steps()[self._plan.warmup : self._want]
            # Once one has read everything, the other finds it: that is no company any more.
            steps = steps[steps[:, 0] < until]
            if len(steps) < _STEPS_LEAST:
                raise ConfigError(
                    f"{name} has taken {len(steps)} steps that count before the first epoch of a job beside it was "
                    f"over; measure fewer steps than {self._plan.counted}, or fewer before them than "
                    f"{self._plan.warmup}"
                )
            beside = next((other for other in names if other != name), None)
            told.append(
                Ran(
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
        self._ran += told
        return told

    def _start(self, processes: list[Watched], kind: str, which: Iterable[int]) -> None:
        """Start jobs, held before their first steps, into ``processes``."""
        folder = os.path.join(self._folder, f"{len(self._ran) + 1}-{kind}")
        os.makedirs(folder)
        for at in which:
            with at_once():
                environment = {CACHE_SUBFOLDER: self._apart()}
                processes.append(
                    self._starter(
                        self._jobs[at],
                        self._names[at],
                        folder,
                        environment=environment,
                        held=True,
                        clock=self._clock,
                    )
                )

    def _apart(self) -> str:
        """Wherever a job has its cache on disk: what earlier runs left there would be no cold start."""
        return f"calibrate-{os.getpid()}-{self._number}"

    def _begun(self, processes: Sequence[Watched]) -> None:
        """Until all are before their first steps, of which they have to agree with all that ran before."""
        self._wait(processes, lambda process: process.head is not None)
        # With those of earlier runs: a job that shuffles anew each time shares nothing either.
        self._all += processes
        agree(self._all)

    def _end(self, processes: Sequence[Watched]) -> None:
        with undisturbed():
            stop_all(processes)
        for process in processes:
            self._caches |= {cache for cache in process.caches() if os.path.basename(cache) == self._apart()}

    def _through(self, process: Watched) -> bool:
        return process.done >= self._want

    def _settled(self, process: Watched) -> bool:
        """Whether a job has done its steps, or enough of them that more would say the same."""
        done = process.done - self._plan.warmup
        if done >= self._plan.counted or done < _SETTLED_STEPS:
            return done >= self._plan.counted
        each = process.steps()[self._plan.warmup :, 1:].sum(axis=1)
        mean, sd = _mean_and_deviation(each)
        halves = abs(np.mean(each[: len(each) // 2]) - np.mean(each[len(each) // 2 :]))
        return bool(sd / len(each) ** 0.5 <= _SETTLED * mean and halves <= _HALVES * mean)

    def _wait(self, processes: Iterable[Watched], ready: Callable[[Watched], bool]) -> None:
        """Wait until all are ready; jobs that are ready run on meanwhile."""
        waited = list(processes)
        while True:
            codes = [(process, process.poll()) for process in waited]
            if all(ready(process) for process in waited):
                return
            for process, code in codes:
                # One that has done its part may end: the others keep the company that is left.
                if code is not None and not ready(process):
                    raise process.ended(code)
                if not ready(process) and self._clock.now() - process.last_step > self._plan.patience:
                    raise process.stalled(self._plan.patience)
            self._clock.sleep(_LOOK)

    def _check_cold(self, names: Sequence[str], read: Sequence[int | None]) -> None:
        """That the storage was read: by the kernel's count, and by what has come into memory since it was driven out.

        What is not known, as of a process that has just ended, says nothing.

        Raises:
            PageCacheKept: nothing was read, or nothing of what was driven out.
        """
        if self._files is None:
            return
        who, files = " and ".join(names), f"{self._files[0]} and others"
        nothing = all(bytes_ == 0 for bytes_ in read)
        if not self._seen_gone:
            if nothing:
                raise PageCacheKept(
                    f"{who} had the storage read nothing, so the data were in memory ({files}): the kernel tells only "
                    "their owner whether they are, and drops only clean pages; run as their owner, or with "
                    "--drop-caches as root"
                )
        elif self._storage.has_resident(self._files):
            if nothing:
                self._tell(
                    f"{who} had the storage read nothing by the kernel's count, though data came into memory: another "
                    "process reads for them, as the client of a network's file system does, or they read before their "
                    "first step, which then is no cold one"
                )
        elif nothing:
            raise PageCacheKept(
                f"{who} had the storage read nothing, and nothing of what was driven out of memory ({files}) is there "
                "again: their data lie elsewhere, name that folder with --data"
            )
        else:
            self._tell(
                f"nothing of what was driven out of memory ({files}) is there again after {who}: unless they read past "
                "the page cache their data lie elsewhere, and that folder is to be named with --data"
            )

    def _keep(
        self,
        at: int,
        ran: Ran,
        figures: dict[Figure, tuple[float, float]],
        *,
        beside: int | None = None,
    ) -> None:
        """Those of the figures that the catalog lacks."""
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


def facts(ran: Ran) -> dict[str, Any]:
    """A run in plain values."""
    return {
        "kind": ran.kind,
        "job": ran.name,
        "beside": ran.beside,
        "compute_seconds": ran.compute[0],
        "compute_seconds_sd": ran.compute[1],
        "wait_seconds": ran.wait[0],
        "wait_seconds_sd": ran.wait[1],
        "steps": ran.steps,
        "lasted_seconds": ran.lasted,
        "read_bytes": ran.read_bytes,
    }


def _since(before: int | None, after: int | None) -> int | None:
    """Bytes that were read in between; None: not known, as where a process that had read them has ended."""
    return None if before is None or after is None or after < before else after - before


def _first_epoch_end(process: Watched) -> float:
    """Return the moment at which a job had read everything, by the clock; infinite if not yet."""
    epoch = steps_per_epoch(process.job)
    steps = process.steps()
    return float(steps[epoch - 1].sum()) if len(steps) >= epoch else np.inf


def _today() -> dt.date:
    return dt.datetime.now().astimezone().date()


def _mean_and_deviation(seconds: NDArray[np.float64]) -> tuple[float, float]:
    return float(np.mean(seconds)), float(np.std(seconds, ddof=1))
