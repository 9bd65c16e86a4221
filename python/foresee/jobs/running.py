# SPDX-License-Identifier: Apache-2.0
"""Jobs started when predicted, and followed to their ends.

The driver of ``timing`` and ``pace``: it has the clock, the jobs and the loop, and decides nothing but what is told. A
follower's process starts as long before its moment as the leader took to begin its first step, beside one that was
there before half a minute, and is held at the gate until then: so the moment is that of its first step, which is what
predictions are about. What runs a job is the launcher's business: this machine (:class:`Local`), or Slurm
(``foresee.jobs.slurm``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from foresee.errors import ConfigError, ForeseeError
from foresee.job import Job
from foresee.jobs.already import Already
from foresee.jobs.ending import at_once, stop_all, undisturbed
from foresee.jobs.outcome import Moved, Ran
from foresee.jobs.pace import Pace
from foresee.jobs.part import Part, ends
from foresee.jobs.process import Process
from foresee.jobs.timing import Timing
from foresee.jobs.watched import TICK, Watched, agree, unordered

__all__ = ["Launcher", "Local", "Runner"]

#: Seconds between two computations of the starts, and two lines of progress.
_AGAIN = 0.5
#: Share of the predicted run by which a start has to move to be told.
_MOVED = 0.01
#: How much longer than its leader a follower may take to load.
_LONGER = 1.25
#: Seconds to load where nobody saw a job do it: torch and a device take some of them, on a busy machine many. One that
#: is ready sooner waits at the gate, and does not compute: half a minute of a GPU, against a late start.
_UNSEEN_LOAD = 30.0


class Launcher(Protocol):
    """What runs jobs."""

    def wants(self, *, begun: bool, due: float) -> bool:
        """Whether a follower is to be handed over now: its leader has ``begun``, it should load in ``due`` seconds."""

    def start(
        self, job: Job, name: str, folder: str, *, held: bool, first: Watched | None, due: float
    ) -> Watched:
        """Hand a job over, to run in ``due`` seconds; ``first`` is the one that it follows."""

    def move(self, watched: Watched, due: float) -> None:
        """A job that was handed over, and that may not run yet, should run in ``due`` seconds."""


class Local:
    """Runs jobs as processes of this machine."""

    def wants(self, *, begun: bool, due: float) -> bool:
        """When it is due."""
        del begun
        return due <= 0

    def start(
        self, job: Job, name: str, folder: str, *, held: bool, first: Watched | None, due: float
    ) -> Watched:
        """Now."""
        del first, due
        return Process(job, name, folder, held=held)

    def move(self, watched: Watched, due: float) -> None:
        """It runs already."""
        del watched, due


class Runner:
    """One run.

    Args:
        jobs: with their names, the leader first.
        timing: decides when each starts.
        folder: exists; gets logs and steps.
        pace: decides who is held; None: nobody. Without steps of the leader nobody is either, as it is not known who is
            near to it.
        launcher: runs them.
        delay: seconds for which the leader waits.
        already: the leader, if it runs already and its steps can be followed; or the seconds for which it has run, if
            they cannot. None: it is started.
        patience: seconds for the leader to begin, and without a step after which the others do not wait for it.
        tell: gets a line for each event.
        show: gets a line of progress now and then.
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
    ) -> None:
        self._parts = [Part(job, name, timing.poll_start(at, 0.0)) for at, (job, name) in enumerate(jobs)]
        self._unseen = isinstance(already, float)
        self._timing, self._folder = timing, folder
        self._pace = None if self._unseen else pace
        self._launcher = launcher or Local()
        self._delay, self._already, self._patience = delay, already, patience
        self._tell, self._show = tell, show
        #: Those that are let go together with the leader.
        self._together = [part for part in self._parts if part.start == 0 and already is None]
        self._zero: float | None = None
        self._news = False
        self._moved: list[Moved] = []
        self._doubts: list[str] = []

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
            outcomes=tuple(
                part.outcome(self._origin(), unseen=self._unseen and at == 0)
                for at, part in enumerate(self._parts)
            ),
            moved=tuple(self._moved),
            doubts=tuple(self._doubts),
            interrupted=interrupted,
        )

    def _end(self) -> None:
        """End whoever still runs: all at once, as each may take its time."""
        begun = [part for part in self._parts if part.watched is not None]
        for part in begun:
            part.hold(wanted=False, now=time.monotonic())
            with contextlib.suppress(ForeseeError, OSError):
                part.stopped = part.watched is not None and part.watched.poll() is None
        stop_all([part.watched for part in begun if part.watched is not None])
        for part in begun:
            with contextlib.suppress(ForeseeError, OSError):
                part.code = None if part.watched is None else part.watched.poll()

    def _loop(self) -> None:
        self._start()
        decided = -_AGAIN
        while True:
            self._poll()
            if all(part.over for part in self._parts[self._unseen :]):
                return
            leader = self._parts[0]
            if self._zero is None and not leader.gone:
                self._begin()
            # Whoever waits for a leader that is gone waits no longer than needed.
            urgent = leader.gone and not all(part.released or part.over for part in self._parts)
            if (self._zero is not None or leader.gone) and (
                self._news or urgent or time.monotonic() - decided >= _AGAIN
            ):
                decided, self._news = time.monotonic(), False
                self._decide()
            for at in range(1, len(self._parts)):
                self._follow(at)
            self._keep_apart()
            self._check()
            self._sleep()

    def _sleep(self) -> None:
        """Until the next look, or the next start."""
        if self._zero is None:
            time.sleep(TICK)
            return
        left = [part.start - self._now() for part in self._parts if not (part.released or part.over)]
        time.sleep(min(TICK, *(max(each, 0.001) for each in left)) if left else TICK)

    def _start(self) -> None:
        """Start the leader, and who goes with it; or join one that runs."""
        leader = self._parts[0]
        if self._already is not None:
            leader.released = True
            if isinstance(self._already, float):
                self._zero = time.monotonic() - self._already
            else:
                leader.watched = self._already
            return
        if self._delay:
            self._tell(f"{leader.name} starts in {self._delay:.1f} s")
            time.sleep(self._delay)
        for part in self._together:
            self._launch(part, held=len(self._together) > 1)

    def _launch(self, part: Part, *, held: bool, due: float = 0.0) -> None:
        first = self._parts[0].watched
        with at_once():
            part.watched = self._launcher.start(
                part.job, part.name, self._folder, held=held, first=first, due=max(due, 0.0)
            )

    def _poll(self) -> None:
        for part in self._parts:
            if part.watched is not None and not part.over:
                try:
                    part.poll()
                except (ForeseeError, OSError) as error:
                    if part is self._parts[0]:
                        raise
                    part.watched.stop()
                    self._fail(part, f"can not be followed, and was ended: {error}")
                    continue
                if part.code is not None:
                    self._news = True
                    failed = None if part.whole else part.watched.ended(part.code)
                    self._tell(f"{part.name} has ended" if failed is None else str(failed))
        self._look_for_leader()

    def _look_for_leader(self) -> None:
        """A leader that hangs keeps nobody back for longer than ``patience``; it goes on if it can."""
        leader = self._parts[0]
        watched = leader.watched
        if watched is None or leader.gone or not leader.released or watched.held or not watched.done:
            return
        if time.monotonic() - watched.last_step > self._patience:
            self._lose(leader)

    def _lose(self, part: Part) -> None:
        """Nobody waits for a job that takes no steps; it goes on if it can."""
        assert part.watched is not None
        part.lost = self._news = part.released = True
        part.watched.release()
        self._tell(f"{part.watched.stalled(self._patience)}\nthe others do not wait for it any longer")

    def _fail(self, part: Part, why: str) -> None:
        """A follower is no more; the others go on."""
        part.code = 1
        self._news = True
        self._tell(f"{part.name} {why}")

    def _begin(self) -> None:
        """See whether the leader is about to take its first step, and let it with those that go with it."""
        missing = False
        for part in self._together or self._parts[:1]:
            watched = part.watched
            if watched is None or watched.head is not None or part.gone:
                continue
            missing = True
            if not watched.queued and time.monotonic() - watched.started > self._patience:
                self._lose(part)
        leader = self._parts[0].watched
        if missing or leader is None:
            return
        agree([leader])
        for part in self._together:
            if part.watched is not None:
                part.watched.release()
            part.released = True
        self._zero = time.monotonic()

    def _decide(self) -> None:
        """Let the decider know, and ask it."""
        leader = self._parts[0]
        begun = leader.watched
        if begun is not None and len(steps := begun.steps()):
            self._zero = float(steps[0, 0])
        for at, part in enumerate(self._parts):
            self._know(at, part)
        if self._pace is not None:
            self._pace.handle_figures(self._timing.figures)
        far = _MOVED * self._timing.leader.alone()
        for at, part in enumerate(self._parts):
            if part.released or part.over:
                continue
            now = self._now()
            part.start = self._timing.poll_start(at, now)
            part.start = max(part.start, now) if leader.gone else part.start
            before = part.told
            # Few steps say little: what they say is told when it keeps the follower from its moment.
            if abs(part.start - before) > far and (self._timing.sure or leader.gone or now >= before):
                part.told = part.start
                self._moved.append(Moved(at=now, name=part.name, start=part.start))
                self._tell(
                    f"{leader.name} is not as predicted: {part.name} starts at {part.start:.1f} s, "
                    f"not at {before:.1f} s"
                )
        self._show(self._line())

    def _know(self, at: int, part: Part) -> None:
        """Tell the decider of one job."""
        if part.gone:
            self._timing.handle_end(at, whole=part.whole)
            return
        if part.watched is None or not part.released:
            return
        steps = part.watched.steps()
        if not len(steps):
            if at == 0:
                self._timing.handle_progress(0, np.zeros(0), self._now())
            return
        first = float(steps[0, 0])
        zero = first if self._zero is None else self._zero
        self._timing.handle_start(at, first - zero)
        # A follower may have been held, which is in no step; of the leader it counts when its data are there.
        done = ends(steps) - first if at == 0 else np.cumsum(steps[:, 1:].sum(axis=1))
        self._timing.handle_progress(at, done, time.monotonic() - first)

    def _follow(self, at: int) -> None:
        """Launch a follower, and let it go, when it is time."""
        leader, part = self._parts[0], self._parts[at]
        if part.over:
            return
        if part.released:
            if part.watched is not None and part.watched.queued:
                # Whoever runs it may still have another moment in mind.
                self._launcher.move(part.watched, 0.0)
            return
        begun = self._zero is not None or leader.gone
        now = self._now() if begun else 0.0
        due = part.start - self._took() - now
        if part.watched is None:
            if self._launcher.wants(begun=begun, due=due):
                try:
                    self._launch(part, held=True, due=due)
                except (ForeseeError, OSError) as error:
                    self._fail(part, f"cannot be started: {error}")
                    return
                if leader.gone and not leader.whole:
                    others = any(not each.over for each in self._parts if each is not part)
                    how = f"without {leader.name}" if others else "at once, alone"
                    self._tell(f"{part.name} starts {how}")
        elif begun and now >= part.start:
            part.watched.release()
            part.released = True
            self._timing.handle_start(at, now)
            self._tell(f"{part.name} starts at {now:.1f} s")
        elif begun:
            self._launcher.move(part.watched, due)

    def _took(self) -> float:
        """Seconds that a follower needs from its launch to its first step: what the leader took, and some.

        It loads beside a job that computes, and one that is ready too soon only waits at the gate. Where the leader was
        there before it is what a follower took that is there now.
        """
        leader = self._parts[0].watched
        if self._already is not None:
            took = [part.loaded for part in self._parts if part.loaded is not None]
            return _LONGER * max(took) if took else _UNSEEN_LOAD
        if self._zero is None or leader is None:
            return 0.0
        return _LONGER * max(self._zero - leader.started, 0.0)

    def _keep_apart(self) -> None:
        """Hold who comes too near to the one who reads, and let go who is far enough away."""
        if self._pace is None or self._zero is None:
            return
        now = self._now()
        for at, part in enumerate(self._parts):
            if part.gone:
                self._pace.handle_end(at)
            elif part.released and part.watched is not None:
                self._pace.handle_progress(at, part.watched.done, now)
        for part, wanted in zip(self._parts, self._pace.poll_held(now), strict=True):
            if part.released and part.ours and not part.over:
                part.hold(wanted, time.monotonic())

    def _check(self) -> None:
        """A follower that is not as its file says runs all the same: what it computes is right."""
        leader = self._parts[0]
        for part in self._parts:
            if part.checked or part.watched is None or part.watched.head is None:
                continue
            part.checked = True
            doubt = unordered(part.watched)
            found = [] if doubt is None else [doubt]
            if part is not leader:
                try:
                    agree([each.watched for each in (leader, part) if each.watched is not None])
                except ConfigError as error:
                    found += error.faults
            self._doubts += found
            for each in found:
                self._tell(each)

    def _now(self) -> float:
        """Seconds after the leader's first step; after its process, if there was none."""
        return time.monotonic() - self._origin()

    def _origin(self) -> float:
        if self._zero is not None:
            return self._zero
        leader = self._parts[0].watched
        return time.monotonic() if leader is None else leader.started

    def _line(self) -> str:
        return ", ".join(filter(None, (part.line(self._now()) for part in self._parts)))
