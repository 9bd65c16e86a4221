# SPDX-License-Identifier: Apache-2.0
"""One job as whoever started it sees it: its steps, and the gate before each of them.

Whatever runs the job (this machine, Slurm, somebody else), its loaders write their steps into a folder, and wait at the
gate there while it is locked. What the job prints is in ``<folder>/<name>.log``, its steps are in ``<folder>/<name>/``.
Apart from those who start jobs, and from those who decide when: here nothing is started, and nothing is predicted.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import itertools
import os
import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foresee._steps import GATE, ROW, Followed, Head
from foresee.errors import ConfigError, JobFailed
from foresee.job import Job
from foresee.jobs.asked import steps_per_epoch

__all__ = ["SEED", "STEPS", "TICK", "Watched", "agree", "expected_steps", "unordered"]

STEPS = "FORESEE_STEPS"
"""The variable that names the folder of steps to a job's loaders."""
SEED = "FORESEE_SEED"
"""The variable that tells a job its ``[train] seed``, the one of all jobs that share the data. No loader reads it: a
script does, and gives it to its sampler."""

#: Seconds between two looks at files of steps.
TICK = 0.05
_LOG_LINES = 8
_LOG_BYTES = 4096


class Watched(ABC):
    """A job that writes its steps where we look.

    Args:
        job: which.
        name: what it is called.
        folder: of logs and of folders of steps; must exist. Jobs run elsewhere, and are told it as an absolute path.
    """

    #: Seconds to add to what its clock says; another machine's clock is another one.
    _shift = 0.0

    def __init__(self, job: Job, name: str, folder: str) -> None:
        self.name = name
        self.job = job
        folder = os.path.abspath(folder)
        stem = _free(folder, re.sub(r"[^A-Za-z0-9._-]+", "-", name))
        self.log = os.path.join(folder, f"{stem}.log")
        self.folder = os.path.join(folder, stem)
        self.held = False
        """Whether the gate is closed."""
        self.queued = False
        """Whether it waits for a machine, so that it cannot begin."""
        self._gate: int | None = None
        self._files: dict[str, Followed] = {}
        self._rows: dict[str, list[NDArray[np.void]]] = {}
        self.started = time.monotonic()
        self.last_step = self.started
        """When a step was last seen, or the job started; of ``time.monotonic()``."""

    def _make(self, *, held: bool) -> None:
        """Make the folder of steps, with a gate in it."""
        os.makedirs(self.folder)
        self._gate = os.open(os.path.join(self.folder, GATE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if held:
            self.hold()

    def _told(self) -> dict[str, str]:
        """What its environment tells the job."""
        return {STEPS: self.folder, SEED: str(self.job.train.seed)}

    @abstractmethod
    def poll(self) -> int | None:
        """Read new steps; the exit code if the job has ended, negative for a signal; else None."""

    @abstractmethod
    def stop(self) -> None:
        """End the job with all its processes; again is fine."""

    def hold(self) -> None:
        """Close the gate: no rank begins another step. One that passes it right now keeps it open for now."""
        if self._gate is not None and not self.held:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.held = True

    def release(self) -> None:
        """Open the gate."""
        if self._gate is not None and self.held:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        self.held = False

    def _abandon(self) -> None:
        """Open the gate for good."""
        self.held = False
        if self._gate is not None:
            gate, self._gate = self._gate, None
            os.close(gate)

    def _read(self) -> float | None:
        """Read new steps; when the last of them ended, by the job's own clock; None: there is no new one."""
        ended = None
        for path in glob.glob(os.path.join(glob.escape(self.folder), "rank-*.steps")):
            file = self._files.setdefault(path, Followed(path))
            new = file.poll()
            if len(new):
                self._rows.setdefault(path, []).append(new)
                self.last_step = time.monotonic()
                end = sum(new[-1].tolist()[:3]) / 1e9
                ended = end if ended is None else max(ended, end)
        return ended

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
        told = np.stack(columns, axis=1)
        told[:, 0] += self._shift
        return told

    def _each(self) -> list[list[NDArray[np.void]]]:
        return [self._rows.get(path, []) for path, file in self._files.items() if file.head is not None]

    def failure(self, what: str) -> JobFailed:
        """An error about the job, with the end of its log."""
        return JobFailed(f"{self.name} {what}{self._tail()}")

    def ended(self, code: int) -> JobFailed:
        """The error of a job that has ended too early."""
        how = f"exit code {code}" if code >= 0 else f"signal {_signal(-code)}"
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
        if not os.path.exists(self.log):
            return ""
        with open(self.log, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LOG_BYTES, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()[-_LOG_LINES:]
        return f"; the end of {self.log}:\n" + "\n".join(lines) if lines else f"; {self.log} is empty"


def _free(folder: str, stem: str) -> str:
    """A name that no folder has yet: those of two jobs may differ in letters that names of files do without."""
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not os.path.exists(os.path.join(folder, name)))


def _signal(number: int) -> str:
    """Its name; a number that has none as it is, as of real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def agree(processes: Sequence[Watched]) -> None:
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
            f"seed, that of {SEED}, as by DistributedSampler(seed=) or DataLoader(generator=), which what else a job "
            "draws does not disturb"
        )
    if faults:
        raise ConfigError(faults)


def unordered(watched: Watched) -> str | None:
    """That nobody can tell whether a job reads in the order of the others; None: its loader says in which."""
    if watched.head is None or watched.head.order is not None:
        return None
    return (
        f"{watched.name}: in which order it reads is not known, as with an IterableDataset or a sampler of one's own; "
        f"what is predicted holds if it is that of the others: draw it from {SEED} in all jobs"
    )


def expected_steps(job: Job) -> int:
    """Steps that a job file asks for, over all epochs.

    Raises:
        ConfigError: a key that is missing, or not one whole step.
    """
    (epochs,) = job.need("train.epochs")
    return int(epochs) * steps_per_epoch(job)
