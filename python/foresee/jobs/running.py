# SPDX-License-Identifier: Apache-2.0
"""Two jobs started when predicted, as local processes, and followed to their ends.

The driver of ``timing``: it has the clock, the processes and the loop, and decides nothing but what is told. The
follower's process starts as long before its moment as the leader took to begin its first step, and is held at the gate
until then: so the moment is that of its first step, which is what predictions are about.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.errors import ConfigError
from foresee.job import Job
from foresee.jobs.asked import steps_per_epoch
from foresee.jobs.process import TICK, Process, agree
from foresee.jobs.timing import Timing

__all__ = ["Outcome", "Ran", "Runner"]

#: Seconds between two computations of the start, and two lines of progress.
_AGAIN = 0.5
#: Share of the predicted run by which a start has to move to be told.
_MOVED = 0.01


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a job; moments are seconds after the leader's first step."""

    name: str
    """Which."""
    state: str
    """``done``, ``failed`` (another exit code than 0, or fewer steps than asked for), ``stopped`` (by us), or
    ``not started``.
    """
    code: int | None
    """Exit code, negative for a signal; None: it was not started."""
    launched: float | None
    """When its process was started."""
    start: float | None
    """When its first step began; None: none did."""
    end: float | None
    """When its last step ended."""
    steps: int
    """That it did."""
    expected: int
    """That its job file asks for."""
    compute: float | None
    """Mean per step."""
    wait: float | None
    """Likewise."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run of two jobs."""

    outcomes: tuple[Outcome, Outcome]
    """The leader's, the follower's."""
    moved: tuple[tuple[float, float], ...]
    """When the follower's start was decided anew, and to what."""
    doubts: tuple[str, ...]
    """What should make a reader doubt that the prediction was about these jobs."""
    interrupted: bool
    """Whether we ended it."""


class Runner:
    """One run.

    Args:
        leader: the job that starts at once, and its name.
        follower: the other one.
        timing: decides when.
        folder: exists; gets logs and steps.
        delay: seconds for which the leader waits.
        together: whether both are let go at once.
        patience: seconds for a job to begin.
        tell: gets a line for each event.
        show: gets a line of progress now and then.
    """

    def __init__(
        self,
        leader: tuple[Job, str],
        follower: tuple[Job, str],
        timing: Timing,
        folder: str,
        *,
        delay: float = 0.0,
        together: bool = False,
        patience: float = 300.0,
        tell: Callable[[str], None] = lambda _: None,
        show: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._asked = (leader, follower)
        self._timing, self._folder = timing, folder
        self._delay, self._together, self._patience = delay, together, patience
        self._tell, self._show = tell, show
        self._jobs: list[Process] = []
        self._zero: float | None = None
        self._released = False
        self._checked = False
        self._start: float | None = None
        self._told = timing.poll_start(0.0)
        self._moved: list[tuple[float, float]] = []
        self._doubts: list[str] = []
        self._codes: list[int | None] = [None, None]

    def run(self) -> Ran:
        """Until both have ended, or until KeyboardInterrupt, which ends both.

        Raises:
            ConfigError: the leader's loader is not that of its job file.
            JobFailed: the leader takes no step within ``patience``.
        """
        interrupted = False
        stopped = [False, False]
        try:
            self._loop()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            for at, process in enumerate(self._jobs):
                stopped[at] = process.poll() is None
                process.stop()
                self._codes[at] = process.poll()
        outcomes = [self._outcome(at, stopped=stopped[at]) for at in (0, 1)]
        return Ran(
            outcomes=(outcomes[0], outcomes[1]),
            moved=tuple(self._moved),
            doubts=tuple(self._doubts),
            interrupted=interrupted,
        )

    def _loop(self) -> None:
        if self._delay:
            self._tell(f"{self._asked[0][1]} starts in {self._delay:.1f} s")
            time.sleep(self._delay)
        leader = self._launch(0, held=self._together)
        if self._together:
            self._launch(1, held=True)
        decided = -_AGAIN
        while True:
            self._poll()
            if len(self._jobs) == 2 and None not in self._codes:
                return
            if leader.head is not None and self._zero is None:
                self._begin()
            over = self._codes[0] is not None
            if self._zero is None and not over:
                if time.monotonic() - leader.started > self._patience:
                    raise next((job for job in self._jobs if job.head is None), leader).stalled(
                        self._patience
                    )
            elif time.monotonic() - decided >= _AGAIN or (over and not self._released):
                decided = time.monotonic()
                self._decide(leader, over=over)
            self._follow(over=over)
            self._check_follower()
            time.sleep(TICK)

    def _launch(self, at: int, *, held: bool) -> Process:
        job, name = self._asked[at]
        self._jobs.append(Process(job, name, self._folder, held=held))
        return self._jobs[-1]

    def _poll(self) -> None:
        for at, process in enumerate(self._jobs):
            if self._codes[at] is None:
                self._codes[at] = code = process.poll()
                if code is not None:
                    lacking = process.done < _expected(process.job)
                    failed = process.ended(code) if code != 0 or lacking else None
                    self._tell(f"{process.name} has ended" if failed is None else str(failed))

    def _begin(self) -> None:
        """The leader is about to take its first step."""
        if self._together:
            if self._jobs[1].head is None and self._codes[1] is None:
                return
            for process in self._jobs:
                process.release()
            self._released = True
        agree(self._jobs[:1])
        self._zero = time.monotonic()

    def _decide(self, leader: Process, *, over: bool) -> None:
        """Let the decider know, and ask it."""
        steps = leader.steps()
        if len(steps):
            self._zero = float(steps[0, 0])
        if over:
            self._timing.handle_end()
        else:
            first = float(steps[0, 0]) if len(steps) else 0.0
            self._timing.handle_progress(_ends(steps) - first, self._now())
        if not self._released:
            now = self._now()
            self._start = self._timing.poll_start(now)
            self._start = max(self._start, now) if over else self._start
            before = self._told
            far = _MOVED * self._timing.leader.alone()
            # Few steps say little: what they say is told when it keeps the follower from its moment.
            if abs(self._start - before) > far and (self._timing.sure or over or now >= before):
                self._told = self._start
                self._moved.append((now, self._start))
                self._tell(
                    f"{self._asked[0][1]} is not as predicted: {self._asked[1][1]} starts at {self._start:.1f} s, "
                    f"not at {before:.1f} s"
                )
        self._show(self._line())

    def _follow(self, *, over: bool) -> None:
        """Launch the follower, and let it go, when it is time."""
        if self._start is None or self._released:
            return
        now = self._now()
        if len(self._jobs) == 1:
            leader = self._jobs[0]
            took = 0.0 if self._zero is None else self._zero - leader.started
            if now >= self._start - took:
                self._launch(1, held=True)
                if over and leader.done < _expected(leader.job):
                    self._tell(f"{self._asked[1][1]} starts at once, alone")
        elif now >= self._start:
            self._jobs[1].release()
            self._released = True
            self._tell(f"{self._asked[1][1]} starts at {now:.1f} s")

    def _check_follower(self) -> None:
        """A follower that is not as its file says runs all the same: what it computes is right."""
        if self._checked or len(self._jobs) == 1 or self._jobs[1].head is None:
            return
        self._checked = True
        try:
            agree(self._jobs)
        except ConfigError as error:
            self._doubts += error.faults
            for fault in error.faults:
                self._tell(fault)

    def _now(self) -> float:
        """Seconds after the leader's first step; after its process, if there was none."""
        return time.monotonic() - (self._jobs[0].started if self._zero is None else self._zero)

    def _line(self) -> str:
        parts = []
        for at, (job, name) in enumerate(self._asked):
            if at < len(self._jobs):
                done, all_ = self._jobs[at].done, _expected(job)
                parts.append(f"{name} {done}/{all_} ({100 * done / all_:.0f} %)")
        if not self._released and self._start is not None:
            parts.append(f"{self._asked[1][1]} starts in {max(self._start - self._now(), 0):.0f} s")
        return ", ".join(parts)

    def _outcome(self, at: int, *, stopped: bool) -> Outcome:
        job, name = self._asked[at]
        expected = _expected(job)
        if at >= len(self._jobs):
            nothing: dict[str, Any] = dict.fromkeys(("code", "launched", "start", "end", "compute", "wait"))
            return Outcome(name=name, state="not started", steps=0, expected=expected, **nothing)
        process = self._jobs[at]
        steps = process.steps()
        zero = self._jobs[0].started if self._zero is None else self._zero
        whole = self._codes[at] == 0 and len(steps) >= expected
        return Outcome(
            name=name,
            state="stopped" if stopped else "done" if whole else "failed",
            code=self._codes[at],
            launched=process.started - zero,
            start=float(steps[0, 0]) - zero if len(steps) else None,
            end=float(_ends(steps)[-1]) - zero if len(steps) else None,
            steps=len(steps),
            expected=expected,
            compute=float(np.mean(steps[:, 2])) if len(steps) else None,
            wait=float(np.mean(steps[:, 1])) if len(steps) else None,
        )


def _ends(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    ends: NDArray[np.float64] = steps.sum(axis=1)
    return ends


def _expected(job: Job) -> int:
    (epochs,) = job.need("train.epochs")
    return int(epochs) * steps_per_epoch(job)
