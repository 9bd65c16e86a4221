# SPDX-License-Identifier: Apache-2.0
"""Fakes of jobs, of their launcher and of their storage, in the virtual time of ``fake_clock``.

A fake job behaves like ``stagger_job.py`` with the same options and writes the same file of steps, without a process or a
sleep. The driver, its deciders, the gates and the readers of steps are the real ones.
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
    """An origin that delivers one chunk at a time, and its page cache."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._free = 0.0
        self.memory: set[tuple[str, int]] = set()
        """Chunks in memory, each as file and number."""
        self.resident: int | None = 0
        """Bytes that stay in memory after an eviction; None: the kernel does not report it."""
        self.looks: bool | None = None
        """Result of ``has_resident``; None: computed from ``memory``."""
        self.counts: Callable[[FakeJob], int | None] = lambda job: job.delivered
        """Bytes that the kernel reports as read by a job."""

    def deliver(self, wait: float) -> float:
        """Return the seconds until a chunk that takes ``wait`` arrives, after all earlier requests."""
        self._free = max(self._clock.now(), self._free) + wait
        return self._free - self._clock.now()

    def find_files(self, jobs: Sequence[Job], paths: Iterable[str]) -> list[str] | None:
        """Like ``foresee.storage.page_cache``, which only reads names."""
        return page_cache.find_files(jobs, paths)

    def evict(self, files: Sequence[str], *, machine: bool = False) -> page_cache.Eviction:
        """Evict files from memory."""
        del machine
        self.drop(files)
        return page_cache.Eviction(
            files=len(files), bytes=sum(map(os.path.getsize, files)), resident=self.resident
        )

    def drop(self, files: Sequence[str]) -> None:
        """Evict files from memory."""
        self.memory = {chunk for chunk in self.memory if chunk[0] not in files}

    def has_resident(self, files: Iterable[str]) -> bool:
        """Whether any of the files is in memory."""
        there = {path for path, _ in self.memory}
        return bool(there & set(files)) if self.looks is None else self.looks


class _Ungated(Meter):
    """A meter that does not wait at its gate, because a real lock would stop the test; the fake job checks the gate."""

    def _pass_gate(self) -> bool:
        return False


class FakeJob(JobMonitor):
    """A job that advances with the clock.

    Args:
        job: its command is one of ``stagger_job.py``; or `true`; or `sleep SECONDS`.
        name: of the job.
        folder: of log and steps.
        storage: its origin.
        environment: variables of the job.
        held: whether its loader waits at the gate.
        clock: virtual.
        load: seconds until its loader exists, in addition to those of its command.
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
        """Called by `stop`."""
        self._storage = storage
        self._is_pushed_back = False
        with open(self.log, "w", encoding="utf-8"):
            pass
        self._advance = self._live(load)
        clock.after(0.0, self._go)

    def release(self) -> None:
        """Open the gate, and continue a job that waits there."""
        super().release()
        if self._is_pushed_back:
            self._is_pushed_back = False
            self.clock.after(0.0, self._go)

    def poll(self) -> int | None:
        """Read new steps; returns the exit code of an ended job."""
        self._read()
        return self.code

    def stop(self) -> None:
        """End it."""
        self._drop_gate()
        self.on_stop()
        if self.code is None:
            self.code = -15

    def read_bytes(self) -> int | None:
        """Return the bytes that the kernel reports."""
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
        """Yield the seconds until the next event; None: the gate."""
        (words,) = self.job.need("run.command")
        if words[0] in {"true", "sleep"}:
            yield float(words[1]) if len(words) > 1 else 0.0
            self.code = 0
        else:
            yield from self._train(load, words[2:])

    def _train(self, load: float, words: Sequence[str]) -> Iterator[float | None]:
        arguments, clock = options(words), self.clock
        self._print(f"this job sleeps, seed {self.environment['FORESEE_SEED']}")
        yield load + arguments.loads
        if arguments.cache:
            apart = os.path.join(arguments.cache, self.environment[CACHE_SUBFOLDER])
            with open(os.path.join(self.folder, CACHES), "w", encoding="utf-8") as file:
                file.write(f"{apart}\n")
            os.makedirs(apart, exist_ok=True)
        meter = _Ungated(self.folder, World(0, 1))
        done = 0
        for epoch in range(arguments.epochs):
            order = order_hash(arguments.order) if arguments.order else 0
            meter.timer(steps=arguments.loader_steps or arguments.steps, order=order)
            for step in range(arguments.steps):
                yield None
                if done == arguments.dies_after:
                    self._print("no more memory")
                    self.code = 3
                    return
                if done == arguments.hangs_after:
                    yield 600.0
                begin, chunk = clock.now(), (arguments.data, step)
                if chunk not in self._storage.memory:
                    slow = arguments.slow_after is not None and done >= arguments.slow_after
                    yield self._storage.deliver(arguments.slow if slow else arguments.wait)
                    self._storage.memory.add(chunk)
                    self.delivered += CHUNK
                got = clock.now()
                yield arguments.compute
                nanos = [round(1e9 * seconds) for seconds in (begin, got - begin, clock.now() - got)]
                meter._add(*nanos, epoch, step)
                done += 1
        meter.close()
        self.code = 0


class FakeLauncher(Local):
    """Launches fake jobs.

    Args:
        clock: virtual.
        storage: origin of all jobs.
        load: seconds that each takes to load.
    """

    def __init__(self, clock: FakeClock, storage: FakeStorage, *, load: float = 0.5) -> None:
        super().__init__(clock)
        self._fake, self._storage, self._load = clock, storage, load
        self.jobs: dict[str, FakeJob] = {}
        """Launched jobs by name."""
        self.on_launch: Callable[[FakeJob], None] = lambda job: None
        """Called with each launched job."""
        self.refused: dict[str, OSError] = {}
        """Errors of jobs that cannot be started, by name."""

    def start(
        self, job: Job, name: str, folder: str, *, held: bool, first: JobMonitor | None, due: float
    ) -> FakeJob:
        """Launch the job immediately."""
        del first, due
        if name in self.refused:
            raise self.refused[name]
        made = FakeJob(job, name, folder, self._storage, held=held, clock=self._fake, load=self._load)
        self.jobs[name] = made
        self.on_launch(made)
        return made
