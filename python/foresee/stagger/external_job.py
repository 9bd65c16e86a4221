# SPDX-License-Identifier: Apache-2.0
"""One job that another program started. It runs on whatever the launcher does, and is never stopped by it.

Its steps are followed if its loader writes them (``FORESEE_STEPS``) and their folder is known.
"""

from __future__ import annotations

import os

from foresee.errors import ConfigError, JobFailed
from foresee.jobspec import Job
from foresee.stagger.clock import SYSTEM, Clock
from foresee.stagger.job_monitor import Watched
from foresee.stagger.reports import expected_steps

__all__ = ["Already"]


class Already(Watched):
    """A job that runs.

    Args:
        job: which.
        name: what it is called.
        folder: its folder of steps.
        patience: seconds without a step after which it counts as lost.
        clock: as of :class:`Watched`.

    Raises:
        ConfigError: there is no such folder, or no loader has written steps there.
    """

    def __init__(self, job: Job, name: str, folder: str, patience: float, *, clock: Clock = SYSTEM) -> None:
        super().__init__(job, name, os.path.dirname(os.path.abspath(folder)), clock=clock)
        self.folder = folder
        self.log = ""
        self._patience = patience
        self._read()
        if self.head is None:
            raise ConfigError(
                f"{folder}: no loader has written steps there; give the folder that FORESEE_STEPS names for {name}"
            )

    def poll(self) -> int | None:
        """Read new steps; 0 if it has done all of them, 1 if it takes none any more; else None."""
        self._read()
        if self.done >= expected_steps(self.job):
            return 0
        return 1 if self.clock.now() - self.last_step > self._patience else None

    def ended(self, code: int) -> JobFailed:
        """The error of a job that has ended too early."""
        del code
        return self.stalled(self._patience)

    def stop(self) -> None:
        """Nothing: it is not ours."""
