# SPDX-License-Identifier: Apache-2.0
"""One job as a local process: started, followed step by step, stopped with all that it has started.

The job's command runs in the job file's folder and in a session of its own, so that a signal reaches its worker
processes too and Ctrl-C at the launcher's terminal does not. What it prints goes to ``<folder>/<name>.log``, its steps
to ``<folder>/<name>/``. Apart from those who decide when jobs start: here nothing is predicted.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from foresee._steps import GATE, ROW, Followed, Head
from foresee.errors import ConfigError, JobFailed
from foresee.job import Job
from foresee.jobs.asked import steps_per_epoch

__all__ = ["TICK", "Process", "agree", "command"]

#: Seconds between two looks at files of steps.
TICK = 0.05
#: Seconds that a job has to end after SIGTERM.
_GRACE = 10.0
_LOG_LINES = 8
_LOG_BYTES = 4096


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


class Process:
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
        self.name = name
        self.job = job
        words, where = command(job)
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
        self.log = os.path.join(folder, f"{stem}.log")
        self.folder = os.path.join(folder, stem)
        os.makedirs(self.folder)
        self._gate: int | None = None
        if held:
            self._gate = os.open(
                os.path.join(self.folder, GATE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
            fcntl.flock(self._gate, fcntl.LOCK_EX)
        self._files: dict[str, Followed] = {}
        self._rows: dict[str, list[NDArray[np.void]]] = {}
        self.started = time.monotonic()
        self.last_step = self.started
        """When a step was last seen, or the job started; of ``time.monotonic()``."""
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
            self.release()
            raise

    @property
    def pid(self) -> int:
        """Of the command, and of its session."""
        return self._popen.pid

    def release(self) -> None:
        """Open the gate."""
        if self._gate is not None:
            gate, self._gate = self._gate, None
            os.close(gate)

    def poll(self) -> int | None:
        """Read new steps; the exit code if the job has ended, else None."""
        # Asked first: what it wrote before its end is read below.
        code = self._popen.poll()
        for path in glob.glob(os.path.join(glob.escape(self.folder), "rank-*.steps")):
            file = self._files.setdefault(path, Followed(path))
            new = file.poll()
            if len(new):
                self._rows.setdefault(path, []).append(new)
                self.last_step = time.monotonic()
        return code

    @property
    def head(self) -> Head | None:
        """What its first rank says of its loader; None: no loader has begun."""
        heads = [file.head for file in self._files.values() if file.head is not None]
        return min(heads, key=lambda head: head.rank, default=None)

    @property
    def done(self) -> int:
        """Steps that all its ranks have done."""
        return min((sum(map(len, rows)) for rows in self._each()), default=0)

    def steps(self) -> NDArray[np.float64]:
        """Steps that all ranks have done: begin, wait, compute in seconds, means over the ranks; shape (steps, 3)."""
        done = self.done
        each = [np.concatenate([np.zeros(0, ROW), *rows])[:done] for rows in self._each() or [[]]]
        columns = [np.mean([rows[name] / 1e9 for rows in each], axis=0) for name in ROW.names[:3]]  # type: ignore[index]
        return np.stack(columns, axis=1)

    def _each(self) -> list[list[NDArray[np.void]]]:
        return [self._rows.get(path, []) for path, file in self._files.items() if file.head is not None]

    def stop(self) -> None:
        """End the job with all its processes: SIGTERM first, SIGKILL for whoever is left; again is fine."""
        self.release()
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

    def read_bytes(self) -> int | None:
        """Bytes that its processes had the storage read, as the kernel counts them; None: it does not tell."""
        total: int | None = None
        for pid in _session(self._popen.pid):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as file:
                for line in file:
                    if line.startswith("read_bytes:"):
                        total = (total or 0) + int(line.split()[1])
        return total

    def failure(self, what: str) -> JobFailed:
        """An error about the job, with the end of its log."""
        return JobFailed(f"{self.name} {what}{self._tail()}")

    def ended(self, code: int) -> JobFailed:
        """The error of a job that has ended too early."""
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        if self.head is None:
            return self.failure(
                f"ended ({how}) before a loader began a step; it has to train with a Foresee loader, or with one in "
                "ft.measure(loader)"
            )
        return self.failure(f"ended ({how}) after {self.done} steps")

    def stalled(self, seconds: float) -> JobFailed:
        """The error of a job that takes no steps."""
        if self.head is None:
            return self.failure(
                f"began no step within {seconds:g} s; it has to train with a Foresee loader, or with one in "
                "ft.measure(loader)"
            )
        return self.failure(f"has taken no step for {seconds:g} s, after {self.done}")

    def _tail(self) -> str:
        with open(self.log, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LOG_BYTES, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()[-_LOG_LINES:]
        return f"; the end of {self.log}:\n" + "\n".join(lines) if lines else f"; {self.log} is empty"


def agree(processes: Sequence[Process]) -> None:
    """Compare what loaders say of themselves with the job files, and with each other.

    Raises:
        ConfigError: another number of steps, so another data set or batch; or another order.
    """
    faults = []
    for process in processes:
        expected = steps_per_epoch(process.job)
        head = process.head
        if head is not None and head.steps is not None and head.steps != expected:
            faults.append(
                f"{process.name}: its loader has {head.steps} steps per epoch, {expected} by its job file; is it "
                "another data set, or another batch?"
            )
    known = [
        (process.name, process.head.order)
        for process in processes
        if process.head is not None and process.head.order is not None
    ]
    if not faults and len({order for _, order in known}) > 1:
        names = " and ".join(dict.fromkeys(name for name, _ in known))
        again = "" if " and " in names else ", from one start to the next,"
        faults.append(
            f"{names} read other data{again} or in another order: give all loaders one data set and one "
            "seed, as by DistributedSampler(seed=) or DataLoader(generator=), which what else a job draws does not "
            "disturb"
        )
    if faults:
        raise ConfigError(faults)


def _session(leader: int) -> Iterator[int]:
    """Processes of a session."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(name)) == leader:
                    yield int(name)
