# SPDX-License-Identifier: Apache-2.0
"""One job as a local process: started, and stopped with all that it has started.

The job's command runs in the job file's folder and in a session of its own, so that a signal reaches its worker
processes too and Ctrl-C at the launcher's terminal does not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping

from foresee._steps import CACHES
from foresee.errors import ConfigError
from foresee.job import Job
from foresee.jobs.watched import TICK, Watched

__all__ = ["Process", "command"]

#: Seconds that a job has to end after SIGTERM.
_GRACE = 10.0


def command(job: Job) -> tuple[list[str], str]:
    """The job's command and the folder that it runs in.

    Raises:
        ConfigError: there is none, or its program does not exist.
    """
    (words,) = job.need("run.command")
    folder = os.path.dirname(os.path.abspath(job.file)) if job.file else os.getcwd()
    # As a shell in that folder: a name with a slash is a path from there, another one is looked for.
    program = os.path.join(folder, words[0]) if "/" in words[0] else words[0]
    if shutil.which(program) is None:
        where = f"{job.file}: " if job.file else ""
        raise ConfigError(
            f"{where}run.command = {words[0]!r}; a program expected, that exists and may be run"
        )
    return [program, *words[1:]], folder


class Process(Watched):
    """A job that was started.

    Args:
        job: which; its command has been checked.
        name: what it is called.
        folder: of log and steps; must exist.
        environment: variables beside this process's own.
        held: whether its loader waits at the gate until :meth:`release`.

    Raises:
        ConfigError: as :func:`command`.
        OSError: it cannot be started.
    """

    def __init__(
        self,
        job: Job,
        name: str,
        folder: str,
        *,
        environment: Mapping[str, str] | None = None,
        held: bool = False,
    ) -> None:
        super().__init__(job, name, folder)
        words, where = command(job)
        self._make(held=held)
        try:
            with open(self.log, "ab") as log:
                self._popen = subprocess.Popen(
                    words,
                    cwd=where,
                    env={**os.environ, **(environment or {}), "FORESEE_STEPS": self.folder},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except BaseException:
            self._abandon()
            raise

    @property
    def pid(self) -> int:
        """Of the command, and of its session."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Read new steps; the exit code if the job has ended, else None."""
        # Asked first: what it wrote before its end is read below.
        code = self._popen.poll()
        self._read()
        return code

    def stop(self) -> None:
        """End the job with all its processes: SIGTERM first, SIGKILL for whoever is left; again is fine."""
        self._abandon()
        deadline = time.monotonic() + _GRACE
        if self._signal(signal.SIGTERM):
            while time.monotonic() < deadline and (self._popen.poll() is None or self._signal(0)):
                time.sleep(TICK / 5)
        self._signal(signal.SIGKILL)
        self._popen.wait()

    def _signal(self, number: int) -> bool:
        """Send a signal to all its processes; whether there are any."""
        try:
            os.killpg(self._popen.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def caches(self) -> list[str]:
        """Folders of its caches on disk that are apart from the user's."""
        try:
            with open(os.path.join(self.folder, CACHES), encoding="utf-8") as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []

    def read_bytes(self) -> int | None:
        """Bytes that its processes had the storage read, as the kernel counts them; None: it does not tell."""
        total: int | None = None
        for pid in _session(self._popen.pid):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as file:
                for line in file:
                    if line.startswith("read_bytes:"):
                        total = (total or 0) + int(line.split()[1])
        return total


def _session(leader: int) -> Iterator[int]:
    """Processes of a session."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(name)) == leader:
                    yield int(name)
