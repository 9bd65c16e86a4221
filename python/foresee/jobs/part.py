# SPDX-License-Identifier: Apache-2.0
"""One job's part in a run: what is known of it so far, its gate, and what became of it.

Apart from the driver, whose loop goes over all of them. Refuses to decide: when the job starts, and whether it is held,
comes in.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.job import Job
from foresee.jobs.already import Already
from foresee.jobs.outcome import Outcome
from foresee.jobs.watched import Watched, expected_steps

__all__ = ["Part", "ends"]


class Part:
    """One job of a run.

    Args:
        job: which.
        name: what it is called.
        start: seconds after the leader's first step at which it is to begin.

    Raises:
        ConfigError: its file does not say how many steps it takes.
    """

    def __init__(self, job: Job, name: str, start: float) -> None:
        self.job, self.name = job, name
        self.expected = expected_steps(job)
        self.watched: Watched | None = None
        """None: it was not started."""
        self.code: int | None = None
        self.released = False
        """Whether it was let go."""
        self.stopped = False
        """Whether we ended it."""
        self.checked = False
        """Whether what its loader says has been compared with its file."""
        self.start = self.told = start
        """When it is to begin, and what the user heard last of that."""
        self.loaded: float | None = None
        """Seconds that it took from its launch until its loader was about to take a step; None: it has not, or it is
        not ours.
        """
        self.holds = 0
        self.held = 0.0
        self.lost = False
        """Whether it takes no steps any more, so that nobody waits for it."""
        self._since: float | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, or could not be started."""
        return self.code is not None

    @property
    def gone(self) -> bool:
        """Whether others need not wait for it."""
        return self.over or self.lost

    @property
    def ours(self) -> bool:
        """Whether we started it, or are to."""
        return not isinstance(self.watched, Already)

    @property
    def whole(self) -> bool:
        """Whether it has ended well, with all its steps."""
        return self.code == 0 and self.watched is not None and self.watched.done >= self.expected

    def poll(self) -> None:
        """See how it does.

        Raises:
            ConfigError, JobFailed, OSError: its steps cannot be followed.
        """
        if self.watched is None:
            return
        self.code = self.watched.poll()
        if self.loaded is None and self.ours and self.watched.head is not None:
            self.loaded = max(time.monotonic() - self.watched.started, 0.0)

    def hold(self, wanted: bool, now: float) -> None:
        """Close or open the gate, and keep the time."""
        if self.watched is None or wanted == self.watched.held:
            return
        if wanted:
            self.watched.hold()
        else:
            self.watched.release()
        if self.watched.held:
            self.holds, self._since = self.holds + 1, now
        elif self._since is not None:
            self.held, self._since = self.held + now - self._since, None

    def line(self, now: float) -> str:
        """How far it is, or when it starts; nothing of one that nobody sees."""
        if self.watched is not None and self.released:
            done, held = self.watched.done, ", held" if self.watched.held else ""
            return f"{self.name} {done}/{self.expected} ({100 * done / self.expected:.0f} %){held}"
        if not self.released and not self.over:
            return f"{self.name} starts in {max(self.start - now, 0):.0f} s"
        return ""

    def outcome(self, zero: float, *, unseen: bool) -> Outcome:
        """What became of it; ``zero``: of ``time.monotonic()``, from which moments count. ``unseen``: it is somebody
        else's, and nobody knows.
        """
        held: dict[str, Any] = {"holds": self.holds, "held": self.held}
        if self.watched is None:
            state = "running" if unseen else "failed" if self.over else "not started"
            nothing: dict[str, Any] = dict.fromkeys(("code", "launched", "start", "end", "compute", "wait"))
            return Outcome(name=self.name, state=state, steps=0, expected=self.expected, **nothing, **held)
        steps = self.watched.steps()
        stopped = "stopped" if self.ours else "running"
        return Outcome(
            name=self.name,
            state=stopped if self.stopped else "done" if self.whole else "failed",
            code=self.code if self.ours else None,
            launched=self.watched.started - zero if self.ours else None,
            start=float(steps[0, 0]) - zero if len(steps) else None,
            end=float(ends(steps)[-1]) - zero if len(steps) else None,
            steps=len(steps),
            expected=self.expected,
            compute=float(np.mean(steps[:, 2])) if len(steps) else None,
            wait=float(np.mean(steps[:, 1])) if len(steps) else None,
            **held,
        )


def ends(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """When steps have ended, of those of ``Watched.steps``."""
    found: NDArray[np.float64] = steps.sum(axis=1)
    return found
