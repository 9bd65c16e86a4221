# SPDX-License-Identifier: Apache-2.0
"""Step times of a training loop: wait and computation of each step, for the program that started the job.

One clock per iterator: the time within ``next()`` is waiting, the time between two calls is computing. If the
environment names a folder (``FORESEE_STEPS``), each step is one write of 32 bytes at the end of ``rank-K.steps``
there; ``docs/formats/steps.md`` describes it. A step that was written survives a kill, and half of one is no step.

All loaders and ``ft.measure`` write steps, and ``foresee.stagger`` reads them. A file that cannot be written any
more is given up with one warning, so that training continues.
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

__all__ = [
    "APART",
    "CACHES",
    "GATE",
    "ROW",
    "VERSION",
    "Followed",
    "Head",
    "Lap",
    "Meter",
    "cache_apart",
    "mark",
]

VERSION = 1
_MAGIC = b"FORESTEP"
#: Magic, version, rank, ranks, steps per epoch (0: not known), mark of the order (0: not known).
_HEAD = struct.Struct("<8sIIIIQ")
_ROW = struct.Struct("<QQQII")
#: A row as numpy has it.
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
#: A file beside those of steps: while the launcher has it locked, no loader begins a step.
GATE = "gate"
#: The variable with the name of a folder for caches on disk, below those that a job gives its loaders.
APART = "FORESEE_CACHE_APART"
#: A file beside those of steps, with a line for each folder that a job made of it.
CACHES = "caches"

_log = logging.getLogger("foresee")


def cache_apart(folder: str) -> str:
    """Where a cache on disk is that was given ``folder``: there, or below it, and told, where whoever started the job
    wants an empty one.
    """
    name, steps = os.environ.get(APART), os.environ.get("FORESEE_STEPS")
    if not name or not steps:
        return folder
    folder = os.path.abspath(os.path.join(folder, name))
    with open(os.path.join(os.path.expanduser(steps), CACHES), "a", encoding="utf-8") as file:
        file.write(f"{folder}\n")
    return folder


def mark(order: str) -> int:
    """A number for an order in words; equal orders of equal data have equal ones, and 0 is none of them.

    >>> mark("sequential 10") == mark("sequential 10"), mark("sequential 10") == mark("sequential 11")
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(order.encode(), digest_size=8).digest(), "little") or 1


class Meter:
    """The steps of one loader in this process.

    Args:
        folder: that gets the rows; None: nothing is written.
        world: which rank this is; None: the launcher's.
        clock: nanoseconds of a clock that never goes backwards, the one of whoever reads the file.
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

    def lap(self, *, steps: int | None = None, order: int = 0) -> Lap:
        """The clock of one iterator, whose epoch has ``steps`` steps in the order with mark ``order``."""
        if self._epochs == 0:
            self._open(steps or 0, order)
        self._epochs += 1
        return Lap(self, self._epochs - 1)

    def stats(self) -> dict[str, Any]:
        """Figures of all steps so far: seconds per step, mean and standard deviation; None: not measured."""
        told: dict[str, Any] = {"steps": self._steps, "epochs": self._epochs}
        for name, mean, squares in zip(("wait", "compute"), self._mean, self._squares, strict=True):
            told[f"{name}_seconds"] = mean / 1e9 if self._steps else None
            sd = math.sqrt(squares / (self._steps - 1)) if self._steps > 1 else None
            told[f"{name}_seconds_sd"] = None if sd is None else sd / 1e9
        return told

    def _open(self, steps: int, order: int) -> None:
        # A forked child has its parent's loader, and its file belongs to the parent.
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
                return  # another loader of this rank came first, and it is the one that counts
            _log.warning("%s: steps are not written: %s", path, error)
            return
        self._write(_HEAD.pack(_MAGIC, VERSION, world.rank, world.size, min(steps, 2**32 - 1), order))
        with contextlib.suppress(FileNotFoundError):
            self._gate = os.open(os.path.join(self._folder, GATE), os.O_RDONLY | os.O_CLOEXEC)
        self._pass_gate()

    def _pass_gate(self) -> bool:
        """Wait while the launcher keeps the gate locked; a launcher that dies lets go of it. Whether it was."""
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
        """Let go of the files; again is fine."""
        for name in ("_file", "_gate"):
            file = getattr(self, name, None)
            if file is not None:
                setattr(self, name, None)
                os.close(file)

    def __del__(self) -> None:
        self.close()


class Lap:
    """The clock of one iterator: ``ask`` before each ``next()``, ``got`` after it, ``end`` when no other comes."""

    __slots__ = ("_asked", "_epoch", "_got", "_meter", "_step")

    def __init__(self, meter: Meter, epoch: int) -> None:
        self._meter = meter
        self._epoch = epoch
        self._step = 0
        self._asked = 0
        self._got: int | None = None

    def ask(self) -> bool:
        """A batch is asked for, so the step before has ended; what passes at the gate is in no step. Whether it was
        held there.
        """
        now = self.end()
        held = self._meter._pass_gate()  # noqa: SLF001 - the clock is the meter's other half
        self._asked = self._meter.now() if held else now
        return held

    def got(self) -> None:
        """It is there."""
        self._got = self._meter.now()

    def end(self) -> int:
        """The step has ended, if one was under way; when, in nanoseconds."""
        now = self._meter.now()
        if self._got is not None:
            self._meter._add(  # noqa: SLF001 - the clock is the meter's other half
                self._asked, self._got - self._asked, now - self._got, self._epoch, self._step
            )
            self._step += 1
            self._got = None
        return now


@dataclass(frozen=True)
class Head:
    """What a file of steps says of itself."""

    rank: int
    """Who."""
    ranks: int
    """Of how many."""
    steps: int | None
    """Per epoch; None: the loader does not know."""
    order: int | None
    """Mark of the order; None: not known."""


class Followed:
    """A file of steps, read as it grows."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.head: Head | None = None
        self._at = 0

    def poll(self) -> NDArray[np.void]:
        """Rows that are new, of :data:`ROW`; none if the file is not there yet.

        Raises:
            ConfigError: no file of steps, or of another version.
            OSError: it cannot be read.
        """
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed below; only the opening may fail so
        except FileNotFoundError:
            return np.zeros(0, ROW)
        with file:
            if self.head is None:
                start = file.read(_HEAD.size)
                if len(start) < _HEAD.size:
                    return np.zeros(0, ROW)
                self.head = self._head(start)
                self._at = _HEAD.size
            file.seek(self._at)
            data = file.read()
        whole = len(data) // ROW.itemsize
        self._at += whole * ROW.itemsize
        return np.frombuffer(data, ROW, whole)

    def _head(self, start: bytes) -> Head:
        magic, version, rank, ranks, steps, order = _HEAD.unpack(start)
        if magic != _MAGIC:
            raise ConfigError(f"{self.path}: no file of steps")
        if version != VERSION:
            raise ConfigError(
                f"{self.path}: version {version}; this program reads version {VERSION} of steps: let job and launcher "
                "use one release"
            )
        return Head(rank=rank, ranks=ranks, steps=steps or None, order=order or None)
