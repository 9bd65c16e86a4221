# SPDX-License-Identifier: Apache-2.0
"""Jobs through Slurm: submitted, followed, put off and cancelled with its own commands.

A follower may wait in three ways. ``begin``: it is submitted once the leader has begun, with ``--begin`` some seconds
before its start; if the start moves, so does ``--begin``. ``dependency``: it is submitted with the leader and depends
on the leader's start, plus whole minutes, as Slurm counts them; this holds even if the launcher has ended. ``hold``: it
depends on the leader's start alone and holds its allocation until its own start. This suits waits of a few seconds, in
which another user might take the nodes. In all three ways its loader waits at the gate for the rest.

A controller may take a minute to answer, and gates have to open meanwhile. So status requests and postponements do not
wait for the answer (``slurm_commands``). Only a submission is waited for, since the job has no number before.

The run folder must be on a file system that all nodes share, with locks (``flock``) that hold between them. Options
of ``sbatch`` beyond cores and GPUs of the job file are an argument.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Literal

from foresee.errors import ConfigError, JobFailed, SlurmUnreachable
from foresee.jobspec import Job
from foresee.stagger.clock import SYSTEM, Clock
from foresee.stagger.job_monitor import Watched
from foresee.stagger.local_job import command
from foresee.stagger.slurm_commands import (
    PATIENCE,
    SOONER,
    Commands,
    Controller,
    Question,
    dependency,
    state,
    submission,
    whole_minutes,
)

__all__ = ["HOLD_MAX", "WAYS", "Slurm", "SlurmJob", "Way"]

Way = Literal["auto", "begin", "dependency", "hold"]

WAYS: tuple[Way, ...] = ("auto", "begin", "dependency", "hold")
"""Ways in which a follower waits; ``auto``: ``hold`` up to :data:`HOLD_MAX`, else ``begin``."""

HOLD_MAX = 60.0
"""Seconds for which ``auto`` holds an allocation: less than a minute of a machine, against losing it to others."""

#: Seconds by which a start has to move before Slurm is told: its clock has whole ones.
_MOVE_LEAST = 2.0
#: Seconds between two questions to the controller, which has others to answer.
_ASK = 1.0

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
#: The signal that Slurm reports where a node cannot open a job's output.
_NO_OUTPUT = 53


class Slurm:
    """Hands jobs to Slurm.

    Args:
        way: how followers wait.
        longest: the latest predicted start, seconds; ``auto`` decides by it.
        options: for ``sbatch``, of all jobs.
        controller: is asked; None: Slurm's commands on this machine.
        clock: as of :class:`Watched`.

    Raises:
        ConfigError: ``way`` is none of :data:`WAYS`.
        SlurmUnreachable: Slurm is not installed here, or its controller does not answer.
    """

    def __init__(
        self,
        way: Way = "auto",
        *,
        longest: float = 0.0,
        options: Sequence[str] = (),
        controller: Controller | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if way not in WAYS:
            raise ConfigError(f"way is {way!r}; one of {', '.join(WAYS)} expected")
        if way == "auto":
            way = "hold" if longest <= HOLD_MAX else "begin"
        self.way = way
        self._options = tuple(options)
        self._controller, self._clock = controller or Commands(), clock
        self._controller.ask("scontrol", "ping")

    def wants(self, *, begun: bool, due: float) -> bool:
        """With its leader, but for one that is to begin at a time, which the leader's first step gives."""
        del due
        return begun or self.way != "begin"

    def start(
        self, job: Job, name: str, folder: str, *, held: bool, first: Watched | None, due: float
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

    def move(self, watched: Watched, due: float) -> None:
        """Let Slurm know of another moment, if its job still waits for one."""
        if isinstance(watched, SlurmJob):
            watched.move(due)


class SlurmJob(Watched):
    """A job that was submitted.

    Args:
        job: which; its command has been checked.
        name: what it is called.
        folder: of log and steps; must exist, on a file system that the nodes share.
        controller: is asked.
        held: whether its loader waits at the gate until :meth:`release`.
        begin: seconds from now before which it may not run.
        after: the job whose start it waits for; None: none's.
        minutes: how much later, with ``after``.
        options: for ``sbatch``.
        clock: as of :class:`Watched`.

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
        """As Slurm calls it."""
        words, where = command(job)
        self._make(held=held)
        self._due = None if begin is None else clock.now() + begin
        self._after = after if minutes is not None else None
        self._minutes = minutes
        self._depends = None if self._after is None else dependency(self._after.id, minutes or 0)
        self._moved = -math.inf
        self._moving: tuple[Question, float] | None = None
        self._offset = math.inf
        self._code: int | None = None
        self._state = "PENDING"
        self._request_time = -math.inf
        self._request: Question | None = None
        self._ran = False
        """Whether the controller has said since when it runs."""
        self.queued = True
        asked = submission(
            words, job, name, where, self.log, begin=begin, depends=self._depends, options=options
        )
        try:
            told = controller.ask(*asked, environment=self._environment())
        except BaseException:
            self._abandon()
            raise
        # ID, or ID;cluster.
        self.id = told.strip().split(";")[0]

    def poll(self) -> int | None:
        """Read new steps; the exit code if the job is known to have ended, negative for a signal, else None.

        It never waits: the answer to a request is read at a later call.
        """
        code = self._code
        if code is None and self._request is not None and self._request.over:
            asked, self._request, self._request_time = self._request, None, self.clock.now()
            code = self._hear_state(asked)
        self._hear_move()
        ended = self._read()
        if self.queued and self.head is not None:
            # It runs, and the controller says since when.
            self.queued, self._request_time = False, -math.inf
            self.started = self.last_step = self.clock.now()
        if code is None and self._request is None and self.clock.now() - self._request_time >= _ASK:
            self._request = self._question()
        if ended is not None:
            # What is read now was written before, and at times right before: the least difference is that of clocks.
            self._offset = min(self._offset, self.clock.now() - ended)
            # One machine, one clock; those of two differ by as much as their boots do.
            self._shift = 0.0 if 0 <= self._offset < 1 else self._offset
        # What it wrote before its end has been read.
        self._code = code
        return code

    def _question(self) -> Question:
        return self._controller.begin("scontrol", "--oneliner", "show", "job", self.id)

    def _hear_state(self, asked: Question) -> int | None:
        """Read an answer of the controller, if there is one; return the exit code if the job is over."""
        try:
            told = asked.answer()
        except ConfigError as refused:
            if not _is_forgotten(refused):
                return None
            # As Slurm does some minutes after the end.
            return 0 if self._state == "COMPLETED" else 1
        except SlurmUnreachable:
            return None  # a controller that restarts, or that has others to answer: its jobs go on
        facts = state(told)
        self._state = facts["JobState"]
        if not self._ran and self._state not in _QUEUED:
            self.queued, self._ran = False, True
            self.last_step = self.clock.now()
            self.started = self.last_step - _ago(facts.get("StartTime", ""), self.clock.wall())
        if self._state not in _OVER:
            return None
        code, _, number = facts.get("ExitCode", "1:0").partition(":")
        if int(number):
            return -int(number)
        return int(code) or (0 if self._state == "COMPLETED" else 1)

    def move(self, due: float) -> None:
        """It should run in ``due`` seconds, if it does not yet."""
        self._hear_move()
        if not self.queued or self._code is not None or self.clock.now() - self._moved < _ASK:
            return
        if self._moving is not None:
            return
        if self._after is not None and self._minutes:
            # Counted from the leader's start, which the controller knows better.
            minutes = whole_minutes(due + self.clock.now() - self._after.started)
            if minutes != self._minutes and not self._after.queued:
                self._move(f"Dependency={dependency(self._after.id, minutes)}", minutes)
        elif self._due is not None:
            soon = self.clock.now() + max(due - SOONER, 0.0)
            if abs(soon - self._due) >= _MOVE_LEAST and (soon < self._due or due > SOONER):
                self._move(f"StartTime=now+{max(math.floor(due - SOONER), 0)}", soon)

    def _move(self, what: str, to: float) -> None:
        """Ask the controller for another moment."""
        self._moved = self.clock.now()
        self._moving = self._controller.begin("scontrol", "update", f"JobId={self.id}", what), to

    def _hear_move(self) -> None:
        """Keep the moment if the controller has taken it."""
        if self._moving is None or not self._moving[0].over:
            return
        (asked, to), self._moving = self._moving, None
        try:
            asked.answer()
        except (ConfigError, SlurmUnreachable):
            # It has begun meanwhile, or the controller is away; the gate keeps it from running ahead.
            self._request_time = -math.inf
            return
        if self._minutes:
            self._minutes = int(to)
        else:
            self._due = to

    def stop(self) -> None:
        """Cancel the job, and wait until it is over; again is fine."""
        self._abandon()
        deadline = self.clock.now() + PATIENCE
        told = False
        while self._code is None and self.clock.now() < deadline:
            if not told:
                # A controller that has others to answer is asked again.
                with contextlib.suppress(ConfigError, SlurmUnreachable):
                    self._controller.ask("scancel", self.id)
                    told = True
            self.clock.sleep(_ASK / 5)
            self._code = self._hear_state(self._question())

    def ended(self, code: int) -> JobFailed:
        """The error of a job that has ended too early."""
        if code == -_NO_OUTPUT:
            return self.failure(
                f"was not started: its node cannot write {self.log}; the run folder has to be on a file system that "
                "all nodes share, so name one there with --folder"
            )
        return super().ended(code)


def _ago(moment: str, now: float) -> float:
    """Seconds from a moment of Slurm's, which has whole ones and no zone, to ``now``; 0 if it tells none."""
    try:
        return max(now - time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S")), 0.0)
    except ValueError:
        return 0.0


def _is_forgotten(refused: ConfigError) -> bool:
    return "Invalid job id" in str(refused)
