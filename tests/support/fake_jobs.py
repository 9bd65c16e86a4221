# SPDX-License-Identifier: Apache-2.0
"""Fakes of jobs, of what launches them, and of the storage they read from, in the virtual time of ``fake_clock``.

A fake job does what ``stagger_job.py`` does with the same options, and writes the same file of steps, but no process runs
and nothing sleeps: the real driver, its deciders, the gates and the reading of steps are under test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from foresee._runtime.ranks import World
from foresee._runtime.step_times import CACHE_SUBFOLDER, CACHES, Meter, order_hash
from foresee.jobspec import Job
from foresee.stagger.job_monitor import JobMonitor
from foresee.stagger.runner import Local
from foresee.storage import page_cache
from support.fake_clock import FakeClock
from support.stagger_job import CHUNK, options

__all__ = ["FakeJob", "FakeLauncher", "FakeStorage"]


class FakeStorage:
    """An origin that delivers one chunk after the other, and the memory before it."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._free = 0.0
        self.memory: set[tuple[str, int]] = set()
        """Which chunks of which file are in memory."""
        self.resident: int | None = 0
        """Bytes that stay in memory after an eviction; None: the kernel does not report it."""
        self.looks: bool | None = None
        """What ``has_resident`` says; None: the truth."""
        self.counts: Callable[[FakeJob], int | None] = lambda job: job.delivered
        """What the kernel says a job had the storage read."""

    def deliver(self, wait: float) -> float:
        """Seconds until a chunk that takes ``wait`` has come, behind those that were asked for before."""
        self._free = max(self._clock.now(), self._free) + wait
        return self._free - self._clock.now()

    def find_files(self, jobs: Sequence[Job], paths: Iterable[str]) -> list[str] | None:
        """As ``foresee.storage.page_cache``: only names are looked at."""
        return page_cache.find_files(jobs, paths)

    def evict(self, files: Sequence[str], *, machine: bool = False) -> page_cache.Eviction:
        """Drive files out of memory."""
        del machine
        self.drop(files)
        return page_cache.Eviction(
            files=len(files), bytes=sum(map(os.path.getsize, files)), resident=self.resident
        )

    def drop(self, files: Sequence[str]) -> None:
        """Drive files out of memory."""
        self.memory = {chunk for chunk in self.memory if chunk[0] not in files}

    def has_resident(self, files: Iterable[str]) -> bool:
        """Whether any of the files is in memory."""
        there = {path for path, _ in self.memory}
        return bool(there & set(files)) if self.looks is None else self.looks


class _Ungated(Meter):
    """A meter whose gate the fake job looks at itself: a real lock would stop the test."""

    def _pass_gate(self) -> bool:
        return False


class FakeJob(JobMonitor):
    """A job that advances with the clock.

    Args:
        job: its command is one of ``stagger_job.py``; or `true`; or `sleep SECONDS`.
        name: what it is called.
        folder: of log and steps.
        storage: that it reads from.
        environment: variables of the job.
        held: whether its loader waits at the gate.
        clock: virtual.
        load: seconds until its loader is there, beside those of its command.
    """

    clock: FakeClock

    def __init__(
        self,
        job: Job,
        name: str,
        folder: str,
        storage: FakeStorage,
        *,
        environment: Mapping[str, str] | None = None,
        held: bool = False,
        clock: FakeClock,
        load: float = 0.0,
    ) -> None:
        super().__init__(job, name, folder, clock=clock)
        self._make_folder(held=held)
        self.environment = {**(environment or {}), **self._environment()}
        self.code: int | None = None
        self.delivered = 0
        """Bytes that came from the origin."""
        self.on_stop: Callable[[], None] = lambda: None
        """What happens while it is ended."""
        self._storage = storage
        self._is_pushed_back = False
        with open(self.log, "w", encoding="utf-8"):
            pass
        self._advance = self._live(load)
        clock.after(0.0, self._go)

    def release(self) -> None:
        """Open the gate; one that waits there goes on."""
        super().release()
        if self._is_pushed_back:
            self._is_pushed_back = False
            self.clock.after(0.0, self._go)

    def poll(self) -> int | None:
        """Read new steps; the exit code if the job has ended."""
        self._read()
        return self.code

    def stop(self) -> None:
        """End it."""
        self._drop_gate()
        self.on_stop()
        if self.code is None:
            self.code = -15

    def read_bytes(self) -> int | None:
        """What the kernel says."""
        return self._storage.counts(self)

    def _go(self) -> None:
        """Advance until the job takes time, or waits at the gate."""
        if self.code is not None:
            return
        for seconds in self._advance:
            if seconds is not None:
                self.clock.after(seconds, self._go)
                return
            if self.held:
                self._is_pushed_back = True
                return

    def _print(self, line: str) -> None:
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"{line}\n")

    def _live(self, load: float) -> Iterator[float | None]:
        """Seconds that pass; None: the gate."""
        (words,) = self.job.need("run.command")
        if words[0] in {"true", "sleep"}:
            yield float(words[1]) if len(words) > 1 else 0.0
            self.code = 0
        else:
            yield from self._train(load, words[2:])

    def _train(self, load: float, words: Sequence[str]) -> Iterator[float | None]:
        asked, clock = options(words), self.clock
        self._print(f"this job sleeps, seed {self.environment['FORESEE_SEED']}")
        yield load + asked.loads
        if asked.cache:
            apart = os.path.join(asked.cache, self.environment[CACHE_SUBFOLDER])
            with open(os.path.join(self.folder, CACHES), "w", encoding="utf-8") as file:
                file.write(f"{apart}\n")
            os.makedirs(apart, exist_ok=True)
        meter = _Ungated(self.folder, World(0, 1))
        done = 0
        for epoch in range(asked.epochs):
            order = order_hash(asked.order) if asked.order else 0
            meter.timer(steps=asked.loader_steps or asked.steps, order=order)
            for step in range(asked.steps):
                yield None
                if done == asked.dies_after:
                    self._print("no more memory")
                    self.code = 3
                    return
                if done == asked.hangs_after:
                    yield 600.0
                begin, chunk = clock.now(), (asked.data, step)
                if chunk not in self._storage.memory:
                    slow = asked.slow_after is not None and done >= asked.slow_after
                    yield self._storage.deliver(asked.slow if slow else asked.wait)
                    self._storage.memory.add(chunk)
                    self.delivered += CHUNK
                got = clock.now()
                yield asked.compute
                nanos = [round(1e9 * seconds) for seconds in (begin, got - begin, clock.now() - got)]
                meter._add(*nanos, epoch, step)
                done += 1
        meter.close()
        self.code = 0


class FakeLauncher(Local):
    """Launches fake jobs.

    Args:
        clock: virtual.
        storage: that all jobs read from.
        load: seconds that each takes to load.
    """

    def __init__(self, clock: FakeClock, storage: FakeStorage, *, load: float = 0.5) -> None:
        super().__init__(clock)
        self._fake, self._storage, self._load = clock, storage, load
        self.jobs: dict[str, FakeJob] = {}
        """Those that were launched, by name."""
        self.on_launch: Callable[[FakeJob], None] = lambda job: None
        """What happens to each that was launched."""
        self.refused: dict[str, OSError] = {}
        """Which jobs cannot be started, and why."""

    def start(
        self, job: Job, name: str, folder: str, *, held: bool, first: JobMonitor | None, due: float
    ) -> FakeJob:
        """Now."""
        del first, due
        if name in self.refused:
            raise self.refused[name]
        made = FakeJob(job, name, folder, self._storage, held=held, clock=self._fake, load=self._load)
        self.jobs[name] = made
        self.on_launch(made)
        return made
