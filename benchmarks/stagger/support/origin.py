# SPDX-License-Identifier: Apache-2.0
"""Where the samples lie: a disk that the kernel throttles, or a folder on a mount that is slow by itself."""

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

from .held import Held
from .models import BATCH, SAMPLE_BYTES, Size

#: Never what binds: the rate in bytes does.
READS_PER_S = 100_000
#: Never what binds either: the page cache is to keep all data.
MEMORY_BYTES = 12 << 30
#: In which the kernel gives out a slow disk's rate.
SLICE_S = 0.1
_LEAD_BYTES = 32 << 10
#: Room beside the samples.
IMAGE_OVER_DATA = 1.5
IMAGE_LEAST_BYTES = 64 << 20


class Mount:
    """A folder on a mount of somebody else's; nothing is throttled."""

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
        """Folders whose files this machine may have in memory."""
        return [self.folder]

    def cool(self) -> None:
        """Drive the samples out of memory, not their names; as root the whole machine's, where that is not enough."""
        files = sorted(str(path) for folder in self.data for path in folder.iterdir())
        page_cache.evict(files, machine=os.geteuid() == 0)

    def held(self) -> Held:
        """While jobs run: what one has read is there for the others."""
        return Held(sorted(self.folder.iterdir()))

    def settle(self) -> None:
        """Right before the leader's first step: nothing that an idle storage has in hand is left."""


class SlowDisk(Mount):
    """A throttled disk of our own."""

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

    def settle(self) -> None:
        """Use up what the throttle has in hand: it gives each slice's bytes at once, and an idle disk has a slice's.

        A read that is made to wait ends when a slice begins; then as much as a step of that one is read too. What is left
        of it lets a run of whole slices end as its rate says: of a slice's steps, which come at once, the last one does.
        """
        file = os.open(self._lead, os.O_RDONLY | os.O_DIRECT)
        try:
            room = mmap.mmap(-1, _LEAD_BYTES)
            left = None
            for at in range(0, os.fstat(file).st_size, _LEAD_BYTES):
                began = time.monotonic()
                os.preadv(file, [room], at)
                if left is not None:
                    left -= _LEAD_BYTES
                elif time.monotonic() - began > SLICE_S / 4:
                    left = BATCH * SAMPLE_BYTES - _LEAD_BYTES
                if left is not None and left < _LEAD_BYTES:
                    break
        finally:
            os.close(file)


def image_bytes(size: Size) -> int:
    """Of a disk for the samples."""
    return max(int(IMAGE_OVER_DATA * size.samples * SAMPLE_BYTES), IMAGE_LEAST_BYTES)


def fill(folder: Path, size: Size) -> None:
    """Write the samples that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.Generator(np.random.Philox(size.seed))
    for sample in range(size.samples):
        path = folder / f"{sample:06d}"
        if not path.exists() or path.stat().st_size != SAMPLE_BYTES:
            path.write_bytes(random.bytes(SAMPLE_BYTES))
    _write_back(folder)


def _write_back(path: Path) -> None:
    """Of this file system alone: what others on the machine have written may take long."""
    subprocess.run(["sync", "--file-system", str(path)], check=True)
