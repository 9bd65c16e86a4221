# SPDX-License-Identifier: Apache-2.0
"""Files that are on disk and have no page in memory, which is checked: reads of cached pages would not wait."""

from __future__ import annotations

import os
import pathlib

from foresee.storage.page_cache import resident_bytes
from support.waiting import wait_until

__all__ = ["cold_file"]


def cold_file(path: pathlib.Path, size: int) -> pathlib.Path:
    """A new file of ``size`` random bytes at ``path``, none of them in memory."""
    path.write_bytes(os.urandom(size))
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)

        def dropped() -> bool:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            return resident_bytes([str(path)])[0] == 0

        wait_until(dropped, what="a file out of memory")
    finally:
        os.close(file)
    return path
