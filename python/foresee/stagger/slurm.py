# SPDX-License-Identifier: Apache-2.0
"""Jobs through Slurm: submitted, followed, postponed and cancelled with Slurm's own commands.

A follower may wait in three ways, and its loader waits at the gate for the rest of the time:

- ``begin``: it is submitted once the leader has started, with ``--begin`` some seconds before its start; both move.
- ``dependency``: it is submitted with the leader and depends on the leader's start plus whole minutes, Slurm's unit.
  This holds even if the launcher has ended.
- ``hold``: it depends on the leader's start alone and holds its allocation until its own start. This suits waits of a
  few seconds, in which another user might take the nodes.

A controller may take a minute to answer while gates have to open, so only a submission waits for its answer. The run
folder must be on a file system that all nodes share, with working locks (``flock``).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Literal

from foresee.errors import ConfigError, JobFailed, SlurmUnreachable
from foresee.jobspec import Job
from foresee.stagger.clock import SYSTEM, Clock
from foresee.stagger.job_monitor import JobMonitor
from foresee.stagger.local_job import command
from foresee.stagger.slurm_commands import (
    PATIENCE,
    SOONER,
    Commands,
    Controller,
    dependency,
    state,
    submission,
    whole_minutes,
)

__all__ = ["HOLD_MAX", "WAIT_MODES", "Slurm", "SlurmJob", "WaitMode"]

WaitMode = Literal["auto", "begin", "dependency", "hold"]

WAIT_MODES: tuple[WaitMode, ...] = ("auto", "begin", "dependency", "hold")
"""How a follower waits; ``auto``: ``hold`` up to :data:`HOLD_MAX`, else ``begin``."""

HOLD_MAX = 60.0
"""Seconds for which ``auto`` holds an allocation, since other users might take it."""

#: Smallest change of a start, in seconds, that is sent to Slurm, whose clock has whole seconds.
_MIN_MOVE = 2.0
#: Seconds between two requests to the controller.
_POLL_SECONDS = 1.0

_OVER = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}
_QUEUED = {"CONFIGURING", "PENDING"}
#: The signal that Slurm reports if a node cannot open a job's output.
_NO_OUTPUT = 53


class Slurm:
    """Hands jobs to Slurm.

    Args:
        way: how followers wait.
        longest: the latest predicted start, seconds; ``auto`` decides by it.
        options: for ``sbatch``, of all jobs.
        controller: None: Slurm's commands on this host.
        clock: as of :class:`JobMonitor`.

    Raises:
        ConfigError: ``way`` is none of :data:`WAIT_MODES`.
        SlurmUnreachable: Slurm is not installed here, or its controller does not answer.
    """

    def __init__(
        self,
        way: WaitMode = "auto",
        *,
        longest: float = 0.0,
        options: Sequence[str] = (),
        controller: Controller | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if way not in WAIT_MODES:
            raise ConfigError(f"way is {way!r}; one of {', '.join(WAIT_MODES)} expected")
        if way == "auto":
            way = "hold" if longest <= HOLD_MAX else "begin"
        self.way = way
        self._options = tuple(options)
        self._controller, self._clock = controller or Commands(), clock
        self._controller.run("scontrol", "ping")

    def should_launch(self, *, leader_started: bool, due: float) -> bool:
        """Whether to submit a follower: with its leader, except that ``begin`` needs the leader's first step."""
        del due
        return leader_started or self.way != "begin"

    def start(
        self, job: Job, name: str, folder: str, *, held: bool, first: JobMonitor | None, due: float
    ) -> SlurmJob:
        """Submit a job."""
        leader = first if isinstance(first, SlurmJob) else None
        begin = minutes = None
        if leader is not None and self.way == "dependency":
            minutes = whole_minutes(due)
        elif leader is not None and self.way == "hold":
            minutes = 0
        elif due > SOONER:
            begin = due - SOONER
        return SlurmJob(
            job,
            name,
            folder,
            self._controller,
            held=held,
            begin=begin,
            after=leader,
            minutes=minutes,
            options=self._options,
            clock=self._clock,
        )

    def move(self, monitor: JobMonitor, due: float) -> None:
        """Move the start of a job that still waits."""
        if isinstance(monitor, SlurmJob):
            monitor.move(due)


class SlurmJob(JobMonitor):
    """A submitted job.

    Args:
        job, name, folder, clock: as of :class:`JobMonitor`; the nodes share the folder.
        controller: the controller of Slurm.
        held: whether its loader waits at the gate until :meth:`release`.
        begin: seconds from now before which it may not run.
        after: the job whose start it waits for, or None.
        minutes: minutes after that start.
        options: more options for ``sbatch``.

    Raises:
        ConfigError: as :func:`command`, or Slurm refuses the job.
        SlurmUnreachable: the controller does not answer.
    """

    def __init__(
        self,
        job: Job,
        name: str,
        folder: str,
        controller: Controller,
        *,
        held: bool = False,
        begin: float | None = None,
        after: SlurmJob | None = None,
        minutes: int | None = None,
        options: Sequence[str] = (),
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(job, name, folder, clock=clock)
        self._controller = controller
        self.id = ""
        """Slurm's job id."""
        arguments, cwd = command(job)
        self._make_folder(held=held)
        self._due = None if begin is None else clock.now() + begin
        self._after = after if minutes is not None else None
        self._minutes = minutes
        self._depends = None if self._after is None else dependency(self._after.id, minutes or 0)
        self._last_move = -math.inf
        self._pending_move: tuple[Future[str], float] | None = None
        self._offset = math.inf
        self._code: int | None = None
        self._state = "PENDING"
        self._request_time = -math.inf
        self._request: Future[str] | None = None
        self._has_run = False
        """Whether the controller has reported its start."""
        self.queued = True
        submit = submission(
            arguments, job, name, cwd, self.log, begin=begin, depends=self._depends, options=options
        )
        try:
            output = controller.run(*submit, environment=self._environment())
        except BaseException:
            self._drop_gate()
            raise
        # ID, or ID;cluster.
        self.id = output.strip().split(";")[0]

    def poll(self) -> int | None:
        """Read new steps; return the exit code, negative for a signal, or None if no end is known.

        It never waits: the answer to a request is read at a later call.
        """
        code = self._code
        if code is None and self._request is not None and self._request.done():
            answer, self._request, self._request_time = self._request, None, self.clock.now()
            code = self._read_state(answer)
        self._read_move()
        ended = self._read()
        if self.queued and self.head is not None:
            # It runs: ask the controller since when.
            self.queued, self._request_time = False, -math.inf
            self.started = self.last_step = self.clock.now()
        if code is None and self._request is None and self.clock.now() - self._request_time >= _POLL_SECONDS:
            self._request = self._request_state()
        if ended is not None:
            # Steps are read after they were written: the smallest difference is the offset of the clocks.
            self._offset = min(self._offset, self.clock.now() - ended)
            # Monotonic clocks of two hosts differ by their boot times.
            self._shift = 0.0 if 0 <= self._offset < 1 else self._offset
        # Only now, as everything that it has written is read.
        self._code = code
        return code

    def _request_state(self) -> Future[str]:
        return self._controller.start("scontrol", "--oneliner", "show", "job", self.id)

    def _read_state(self, answer: Future[str]) -> int | None:
        """Read the state of the job; return the exit code if it has ended."""
        try:
            output = answer.result()
        except ConfigError as error:
            if not _is_forgotten(error):
                return None
            # Slurm forgets a job some minutes after its end.
            return 0 if self._state == "COMPLETED" else 1
        except SlurmUnreachable:
            return None  # the controller restarts or is busy; its jobs continue
        facts = state(output)
        self._state = facts["JobState"]
        if not self._has_run and self._state not in _QUEUED:
            self.queued, self._has_run = False, True
            self.last_step = self.clock.now()
            self.started = self.last_step - _seconds_since(facts.get("StartTime", ""), self.clock.wall())
        if self._state not in _OVER:
            return None
        code, _, number = facts.get("ExitCode", "1:0").partition(":")
        if int(number):
            return -int(number)
        return int(code) or (0 if self._state == "COMPLETED" else 1)

    def move(self, due: float) -> None:
        """Move its start to ``due`` seconds from now, unless it runs."""
        self._read_move()
        if not self.queued or self._code is not None or self.clock.now() - self._last_move < _POLL_SECONDS:
            return
        if self._pending_move is not None:
            return
        if self._after is not None and self._minutes:
            # Minutes after the leader's start by the controller's clock.
            minutes = whole_minutes(due + self.clock.now() - self._after.started)
            if minutes != self._minutes and not self._after.queued:
                self._move(f"Dependency={dependency(self._after.id, minutes)}", minutes)
        elif self._due is not None:
            soon = self.clock.now() + max(due - SOONER, 0.0)
            if abs(soon - self._due) >= _MIN_MOVE and (soon < self._due or due > SOONER):
                self._move(f"StartTime=now+{max(math.floor(due - SOONER), 0)}", soon)

    def _move(self, what: str, to: float) -> None:
        """Request another start from the controller."""
        self._last_move = self.clock.now()
        self._pending_move = self._controller.start("scontrol", "update", f"JobId={self.id}", what), to

    def _read_move(self) -> None:
        """Store the new start if the controller has accepted it."""
        if self._pending_move is None or not self._pending_move[0].done():
            return
        (answer, to), self._pending_move = self._pending_move, None
        try:
            answer.result()
        except (ConfigError, SlurmUnreachable):
            # It runs by now, or the controller is unreachable; its gate still holds it.
            self._request_time = -math.inf
            return
        if self._minutes:
            self._minutes = int(to)
        else:
            self._due = to

    def stop(self) -> None:
        """Cancel the job and wait for its end; it may be called again."""
        self._drop_gate()
        deadline = self.clock.now() + PATIENCE
        is_cancelled = False
        while self._code is None and self.clock.now() < deadline:
            if not is_cancelled:
                # A busy controller gets the request again.
                with contextlib.suppress(ConfigError, SlurmUnreachable):
                    self._controller.run("scancel", self.id)
                    is_cancelled = True
            self.clock.sleep(_POLL_SECONDS / 5)
            self._code = self._read_state(self._request_state())

    def exit_error(self, code: int) -> JobFailed:
        """Return the error of a job that has ended too early."""
        if code == -_NO_OUTPUT:
            return self.error(
                f"was not started: its node cannot write {self.log}; the run folder has to be on a file system that "
                "all nodes share, so name one there with --folder"
            )
        return super().exit_error(code)


def _seconds_since(moment: str, now: float) -> float:
    """Return the seconds since a time of Slurm's, which has no fraction and no zone; 0 if it has no time."""
    try:
        return max(now - time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S")), 0.0)
    except ValueError:
        return 0.0


def _is_forgotten(error: ConfigError) -> bool:
    return "Invalid job id" in str(error)
