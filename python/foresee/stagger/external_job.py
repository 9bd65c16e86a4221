# SPDX-License-Identifier: Apache-2.0
"""One job that another program started, and that the launcher never stops.

Its steps are visible if its loader writes them (``FORESEE_STEPS``) and their folder is known.
"""

from __future__ import annotations

import os

from foresee.errors import ConfigError, JobFailed
from foresee.jobspec import Job
from foresee.stagger.clock import SYSTEM, Clock
from foresee.stagger.job_monitor import JobMonitor
from foresee.stagger.reports import total_steps

__all__ = ["ExternalJob"]


class ExternalJob(JobMonitor):
    """A running job.

    Args:
        job, name, clock: as of :class:`JobMonitor`.
        folder: its folder of steps.
        patience: seconds without a step after which it counts as lost.

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
        """Read new steps; return 0 if all are done, 1 if it takes none for ``patience``, else None."""
        self._read()
        if self.done >= total_steps(self.job):
            return 0
        return 1 if self.clock.now() - self.last_step > self._patience else None

    def exit_error(self, code: int) -> JobFailed:
        """Return the error of a job without steps."""
        del code
        return self.stall_error(self._patience)

    def stop(self) -> None:
        """Do nothing: another program started it."""
