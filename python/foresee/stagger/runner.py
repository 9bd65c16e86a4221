# SPDX-License-Identifier: Apache-2.0
"""Jobs started when predicted, and followed to their ends.

The driver of ``supervise``: it has the clock, the jobs and the loop, and decides nothing. A follower's process starts
as long before its moment as the leader took to begin its first step, or half a minute before if the leader ran already.
It is held at the gate until its moment, which is therefore that of its first step: predictions are about that. The
launcher runs the jobs: on this machine (:class:`Local`), or through Slurm (``foresee.stagger.slurm``).
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
from foresee.stagger.external_job import Already
from foresee.stagger.job_monitor import Watched
from foresee.stagger.local_job import Process
from foresee.stagger.managed_job import Snapshot
from foresee.stagger.outcome import Ran
from foresee.stagger.scheduler import Supervisor
from foresee.stagger.spacing import Pace
from foresee.stagger.termination import at_once, stop_all, undisturbed
from foresee.stagger.timing import Timing

__all__ = ["Launcher", "Local", "Runner"]


class Launcher(Protocol):
    """A launcher of jobs."""

    def wants(self, *, begun: bool, due: float) -> bool:
        """Whether a follower is to be handed over now: its leader has ``begun``, it should load in ``due`` seconds."""

    def start(
        self, job: Job, name: str, folder: str, *, held: bool, first: Watched | None, due: float
    ) -> Watched:
        """Hand a job over, to run in ``due`` seconds; ``first`` is the one that it follows."""

    def move(self, watched: Watched, due: float) -> None:
        """A job that was handed over, and that may not run yet, should run in ``due`` seconds."""


class Local:
    """Runs jobs as processes of this machine.

    Args:
        clock: that their steps are timed with.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock

    def wants(self, *, begun: bool, due: float) -> bool:
        """Its due time."""
        del begun
        return due <= 0

    def start(
        self, job: Job, name: str, folder: str, *, held: bool, first: Watched | None, due: float
    ) -> Watched:
        """Now."""
        del first, due
        return Process(job, name, folder, held=held, clock=self._clock)

    def move(self, watched: Watched, due: float) -> None:
        """It runs already."""
        del watched, due


class Runner:
    """One run.

    Args:
        jobs: with their names, the leader first.
        timing: decides when each starts.
        folder: exists; gets logs and steps.
        pace: decides which jobs are held; None: none.
        launcher: runs them; None: this machine.
        delay: seconds for which the leader waits.
        already: the leader, if it runs already and its steps can be followed; or the seconds for which it has run, if
            they cannot. None: it is started.
        patience: seconds for the leader to begin, without a step after which the others do not wait for it, and for any
            job to end after its last step.
        tell: gets a line for each event.
        show: gets a line of progress now and then.
        clock: that the run goes by, and that of its jobs.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[Job, str]],
        timing: Timing,
        folder: str,
        *,
        pace: Pace | None = None,
        launcher: Launcher | None = None,
        delay: float = 0.0,
        already: Already | float | None = None,
        patience: float = 300.0,
        tell: Callable[[str], None] = lambda _: None,
        show: Callable[[str], None] = lambda _: None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._jobs, self._folder, self._clock = list(jobs), folder, clock
        self._launcher = launcher or Local(clock)
        self._patience, self._tell, self._show = patience, tell, show
        self._watched: list[Watched | None] = [None] * len(self._jobs)
        if isinstance(already, Already):
            self._watched[0] = already
        self._decider = Supervisor(
            self._jobs,
            timing,
            wants=self._launcher.wants,
            pace=pace,
            delay=delay,
            joined=already is not None,
            elapsed=already if isinstance(already, float) else None,
            patience=patience,
        )

    def run(self) -> Ran:
        """Until all have ended, or until KeyboardInterrupt, which ends those that were started.

        Raises:
            ConfigError: the leader's loader is not that of its job file.
        """
        interrupted = False
        try:
            self._loop()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            with undisturbed():
                self._end()
        return Ran(
            outcomes=self._decider.outcomes(),
            moved=self._decider.moved,
            doubts=self._decider.doubts,
            interrupted=interrupted,
        )

    def _loop(self) -> None:
        decider, clock = self._decider, self._clock
        decider.handle_start(clock.now())
        while True:
            looks = [self._snapshot(who) for who in range(len(self._jobs))]
            decider.handle_snapshots(looks, clock.now())
            while (action := decider.poll_action(clock.now())) is not None:
                self._carry_out(action)
            if decider.over:
                return
            clock.sleep(decider.poll_next_snapshot(clock.now()))

    def _snapshot(self, who: int) -> Snapshot | None:
        """See how a job does; None: it was not started, or has ended before, or cannot be followed."""
        watched = self._watched[who]
        if watched is None or self._decider.ended(who):
            return None
        try:
            return _seen(watched, watched.poll())
        except (ForeseeError, OSError) as error:
            if who == 0:
                raise
            self._decider.handle_unreadable(who, str(error), self._clock.now())
            return None

    def _carry_out(self, action: Action) -> None:
        match action:
            case Launch():
                self._launch(action)
            case Read(who):
                self._decider.handle_steps(who, self._of(who).steps(), self._clock.now())
            case Release(who):
                self._of(who).release()
                self._gate(who)
            case Hold(who):
                self._of(who).hold()
                self._gate(who)
            case Move(who, due):
                self._launcher.move(self._of(who), due)
            case Stop(who):
                self._of(who).stop()
            case ReportEnd(who, code):
                self._tell(str(self._of(who).ended(code)))
            case GiveUp(who):
                self._of(who).release()
                self._gate(who)
                stalled = self._of(who).stalled(self._patience)
                self._tell(f"{stalled}\nthe others do not wait for it any longer")
            case Message(text):
                self._tell(text)
            case Progress(text):
                self._show(text)

    def _launch(self, action: Launch) -> None:
        who = action.who
        job, name = self._jobs[who]
        try:
            with at_once():
                watched = self._watched[who] = self._launcher.start(
                    job, name, self._folder, held=action.held, first=self._watched[0], due=action.due
                )
        except (ForeseeError, OSError) as error:
            if action.essential:
                raise
            self._decider.handle_launch_failure(who, str(error), self._clock.now())
            return
        self._decider.handle_launch(who, _seen(watched, None), self._clock.now())
        self._gate(who)

    def _gate(self, who: int) -> None:
        """A rank that passes the gate right now keeps it open: what was asked for may not be what is."""
        self._decider.handle_gate(who, self._of(who).held, self._clock.now())

    def _of(self, who: int) -> Watched:
        watched = self._watched[who]
        assert watched is not None, "an action about a job that was not started"
        return watched

    def _end(self) -> None:
        """End the jobs that still run, but for those that go on after their steps: all at once, as it may take time."""
        every = [(who, watched) for who, watched in enumerate(self._watched) if watched is not None]
        begun = [(who, watched) for who, watched in every if not self._decider.left(who)]
        for who, watched in begun:
            watched.release()
            self._gate(who)
            with contextlib.suppress(ForeseeError, OSError):
                if watched.poll() is None:
                    self._decider.handle_stop(who, self._clock.now())
        stop_all([watched for _, watched in begun])
        for who, watched in every:
            code = None
            with contextlib.suppress(ForeseeError, OSError):
                code = watched.poll()
            self._decider.handle_result(who, _seen(watched, code), watched.steps(), self._clock.now())


def _seen(watched: Watched, code: int | None) -> Snapshot:
    return Snapshot(
        code=code,
        head=watched.head,
        done=watched.done,
        started=watched.started,
        last_step=watched.last_step,
        queued=watched.queued,
    )
