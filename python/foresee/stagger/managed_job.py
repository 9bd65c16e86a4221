# SPDX-License-Identifier: Apache-2.0
"""One job's part in a run: what is known of it so far, its gate, and what became of it.

Pure: what is seen of the job comes in with its moment. ``supervise`` decides by it when the job starts and whether it
is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee._runtime.step_times import StepsHeader
from foresee.jobspec import Job
from foresee.stagger.outcome import Outcome
from foresee.stagger.reports import expected_steps

__all__ = ["ManagedJob", "Snapshot", "ends"]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Observation of a job at one moment; moments are of the runner's clock."""

    code: int | None
    """Its exit code; None: it has not ended."""
    head: StepsHeader | None
    """The loader's report; None before a loader has begun."""
    done: int
    """Steps that all its ranks have done."""
    started: float
    """The moment of its start, or of its submission."""
    last_step: float
    """The moment of the last observed step, or of its start."""
    queued: bool
    """Whether it waits for a machine, so that it cannot begin."""


class ManagedJob:
    """One job of a run.

    Args:
        job: which.
        name: what it is called.
        start: seconds after the leader's first step at which it is to begin.
        ours: whether we start it; else it runs already.

    Raises:
        ConfigError: its file does not say how many steps it takes.
    """

    def __init__(self, job: Job, name: str, start: float, *, ours: bool = True) -> None:
        self.job, self.name, self.ours = job, name, ours
        self.expected = expected_steps(job)
        self.look: Snapshot | None = None
        """The last observation; None if it was not started, or its steps are not known."""
        self.code: int | None = None
        self.steps: NDArray[np.float64] = np.zeros((0, 3))
        """As of ``Watched.steps``, when they were last asked for."""
        self.closed = False
        """Whether its gate is closed."""
        self.released = False
        """Whether it was let go."""
        self.stopped = False
        """Whether we ended it."""
        self.checked = False
        """Whether what its loader says has been compared with its file."""
        self.start = self.told = start
        """The planned start, and the one that the user was last informed of."""
        self.loaded: float | None = None
        """Seconds that it took from its launch until its loader was about to take a step; None: it has not, or it is
        not ours.
        """
        self.holds = 0
        self.held = 0.0
        self.lost = False
        """Whether it was given up: it takes no steps any more, and the others do not wait for it."""
        self.left = False
        """Whether it goes on after its steps: it is not followed any more, and not ended."""
        self._since: float | None = None
        self._full: float | None = None

    @property
    def head(self) -> StepsHeader | None:
        """The loader's report."""
        return None if self.look is None else self.look.head

    @property
    def done(self) -> int:
        """Steps that it has done."""
        return 0 if self.look is None else self.look.done

    @property
    def over(self) -> bool:
        """Whether it has ended, could not be started, or is left to itself."""
        return self.code is not None or self.left

    @property
    def gone(self) -> bool:
        """Whether others need not wait for it."""
        return self.over or self.lost

    @property
    def whole(self) -> bool:
        """Whether it has ended well, with all its steps, or goes on after them."""
        return (self.code == 0 or self.left) and self.done >= self.expected

    def full(self, now: float) -> float:
        """Seconds since it was seen to have done its steps; 0 if it has not, or has ended."""
        return 0.0 if self._full is None or self.over else now - self._full

    def see(self, look: Snapshot, now: float) -> None:
        """Note what is seen of it now."""
        self.look, self.code = look, look.code
        if self.loaded is None and self.ours and look.head is not None:
            self.loaded = max(now - look.started, 0.0)
        if self._full is None and look.done >= self.expected:
            self._full = now

    def gate(self, closed: bool, now: float) -> None:
        """Note that its gate is closed or open now; time counts as held once it was let go."""
        if closed == self.closed:
            return
        self.closed = closed
        if closed and self.released:
            self.holds, self._since = self.holds + 1, now
        elif not closed and self._since is not None:
            self.held, self._since = self.held + now - self._since, None

    def line(self, now: float) -> str:
        """Return its progress or its start; empty if its steps are not known."""
        if self.look is not None and self.released:
            held = ", held" if self.closed else ""
            return f"{self.name} {self.done}/{self.expected} ({100 * self.done / self.expected:.0f} %){held}"
        if not self.released and not self.over:
            return f"{self.name} starts in {max(self.start - now, 0):.0f} s"
        return ""

    def outcome(self, zero: float, *, unseen: bool) -> Outcome:
        """Return its outcome; ``zero``: of the runner's clock, from which moments count. ``unseen``: it was not
        started by this run, and its steps are not known.
        """
        held: dict[str, Any] = {"holds": self.holds, "held": self.held}
        if self.look is None:
            state = "running" if unseen else "failed" if self.over else "not started"
            nothing: dict[str, Any] = dict.fromkeys(("code", "launched", "start", "end", "compute", "wait"))
            return Outcome(name=self.name, state=state, steps=0, expected=self.expected, **nothing, **held)
        # Steps beyond those of the file are no part of what was predicted.
        steps = self.steps[: self.expected]
        goes_on = self.left and self.code is None
        state = "done" if self.whole else "failed"
        if self.stopped or goes_on:
            state = "running" if goes_on or not self.ours else "stopped"
        return Outcome(
            name=self.name,
            state=state,
            code=self.code if self.ours else None,
            launched=self.look.started - zero if self.ours else None,
            start=float(steps[0, 0]) - zero if len(steps) else None,
            end=float(ends(steps)[-1]) - zero if len(steps) else None,
            steps=len(self.steps),
            expected=self.expected,
            compute=float(np.mean(steps[:, 2])) if len(steps) else None,
            wait=float(np.mean(steps[:, 1])) if len(steps) else None,
            **held,
        )


def ends(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ends of those steps of ``Watched.steps`` that have ended."""
    found: NDArray[np.float64] = steps.sum(axis=1)
    return found
