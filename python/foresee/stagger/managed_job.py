# SPDX-License-Identifier: Apache-2.0
"""State of one job in a run: its last snapshot, its gate and its outcome.

Pure: snapshots come in with their time. ``scheduler`` decides by this state when the job starts and whether it is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee._runtime.step_times import StepsHeader
from foresee.jobspec import Job
from foresee.stagger.outcome import Outcome
from foresee.stagger.reports import total_steps

__all__ = ["ManagedJob", "Snapshot", "step_ends"]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Observation of a job; times are those of the runner's clock."""

    code: int | None
    """Exit code; None: it has not ended."""
    head: StepsHeader | None
    """The loader's report; None before a loader has begun."""
    done: int
    """Steps that all ranks have done."""
    started: float
    """Time of its start or submission."""
    last_step: float
    """Time of the last observed step, or of its start."""
    queued: bool
    """Whether it waits for a node, so that it cannot begin."""


class ManagedJob:
    """One job of a run.

    Args:
        job: its job file.
        name: its name in messages.
        start: planned start, seconds after the leader's first step.
        is_started_here: False if another program started it.

    Raises:
        ConfigError: its file does not say how many steps it takes.
    """

    def __init__(self, job: Job, name: str, start: float, *, is_started_here: bool = True) -> None:
        self.job, self.name, self.is_started_here = job, name, is_started_here
        self.expected = total_steps(job)
        self.snapshot: Snapshot | None = None
        """None if it was not started, or its steps are not visible."""
        self.code: int | None = None
        self.steps: NDArray[np.float64] = np.zeros((0, 3))
        """As of ``JobMonitor.steps``, when they were last read."""
        self.is_gate_closed = False
        self.is_released = False
        self.is_stopped = False
        self.is_checked = False
        """Whether its loader's report has been compared with its file."""
        self.start = self.announced_start = start
        """The planned start, and the one last shown to the user."""
        self.loaded: float | None = None
        """Seconds from its launch to its loader's first report; None without one, or if not started here."""
        self.holds = 0
        self.held = 0.0
        self.is_lost = False
        """Whether it was given up: it takes no steps, and the others do not wait for it."""
        self.is_detached = False
        """Whether it continues after its steps, neither monitored nor stopped."""
        self._held_since: float | None = None
        self._done_since: float | None = None

    @property
    def head(self) -> StepsHeader | None:
        """The loader's report."""
        return None if self.snapshot is None else self.snapshot.head

    @property
    def done(self) -> int:
        """Steps that it has done."""
        return 0 if self.snapshot is None else self.snapshot.done

    @property
    def is_over(self) -> bool:
        """Whether it has ended, could not be started, or is detached."""
        return self.code is not None or self.is_detached

    @property
    def is_gone(self) -> bool:
        """Whether the others do not wait for it."""
        return self.is_over or self.is_lost

    @property
    def is_complete(self) -> bool:
        """Whether it has done all its steps without a failure."""
        return (self.code == 0 or self.is_detached) and self.done >= self.expected

    def seconds_after_last_step(self, now: float) -> float:
        """Return the seconds since it had done its steps; 0 if it has not, or has ended."""
        return 0.0 if self._done_since is None or self.is_over else now - self._done_since

    def record_snapshot(self, snapshot: Snapshot, now: float) -> None:
        """Store an observation."""
        self.snapshot, self.code = snapshot, snapshot.code
        if self.loaded is None and self.is_started_here and snapshot.head is not None:
            self.loaded = max(now - snapshot.started, 0.0)
        if self._done_since is None and snapshot.done >= self.expected:
            self._done_since = now

    def record_gate(self, closed: bool, now: float) -> None:
        """Store the state of its gate; closed time counts as held after the release."""
        if closed == self.is_gate_closed:
            return
        self.is_gate_closed = closed
        if closed and self.is_released:
            self.holds, self._held_since = self.holds + 1, now
        elif not closed and self._held_since is not None:
            self.held, self._held_since = self.held + now - self._held_since, None

    def progress_line(self, now: float) -> str:
        """Return its progress or its start; empty if its steps are not visible."""
        if self.snapshot is not None and self.is_released:
            held = ", held" if self.is_gate_closed else ""
            return f"{self.name} {self.done}/{self.expected} ({100 * self.done / self.expected:.0f} %){held}"
        if not self.is_released and not self.is_over:
            return f"{self.name} starts in {max(self.start - now, 0):.0f} s"
        return ""

    def outcome(self, zero: float, *, is_unmonitored: bool) -> Outcome:
        """Return its outcome, with times after ``zero``; ``is_unmonitored``: its steps are not visible."""
        held: dict[str, Any] = {"holds": self.holds, "held": self.held}
        if self.snapshot is None:
            state = "running" if is_unmonitored else "failed" if self.is_over else "not started"
            nothing: dict[str, Any] = dict.fromkeys(("code", "launched", "start", "end", "compute", "wait"))
            return Outcome(name=self.name, state=state, steps=0, expected=self.expected, **nothing, **held)
        # Steps beyond those of the file are no job of what was predicted.
        steps = self.steps[: self.expected]
        continues = self.is_detached and self.code is None
        state = "done" if self.is_complete else "failed"
        if self.is_stopped or continues:
            state = "running" if continues or not self.is_started_here else "stopped"
        return Outcome(
            name=self.name,
            state=state,
            code=self.code if self.is_started_here else None,
            launched=self.snapshot.started - zero if self.is_started_here else None,
            start=float(steps[0, 0]) - zero if len(steps) else None,
            end=float(step_ends(steps)[-1]) - zero if len(steps) else None,
            steps=len(self.steps),
            expected=self.expected,
            compute=float(np.mean(steps[:, 2])) if len(steps) else None,
            wait=float(np.mean(steps[:, 1])) if len(steps) else None,
            **held,
        )


def step_ends(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the end of each step of ``JobMonitor.steps``."""
    found: NDArray[np.float64] = steps.sum(axis=1)
    return found
