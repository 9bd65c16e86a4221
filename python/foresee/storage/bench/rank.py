# SPDX-License-Identifier: Apache-2.0
"""One process of a measurement: opens, reads and closes files in its order, and measures each duration.

Files are read one after the other, so the seconds add up to no more than the epoch's. The ledger is written after the
epoch: nothing is written during a measurement. The caller decides which files are read from which place.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from foresee._native import LedgerFile
from foresee.storage.bench.files import HEAD_BYTES, file_path
from foresee.storage.bench.throttle import Throttle, TokenBucket, sleep_until

__all__ = ["EpochTimes", "Fault", "Task", "serve"]

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
    """Numbers of the files to read."""
    cached: NDArray[np.bool_]
    """By file: whether the cache has it."""
    origin: str
    cache: str
    size: int
    """Bytes of each file."""
    throttle: Throttle
    """Of the origin."""


@dataclass(frozen=True)
class EpochTimes:
    """Start and end of a rank's epoch, by ``time.monotonic_ns``."""

    began_ns: int
    ended_ns: int


@dataclass(frozen=True)
class Fault:
    """The reason why a rank's epoch failed."""

    message: str
    origin: bool
    """Whether it is a file of the origin, not one of the cache."""


def serve(orders: Connection, rank: int, reads: TokenBucket, opens: TokenBucket) -> None:
    """Handle messages until the connection closes: a :class:`Task`, then any message to begin; None ends a run.

    The answer to None is the reason why the run's ledger is incomplete, or None.
    """
    ledger: LedgerFile | None = None
    while True:
        try:
            task: Task | None = orders.recv()
            if task is None:
                assert ledger is not None, "a run begins before it ends"
                ledger.close()
                orders.send(ledger.lost)
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
    task: Task, times: NDArray[np.int64], ledger: LedgerFile, reads: TokenBucket, opens: TokenBucket
) -> EpochTimes | Fault:
    """Read the epoch's files, then write the ledger."""
    buffer = bytearray(task.size)
    began = time.monotonic_ns()
    for at, number in enumerate(task.order.tolist()):
        cached = bool(task.cached[number])
        path = file_path(task.cache if cached else task.origin, number)
        try:
            times[at] = _time_file(path, buffer, None if cached else task.throttle, reads, opens)
        except OSError as error:
            return Fault(str(error), not cached)
        if int.from_bytes(buffer[:HEAD_BYTES], "little") != number:
            return Fault(f"{path}: not the file that was written there", not cached)
    ended = time.monotonic_ns()
    _record(task, times, ledger)
    return EpochTimes(began, ended)


def _time_file(
    path: str, buffer: bytearray, throttle: Throttle | None, reads: TokenBucket, opens: TokenBucket
) -> tuple[int, int, int, int]:
    """Read a file; return the begin of open, read and close, and the end of close. Each begin ends the call before."""
    first = time.monotonic_ns()
    if throttle is not None and throttle.opens_per_s is not None:
        sleep_until(opens.take(round(_SECOND_NS / throttle.opens_per_s)))
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        second = time.monotonic_ns()
        done = None
        if throttle is not None and throttle.bytes_per_s is not None:
            done = reads.take(round(_SECOND_NS * len(buffer) / throttle.bytes_per_s))
        _fill(file, buffer, path)
        if done is not None:
            sleep_until(done)
        third = time.monotonic_ns()
    finally:
        os.close(file)
    return first, second, third, time.monotonic_ns()


def _fill(file: int, buffer: bytearray, path: str) -> None:
    view = memoryview(buffer)
    have = 0
    while have < len(buffer):
        got = os.readv(file, [view[have:]])
        if got == 0:
            raise OSError(f"{path}: ends after {have} of {len(buffer)} bytes")
        have += got


def _record(task: Task, times: NDArray[np.int64], ledger: LedgerFile) -> None:
    """Write an entry for each open, read and close."""
    steps = np.arange(len(task.order), dtype=np.uint64)
    starts = (times - task.clock_ns).astype(np.uint64)
    durations = np.diff(times, axis=1).astype(np.uint64)
    is_cached = task.cached[task.order]
    for source, which in (("origin", ~is_cached), ("disk", is_cached)):
        for column, op in enumerate(("open", "read", "close")):
            ledger.add_files(
                op,
                source,
                task.epoch,
                np.ascontiguousarray(starts[which, column]),
                np.ascontiguousarray(durations[which, column]),
                steps[which],
                task.order[which].astype(np.uint64),
                task.size if op == "read" else 0,
            )
