# SPDX-License-Identifier: Apache-2.0
"""Decisions of a staggered run: when each job is launched, released, held or given up, and which messages are printed.

Pure: facts about the jobs come in with the time, and actions come out one at a time. ``timing`` decides when each job
starts, ``pace`` which jobs are held. ``running`` has the clock and the processes and carries the actions out. Times are
those of the driver's clock, except starts, which count from the leader's first step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from foresee.errors import ConfigError
from foresee.jobspec import Job
from foresee.stagger.actions import (
    TICK,
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
from foresee.stagger.managed_job import ManagedJob, Snapshot, ends
from foresee.stagger.outcome import Moved, Outcome
from foresee.stagger.reports import agree, unordered
from foresee.stagger.spacing import Pace
from foresee.stagger.timing import Timing

__all__ = ["Supervisor"]

#: Seconds between two computations of the starts, and two lines of progress.
_AGAIN = 0.5
#: Share of the predicted run by which a start has to move to be told.
_MOVED = 0.01
#: How much longer than its leader a follower may take to load.
_LONGER = 1.25
#: Seconds to load where no job was seen to load: torch and a device take some of them, on a busy machine many. A job
#: that is ready sooner waits at the gate, and does not compute: half a minute of a GPU, against a late start.
_UNSEEN_LOAD = 30.0


class Supervisor:
    """The decisions of one run.

    Args:
        jobs: with their names, the leader first.
        timing: decides when each starts.
        wants: of the launcher: whether a follower is to be handed over now.
        pace: decides which jobs are held; None: none. Without steps of the leader none is either, as it is not known
            which job is near to it.
        delay: seconds for which the leader waits.
        joined: whether the leader runs already.
        elapsed: with ``joined``, the seconds for which the leader has run, if its steps cannot be followed.
        patience: seconds for the leader to begin, without a step after which the others do not wait for it, and for any
            job to end after its last step.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[Job, str]],
        timing: Timing,
        *,
        wants: Callable[..., bool],
        pace: Pace | None = None,
        delay: float = 0.0,
        joined: bool = False,
        elapsed: float | None = None,
        patience: float = 300.0,
    ) -> None:
        self._parts = [
            ManagedJob(job, name, timing.poll_start(at, 0.0), ours=at > 0 or not joined)
            for at, (job, name) in enumerate(jobs)
        ]
        self._unseen = elapsed is not None
        self._timing, self._wants = timing, wants
        self._pace = None if self._unseen else pace
        self._delay, self._joined, self._elapsed, self._patience = delay, joined, elapsed, patience
        #: Those that are let go together with the leader.
        self._together = [part for part in self._parts if part.start == 0 and not joined]
        self._parts[0].released = joined
        self._began: float | None = None
        self._zero: float | None = None
        self._at = 0.0
        self._decided: float | None = None
        self._news = False
        self._pending: deque[Action] = deque()
        self._round: Iterator[Action] = iter(())
        self._moved: list[Moved] = []
        self._doubts: list[str] = []

    # Facts.

    def handle_start(self, now: float) -> None:
        """The run begins."""
        self._at = self._began = now
        if self._elapsed is not None:
            self._zero = now - self._elapsed
        if self._delay and not self._joined:
            self._pending.append(Message(f"{self._parts[0].name} starts in {self._delay:.1f} s"))

    def handle_snapshots(self, looks: Sequence[Snapshot | None], now: float) -> None:
        """Take observations of all jobs, None for those without news or launch, and decide."""
        self._at = now
        for who, (part, look) in enumerate(zip(self._parts, looks, strict=True)):
            if look is None or part.over:
                continue
            part.see(look, now)
            if part.code is not None:
                self._news = True
                whole = Message(f"{part.name} has ended")
                self._pending.append(whole if part.whole else ReportEnd(who, part.code))
        self._round = self._decisions()

    def handle_launch(self, who: int, look: Snapshot, now: float) -> None:
        """A job was handed over."""
        self._at = now
        self._parts[who].see(look, now)

    def handle_launch_failure(self, who: int, why: str, now: float) -> None:
        """A job cannot be started; the others go on."""
        self._at = now
        self._fail(who, f"cannot be started: {why}")

    def handle_unreadable(self, who: int, why: str, now: float) -> None:
        """A follower's steps cannot be read; the others go on."""
        self._at = now
        self._pending.append(Stop(who))
        self._fail(who, f"can not be followed, and was ended: {why}")

    def handle_gate(self, who: int, closed: bool, now: float) -> None:
        """A job's gate is closed or open now."""
        self._at = now
        self._parts[who].gate(closed, now)

    def handle_steps(self, who: int, steps: NDArray[np.float64], now: float) -> None:
        """The steps that a job has done, as of ``Watched.steps``."""
        self._at = now
        self._parts[who].steps = steps

    def handle_stop(self, who: int, now: float) -> None:
        """A job still runs at the end of the run, and is ended."""
        self._at = now
        self._parts[who].stopped = True

    def handle_result(self, who: int, look: Snapshot, steps: NDArray[np.float64], now: float) -> None:
        """Take the end of a job."""
        self._at = now
        part = self._parts[who]
        part.look, part.steps = look, steps
        part.code = part.code if look.code is None else look.code

    # Decisions.

    def poll_action(self, now: float) -> Action | None:
        """Return the next action; None if there is none until the next observation.

        Raises:
            ConfigError: the leader's loader is not that of its job file.
        """
        self._at = now
        return self._pending.popleft() if self._pending else next(self._round, None)

    def poll_next_snapshot(self, now: float) -> float:
        """Seconds until the next look, which is at the next start if that is sooner."""
        self._at = now
        if (wait := self._waits()) > 0:
            return wait
        if self._zero is None:
            return TICK
        left = [part.start - self._now() for part in self._parts if not (part.released or part.over)]
        return min(TICK, *(max(each, 0.001) for each in left)) if left else TICK

    # Readings.

    @property
    def over(self) -> bool:
        """Whether all have ended."""
        return all(part.over for part in self._parts[self._unseen :])

    @property
    def starts(self) -> tuple[float, ...]:
        """Planned start of each job, seconds after the leader's first step."""
        return tuple(part.start for part in self._parts)

    @property
    def moved(self) -> tuple[Moved, ...]:
        """Starts that were decided anew, in order of time."""
        return tuple(self._moved)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons to doubt that the prediction was about these jobs."""
        return tuple(self._doubts)

    def ended(self, who: int) -> bool:
        """Whether a job has ended, and need not be looked at."""
        return self._parts[who].over

    def left(self, who: int) -> bool:
        """Whether a job goes on after its steps, and is not to be ended."""
        return self._parts[who].left

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return the outcome of the jobs."""
        zero = self._origin()
        return tuple(
            part.outcome(zero, unseen=self._unseen and at == 0) for at, part in enumerate(self._parts)
        )

    # The decisions of one look, in their order.

    def _decisions(self) -> Iterator[Action]:
        leader = self._parts[0]
        if self._waits() > 0:
            return
        if leader.look is None and not self._joined:
            for at, part in enumerate(self._parts):
                if part in self._together:
                    yield Launch(at, held=len(self._together) > 1, due=0.0, essential=True)
        yield from self._leave()
        yield from self._watch_leader()
        if self.over:
            return
        if self._zero is None and not leader.gone:
            yield from self._begin()
        # Jobs that wait for a leader that is gone wait no longer than needed.
        urgent = leader.gone and not all(part.released or part.over for part in self._parts)
        again = self._decided is None or self._at - self._decided >= _AGAIN
        if (self._zero is not None or leader.gone) and (self._news or urgent or again):
            self._decided, self._news = self._at, False
            yield from self._retime()
        for at in range(1, len(self._parts)):
            yield from self._follow(at)
        yield from self._keep_apart()
        yield from self._check()

    def _waits(self) -> float:
        """Seconds until the leader is to be launched."""
        if self._joined or self._began is None or self._parts[0].look is not None:
            return 0.0
        return self._began + self._delay - self._at

    def _leave(self) -> Iterator[Action]:
        """Follow no longer a job that goes on after its steps: it saves a model, or trains more than its file says."""
        for at, part in enumerate(self._parts):
            if part.full(self._at) > self._patience:
                if part.closed:
                    yield Release(at)
                part.left = self._news = True
                yield Message(
                    f"{part.name} has done {part.done} of {part.expected} steps and has not ended within "
                    f"{self._patience:g} s: it is followed no longer, and goes on"
                )

    def _watch_leader(self) -> Iterator[Action]:
        """Give up a leader that has taken no step for ``patience``; it goes on if it can."""
        leader = self._parts[0]
        if leader.look is None or leader.gone or not leader.released or leader.closed or not leader.done:
            return
        if self._at - leader.look.last_step > self._patience:
            yield self._lose(0)

    def _lose(self, who: int) -> GiveUp:
        """Give up a job that takes no steps; the others do not wait for it."""
        part = self._parts[who]
        part.lost = self._news = part.released = True
        return GiveUp(who)

    def _fail(self, who: int, why: str) -> None:
        """A follower is no more; the others go on."""
        part = self._parts[who]
        part.code, self._news = 1, True
        self._pending.append(Message(f"{part.name} {why}"))

    def _begin(self) -> Iterator[Action]:
        """See whether the leader is about to take its first step, and let it with those that go with it."""
        missing = False
        for part in self._together or self._parts[:1]:
            look = part.look
            if look is None or look.head is not None or part.gone:
                continue
            missing = True
            if not look.queued and self._at - look.started > self._patience:
                yield self._lose(self._parts.index(part))
        leader = self._parts[0]
        if missing or leader.look is None:
            return
        agree([leader])
        for at, part in enumerate(self._parts):
            if part in self._together:
                part.released = True
                yield Release(at)
        self._zero = self._at

    def _retime(self) -> Iterator[Action]:
        """Let the decider of starts know, and ask it."""
        leader = self._parts[0]
        for at, part in enumerate(self._parts):
            if part.look is not None and (at == 0 or (part.released and not part.gone)):
                yield Read(at)
        if len(leader.steps):
            self._zero = float(leader.steps[0, 0])
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
                later, told = _distinct(part.start, before)
                yield Message(
                    f"{leader.name} is not as predicted: {part.name} starts at {later} s, not at {told} s"
                )
        yield Progress(", ".join(filter(None, (part.line(self._now()) for part in self._parts))))

    def _know(self, at: int, part: ManagedJob) -> None:
        """Tell the decider of starts of one job."""
        if part.gone:
            self._timing.handle_end(at, whole=part.whole)
            return
        if part.look is None or not part.released:
            return
        if not len(part.steps):
            if at == 0:
                self._timing.handle_progress(0, np.zeros(0), self._now())
            return
        first = float(part.steps[0, 0])
        zero = first if self._zero is None else self._zero
        self._timing.handle_start(at, first - zero)
        # A follower may have been held, which is in no step; of the leader it counts when its data are there.
        done = ends(part.steps) - first if at == 0 else np.cumsum(part.steps[:, 1:].sum(axis=1))
        self._timing.handle_progress(at, done, self._at - first)

    def _follow(self, at: int) -> Iterator[Action]:
        """Launch a follower, and let it go, when it is time."""
        leader, part = self._parts[0], self._parts[at]
        if part.over:
            return
        if part.released:
            if part.look is not None and part.look.queued:
                # The launcher may still have another moment in mind.
                yield Move(at, 0.0)
            return
        begun = self._zero is not None or leader.gone
        now = self._now() if begun else 0.0
        due = part.start - self._took() - now
        if part.look is None:
            if not self._wants(begun=begun, due=due):
                return
            yield Launch(at, held=True, due=max(due, 0.0), essential=False)
            if not part.over and leader.gone and not leader.whole:
                others = any(not each.over for each in self._parts if each is not part)
                how = f"without {leader.name}" if others else "at once, alone"
                yield Message(f"{part.name} starts {how}")
        elif begun and now >= part.start:
            yield Release(at)
            part.released = True
            self._timing.handle_start(at, now)
            yield Message(f"{part.name} starts at {now:.1f} s")
        elif begun:
            yield Move(at, due)

    def _took(self) -> float:
        """Seconds that a follower needs from its launch to its first step: what the leader took, and some.

        It loads beside a job that computes, and one that is ready too soon only waits at the gate. Where the leader was
        there before it is what a follower took that is there now.
        """
        leader = self._parts[0]
        if self._joined:
            took = [part.loaded for part in self._parts if part.loaded is not None]
            return _LONGER * max(took) if took else _UNSEEN_LOAD
        if self._zero is None or leader.look is None:
            return 0.0
        return _LONGER * max(self._zero - leader.look.started, 0.0)

    def _keep_apart(self) -> Iterator[Action]:
        """Hold who comes too near to the one who reads, and let go who is far enough away."""
        if self._pace is None or self._zero is None:
            return
        now = self._now()
        for at, part in enumerate(self._parts):
            if part.gone:
                self._pace.handle_end(at)
            elif part.released and part.look is not None:
                self._pace.handle_progress(at, part.done, now)
        for at, (part, wanted) in enumerate(zip(self._parts, self._pace.poll_held(now), strict=True)):
            if part.look is not None and part.released and part.ours and not part.over:
                if wanted != part.closed:
                    yield Hold(at) if wanted else Release(at)

    def _check(self) -> Iterator[Action]:
        """A follower that is not as its file says runs all the same: what it computes is right."""
        leader = self._parts[0]
        for part in self._parts:
            if part.checked or part.head is None:
                continue
            part.checked = True
            doubt = unordered(part)
            found = [] if doubt is None else [doubt]
            if part is not leader:
                try:
                    agree([leader, part])
                except ConfigError as error:
                    found += error.faults
            self._doubts += found
            for each in found:
                yield Message(each)

    def _now(self) -> float:
        """Seconds after the leader's first step; after its process, if there was none."""
        return self._at - self._origin()

    def _origin(self) -> float:
        if self._zero is not None:
            return self._zero
        leader = self._parts[0].look
        return self._at if leader is None else leader.started


def _distinct(one: float, other: float) -> tuple[str, str]:
    """Two times with one decimal, or with as many as they need to differ.

    >>> _distinct(4.93, 4.87), _distinct(12.0, 3.0)
    (('4.93', '4.87'), ('12.0', '3.0'))
    """
    pairs = ((f"{one:.{digits}f}", f"{other:.{digits}f}") for digits in range(1, 9))
    return next((pair for pair in pairs if pair[0] != pair[1]), (f"{one}", f"{other}"))
