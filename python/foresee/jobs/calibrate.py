# SPDX-License-Identifier: Apache-2.0
"""Calibration: jobs run for some steps alone and in pairs, from a cold cache and from a warm one, into the catalog.

Three kinds of runs. *Cold*, alone, the data driven out of memory before: compute and wait. *Warm*, the same steps of
the same job right after: ``wait_cached``. *Pair*, two jobs at once, cold, let go together: ``wait_conc`` of both. Only
what the catalog lacks, or has marked stale, is measured, and each run's figures are kept as soon as it has ended.

The short calibration measures one job cold, for what the storage delivers, and all jobs warm; waits of the others and
in company follow and are marked as estimates.

Source: Assogba et al., HiPC 2023, section VI-B (K steps; alone cold, alone pre-cached, together cold); the steps before
those that count, the gate, the short form and all checks are ours.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee._steps import APART
from foresee.errors import ConfigError, PageCacheKept
from foresee.job import Job
from foresee.jobs import cold
from foresee.jobs.asked import shared, steps_per_epoch
from foresee.jobs.catalog import Catalog, Entry, Key
from foresee.jobs.ending import at_once, stop_all, undisturbed
from foresee.jobs.process import Process, command
from foresee.jobs.watched import agree
from foresee.models.stagger import Figure, wait_from_storage

__all__ = ["Plan", "Ran", "calibrate", "facts"]

#: Fewer have no spread.
_STEPS_LEAST = 2
#: Seconds between two looks at a run, which ends half of that late: a warm run of 60 short steps takes half a second.
_LOOK = 0.01


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How jobs are calibrated."""

    steps: int = 100
    """K: that count, of each run; 2 or more."""
    warmup: int = 10
    """Steps before them, which fill pipelines; 0 or more."""
    short: bool = False
    """Whether waits that follow from one cold run are derived."""
    coalesces: bool | None = None
    """With ``short``: whether jobs share what they read, so that company costs nothing. None: of files they do, since
    jobs of one order find in the page cache what another one has read; of a bucket they do not."""
    patience: float = 300.0
    """Seconds for a job to begin, and between two of its steps; above 0."""
    data: tuple[str, ...] = ()
    """Files and folders of the data; empty: where the jobs' index has them."""
    drop_machine: bool = False
    """Whether the page cache of the whole machine may be dropped, where dropping files is not enough."""

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {value!r}; a whole number of {least} or more expected"
            for name, value, least in (("steps", self.steps, 2), ("warmup", self.warmup, 0))
            if value < least
        ]
        if not self.patience > 0:
            faults.append(f"patience is {self.patience!r}; seconds above 0 expected")
        if self.coalesces is not None and not self.short:
            faults.append("coalesces without short: a run in company measures what it costs")
        if faults:
            raise ConfigError(faults)


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
    """That its processes had the storage read; None: the kernel does not tell."""


def calibrate(
    jobs: Sequence[Job],
    catalog: Catalog,
    machine: str,
    plan: Plan,
    folder: str,
    *,
    program: str,
    tell: Callable[[str], None] = lambda _: None,
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

    Returns:
        What was run, in order; nothing if the catalog has everything.

    Raises:
        ConfigError: jobs that do not share their data or their order, a missing key, a command that does not exist,
            more steps than an epoch has.
        JobFailed: a job ends too early, or takes no steps.
        PageCacheKept: the data stay in memory.
        CatalogInvalid, CatalogBusy: as :meth:`Catalog.open`.
    """
    return _Calibration(jobs, catalog, machine, plan, folder, program, tell).run()


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
    ) -> None:
        common = shared(jobs, machine)
        self._jobs = tuple(jobs)
        self._names = common.names
        self._keys = [key for key in common.keys if key is not None]
        self._catalog, self._plan, self._folder = catalog, plan, folder
        self._program, self._tell = program, tell
        self._want = plan.warmup + plan.steps
        faults: list[str] = []
        for job, name in zip(jobs, self._names, strict=True):
            try:
                command(job)
            except ConfigError as error:
                faults += error.faults
            if (epoch := steps_per_epoch(job)) < self._want:
                faults.append(
                    f"{self._want} steps ({plan.warmup} before {plan.steps} that count), but an epoch of {name} has "
                    f"{epoch}; only the first epoch is cold: measure fewer"
                )
        if faults:
            raise ConfigError(faults)
        self._files = cold.files_of(jobs, plan.data)
        self._seen_gone = False
        self._number = 0
        self._caches: set[str] = set()
        self._ran: list[Ran] = []
        self._all: list[Process] = []

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
            if self._ran and self._files is not None:
                # Else the next run would begin with what these have read.
                cold.drop(self._files)
        return self._ran

    def _full(self) -> None:
        seen: list[Key] = []
        for at, key in enumerate(self._keys):
            if key not in seen:
                seen.append(key)
                missing = self._catalog.missing(key)
                if missing:
                    (ran,) = self._run("cold", at)
                    self._keep(key, missing, ran.steps, {"compute": ran.compute, "wait": ran.wait})
                if "wait_cached" in missing:
                    (ran,) = self._run("warm", at)
                    self._keep(key, missing, ran.steps, {"wait_cached": ran.wait})
        for one, other in itertools.combinations(range(len(self._jobs)), 2):
            pair = ((one, other), (other, one))
            missing_of = [self._catalog.missing(self._keys[a], beside=self._keys[b]) for a, b in pair]
            if not any("wait_conc" in missing for missing in missing_of):
                continue
            both = self._run("pair", one, other)
            for (a, b), missing, ran in zip(pair, missing_of, both, strict=True):
                self._keep(self._keys[a], missing, ran.steps, {"wait_conc": ran.wait}, beside=self._keys[b])

    def _short(self) -> None:
        """One job cold, for the rate of the storage; all of them warm, from what it has read."""
        missing = [self._catalog.missing(key) for key in self._keys]
        pairs = list(itertools.permutations(range(len(self._jobs)), 2))
        lacking = [
            (a, b)
            for a, b in pairs
            if "wait_conc" in self._catalog.missing(self._keys[a], beside=self._keys[b])
        ]
        if not any(missing) and not lacking:
            return
        # The largest batch reads what the others need in as many steps.
        first = max(range(len(self._jobs)), key=lambda at: self._keys[at].batch)
        (ran,) = self._run("cold", first)
        self._keep(self._keys[first], missing[first], ran.steps, {"compute": ran.compute, "wait": ran.wait})
        sample = (ran.compute[0] + ran.wait[0]) / self._keys[first].batch
        bound = ran.wait[0] > ran.wait[1] / self._plan.steps**0.5
        if not bound:
            self._tell(
                f"{self._names[first]} hardly waits for the storage, so its rate is at least what was seen: waits "
                "that are derived from it may be too long"
            )
        for at, key in enumerate(self._keys):
            if missing[at]:
                (ran,) = self._run("warm", at)
                self._keep(key, missing[at], ran.steps, {"wait_cached": ran.wait})
                if at != first:
                    self._keep(key, missing[at], ran.steps, {"compute": ran.compute})
                    read = sample * key.batch
                    self._derive(key, missing[at], "wait", wait_from_storage(ran.compute[0], read))
        coalesces = self._files is not None if self._plan.coalesces is None else self._plan.coalesces
        for a, b in lacking:
            key, beside = self._keys[a], self._keys[b]
            compute, wait = self._catalog.get(key, "compute"), self._catalog.get(key, "wait")
            assert compute is not None
            assert wait is not None
            read = sample * key.batch
            conc = (
                wait.seconds
                if coalesces
                else max(wait_from_storage(compute.seconds, read, readers=2), wait.seconds)
            )
            self._derive(key, ("wait_conc",), "wait_conc", conc, beside=beside)

    def _run(self, kind: str, *which: int) -> list[Ran]:
        """Run jobs until each has done its steps."""
        names = [self._names[at] for at in which]
        self._tell(f"{kind}: {' and '.join(names)}, {self._want} steps")
        self._number += kind != "warm"
        folder = os.path.join(self._folder, f"{len(self._ran) + 1}-{kind}")
        os.makedirs(folder)
        # Wherever a job has its cache on disk: what earlier runs left there would be no cold start.
        apart = f"calibrate-{os.getpid()}-{self._number}"
        processes: list[Process] = []
        began = time.monotonic()
        try:
            for at, name in zip(which, names, strict=True):
                job = self._jobs[at]
                with at_once():
                    processes.append(Process(job, name, folder, environment={APART: apart}, held=True))
            if kind != "warm" and self._files is not None:
                # While they start, for neither waits for the other; they read nothing before they are released.
                evicted = cold.evict(self._files, machine=self._plan.drop_machine)
                self._seen_gone = evicted.kept is not None
            self._wait(processes, lambda process: process.head is not None)
            # With those of earlier runs: a job that shuffles anew each time shares nothing either.
            self._all += processes
            agree(self._all)
            for process in processes:
                process.release()
                process.last_step = time.monotonic()
            self._wait(processes, lambda process: process.done >= self._want)
            read = [process.read_bytes() for process in processes]
        finally:
            with undisturbed():
                stop_all(processes)
            for process in processes:
                self._caches |= {cache for cache in process.caches() if os.path.basename(cache) == apart}
        lasted = time.monotonic() - began
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
                    f"over; measure fewer steps than {self._plan.steps}, or fewer before them than {self._plan.warmup}"
                )
            beside = next((other for other in names if other != name), None)
            told.append(
                Ran(
                    kind=kind,
                    name=name,
                    beside=beside,
                    compute=_told(steps[:, 2]),
                    wait=_told(steps[:, 1]),
                    steps=len(steps),
                    lasted=lasted,
                    read_bytes=bytes_,
                )
            )
        self._ran += told
        return told

    def _wait(self, processes: Iterable[Process], ready: Callable[[Process], bool]) -> None:
        """Until all are ready; whoever is goes on beside the others."""
        waited = list(processes)
        while True:
            codes = [(process, process.poll()) for process in waited]
            if all(ready(process) for process in waited):
                return
            for process, code in codes:
                # One that has done its part may end: the others keep the company that is left.
                if code is not None and not ready(process):
                    raise process.ended(code)
                if not ready(process) and time.monotonic() - process.last_step > self._plan.patience:
                    raise process.stalled(self._plan.patience)
            time.sleep(_LOOK)

    def _check_cold(self, names: Sequence[str], read: Sequence[int | None]) -> None:
        """Where the kernel did not say that the files were gone, the storage must have been read."""
        if self._files is None or self._seen_gone:
            return
        if not any(read):
            raise PageCacheKept(
                f"{' and '.join(names)} had the storage read nothing, so the data were in memory ({self._files[0]} and "
                "others): the kernel tells only their owner whether they are, and drops only clean pages; run as their "
                "owner, or with --drop-caches as root"
            )

    def _keep(
        self,
        key: Key,
        missing: Sequence[Figure],
        steps: int,
        figures: dict[Figure, tuple[float, float]],
        *,
        beside: Key | None = None,
    ) -> None:
        for name, (mean, sd) in figures.items():
            if name in missing:
                entry = Entry(seconds=mean, sd=sd, steps=steps, date=_today(), program=self._program)
                self._catalog.put(key, name, entry, beside=beside)

    def _derive(
        self,
        key: Key,
        missing: Sequence[Figure],
        name: Figure,
        seconds: float,
        *,
        beside: Key | None = None,
    ) -> None:
        if name in missing:
            entry = Entry(seconds=seconds, date=_today(), program=self._program)
            self._catalog.put(key, name, entry, beside=beside)


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


def _first_epoch_end(process: Process) -> float:
    """When a job had read everything, of ``time.monotonic()``; infinite: not yet."""
    epoch = steps_per_epoch(process.job)
    steps = process.steps()
    return float(steps[epoch - 1].sum()) if len(steps) >= epoch else np.inf


def _today() -> dt.date:
    return dt.datetime.now().astimezone().date()


def _told(seconds: NDArray[np.float64]) -> tuple[float, float]:
    return float(np.mean(seconds)), float(np.std(seconds, ddof=1))
