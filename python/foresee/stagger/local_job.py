# SPDX-License-Identifier: Apache-2.0
"""One job as a local process, which is started, and stopped along with all its descendants.

The job's command runs in the job file's folder and in a session of its own, so that Ctrl-C at the launcher's terminal
does not reach it. Its processes may have sessions of their own, as ``torchrun`` gives each rank one. They are found as
descendants, and, where their parent has ended before, by the folder of steps that their environment names. Processes
that a successful job has left in sessions of their own are not stopped, since the job has done so on purpose.
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
from foresee.stagger.job_monitor import STEPS, Watched

__all__ = ["Process", "command"]

#: Seconds that a job has to end after SIGTERM.
_GRACE = 10.0
#: Seconds that the kernel has for those that are killed; one that waits for a disk that is away does not end before.
_KILL = 5.0


class _Member(NamedTuple):
    """A process; another one of the same number began at another time."""

    pid: int
    began: int


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
        clock: as of :class:`Watched`.

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
        words, where = command(job)
        self._make(held=held)
        try:
            with open(self.log, "ab") as log:
                self._popen = subprocess.Popen(
                    words,
                    cwd=where,
                    env={**os.environ, **(environment or {}), **self._environment()},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except BaseException:
            self._abandon()
            raise
        # One that has ended already is told of until it is asked for.
        self._first = _Member(self._popen.pid, _began(self._popen.pid))

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
        """End the job with all its processes: SIGTERM first, then SIGKILL. It may be called again."""
        self._abandon()
        known: set[_Member] = set()
        deadline = self.clock.now() + _GRACE
        while (left := self._left(known)) and self.clock.now() < deadline:
            # A process that gets the signal may start others before it ends: they get it too.
            _signal(left - known, signal.SIGTERM)
            known |= left
            self.clock.sleep(TICK / 2)
        deadline = self.clock.now() + _KILL
        while left and self.clock.now() < deadline:
            _signal(left, signal.SIGKILL)
            known |= left
            self.clock.sleep(TICK / 5)
            left = self._left(known)
        self._popen.wait()

    def _left(self, known: set[_Member]) -> set[_Member]:
        """Its processes that live, and those of ``known`` that do."""
        ended = self._popen.poll()
        table = _processes()
        mark = None if ended == 0 else f"{STEPS}={self.folder}"
        found = _family(table, self._first, mark)
        return found | {each for each in known if each.pid in table and table[each.pid].member == each}

    def read_bytes(self) -> int | None:
        """Bytes that its processes had the storage read, as the kernel counts them; None: it does not tell."""
        total: int | None = None
        for pid, _ in _family(_processes(), self._first, f"{STEPS}={self.folder}"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as file:
                for line in file:
                    if line.startswith("read_bytes:"):
                        total = (total or 0) + int(line.split()[1])
        return total


class _Seen(NamedTuple):
    """The kernel's facts about a process."""

    member: _Member
    parent: int
    session: int


def _processes() -> dict[int, _Seen]:
    """Return the processes of this machine by number, without ended ones that their parent has not reaped."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            state, parent, session, began = _stat(pid)
            if state not in {"Z", "X"}:
                found[pid] = _Seen(_Member(pid, began), parent, session)
    return found


def _stat(pid: int) -> tuple[str, int, int, int]:
    """State, parent, session, and when it began, as proc(5) has them."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The name of the program comes before, in brackets, and may have any signs in it.
        state, parent, _, session, *more = file.read().rpartition(")")[2].split()
    return state, int(parent), int(session), int(more[15])


def _began(pid: int) -> int:
    return _stat(pid)[3]


def _family(table: Mapping[int, _Seen], first: _Member, mark: str | None) -> set[_Member]:
    """Return the session of ``first``, its descendants, and processes with ``mark`` in their environment."""
    found: set[int] = set()
    # Its number may be another one's by now, as a number is free once its session is empty.
    if first.pid not in table or table[first.pid].member == first:
        found |= {pid for pid, seen in table.items() if seen.session == first.pid}
    if mark is not None:
        found |= {pid for pid in table if pid not in found and _carries(pid, mark)}
    fresh = set(found)
    while fresh:
        fresh = {pid for pid, seen in table.items() if seen.parent in fresh and pid not in found}
        found |= fresh
    return {table[pid].member for pid in found}


def _carries(pid: int, mark: str) -> bool:
    """Return whether a process was started with ``mark`` in its environment; other users' processes are unreadable."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return os.fsencode(mark) in file.read().split(b"\0")
    return False


def _signal(members: set[_Member], number: int) -> None:
    for pid, _ in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
