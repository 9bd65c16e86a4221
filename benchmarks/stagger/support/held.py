# SPDX-License-Identifier: Apache-2.0
"""What jobs have read stays in the page cache, whatever else the machine would do with it.

Some machines give back the oldest pages of files that nobody has mapped, though memory is free (DAMON's schemes). Refuses
to bring anything into memory: only what is there in full is kept.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

#: Between two looks at the files that were not there yet.
LOOK_S = 0.25
_PROT_READ, _MAP_SHARED = 1, 1
_FAILED = ctypes.c_void_p(-1).value


class Held:
    """As long as it is entered, files are locked in memory soon after they have been read.

    Args:
        files: what jobs read; regular files, not empty.

    Raises:
        OSError: a file cannot be mapped, or not be locked: root may, others up to ``ulimit -l``.
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
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._mapped: list[tuple[int, int]] = []
        self._failed: OSError | None = None

    def __enter__(self) -> Held:
        try:
            for path in self._files:
                self._mapped.append(self._map(path))
        except OSError:
            self._let_go()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._let_go()
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

    def _keep(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        left = list(self._mapped)
        pages = np.zeros(-(-max(size for _, size in left) // page), np.uint8)
        while left and not self._stop.wait(LOOK_S):
            absent = []
            for address, size in left:
                found = pages[: -(-size // page)]
                if self._libc.mincore(address, size, found.ctypes.data) != 0 or not (found & 1).all():
                    absent.append((address, size))
                elif self._libc.mlock(address, size) != 0:
                    self._failed = OSError(ctypes.get_errno(), "the page cache cannot be held: mlock")
                    return
            left = absent

    def _let_go(self) -> None:
        for address, size in self._mapped:
            self._libc.munmap(address, size)
        self._mapped = []
