# SPDX-License-Identifier: Apache-2.0
"""One process of a measurement: opens, reads and closes files in its order, and measures each duration.

Files are read one after the other, so the seconds add up to no more than the epoch's. Times stay in memory until the
epoch has ended and are then written to the run's ledger: nothing is written during a measurement. The caller decides
which files are read from which place.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from foresee._native import LedgerFile
from foresee.storage.bench.files import HEAD_BYTES, path
from foresee.storage.bench.throttle import Bucket, Throttle, until

__all__ = ["Ended", "Fault", "Task", "Took", "serve"]

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class Task:
    """An epoch of one rank."""

    run: str
    """The run folder."""
    clock_ns: int
    """Start of the run, by ``time.monotonic_ns``."""
    epoch: int
    order: NDArray[np.int64]
    """Files that it reads."""
    cached: NDArray[np.bool_]
    """By file: whether it is read from the cache."""
    origin: str
    cache: str
    size: int
    """Bytes of each file."""
    throttle: Throttle
    """Of the origin."""


@dataclass(frozen=True)
class Took:
    """Start and end of a rank's epoch, by ``time.monotonic_ns``."""

    began_ns: int
    ended_ns: int


@dataclass(frozen=True)
class Fault:
    """Why a rank's epoch broke off."""

    message: str
    origin: bool
    """Whether a file of the origin is to blame, not one of the cache."""


@dataclass(frozen=True)
class Ended:
    """A run's ledger is complete, or not."""

    lost: str | None


def serve(orders: Connection, rank: int, reads: Bucket, opens: Bucket) -> None:
    """Do what comes until the other end is gone: a :class:`Task`, then a word to begin; None ends a run."""
    ledger: LedgerFile | None = None
    while True:
        try:
            task: Task | None = orders.recv()
            if task is None:
                assert ledger is not None, "a run that ends has begun"
                ledger.close()
                orders.send(Ended(ledger.lost))
                ledger = None
                continue
            ledger = ledger or LedgerFile.create(task.run, rank)
            times = np.zeros((len(task.order), 4), np.int64)
            orders.send(None)
            orders.recv()
        except EOFError:
            return
        orders.send(_epoch(task, times, ledger, reads, opens))


def _epoch(
    task: Task, times: NDArray[np.int64], ledger: LedgerFile, reads: Bucket, opens: Bucket
) -> Took | Fault:
    """Read the epoch's files; the ledger has it afterwards."""
    buffer = bytearray(task.size)
    began = time.monotonic_ns()
    for at, number in enumerate(task.order.tolist()):
        cached = bool(task.cached[number])
        where = path(task.cache if cached else task.origin, number)
        try:
            times[at] = _one(where, buffer, None if cached else task.throttle, reads, opens)
        except OSError as error:
            return Fault(str(error), not cached)
        if int.from_bytes(buffer[:HEAD_BYTES], "little") != number:
            return Fault(f"{where}: not the file that was written there", not cached)
    ended = time.monotonic_ns()
    _book(task, times, ledger)
    return Took(began, ended)


def _one(
    where: str, buffer: bytearray, throttle: Throttle | None, reads: Bucket, opens: Bucket
) -> tuple[int, int, int, int]:
    """Begin of open, read and close, and the end; in an order in which each is the end of the one before."""
    first = time.monotonic_ns()
    if throttle is not None and throttle.opens_per_s is not None:
        until(opens.take(round(_SECOND_NS / throttle.opens_per_s)))
    file = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    try:
        second = time.monotonic_ns()
        done = None
        if throttle is not None and throttle.bytes_per_s is not None:
            done = reads.take(round(_SECOND_NS * len(buffer) / throttle.bytes_per_s))
        _fill(file, buffer, where)
        if done is not None:
            until(done)
        third = time.monotonic_ns()
    finally:
        os.close(file)
    return first, second, third, time.monotonic_ns()


def _fill(file: int, buffer: bytearray, where: str) -> None:
    view = memoryview(buffer)
    have = 0
    while have < len(buffer):
        got = os.readv(file, [view[have:]])
        if got == 0:
            raise OSError(f"{where}: ends after {have} of {len(buffer)} bytes")
        have += got


def _book(task: Task, times: NDArray[np.int64], ledger: LedgerFile) -> None:
    """An entry for each open, read and close."""
    steps = np.arange(len(task.order), dtype=np.uint64)
    starts = (times - task.clock_ns).astype(np.uint64)
    lasted = np.diff(times, axis=1).astype(np.uint64)
    where = task.cached[task.order]
    for source, which in (("origin", ~where), ("disk", where)):
        for column, op in enumerate(("open", "read", "close")):
            ledger.add_files(
                op,
                source,
                task.epoch,
                np.ascontiguousarray(starts[which, column]),
                np.ascontiguousarray(lasted[which, column]),
                steps[which],
                task.order[which].astype(np.uint64),
                task.size if op == "read" else 0,
            )
