# SPDX-License-Identifier: Apache-2.0
"""Execution of a staggered run: jobs are started when predicted, and followed to their ends.

The driver of ``scheduler``: it has the clock, the jobs and the loop, and decides nothing. A follower's process starts
before its predicted start, by the time that it needs to load, and waits at the gate until then. So the start is that of
its first step. The launcher runs the jobs: on this host (:class:`Local`), or through Slurm (``slurm``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from foresee.errors import ForeseeError
from foresee.jobspec import Job
from foresee.stagger.actions import (
    Action,
    GiveUp,
    Hold,
    Launch,
    Message,
    Move,
    Progress,
    Read,
    Release,
    ReportEnd,
    Stop,
)
from foresee.stagger.clock import SYSTEM, Clock
from foresee.stagger.external_job import ExternalJob
from foresee.stagger.job_monitor import JobMonitor
from foresee.stagger.local_job import LocalJob
from foresee.stagger.managed_job import Snapshot
from foresee.stagger.outcome import RunResult
from foresee.stagger.scheduler import Scheduler
from foresee.stagger.spacing import Spacing
from foresee.stagger.termination import defer_signals, ignore_signals, stop_all
from foresee.stagger.timing import Timing

__all__ = ["Launcher", "Local", "Runner"]


class Launcher(Protocol):
    """A launcher of jobs."""

    def should_launch(self, *, leader_started: bool, due: float) -> bool:
        """Whether to launch a follower now that should load in ``due`` seconds."""

    def start(
        self, job: Job, name: str, folder: str, *, held: bool, first: JobMonitor | None, due: float
    ) -> JobMonitor:
        """Launch a job, to run in ``due`` seconds; ``first`` is its leader."""

    def move(self, monitor: JobMonitor, due: float) -> None:
        """Move the start of a launched job that may not run yet to ``due`` seconds from now."""


class Local:
    """Runs jobs as processes of this host."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock

    def should_launch(self, *, leader_started: bool, due: float) -> bool:
        """Whether its load is due."""
        del leader_started
        return due <= 0

    def start(
        self, job: Job, name: str, folder: str, *, held: bool, first: JobMonitor | None, due: float
    ) -> JobMonitor:
        """Start a process now."""
        del first, due
        return LocalJob(job, name, folder, held=held, clock=self._clock)

    def move(self, monitor: JobMonitor, due: float) -> None:
        """Do nothing: it runs."""
        del monitor, due


class Runner:
    """One run.

    Args:
        jobs: with their names, the leader first.
        timing: decides the starts.
        folder: exists; gets logs and steps.
        spacing: decides which jobs are held; None: none.
        launcher: None: :class:`Local`.
        delay: seconds for which the leader waits.
        external: the leader, if it runs before and its steps are visible; or the seconds that it has run, if its steps
            are not. None: it is started.
        patience: as of :class:`Scheduler`.
        log: gets a line for each event.
        show_progress: gets lines of progress.
        clock: of the run and its jobs.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[Job, str]],
        timing: Timing,
        folder: str,
        *,
        spacing: Spacing | None = None,
        launcher: Launcher | None = None,
        delay: float = 0.0,
        external: ExternalJob | float | None = None,
        patience: float = 300.0,
        log: Callable[[str], None] = lambda _: None,
        show_progress: Callable[[str], None] = lambda _: None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._jobs, self._folder, self._clock = list(jobs), folder, clock
        self._launcher = launcher or Local(clock)
        self._patience, self._log, self._show_progress = patience, log, show_progress
        self._monitors: list[JobMonitor | None] = [None] * len(self._jobs)
        if isinstance(external, ExternalJob):
            self._monitors[0] = external
        self._scheduler = Scheduler(
            self._jobs,
            timing,
            should_launch=self._launcher.should_launch,
            spacing=spacing,
            delay=delay,
            is_leader_running=external is not None,
            elapsed=external if isinstance(external, float) else None,
            patience=patience,
        )

    def run(self) -> RunResult:
        """Run until all have ended, or until KeyboardInterrupt, which stops the jobs.

        Raises:
            ConfigError: the leader's loader is not that of its job file.
        """
        interrupted = False
        try:
            self._loop()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            with ignore_signals():
                self._end()
        return RunResult(
            outcomes=self._scheduler.outcomes(),
            start_changes=self._scheduler.start_changes,
            doubts=self._scheduler.doubts,
            interrupted=interrupted,
        )

    def _loop(self) -> None:
        scheduler, clock = self._scheduler, self._clock
        scheduler.handle_start(clock.now())
        while True:
            snapshots = [self._snapshot(index) for index in range(len(self._jobs))]
            scheduler.handle_snapshots(snapshots, clock.now())
            while (action := scheduler.poll_action(clock.now())) is not None:
                self._execute(action)
            if scheduler.is_over:
                return
            clock.sleep(scheduler.poll_next_snapshot(clock.now()))

    def _snapshot(self, index: int) -> Snapshot | None:
        """Observe a job; None: it was not started, has ended before, or its steps cannot be read."""
        monitor = self._monitors[index]
        if monitor is None or self._scheduler.is_job_over(index):
            return None
        try:
            return _take_snapshot(monitor, monitor.poll())
        except (ForeseeError, OSError) as error:
            if index == 0:
                raise
            self._scheduler.handle_unreadable(index, str(error), self._clock.now())
            return None

    def _execute(self, action: Action) -> None:
        match action:
            case Launch():
                self._launch(action)
            case Read(index):
                self._scheduler.handle_steps(index, self._monitor(index).steps(), self._clock.now())
            case Release(index):
                self._monitor(index).release()
                self._gate(index)
            case Hold(index):
                self._monitor(index).hold()
                self._gate(index)
            case Move(index, due):
                self._launcher.move(self._monitor(index), due)
            case Stop(index):
                self._monitor(index).stop()
            case ReportEnd(index, code):
                self._log(str(self._monitor(index).exit_error(code)))
            case GiveUp(index):
                self._monitor(index).release()
                self._gate(index)
                stalled = self._monitor(index).stall_error(self._patience)
                self._log(f"{stalled}\nthe others do not wait for it any longer")
            case Message(text):
                self._log(text)
            case Progress(text):
                self._show_progress(text)

    def _launch(self, action: Launch) -> None:
        index = action.index
        job, name = self._jobs[index]
        try:
            with defer_signals():
                monitor = self._monitors[index] = self._launcher.start(
                    job, name, self._folder, held=action.held, first=self._monitors[0], due=action.due
                )
        except (ForeseeError, OSError) as error:
            if action.essential:
                raise
            self._scheduler.handle_launch_failure(index, str(error), self._clock.now())
            return
        self._scheduler.handle_launch(index, _take_snapshot(monitor, None), self._clock.now())
        self._gate(index)

    def _gate(self, index: int) -> None:
        """Report the gate: a rank that passes it right now keeps it open."""
        self._scheduler.handle_gate(index, self._monitor(index).held, self._clock.now())

    def _monitor(self, index: int) -> JobMonitor:
        monitor = self._monitors[index]
        assert monitor is not None, "an action about a job that was not started"
        return monitor

    def _end(self) -> None:
        """Stop the jobs that still run, except detached ones: all at once, as it may take time."""
        every = [(index, monitor) for index, monitor in enumerate(self._monitors) if monitor is not None]
        begun = [(index, monitor) for index, monitor in every if not self._scheduler.is_detached(index)]
        for index, monitor in begun:
            monitor.release()
            self._gate(index)
            with contextlib.suppress(ForeseeError, OSError):
                if monitor.poll() is None:
                    self._scheduler.handle_stop(index, self._clock.now())
        stop_all([monitor for _, monitor in begun])
        for index, monitor in every:
            code = None
            with contextlib.suppress(ForeseeError, OSError):
                code = monitor.poll()
            self._scheduler.handle_result(
                index, _take_snapshot(monitor, code), monitor.steps(), self._clock.now()
            )


def _take_snapshot(monitor: JobMonitor, code: int | None) -> Snapshot:
    return Snapshot(
        code=code,
        head=monitor.head,
        done=monitor.done,
        started=monitor.started,
        last_step=monitor.last_step,
        queued=monitor.queued,
    )
