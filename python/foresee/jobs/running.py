# SPDX-License-Identifier: Apache-2.0
"""Jobs started when predicted, and followed to their ends.

The driver of ``timing`` and ``pace``: it has the clock, the jobs and the loop, and decides nothing but what is told. A
follower's process starts as long before its moment as the leader took to begin its first step, and is held at the gate
until then: so the moment is that of its first step, which is what predictions are about. What runs a job is the
launcher's business: this machine (:class:`Local`), or Slurm (``foresee.jobs.slurm``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from foresee.errors import ConfigError, ForeseeError
from foresee.job import Job
from foresee.jobs.already import Already
from foresee.jobs.ending import at_once, stop_all, undisturbed
from foresee.jobs.outcome import Moved, Outcome, Ran
from foresee.jobs.pace import Pace
from foresee.jobs.process import Process
from foresee.jobs.timing import Timing
from foresee.jobs.watched import TICK, Watched, agree, expected_steps

__all__ = ["Launcher", "Local", "Runner"]

#: Seconds between two computations of the starts, and two lines of progress.
_AGAIN = 0.5
#: Share of the predicted run by which a start has to move to be told.
_MOVED = 0.01
#: How much longer than its leader a follower may take to load.
_LONGER = 1.25


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


class _Part:
    """One job of a run."""

    def __init__(self, job: Job, name: str, start: float) -> None:
        self.job, self.name = job, name
        self.expected = expected_steps(job)
        self.watched: Watched | None = None
        self.code: int | None = None
        self.released = False
        self.stopped = False
        self.checked = False
        self.start = self.told = start
        self.holds = 0
        self.held = 0.0
        self.since: float | None = None
        self.lost = False
        """Whether it takes no steps any more, so that nobody waits for it."""

    @property
    def over(self) -> bool:
        return self.code is not None

    @property
    def gone(self) -> bool:
        """Whether others need not wait for it."""
        return self.over or self.lost

    @property
    def ours(self) -> bool:
        return not isinstance(self.watched, Already)

    @property
    def whole(self) -> bool:
        return self.code == 0 and self.watched is not None and self.watched.done >= self.expected

    def hold(self, wanted: bool, now: float) -> None:
        """Close or open the gate, and keep the time."""
        if self.watched is None or wanted == self.watched.held:
            return
        if wanted:
            self.watched.hold()
        else:
            self.watched.release()
        if self.watched.held:
            self.holds, self.since = self.holds + 1, now
        elif self.since is not None:
            self.held, self.since = self.held + now - self.since, None


class Runner:
    """One run.

    Args:
        jobs: with their names, the leader first.
        timing: decides when each starts.
        folder: exists; gets logs and steps.
        pace: decides who is held; None: nobody.
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
        self._parts = [_Part(job, name, timing.poll_start(at, 0.0)) for at, (job, name) in enumerate(jobs)]
        self._timing, self._folder, self._pace = timing, folder, pace
        self._launcher = launcher or Local()
        self._delay, self._already, self._patience = delay, already, patience
        self._tell, self._show = tell, show
        self._unseen = isinstance(already, float)
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
            outcomes=tuple(self._outcome(part) for part in self._parts),
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
            self._check_followers()
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

    def _launch(self, part: _Part, *, held: bool, due: float = 0.0) -> None:
        first = self._parts[0].watched
        with at_once():
            part.watched = self._launcher.start(
                part.job, part.name, self._folder, held=held, first=first, due=max(due, 0.0)
            )

    def _poll(self) -> None:
        for part in self._parts:
            if part.watched is not None and not part.over:
                try:
                    part.code = part.watched.poll()
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

    def _lose(self, part: _Part) -> None:
        """Nobody waits for a job that takes no steps; it goes on if it can."""
        assert part.watched is not None
        part.lost = self._news = part.released = True
        part.watched.release()
        self._tell(f"{part.watched.stalled(self._patience)}\nthe others do not wait for it any longer")

    def _fail(self, part: _Part, why: str) -> None:
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

    def _know(self, at: int, part: _Part) -> None:
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
        self._timing.handle_progress(at, _ends(steps) - first, time.monotonic() - first)

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

        It loads beside a job that computes, and one that is ready too soon only waits at the gate.
        """
        leader = self._parts[0].watched
        if self._zero is None or leader is None or not self._parts[0].ours:
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

    def _check_followers(self) -> None:
        """A follower that is not as its file says runs all the same: what it computes is right."""
        leader = self._parts[0].watched
        for part in self._parts[1:]:
            if part.checked or part.watched is None or part.watched.head is None:
                continue
            part.checked = True
            try:
                agree([each for each in (leader, part.watched) if each is not None])
            except ConfigError as error:
                self._doubts += error.faults
                for fault in error.faults:
                    self._tell(fault)

    def _now(self) -> float:
        """Seconds after the leader's first step; after its process, if there was none."""
        return time.monotonic() - self._origin()

    def _origin(self) -> float:
        if self._zero is not None:
            return self._zero
        leader = self._parts[0].watched
        return time.monotonic() if leader is None else leader.started

    def _line(self) -> str:
        parts = []
        for part in self._parts:
            if part.watched is not None and part.released:
                done, held = part.watched.done, ", held" if part.watched.held else ""
                parts.append(f"{part.name} {done}/{part.expected} ({100 * done / part.expected:.0f} %){held}")
            elif not part.released and not part.over:
                parts.append(f"{part.name} starts in {max(part.start - self._now(), 0):.0f} s")
        return ", ".join(parts)

    def _outcome(self, part: _Part) -> Outcome:
        held: dict[str, Any] = {"holds": part.holds, "held": part.held}
        if part.watched is None:
            state = "failed" if part.over else "not started"
            state = "running" if self._unseen and part is self._parts[0] else state
            nothing: dict[str, Any] = dict.fromkeys(("code", "launched", "start", "end", "compute", "wait"))
            return Outcome(name=part.name, state=state, steps=0, expected=part.expected, **nothing, **held)
        steps = part.watched.steps()
        zero = self._origin()
        stopped = "stopped" if part.ours else "running"
        return Outcome(
            name=part.name,
            state=stopped if part.stopped else "done" if part.whole else "failed",
            code=part.code if part.ours else None,
            launched=part.watched.started - zero if part.ours else None,
            start=float(steps[0, 0]) - zero if len(steps) else None,
            end=float(_ends(steps)[-1]) - zero if len(steps) else None,
            steps=len(steps),
            expected=part.expected,
            compute=float(np.mean(steps[:, 2])) if len(steps) else None,
            wait=float(np.mean(steps[:, 1])) if len(steps) else None,
            **held,
        )


def _ends(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    ends: NDArray[np.float64] = steps.sum(axis=1)
    return ends
