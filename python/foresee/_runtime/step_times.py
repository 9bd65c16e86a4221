# SPDX-License-Identifier: Apache-2.0
"""Step times of a training loop: wait and computation of each step, for the program that started the job.

The time within ``next()`` is waiting, the time between two calls is computing. If the environment names a folder
(``FORESEE_STEPS``), each step appends one row of 32 bytes to ``rank-K.steps`` there (``docs/formats/steps.md``).

All loaders and ``ft.measure`` write steps, and ``foresee.stagger`` reads them. After a failed write, training continues
with one warning and without the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import math
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee._runtime import ranks
from foresee.errors import ConfigError

VERSION = 1
_MAGIC = b"FORESTEP"
#: Magic, version, rank, ranks, steps per epoch (0: unknown), hash of the order (0: unknown).
_HEAD = struct.Struct("<8sIIIIQ")
_ROW = struct.Struct("<QQQII")
ROW = np.dtype(
    [
        ("begin_ns", "<u8"),
        ("wait_ns", "<u8"),
        ("compute_ns", "<u8"),
        ("epoch", "<u4"),
        ("step", "<u4"),
    ]
)
assert _ROW.size == ROW.itemsize
#: A file next to those of steps: while the launcher locks it, no loader begins a step.
GATE = "gate"
#: Variable with the name of a subfolder: an empty disk cache, below the folder that a job gives its loaders.
CACHE_SUBFOLDER = "FORESEE_CACHE_APART"
#: A file next to those of steps, with a line for each such folder of a job.
CACHES = "caches"

_log = logging.getLogger("foresee")


def disk_cache_folder(folder: str) -> str:
    """Return ``folder``, or the subfolder for an empty cache that the launcher of the job asks for, and report that."""
    name, steps = os.environ.get(CACHE_SUBFOLDER), os.environ.get("FORESEE_STEPS")
    if not name or not steps:
        return folder
    folder = os.path.abspath(os.path.join(folder, name))
    with open(os.path.join(os.path.expanduser(steps), CACHES), "a", encoding="utf-8") as file:
        file.write(f"{folder}\n")
    return folder


def order_hash(order: str) -> int:
    """Return 64 bits, never 0, that are equal for equal orders of equal data.

    >>> order_hash("sequential 10") == order_hash("sequential 11")
    False
    """
    return int.from_bytes(hashlib.blake2b(order.encode(), digest_size=8).digest(), "little") or 1


class Meter:
    """The steps of one loader in this process.

    Args:
        folder: for the rows; None: nothing is written.
        world: rank of this process; None: the launcher's.
        clock: monotonic clock in nanoseconds, shared with the reader of the file.
    """

    def __init__(
        self,
        folder: str | None,
        world: ranks.World | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.now = clock
        self._folder = folder
        self._world = world
        self._pid = os.getpid()
        self._file: int | None = None
        self._gate: int | None = None
        self._steps = 0
        self._epochs = 0
        # Welford's: means, and sums of squared differences from them, nanoseconds.
        self._mean = [0.0, 0.0]
        self._squares = [0.0, 0.0]

    def timer(self, *, steps: int | None = None, order: int = 0) -> StepTimer:
        """Return the timer of one iterator, whose epoch has ``steps`` steps; ``order``: its ``order_hash``."""
        if self._epochs == 0:
            self._open(steps or 0, order)
        self._epochs += 1
        return StepTimer(self, self._epochs - 1)

    def stats(self) -> dict[str, Any]:
        """Return mean and standard deviation of the seconds per step so far; None: not measured."""
        stats: dict[str, Any] = {"steps": self._steps, "epochs": self._epochs}
        for name, mean, squares in zip(("wait", "compute"), self._mean, self._squares, strict=True):
            stats[f"{name}_seconds"] = mean / 1e9 if self._steps else None
            sd = math.sqrt(squares / (self._steps - 1)) if self._steps > 1 else None
            stats[f"{name}_seconds_sd"] = None if sd is None else sd / 1e9
        return stats

    def _open(self, steps: int, order: int) -> None:
        # In a forked child the file belongs to the parent.
        if self._folder is None or os.getpid() != self._pid:
            return
        world = self._world or ranks.detect()
        path = os.path.join(self._folder, f"rank-{world.rank}.steps")
        try:
            os.makedirs(self._folder, exist_ok=True)
            self._file = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            if os.path.isfile(path):
                return  # The first loader of a rank is the one that counts.
            _log.warning("%s: steps are not written: %s", path, error)
            return
        self._write(_HEAD.pack(_MAGIC, VERSION, world.rank, world.size, min(steps, 2**32 - 1), order))
        with contextlib.suppress(FileNotFoundError):
            self._gate = os.open(os.path.join(self._folder, GATE), os.O_RDONLY | os.O_CLOEXEC)
        self._pass_gate()

    def _pass_gate(self) -> bool:
        """Wait while the launcher locks the gate, and return whether it did; the lock ends with the launcher."""
        if self._gate is None or os.getpid() != self._pid:
            return False
        locked = False
        try:
            fcntl.flock(self._gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._gate, fcntl.LOCK_SH)
            locked = True
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        return locked

    def _add(self, begin: int, wait: int, compute: int, epoch: int, step: int) -> None:
        self._steps += 1
        for i, value in enumerate((wait, compute)):
            off = value - self._mean[i]
            self._mean[i] += off / self._steps
            self._squares[i] += off * (value - self._mean[i])
        if self._file is not None and os.getpid() == self._pid:
            self._write(_ROW.pack(begin, wait, compute, epoch, step))

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        try:
            os.write(self._file, data)
        except OSError as error:
            _log.warning("steps are not written any more: %s", error)
            self.close()

    def close(self) -> None:
        """Close the files. Idempotent."""
        for name in ("_file", "_gate"):
            file = getattr(self, name, None)
            if file is not None:
                setattr(self, name, None)
                os.close(file)

    def __del__(self) -> None:
        self.close()


class StepTimer:
    """Timer of one iterator: ``begin_wait`` before each ``next()``, ``end_wait`` after it, ``end_step`` at the end."""

    __slots__ = ("_epoch", "_meter", "_received", "_requested", "_step")

    def __init__(self, meter: Meter, epoch: int) -> None:
        self._meter = meter
        self._epoch = epoch
        self._step = 0
        self._requested = 0
        self._received: int | None = None

    def begin_wait(self) -> bool:
        """End the previous step and pass the gate; return whether it was locked. The time at the gate is in no step."""
        now = self.end_step()
        is_locked = self._meter._pass_gate()  # noqa: SLF001 - a part of the meter
        self._requested = self._meter.now() if is_locked else now
        return is_locked

    def end_wait(self) -> None:
        """End the wait: the batch was received."""
        self._received = self._meter.now()

    def end_step(self) -> int:
        """End the step in progress, if any, and return the time in nanoseconds."""
        now = self._meter.now()
        if self._received is not None:
            self._meter._add(  # noqa: SLF001 - a part of the meter
                self._requested,
                self._received - self._requested,
                now - self._received,
                self._epoch,
                self._step,
            )
            self._step += 1
            self._received = None
        return now


@dataclass(frozen=True)
class StepsHeader:
    """The header of a file of steps."""

    rank: int
    ranks: int
    steps: int | None
    """Per epoch; None: unknown."""
    order: int | None
    """``order_hash``; None: unknown."""


class StepsReader:
    """Reader of a file of steps that grows."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.head: StepsHeader | None = None
        self._offset = 0

    def poll(self) -> NDArray[np.void]:
        """Return new rows, of :data:`ROW`; none if the file does not exist yet.

        Raises:
            ConfigError: the file has another format or version.
            OSError: the file cannot be read.
        """
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed below; only open() may raise this
        except FileNotFoundError:
            return np.zeros(0, ROW)
        with file:
            if self.head is None:
                start = file.read(_HEAD.size)
                if len(start) < _HEAD.size:
                    return np.zeros(0, ROW)
                self.head = self._head(start)
                self._offset = _HEAD.size
            file.seek(self._offset)
            data = file.read()
        whole = len(data) // ROW.itemsize
        self._offset += whole * ROW.itemsize
        return np.frombuffer(data, ROW, whole)

    def _head(self, start: bytes) -> StepsHeader:
        magic, version, rank, ranks, steps, order = _HEAD.unpack(start)
        if magic != _MAGIC:
            raise ConfigError(f"{self.path} is no file of steps; remove it from the folder")
        if version != VERSION:
            raise ConfigError(
                f"{self.path}: version {version}; this program reads version {VERSION} of steps: let job and launcher "
                "use one release"
            )
        return StepsHeader(rank=rank, ranks=ranks, steps=steps or None, order=order or None)
