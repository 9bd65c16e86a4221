# SPDX-License-Identifier: Apache-2.0
"""Origins of the samples: a disk that the kernel throttles, or a folder on a mount that is slow by itself."""

from __future__ import annotations

import math
import mmap
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType

import numpy as np
from common.disk_origin import Disk, Throttle

from foresee.storage import page_cache

from .models import BATCH, SAMPLE_BYTES, Size
from .page_lock import PageLock

#: High enough that the rate in bytes is the limit.
READS_PER_S = 100_000
#: High enough that the page cache holds all data.
MEMORY_BYTES = 12 << 30
#: Time slices in which the kernel grants the rate of a throttled disk.
SLICE_S = 0.1
_LEAD_BYTES = 32 << 10
#: Capacity of the image relative to the samples, and its minimum.
IMAGE_OVER_DATA = 1.5
IMAGE_LEAST_BYTES = 64 << 20


class Mount:
    """A folder on an existing mount, which is not throttled."""

    def __init__(self, folder: Path, name: str, size: Size) -> None:
        self.folder, self.name, self._size = folder / "samples", name, size

    def __enter__(self) -> Mount:
        fill(self.folder, self._size)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @property
    def data(self) -> list[Path]:
        """Folders whose files this host may have in the page cache."""
        return [self.folder]

    def evict(self) -> None:
        """Evict the samples from the page cache, but not their names; root may drop the host's whole cache."""
        files = sorted(str(path) for folder in self.data for path in folder.iterdir())
        page_cache.evict(files, machine=os.geteuid() == 0)

    def lock_pages(self) -> PageLock:
        """Return a lock that keeps samples in the page cache after the first job has read them."""
        return PageLock(sorted(self.folder.iterdir()))

    def drain_burst(self) -> None:
        """Use up any burst that an idle origin grants; called directly before the leader's first step."""


class SlowDisk(Mount):
    """A throttled disk that this benchmark creates."""

    def __init__(self, home: Path, size: Size) -> None:
        image = home / f"stagger-{size.samples}.ext4"
        self._disk = Disk(image, image_bytes(size), f"foresee-stagger-{os.getpid()}")
        super().__init__(self._disk.folder, "disk", size)

    def __enter__(self) -> SlowDisk:
        self._disk.__enter__()
        try:
            super().__enter__()
            self._lead = self._disk.folder / "lead-in"
            self._lead.write_bytes(
                bytes(_LEAD_BYTES * math.ceil(2 * SLICE_S * self._size.bytes_per_s / _LEAD_BYTES))
            )
            _write_back(self._lead)
            self._disk.throttle(Throttle(self._size.bytes_per_s, READS_PER_S, MEMORY_BYTES))
            self._disk.join()
        except BaseException:
            self._disk.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.close()

    def drain_burst(self) -> None:
        """Use up the burst of the throttle, which grants the bytes of a slice at its beginning, also on an idle disk.

        A read that has to wait ends when a slice begins. One step's bytes of that slice are read too. The rest stays for
        the leader, so that a run of whole slices ends when the rate says, although the steps of a slice come at once.
        """
        file = os.open(self._lead, os.O_RDONLY | os.O_DIRECT)
        try:
            buffer = mmap.mmap(-1, _LEAD_BYTES)
            left = None
            for offset in range(0, os.fstat(file).st_size, _LEAD_BYTES):
                began = time.monotonic()
                os.preadv(file, [buffer], offset)
                if left is not None:
                    left -= _LEAD_BYTES
                elif time.monotonic() - began > SLICE_S / 4:
                    left = BATCH * SAMPLE_BYTES - _LEAD_BYTES
                if left is not None and left < _LEAD_BYTES:
                    break
        finally:
            os.close(file)


def image_bytes(size: Size) -> int:
    """Return the size of a disk image for the samples."""
    return max(int(IMAGE_OVER_DATA * size.samples * SAMPLE_BYTES), IMAGE_LEAST_BYTES)


def fill(folder: Path, size: Size) -> None:
    """Write the missing samples."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.Generator(np.random.Philox(size.seed))
    for sample in range(size.samples):
        path = folder / f"{sample:06d}"
        if not path.exists() or path.stat().st_size != SAMPLE_BYTES:
            path.write_bytes(random.bytes(SAMPLE_BYTES))
    _write_back(folder)


def _write_back(path: Path) -> None:
    """Sync only this file system: writes of other programs on the host may take long."""
    subprocess.run(["sync", "--file-system", str(path)], check=True)
