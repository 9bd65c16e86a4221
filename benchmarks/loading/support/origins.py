# SPDX-License-Identifier: Apache-2.0
"""The three places that data are read from, with one face: made ready, limited, cold, counted."""

from __future__ import annotations

import abc
import contextlib
import tempfile
from pathlib import Path
from types import TracebackType

from common.slow_disk import Disk, Throttle

from . import data, s3
from .job import Job, Place
from .workloads import MB, Rates, Workload

#: What the disk's control group may use besides an arm's own cache: the loading process with its libraries and some
#: page cache, and so much more for each worker process. Together with the cache it stays below the full data.
PROCESS_MEMORY_BYTES = 500 * MB
WORKER_MEMORY_BYTES = 250 * MB
#: Room for the peers' converted copies too.
DISK_IMAGE_OVER_DATA = 6


class Origin(abc.ABC):
    """Where one workload's data lie; a context manager, because servers, mounts and folders must not outlive it."""

    def __init__(self, workload: Workload, home: Path, seed: int) -> None:
        """``home``: a folder on a fast disk that keeps data from run to run."""
        self.workload = workload
        self._home = home
        self._seed = seed
        self._stack = contextlib.ExitStack()
        self.wrap: list[str] = []
        self.truth: data.Truth
        self.place: Place

    def __enter__(self) -> Origin:
        with contextlib.ExitStack() as stack:
            self._enter(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @abc.abstractmethod
    def _enter(self, stack: contextlib.ExitStack) -> None:
        """Start what serves the data, and register on ``stack`` how it ends."""

    def begin(self, job: Job) -> None:
        """Cold caches and counters at 0, just before ``job`` runs."""

    def counted(self) -> tuple[int, int]:
        """Bytes and requests since ``begin``; -1 for what nobody counts."""
        return -1, -1

    def sequential_bytes(self) -> int:
        """Bytes that one cold pass over the files takes off the device; 0 where that means nothing."""
        return 0


class TmpfsOrigin(Origin):
    """Files in memory."""

    def _enter(self, stack: contextlib.ExitStack) -> None:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foresee-bench-", dir="/dev/shm")))
        self.truth = data.make(home / "samples", self.workload.shape(self._seed))
        self.place = Place("dir", str(home / "samples"))


class S3Origin(Origin):
    """versitygw behind the throttling proxy."""

    def _enter(self, stack: contextlib.ExitStack) -> None:
        shape = self.workload.shape(self._seed)
        name = data.fingerprint(shape)
        bucket = self._home / "buckets" / s3.BUCKET
        folder = bucket / name
        fresh = not folder.with_name(f"{name}.json").exists()
        self.truth = data.make(folder, shape)
        if fresh:
            s3.tag(folder)
        server = stack.enter_context(s3.Server(bucket.parent))
        self._proxy = stack.enter_context(s3.Testbed("proxy", server.url))
        rates: Rates = self.workload.rates
        self._proxy.limit(
            bytes_per_s=rates.bytes_per_s, requests_per_s=rates.requests_per_s, latency_ms=rates.latency_ms
        )
        self._bucket = bucket
        self.place = Place("s3", str(folder), self._proxy.url, s3.BUCKET, f"{name}/", s3.ACCESS, s3.SECRET)

    def begin(self, job: Job) -> None:  # noqa: ARG002 - a bucket is as cold for everyone
        """Counters at 0. Converted data get their tags here, once they are there."""
        folder = Path(self.place.folder)
        for converted in self._bucket.glob(f"{folder.name}-*"):
            s3.tag(converted)
        self._proxy.reset()

    def counted(self) -> tuple[int, int]:
        """The proxy's."""
        counters = self._proxy.counters()
        return counters["body_bytes"], counters["requests_total"]


class DiskOrigin(Origin):
    """A throttled ext4 disk."""

    def _enter(self, stack: contextlib.ExitStack) -> None:
        shape = self.workload.shape(self._seed)
        name = data.fingerprint(shape)
        size = self.workload.samples * (self.workload.sample_bytes + 8192) * DISK_IMAGE_OVER_DATA + (64 << 20)
        self._disk = stack.enter_context(Disk(self._home / f"disk-{name}.img", size, f"foresee-bench-{name}"))
        folder = self._disk.folder / "samples"
        self.truth = data.make(folder, shape)
        self.wrap = self._disk.enter_command([])
        self.place = Place("dir", str(folder))
        self._before = 0
        self._cold()
        for file in sorted(folder.rglob("*.bin")):
            file.read_bytes()
        self._sequential = self.counted()[0]

    def begin(self, job: Job) -> None:
        """A fresh mount, the limits, and the device's count so far."""
        rates = self.workload.rates
        memory = PROCESS_MEMORY_BYTES + WORKER_MEMORY_BYTES * job.settings.get("workers", 0) + job.ram_bytes
        self._cold()
        self._disk.throttle(Throttle(rates.bytes_per_s, rates.requests_per_s, memory))

    def _cold(self) -> None:
        self._disk.drop_caches()
        self._before = self._disk.bytes_read()

    def counted(self) -> tuple[int, int]:
        """The device's bytes; its requests are not a loader's."""
        return self._disk.bytes_read() - self._before, -1

    def sequential_bytes(self) -> int:
        """Measured once, unthrottled: by this process, which is not in the control group."""
        return self._sequential


def origin_of(workload: Workload, home: Path, seed: int) -> Origin:
    """The origin that a workload asks for."""
    kinds: dict[str, type[Origin]] = {"disk": DiskOrigin, "s3": S3Origin, "tmpfs": TmpfsOrigin}
    return kinds[workload.origin](workload, home, seed)
