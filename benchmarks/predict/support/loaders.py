# SPDX-License-Identifier: Apache-2.0
"""The measured policies, one class each: batches of one rank, in one order, from one origin.

A batch is a list of buffers. ``foresee`` is the product; the others are minimal implementations of their policy.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import foresee

from .setups import NAIVE, OURS, PERFECT, PINNED, STAGING, key

Batch = Sequence[Any]
HEADER_END = b"\r\n\r\n"
#: Threads that prefetch.
POOL_THREADS = 16


@dataclass(frozen=True)
class Task:
    """Task of one rank."""

    policy: str
    uri: str
    plain: str
    options: dict[str, str]
    index: str
    batch: int
    epochs: int
    seed: int
    rank: int
    ranks: int
    #: Bytes of every sample.
    sizes: list[int]
    #: Bytes per second of this rank's compute.
    compute_rate: float
    #: Bytes of memory; for a pool, the bytes of its cache.
    ram: int
    disk: int
    #: Folder of the disk tier.
    scratch: str
    #: Bytes that a pool prefetches.
    buffer: int
    #: Ids of this rank, by epoch.
    ids: list[list[int]] = field(default_factory=list)

    def batches(self, epoch: int) -> list[list[int]]:
        """Return the ids of each step."""
        ids = self.ids[epoch]
        return [ids[at : at + self.batch] for at in range(0, len(ids), self.batch)]


class Loader(Protocol):
    """Loader of a policy."""

    def start(self) -> None:
        """Open the origin."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one epoch."""

    def close(self) -> None:
        """Stop threads."""


def opened(task: Task) -> Loader:
    """Create the loader of a policy."""
    kinds: dict[str, Callable[[Task], Loader]] = {
        PERFECT: Perfect,
        NAIVE: Naive,
        STAGING: Pool,
        PINNED: Pool,
        OURS: Ours,
    }
    return kinds[task.policy](task)


class Perfect:
    """Read nothing: the lower bound of the other policies."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def start(self) -> None:
        """Do nothing."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """Return empty batches."""
        return iter([[] for _ in self._task.batches(number)])

    def close(self) -> None:
        """Do nothing."""


class Naive:
    """Read each sample when its step needs it."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._read = reader(task.plain)

    def start(self) -> None:
        """Do nothing: the constructor opened the connection."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield batches, read by the calling thread."""
        for ids in self._task.batches(number):
            yield [self._read(sample) for sample in ids]

    def close(self) -> None:
        """Do nothing: the connection ends with this thread."""


class Pool:
    """Prefetch in order with threads, up to the size of the buffer; optionally cache samples until memory is full."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._sizes = task.sizes
        self._free_bytes = task.ram if task.policy == PINNED else 0
        self._cached: dict[int, bytes] = {}
        self._local = threading.local()
        self._threads = ThreadPoolExecutor(POOL_THREADS)
        self._ahead: deque[tuple[int, Future[bytes]]] = deque()
        self._staged = 0
        self._lock = threading.Lock()
        self._order = (sample for epoch in task.ids for sample in epoch)
        self._next: int | None = next(self._order, None)

    def start(self) -> None:
        """Do nothing: threads start with the first batch."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield batches; prefetching continues across epochs."""
        for ids in self._task.batches(number):
            batch = []
            for sample in ids:
                self._fill()
                expected, ahead = self._ahead.popleft()
                assert expected == sample
                batch.append(ahead.result())
            yield batch
            # The step has ended, so its bytes of the buffer are free again.
            self._staged -= sum(self._sizes[sample] for sample in ids)
            self._fill()

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(cancel_futures=True)

    def _fill(self) -> None:
        while self._next is not None and (
            not self._ahead or self._staged + self._sizes[self._next] <= self._task.buffer
        ):
            sample = self._next
            self._staged += self._sizes[sample]
            self._ahead.append((sample, self._threads.submit(self._get, sample)))
            self._next = next(self._order, None)

    def _get(self, sample: int) -> bytes:
        held = self._cached.get(sample)
        if held is not None:
            return held
        read = getattr(self._local, "read", None)
        if read is None:
            read = self._local.read = reader(self._task.plain)
        content: bytes = read(sample)
        with self._lock:
            if len(content) <= self._free_bytes:
                self._free_bytes -= len(content)
                self._cached[sample] = content
            else:
                # By the published rule nothing is cached after the first sample that does not fit.
                self._free_bytes = 0
        return content


class Ours:
    """The product, with default settings."""

    def __init__(self, task: Task) -> None:
        cache: dict[str, Any] = {"ram": task.ram}
        if task.disk:
            # The size is that of the node, which its ranks share.
            size = task.disk * task.ranks
            cache |= {"disk": str(Path(task.scratch) / f"rank-{task.rank}"), "disk_size": size}
        self._loader = foresee.Loader(
            task.index,
            uri=task.uri,
            batch_size=task.batch,
            shuffle=True,
            seed=task.seed,
            epochs=task.epochs,
            rank=task.rank,
            world_size=task.ranks,
            cache=foresee.Cache(**cache),
            storage_options=task.options or None,
        )

    def start(self) -> None:
        """Open origin, tiers and threads, and start reading."""
        self._loader.start()

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one epoch."""
        del number  # The loader counts epochs itself.
        for batch in self._loader:
            data = batch.data
            yield [data[begin:end] for begin, end in pairwise(batch.offsets.tolist())]

    def close(self) -> None:
        """Stop the engine."""
        self._loader.close()


def reader(plain: str) -> Callable[[int], bytes]:
    """Return a function that reads a sample: a file, or an object over a new connection."""
    if not plain.startswith("http"):
        folder = Path(plain)

        def read(sample: int) -> bytes:
            with (folder / key(sample)).open("rb", buffering=0) as file:
                return file.read()

        return read
    return _Connection(plain).get


class _Connection:
    """A minimal HTTP client over one persistent connection."""

    def __init__(self, plain: str) -> None:
        parts = urlsplit(plain)
        assert parts.hostname is not None
        assert parts.port is not None
        self._path = parts.path
        self._host = parts.netloc
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, sample: int) -> bytes:
        request = f"GET {self._path}{key(sample)} HTTP/1.1\r\nHost: {self._host}\r\n\r\n"
        self._socket.sendall(request.encode())
        got = b""
        while HEADER_END not in got:
            got += self._more()
        head, _, body = got.partition(HEADER_END)
        lines = head.decode("latin-1").lower().split("\r\n")
        if " 200 " not in lines[0] + " ":
            raise OSError(f"{key(sample)}: {lines[0]}")
        length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        content = bytearray(length)
        content[: len(body)] = body
        view, at = memoryview(content), len(body)
        while at < length:
            count = self._socket.recv_into(view[at:])
            if count == 0:
                raise OSError(f"{key(sample)}: the connection ended")
            at += count
        return bytes(content)

    def _more(self) -> bytes:
        got = self._socket.recv(1 << 16)
        if not got:
            raise OSError("the connection ended")
        return got
