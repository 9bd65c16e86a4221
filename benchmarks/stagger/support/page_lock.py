# SPDX-License-Identifier: Apache-2.0
"""Lock files in the page cache after jobs have read them.

Some hosts drop the oldest pages of unmapped files although memory is free (DAMON's schemes). The lock never reads a file
itself: it only locks files that are completely in the page cache.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

#: Interval between two checks of the files that are not locked yet.
POLL_S = 0.25
_PROT_READ, _MAP_SHARED = 1, 1
_FAILED = ctypes.c_void_p(-1).value


class PageLock:
    """Context manager that locks files in memory soon after they have been read.

    Args:
        files: regular files that jobs read; not empty.

    Raises:
        OSError: a file cannot be mapped or locked; without root, ``ulimit -l`` limits the locked bytes.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        for call in (self._libc.mlock, self._libc.munmap):
            call.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._files = files
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._lock_pages, daemon=True)
        self._mapped: list[tuple[int, int]] = []
        self._failed: OSError | None = None

    def __enter__(self) -> PageLock:
        try:
            for path in self._files:
                self._mapped.append(self._map(path))
        except OSError:
            self._unmap()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._unmap()
        if self._failed and error is None:
            raise self._failed

    def _map(self, path: Path) -> tuple[int, int]:
        file = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(file).st_size
            address = self._libc.mmap(None, size, _PROT_READ, _MAP_SHARED, file, 0)
        finally:
            os.close(file)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), f"{path} cannot be mapped")
        return address, size

    def _lock_pages(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        left = list(self._mapped)
        pages = np.zeros(-(-max(size for _, size in left) // page), np.uint8)
        while left and not self._stop.wait(POLL_S):
            absent = []
            for address, size in left:
                found = pages[: -(-size // page)]
                if self._libc.mincore(address, size, found.ctypes.data) != 0 or not (found & 1).all():
                    absent.append((address, size))
                elif self._libc.mlock(address, size) != 0:
                    self._failed = OSError(ctypes.get_errno(), "cannot lock pages in the page cache: mlock")
                    return
            left = absent

    def _unmap(self) -> None:
        for address, size in self._mapped:
            self._libc.munmap(address, size)
        self._mapped = []
