# SPDX-License-Identifier: Apache-2.0
"""A plain thread pool with a pinned cache: the simple baseline that a loader must beat.

It prefetches in the order of the next steps with a bounded number of reads in flight. It caches the first samples in
RAM and on disk up to their budgets and never evicts. With full permutations no other rule reads less from the origin.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from support.job import Job

from .base import Batch, batches_of, permutation, reader

#: Steps that are prefetched.
AHEAD = 8


class Arm:
    """Settings: ``threads``, ``client``."""

    order = "exact"

    def prepare(self, job: Job) -> None:
        """Do nothing: the samples are read unconverted."""

    def open(self, job: Job) -> _Loader:
        """Start the threads."""
        return _Loader(job)


class _Loader:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._origin = reader(job)
        self._pool = ThreadPoolExecutor(job.settings["threads"])
        self._ram: dict[int, bytes] = {}
        self._disk: set[int] = set()
        self._ram_left, self._disk_left = job.ram_bytes, job.disk_bytes
        self._lock = threading.Lock()
        self._folder = Path(job.scratch) / "cache"
        self._folder.mkdir()

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one epoch, with at most ``AHEAD`` further steps in flight."""
        in_flight: deque[list[Future[bytes]]] = deque()
        for batch in batches_of(self._job, permutation(self._job, number)):
            in_flight.append([self._pool.submit(self._read, int(sample)) for sample in batch])
            if len(in_flight) > AHEAD:
                yield [read.result() for read in in_flight.popleft()]
        for reads in in_flight:
            yield [read.result() for read in reads]

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _read(self, sample: int) -> bytes:
        cached = self._ram.get(sample)
        if cached is not None:
            return cached
        if sample in self._disk:
            return (self._folder / str(sample)).read_bytes()
        content = self._origin(sample)
        size = len(content)
        with self._lock:
            into_ram = size <= self._ram_left
            into_disk = not into_ram and size <= self._disk_left
            self._ram_left -= size * into_ram
            self._disk_left -= size * into_disk
        if into_ram:
            self._ram[sample] = content
        elif into_disk:
            descriptor = os.open(self._folder / str(sample), os.O_WRONLY | os.O_CREAT)
            try:
                os.write(descriptor, content)
            finally:
                os.close(descriptor)
            self._disk.add(sample)
        return content
