# SPDX-License-Identifier: Apache-2.0
"""Files on disk without a page in memory, which is checked."""

from __future__ import annotations

import os
import pathlib

from foresee.storage.page_cache import resident_bytes
from support.waiting import wait_until

__all__ = ["uncached_file"]


def uncached_file(path: pathlib.Path, size: int) -> pathlib.Path:
    """Write ``size`` random bytes to ``path``, and evict them from memory."""
    path.write_bytes(os.urandom(size))
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)

        def dropped() -> bool:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            return resident_bytes([str(path)])[0] == 0

        wait_until(dropped, what="the eviction of a new file")
    finally:
        os.close(file)
    return path
