# SPDX-License-Identifier: Apache-2.0
"""Steps of one job as its launcher observes them, and the gate in front of each step.

The job's loaders write their steps into ``<folder>/<name>/``, and wait at the gate there while it is locked. The job's
output is in ``<folder>/<name>.log``. This module neither starts jobs nor decides when they start.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import itertools
import os
import re
import signal
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from foresee._runtime.step_times import CACHES, GATE, ROW, StepsHeader, StepsReader
from foresee.errors import JobFailed
from foresee.jobspec import Job
from foresee.stagger.clock import SYSTEM, Clock
from foresee.stagger.reports import SEED

__all__ = ["STEPS", "JobMonitor"]

STEPS = "FORESEE_STEPS"
"""The variable that names the folder of steps to a job's loaders."""
_LOG_LINES = 8
_LOG_BYTES = 4096


class JobMonitor(ABC):
    """A job that writes its steps into a folder.

    Args:
        job: its job file.
        name: its name in messages and paths.
        folder: holds logs and folders of steps; must exist. Jobs get it as an absolute path.
        clock: the clock of the job's steps.
    """

    #: Seconds from the clock of its host to that of this one.
    _shift = 0.0

    def __init__(self, job: Job, name: str, folder: str, *, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.name = name
        self.job = job
        folder = os.path.abspath(folder)
        stem = _unused_stem(folder, re.sub(r"[^A-Za-z0-9._-]+", "-", name))
        self.log = os.path.join(folder, f"{stem}.log")
        self.folder = os.path.join(folder, stem)
        self.held = False
        """Whether the gate is closed."""
        self.queued = False
        """Whether it waits for a node, so that it cannot begin."""
        self._gate: int | None = None
        self._files: dict[str, StepsReader] = {}
        self._rows: dict[str, list[NDArray[np.void]]] = {}
        self.started = clock.now()
        self.last_step = self.started
        """Time of the last observed step, or of the start."""

    def _make_folder(self, *, held: bool) -> None:
        """Make the folder of steps with its gate."""
        os.makedirs(self.folder)
        self._gate = os.open(os.path.join(self.folder, GATE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if held:
            self.hold()

    def _environment(self) -> dict[str, str]:
        """Return the environment of the job."""
        return {STEPS: self.folder, SEED: str(self.job.train.seed)}

    @abstractmethod
    def poll(self) -> int | None:
        """Read new steps; the exit code if the job has ended, negative for a signal; else None."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the job with all its processes; it may be called again."""

    def hold(self) -> None:
        """Close the gate, so that no rank begins another step. A rank that passes it right now keeps it open."""
        if self._gate is not None and not self.held:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.held = True

    def release(self) -> None:
        """Open the gate."""
        if self._gate is not None and self.held:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        self.held = False

    def _drop_gate(self) -> None:
        """Open the gate forever."""
        self.held = False
        if self._gate is not None:
            gate, self._gate = self._gate, None
            os.close(gate)

    def _read(self) -> float | None:
        """Read new steps; return the end of the last one by the job's own clock, or None without one."""
        ended = None
        for path in glob.glob(os.path.join(glob.escape(self.folder), "rank-*.steps")):
            file = self._files.setdefault(path, StepsReader(path))
            new = file.poll()
            if len(new):
                self._rows.setdefault(path, []).append(new)
                self.last_step = self.clock.now()
                end = sum(new[-1].tolist()[:3]) / 1e9
                ended = end if ended is None else max(ended, end)
        return ended

    @property
    def head(self) -> StepsHeader | None:
        """The loader's report of its first rank; None before a loader has begun."""
        heads = [file.head for file in self._files.values() if file.head is not None]
        return min(heads, key=lambda head: head.rank, default=None)

    @property
    def done(self) -> int:
        """Steps that all ranks have done."""
        return min((sum(map(len, rows)) for rows in self._rank_rows()), default=0)

    def steps(self) -> NDArray[np.float64]:
        """Return begin, wait and compute in seconds of steps that all ranks have done, means over ranks; (steps, 3)."""
        done = self.done
        each = [np.concatenate([np.zeros(0, ROW), *rows])[:done] for rows in self._rank_rows() or [[]]]
        columns = [np.mean([rows[name] / 1e9 for rows in each], axis=0) for name in ROW.names[:3]]  # type: ignore[index]
        steps = np.stack(columns, axis=1)
        steps[:, 0] += self._shift
        return steps

    def caches(self) -> list[str]:
        """Return the folders of its caches on disk that are not the user's."""
        try:
            with open(os.path.join(self.folder, CACHES), encoding="utf-8") as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []

    def read_bytes(self) -> int | None:
        """Return the bytes that its processes read from storage; None: unknown."""
        return None

    def _rank_rows(self) -> list[list[NDArray[np.void]]]:
        return [self._rows.get(path, []) for path, file in self._files.items() if file.head is not None]

    def error(self, what: str) -> JobFailed:
        """Return an error about the job, with the end of its log."""
        return JobFailed(f"{self.name} {what}{self._log_tail()}")

    def exit_error(self, code: int) -> JobFailed:
        """Return the error of a job that has ended too early."""
        how = f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"
        if self.head is None:
            return self.error(
                f"ended ({how}) before a loader began a step; it has to train with a Foresee loader, or with one in "
                "ft.measure(loader)"
            )
        return self.error(f"ended ({how}) after {self.done} steps")

    def stall_error(self, seconds: float) -> JobFailed:
        """Return the error of a job without steps."""
        if self.head is None:
            return self.error(
                f"began no step within {seconds:g} s; it has to train with a Foresee loader, or with one in "
                "ft.measure(loader)"
            )
        return self.error(f"has taken no step for {seconds:g} s, after {self.done}")

    def _log_tail(self) -> str:
        if not os.path.exists(self.log):
            return ""
        with open(self.log, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LOG_BYTES, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()[-_LOG_LINES:]
        return f"; the end of {self.log}:\n" + "\n".join(lines) if lines else f"; {self.log} is empty"


def _unused_stem(folder: str, stem: str) -> str:
    """Return a file name that is not in use: names of two jobs may become equal."""
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not os.path.exists(os.path.join(folder, name)))


def _signal_name(number: int) -> str:
    """Return a signal's name, or its number without one (real-time signals)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
