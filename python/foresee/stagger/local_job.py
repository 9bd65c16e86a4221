# SPDX-License-Identifier: Apache-2.0
"""One job as a local process, which is started, and stopped along with all its descendants.

The job's command runs in the job file's folder and in a session of its own, so that Ctrl-C at the launcher's terminal
does not reach it. Its processes may have sessions of their own, as with ``torchrun``. They are found as descendants or,
if their parent has ended, by the folder of steps in their environment. Processes that a successful job has left in
sessions of their own are not stopped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from foresee.errors import ConfigError
from foresee.jobspec import Job
from foresee.stagger.actions import TICK
from foresee.stagger.clock import SYSTEM, Clock
from foresee.stagger.job_monitor import STEPS, JobMonitor

__all__ = ["LocalJob", "command"]

#: Seconds from SIGTERM to SIGKILL.
_GRACE = 10.0
#: Seconds that killed processes have to end; one that waits for an unreachable disk does not.
_KILL = 5.0


class _ProcessId(NamedTuple):
    """A process; another one of the same number start_time at another time."""

    pid: int
    start_time: int


def command(job: Job) -> tuple[list[str], str]:
    """Return the job's command and its working directory.

    Raises:
        ConfigError: no command, or its program does not exist.
    """
    (arguments,) = job.need("run.command")
    folder = os.path.dirname(os.path.abspath(job.file)) if job.file else os.getcwd()
    # As in a shell: a name with a slash is a path from that folder, any other is searched in PATH.
    program = os.path.join(folder, arguments[0]) if "/" in arguments[0] else arguments[0]
    if shutil.which(program) is None:
        location = f"{job.file}: " if job.file else ""
        raise ConfigError(
            f"{location}run.command = {arguments[0]!r}; a program expected that exists and is executable"
        )
    return [program, *arguments[1:]], folder


class LocalJob(JobMonitor):
    """A started job.

    Args:
        job, name, folder, clock: as of :class:`JobMonitor`.
        environment: variables in addition to this process's own.
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
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(job, name, folder, clock=clock)
        arguments, cwd = command(job)
        self._make_folder(held=held)
        try:
            with open(self.log, "ab") as log:
                self._popen = subprocess.Popen(
                    arguments,
                    cwd=cwd,
                    env={**os.environ, **(environment or {}), **self._environment()},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except BaseException:
            self._drop_gate()
            raise
        # /proc has an ended process until its parent reaps it.
        self._first = _ProcessId(self._popen.pid, _start_time(self._popen.pid))

    @property
    def pid(self) -> int:
        """Process id of the command, and id of its session."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Read new steps; the exit code if the job has ended, else None."""
        # Before `_read`, which then reads everything that an ended job has written.
        code = self._popen.poll()
        self._read()
        return code

    def stop(self) -> None:
        """Stop the job with all its processes: SIGTERM first, then SIGKILL. It may be called again."""
        self._drop_gate()
        known: set[_ProcessId] = set()
        deadline = self.clock.now() + _GRACE
        while (alive := self._alive(known)) and self.clock.now() < deadline:
            # A process may start others after the signal: they get it too.
            _signal(alive - known, signal.SIGTERM)
            known |= alive
            self.clock.sleep(TICK / 2)
        deadline = self.clock.now() + _KILL
        while alive and self.clock.now() < deadline:
            _signal(alive, signal.SIGKILL)
            known |= alive
            self.clock.sleep(TICK / 5)
            alive = self._alive(known)
        self._popen.wait()

    def _alive(self, known: set[_ProcessId]) -> set[_ProcessId]:
        """Return the job's live processes, with those of ``known``."""
        ended = self._popen.poll()
        table = _processes()
        variable = None if ended == 0 else f"{STEPS}={self.folder}"
        found = _related_processes(table, self._first, variable)
        return found | {each for each in known if each.pid in table and table[each.pid].member == each}

    def read_bytes(self) -> int | None:
        """Return the bytes that its processes read from storage, by the kernel's count; None: unknown."""
        total: int | None = None
        for pid, _ in _related_processes(_processes(), self._first, f"{STEPS}={self.folder}"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as file:
                for line in file:
                    if line.startswith("read_bytes:"):
                        total = (total or 0) + int(line.split()[1])
        return total


class _ProcessInfo(NamedTuple):
    """The kernel's facts about a process."""

    member: _ProcessId
    parent: int
    session: int


def _processes() -> dict[int, _ProcessInfo]:
    """Return the processes of this host by number, without zombies."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            state, parent, session, start_time = _stat(pid)
            if state not in {"Z", "X"}:
                found[pid] = _ProcessInfo(_ProcessId(pid, start_time), parent, session)
    return found


def _stat(pid: int) -> tuple[str, int, int, int]:
    """State, parent, session, and when it start_time, as proc(5) has them."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The program's name comes before, in parentheses, and may contain any character.
        state, parent, _, session, *more = file.read().rpartition(")")[2].split()
    return state, int(parent), int(session), int(more[15])


def _start_time(pid: int) -> int:
    return _stat(pid)[3]


def _related_processes(
    table: Mapping[int, _ProcessInfo], first: _ProcessId, variable: str | None
) -> set[_ProcessId]:
    """Return the session of ``first``, its descendants, and processes with ``variable`` in their environment."""
    found: set[int] = set()
    # The number may belong to another process now: it is free once its session is empty.
    if first.pid not in table or table[first.pid].member == first:
        found |= {pid for pid, info in table.items() if info.session == first.pid}
    if variable is not None:
        found |= {pid for pid in table if pid not in found and _has_variable(pid, variable)}
    fresh = set(found)
    while fresh:
        fresh = {pid for pid, info in table.items() if info.parent in fresh and pid not in found}
        found |= fresh
    return {table[pid].member for pid in found}


def _has_variable(pid: int, variable: str) -> bool:
    """Return whether a process has ``variable`` in its environment; False if it belongs to another user."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return os.fsencode(variable) in file.read().split(b"\0")
    return False


def _signal(members: set[_ProcessId], number: int) -> None:
    for pid, _ in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
