# SPDX-License-Identifier: Apache-2.0
"""The three origins, with one interface: prepare data, apply limits, drop caches, count reads."""

from __future__ import annotations

import abc
import contextlib
import tempfile
from pathlib import Path
from types import TracebackType

from common import s3, samples
from common.disk_origin import Disk, Throttle
from common.testbed import Testbed

from .job import Job, Place
from .workloads import MB, Rates, Workload

#: Memory of the disk's control group in addition to the arm's cache, for the loading process, and per worker process.
#: It includes some page cache. With the cache it is less than the data.
PROCESS_MEMORY_BYTES = 500 * MB
WORKER_MEMORY_BYTES = 250 * MB
#: Capacity of the image over the data, so that the peers' converted copies fit too.
DISK_IMAGE_OVER_DATA = 6


class Origin(abc.ABC):
    """Origin of one workload's data; a context manager that removes its servers, mounts and folders."""

    def __init__(self, workload: Workload, home: Path, seed: int) -> None:
        """``home`` is a folder on a fast disk where data are kept for later runs."""
        self.workload = workload
        self._home = home
        self._seed = seed
        self._stack = contextlib.ExitStack()
        self.wrap: list[str] = []
        self.truth: samples.Truth
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
        """Start serving the data, and register the cleanup on ``stack``."""

    def begin(self, job: Job) -> None:
        """Drop caches and reset counters directly before ``job`` runs."""

    def counted(self) -> tuple[int, int]:
        """Return the bytes and requests since ``begin``; -1 if they are not counted."""
        return -1, -1

    def sequential_bytes(self) -> int:
        """Return the bytes that one cold pass over the files reads from the device; 0 without a device."""
        return 0


class TmpfsOrigin(Origin):
    """Files in memory."""

    def _enter(self, stack: contextlib.ExitStack) -> None:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foresee-bench-", dir="/dev/shm")))
        self.truth = samples.make(home / "samples", self.workload.shape(self._seed))
        self.place = Place("dir", str(home / "samples"))


class S3Origin(Origin):
    """A versitygw server behind the throttling proxy."""

    def _enter(self, stack: contextlib.ExitStack) -> None:
        shape = self.workload.shape(self._seed)
        name = samples.fingerprint(shape)
        bucket = self._home / "buckets" / s3.BUCKET
        folder = bucket / name
        fresh = not folder.with_name(f"{name}.json").exists()
        self.truth = samples.make(folder, shape)
        if fresh:
            s3.tag(folder)
        server = stack.enter_context(s3.Server(bucket.parent))
        self._proxy = stack.enter_context(Testbed("proxy", server.url))
        rates: Rates = self.workload.rates
        self._proxy.limit(
            bytes_per_s=rates.bytes_per_s, requests_per_s=rates.requests_per_s, latency_ms=rates.latency_ms
        )
        self._bucket = bucket
        self.place = Place("s3", str(folder), self._proxy.url, s3.BUCKET, f"{name}/", s3.ACCESS, s3.SECRET)

    def begin(self, job: Job) -> None:  # noqa: ARG002 - a bucket has no cache to drop
        """Reset the counters, and tag converted data, which exist from now on."""
        folder = Path(self.place.folder)
        for converted in self._bucket.glob(f"{folder.name}-*"):
            s3.tag(converted)
        self._proxy.reset()

    def counted(self) -> tuple[int, int]:
        """Return the counters of the proxy."""
        counters = self._proxy.counters()
        return counters["body_bytes"], counters["requests_total"]


class DiskOrigin(Origin):
    """A throttled ext4 disk."""

    def _enter(self, stack: contextlib.ExitStack) -> None:
        shape = self.workload.shape(self._seed)
        name = samples.fingerprint(shape)
        size = self.workload.samples * (self.workload.sample_bytes + 8192) * DISK_IMAGE_OVER_DATA + (64 << 20)
        self._disk = stack.enter_context(Disk(self._home / f"disk-{name}.img", size, f"foresee-bench-{name}"))
        folder = self._disk.folder / "samples"
        self.truth = samples.make(folder, shape)
        self.wrap = self._disk.enter_command([])
        self.place = Place("dir", str(folder))
        self._before = 0
        self._cold()
        for file in sorted(folder.rglob("*.bin")):
            file.read_bytes()
        self._sequential = self.counted()[0]

    def begin(self, job: Job) -> None:
        """Mount again, apply the limits, and read the device's counter."""
        rates = self.workload.rates
        memory = PROCESS_MEMORY_BYTES + WORKER_MEMORY_BYTES * job.settings.get("workers", 0) + job.ram_bytes
        self._cold()
        self._disk.throttle(Throttle(rates.bytes_per_s, rates.requests_per_s, memory))

    def _cold(self) -> None:
        self._disk.drop_caches()
        self._before = self._disk.bytes_read()

    def counted(self) -> tuple[int, int]:
        """Return the device's bytes; its requests are not those of a loader."""
        return self._disk.bytes_read() - self._before, -1

    def sequential_bytes(self) -> int:
        """Return the bytes of an unthrottled pass by this process, which is not in the control group."""
        return self._sequential


def origin_of(workload: Workload, home: Path, seed: int) -> Origin:
    """Create the origin of a workload."""
    kinds: dict[str, type[Origin]] = {"disk": DiskOrigin, "s3": S3Origin, "tmpfs": TmpfsOrigin}
    return kinds[workload.origin](workload, home, seed)
