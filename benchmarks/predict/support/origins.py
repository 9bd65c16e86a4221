# SPDX-License-Identifier: Apache-2.0
"""Where the samples lie: a throttled disk, a throttled bucket; slow for every process alike.

Pages of a disk's files are dropped all the time, so that a page cache is no tier: whoever reads, reads the device.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from common.disk_origin import Disk, Throttle
from common.testbed import Testbed

from .setups import SetUp, Truth, fingerprint, key, make

BUCKET = "data"
#: No limit that anybody reaches: the device's counters want a number.
UNLIMITED = 1 << 40
READS_UNLIMITED = 1 << 30
MEMORY_BYTES = 8 << 30
#: Seldom enough that few pages are dropped before they were copied out: with dozens of files under way those are read twice.
DROP_EVERY_S = 0.3
#: Unused time that the bucket lets catch up later: a pipe has none, but its timers wake up a little late.
BURST_MS = 0.2


@dataclass(frozen=True)
class Place:
    """How a rank reaches the samples."""

    #: For a loader: a folder, or ``s3://``.
    uri: str
    #: For a plain read: a folder, or what stands before a sample's name in a request.
    plain: str
    truth: Truth
    #: What a command that reads them is begun with.
    wrap: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def placed(setup: SetUp, home: Path, seed: int) -> Iterator[tuple[Place, Limits]]:
    """The samples of a set-up, without limits so far; a folder ``home`` keeps them from call to call.

    Raises:
        Unavailable: this machine cannot have such an origin.
    """
    opened = _disk if setup.origin == "disk" else _bucket
    with opened(setup, home, seed) as given:
        yield given


class Limits:
    """An origin's limits, set and lifted."""

    def begin(self) -> None:
        """From now on it is slow, and cold."""

    def end(self) -> None:
        """It is as quick as it can be."""


@contextlib.contextmanager
def _disk(setup: SetUp, home: Path, seed: int) -> Iterator[tuple[Place, Limits]]:
    name = fingerprint(setup, seed)
    size = int(setup.samples * (setup.mean + 8192) * 1.5) + (64 << 20)
    with ExitStack() as stack:
        disk = stack.enter_context(Disk(home / f"predict-{name}.img", size, f"foresee-predict-{name}"))
        truth = make(disk.folder / "samples", setup, seed)
        folder = disk.folder / "samples"
        limits = _DiskLimits(disk, setup, folder)
        stack.callback(limits.close)
        yield Place(str(folder), str(folder), truth, disk.enter_command([])), limits


class _DiskLimits(Limits):
    def __init__(self, disk: Disk, setup: SetUp, folder: Path) -> None:
        self._disk = disk
        self._throttle = Throttle(
            setup.bytes_per_s or UNLIMITED, setup.requests_per_s or READS_UNLIMITED, MEMORY_BYTES
        )
        paths = [folder / key(sample) for sample in range(setup.samples)]
        self._files = [os.open(path, os.O_RDONLY | os.O_NOATIME) for path in paths]
        self._over = threading.Event()
        self._dropping: threading.Thread | None = None

    def begin(self) -> None:
        self.end()
        os.sync()
        _drop_pages(self._files)
        self._disk.throttle(self._throttle)
        self._over.clear()
        self._dropping = threading.Thread(target=self._drop, name="drop-pages", daemon=True)
        self._dropping.start()

    def end(self) -> None:
        if self._dropping is not None:
            self._over.set()
            self._dropping.join()
            self._dropping = None

    def close(self) -> None:
        """Quick again, and without open files, so that the disk can be taken away."""
        self.end()
        for file in self._files:
            os.close(file)

    def _drop(self) -> None:
        while not self._over.wait(DROP_EVERY_S):
            _drop_pages(self._files)


def _drop_pages(files: list[int]) -> None:
    for file in files:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _bucket(setup: SetUp, home: Path, seed: int) -> Iterator[tuple[Place, Limits]]:
    name = fingerprint(setup, seed)
    folder = home / "predict-buckets" / BUCKET / name
    truth = make(folder, setup, seed)
    with Testbed("serve", str(folder.parents[1]), "--burst-ms", str(BURST_MS)) as testbed:
        options = {
            "endpoint": testbed.url,
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "testsecret",
            "allow_http": "true",
        }
        plain = f"{testbed.url}/{BUCKET}/{name}/"
        yield Place(f"s3://{BUCKET}/{name}/", plain, truth, [], options), _BucketLimits(testbed, setup)


class _BucketLimits(Limits):
    def __init__(self, testbed: Testbed, setup: SetUp) -> None:
        self._testbed = testbed
        self._setup = setup

    def begin(self) -> None:
        self._testbed.limit(
            bytes_per_s=self._setup.bytes_per_s,
            requests_per_s=self._setup.requests_per_s,
            latency_ms=self._setup.latency_ms,
        )

    def end(self) -> None:
        self._testbed.limit()
