# SPDX-License-Identifier: Apache-2.0
"""The cache of encoded samples as one process uses it, and its threads that read ahead: from the disk, or the dataset.

The memory is that of the process, or in a worker process that of its parent. A forked child must not use it: a thread
of the parent may have held its lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from foresee import _native
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from foresee.torch.cached.sample_disk import SampleDisk

_log = logging.getLogger("foresee")


class InvalidBatchError(ConfigError):
    """A dataset returned no list with one sample for each index. Reading the samples alone would hide it."""


@dataclass(frozen=True)
class Grouping:
    """Which samples are read together."""

    reads_batches: bool
    """Whether several can be read in one call."""
    index: _native.Index | None
    """Index of the samples, for reads of neighbours; None: they are read in the order in which they are announced."""
    has_peers: bool
    """Whether other processes read other samples of the index."""


class Source(Protocol):
    """Reads samples as bytes, or raises what the dataset raises."""

    def __call__(self, sample: int) -> bytes:
        """Read one sample."""

    def read_all(self, samples: list[int]) -> list[bytes]:
        """Read several samples."""

    def grouping(self) -> Grouping:
        """Return which samples are read together."""

    def plain_loader(self) -> _native.Loader | None:
        """Return what reads the samples without Python, if anything does."""


class ProcessCache:
    """Samples that ``read`` returns as bytes.

    Args:
        read: reads the samples that are not cached.
        native: the cached samples.
        threads: threads that read ahead, 1 or more. With one of them, ``read`` never runs twice at a time.
        count: samples of the dataset when the cache was opened.
        disk: samples on the disk, which are not read from the dataset.
    """

    def __init__(
        self,
        read: Source,
        native: _native.SampleCache | _native.SampleCacheClient,
        threads: int,
        count: int,
        disk: SampleDisk | None = None,
    ) -> None:
        self.process = os.getpid()
        self.count = count
        self._read = _Reader(read, native, disk, is_serial=threads == 1)
        self._disk = disk
        self._native = native
        self._threads = threads
        self._lock = threading.Lock()
        self._is_started = False

    def get(self, sample: int) -> bytearray:
        """Return a copy of the sample's bytes; reads it, or waits for who does.

        Raises:
            Exception: whatever the dataset raises.
        """
        data = self._native.request(sample)
        # Before a read: those of the threads then take no longer than this one.
        if not self._is_started and self._reads_ahead():
            self._start()
        if data is None:
            try:
                found = self._read(sample)
            except BaseException:
                self._native.fail(sample)
                raise
            self._native.insert(sample, found)
            data = bytearray(found)
        self._report_faults()
        return data

    def get_all(self, samples: Sequence[int]) -> list[bytearray]:
        """Return copies of the bytes of several samples; those that are neither cached nor being read are read at once.

        Raises:
            Exception: whatever the dataset raises.
            InvalidBatchError: see ``SampleSource.read_all``.
        """
        found: dict[int, bytearray] = {}
        missing = list(dict.fromkeys(samples))
        while missing:
            copies, claimed = self._native.request_all(missing)
            found.update((i, copy) for i, copy in zip(missing, copies, strict=True) if copy is not None)
            if not claimed:
                break
            requested = set(missing)
            read = zip(claimed, self._read_claimed(claimed), strict=True)
            found.update((i, bytearray(data)) for i, data in read if i in requested)
            missing = [i for i in missing if i not in found]
        self._report_faults()
        # The others are being read elsewhere, or are requested twice.
        return [data if (data := found.pop(i, None)) is not None else self.get(i) for i in samples]

    def _read_claimed(self, samples: list[int]) -> list[bytes]:
        try:
            data = self._read.read_all(samples)
        except BaseException:
            for sample in samples:
                self._native.fail(sample)
            raise
        self._native.insert_all(samples, data)
        return data

    def call(self, function: Callable[[], Any]) -> Any:
        """Call the dataset past the cache, as ``read`` would: with one thread not while it is read."""
        with self._read.turn:
            return function()

    def stats(self) -> dict[str, int]:
        """Counts of requests and samples, over all processes that share the cache."""
        return self._native.stats()

    def close(self) -> None:
        """End the threads. Requests are still answered. Without effect in a forked child."""
        self._native.close()
        if self._disk is not None:
            self._disk.close()

    def _reads_ahead(self) -> bool:
        """Whether samples may be announced."""
        return True

    def _report_faults(self) -> None:
        """Warn of new faults."""
        if self._disk is not None:
            self._disk.report_fault()

    def _start(self) -> None:
        with self._lock:
            if self._is_started:
                return
            self._is_started = True
        loader = self._read.plain_loader()
        target: Callable[..., None] = _read_ahead
        # The threads do not refer to this object, so they do not keep the dataset alive.
        arguments: tuple[Any, ...] = (self._native, self._read)
        if loader is not None:
            # They never hold the interpreter lock, which the training loop needs.
            target = self._native.read_ahead
            arguments = (loader, None if self._disk is None else self._disk.native)
        for number in range(self._threads):
            threading.Thread(
                target=target, args=arguments, name=f"foresee-cached-{number}", daemon=True
            ).start()


class OwnedCache(ProcessCache):
    """A cache in the memory of this process, in which consumers announce their samples.

    Args:
        read: as for ``ProcessCache``.
        capacity: bytes of all cached samples together; 0 or more.
        threads: as for ``ProcessCache``.
        count: as for ``ProcessCache``.
        disk: as for ``ProcessCache``.
    """

    def __init__(
        self, read: Source, capacity: int, threads: int, count: int, disk: SampleDisk | None = None
    ) -> None:
        grouping = read.grouping()
        self._owned = _native.SampleCache(
            capacity_bytes=capacity,
            reads_batches=grouping.reads_batches,
            index=grouping.index,
            has_peers=grouping.has_peers,
        )
        super().__init__(read, self._owned, threads, count, disk)
        self._consumers: set[int] = set()

    @property
    def capacity(self) -> int:
        """Bytes of all cached samples together."""
        return self._owned.capacity_bytes

    @property
    def mean_size(self) -> int | None:
        """Mean bytes of the samples read so far; None before the first."""
        return self._owned.mean_size()

    def attach(self, *, is_reading: bool) -> int:
        """Return the number of a new consumer. ``is_reading``: whether its samples are known to be requested here."""
        with self._lock:
            consumer = next(
                number for number in range(len(self._consumers) + 1) if number not in self._consumers
            )
            self._consumers.add(consumer)
        self._owned.attach(consumer, is_reading=is_reading)
        return consumer

    def detach(self, consumer: int) -> None:
        """End a consumer and its announcements; without effect in a forked child."""
        if os.getpid() == self.process:
            self._owned.detach(consumer)
            with self._lock:
                self._consumers.discard(consumer)

    def announce(self, consumer: int, samples: list[int]) -> None:
        """Announce the next samples of a consumer: they are read ahead, once it is known to request them here."""
        self._owned.announce(consumer, samples)

    def expect(self, consumer: int, samples: NDArray[Any]) -> None:
        """Say which samples are expected after those: they are not read, but determine what leaves the cache."""
        self._owned.expect(consumer, samples)

    def hand_out(self, consumer: int, count: int) -> None:
        """The consumer's first ``count`` announced samples are about to be requested."""
        self._owned.hand_out(consumer, count)

    def outstanding(self, consumer: int) -> tuple[int, int]:
        """Return how many samples were handed out and not requested, and how many never will be."""
        return self._owned.outstanding(consumer) or (0, 0)

    def share(self) -> str:
        """Let worker processes use the cache, and return the path of its socket.

        Raises:
            OSError: the system refuses memory, a socket or a thread.
        """
        return str(self._owned.share(self.count))

    def _reads_ahead(self) -> bool:
        return bool(self._consumers)


class WorkerCache(ProcessCache):
    """The cache of the parent process, in a worker process of a loader; without it, samples are read.

    Args:
        read: as for ``ProcessCache``.
        path: socket of the cache.
        threads: as for ``ProcessCache``.
        count: as for ``ProcessCache``.
        disk: as for ``ProcessCache``.

    Raises:
        OSError: the cache cannot be used.
    """

    def __init__(
        self, read: Source, path: str, threads: int, count: int, disk: SampleDisk | None = None
    ) -> None:
        self._client = _native.SampleCacheClient(path, samples=count)
        super().__init__(read, self._client, threads, count, disk)
        self._has_fault = False

    def _report_faults(self) -> None:
        super()._report_faults()
        if not self._has_fault and (fault := self._client.fault) is not None:
            self._has_fault = True
            _log.warning("this worker process reads without the cache of its parent from now on: %s", fault)


class _Reader:
    """Reads samples from ``disk``, or else by calls of ``read``, one call at a time if ``is_serial``."""

    def __init__(
        self,
        read: Source,
        native: _native.SampleCache | _native.SampleCacheClient,
        disk: SampleDisk | None,
        *,
        is_serial: bool,
    ) -> None:
        self._read, self._native, self._disk = read, native, disk
        self.turn: contextlib.AbstractContextManager[Any] = (
            threading.RLock() if is_serial else contextlib.nullcontext()
        )
        """Held during calls of the dataset."""

    def plain_loader(self) -> _native.Loader | None:
        return self._read.plain_loader()

    def __call__(self, sample: int) -> bytes:
        if self._disk is not None and (found := self._disk.get(sample)) is not None:
            self._native.note_disk_hit()
            return found
        with self.turn:
            data = self._read(sample)
        if self._disk is not None:
            self._disk.insert(sample, data)
        return data

    def read_all(self, samples: list[int]) -> list[bytes]:
        found: dict[int, bytes] = {}
        if self._disk is not None:
            for sample in samples:
                if (data := self._disk.get(sample)) is not None:
                    self._native.note_disk_hit()
                    found[sample] = data
        missing = [sample for sample in samples if sample not in found]
        if missing:
            with self.turn:
                read = self._read.read_all(missing)
            for sample, data in zip(missing, read, strict=True):
                found[sample] = data
                if self._disk is not None:
                    self._disk.insert(sample, data)
        return [found[sample] for sample in samples]


def _read_ahead(native: _native.SampleCache | _native.SampleCacheClient, read: _Reader) -> None:
    while samples := native.next_fetch():
        if len(samples) > 1:
            try:
                native.insert_all(samples, read.read_all(samples))
            except InvalidBatchError:
                # Their requests read them again, and get the error.
                for sample in samples:
                    native.fail(sample)
                continue
            except BaseException:  # noqa: BLE001, S110 - each sample is read alone, so that only the bad one fails
                pass
            else:
                continue
        for sample in samples:
            try:
                data = read(sample)
            except BaseException:  # noqa: BLE001 - the request of this sample reads it again, and gets the error
                native.fail(sample)
            else:
                native.insert(sample, data)


def in_range(samples: Iterable[int], count: int) -> list[int]:
    """Return the samples that a cache can have: 0 to ``count - 1``."""
    return [sample for sample in samples if 0 <= sample < count]
