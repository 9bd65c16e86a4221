# SPDX-License-Identifier: Apache-2.0
"""Cold starts: eviction of the data's files from the page cache, and a check that they are gone.

Linux drops the clean pages of a file on ``posix_fadvise(DONTNEED)`` for any process that may read it. ``mincore``
reports the pages that are left, but only to the owner and to processes that may write the file. A cache counts as cold
only after this check, and the page cache of the whole machine is dropped only on request.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import numpy as np

from foresee.errors import ConfigError, PageCacheKept
from foresee.jobspec import Job

__all__ = [
    "Evicted",
    "drop",
    "evict",
    "files_of",
    "holds",
    "in_files",
    "places_of",
    "resident",
    "share_in_memory",
    "touched",
]

#: Files whose pages are counted at most, evenly spread: a few ten thousand calls would outlast the measurement.
_LOOKED_AT = 4096
#: Files that are enough to see whether data are in memory.
_GLIMPSE = 1024
#: Share of the bytes that may stay: pages that another process touches at this moment.
_KEPT_MAX = 0.01
_DROP = "/proc/sys/vm/drop_caches"
_PROT_READ, _MAP_SHARED = 1, 1
_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True)
class Evicted:
    """The evicted files."""

    files: int
    """Their number."""
    bytes: int
    """Their sizes."""
    kept: int | None
    """Bytes that are still in memory; None: the kernel tells only their owner."""


def files_of(jobs: Sequence[Job], paths: Iterable[str]) -> list[str] | None:
    """The files that jobs read: those at ``paths``, or else where the jobs' index has them.

    Returns:
        Sorted paths; None where the data lie in no file system of this machine, so that there is nothing to drop.

    Raises:
        ConfigError: nothing says where the data lie, or there is nothing.
    """
    places = list(paths)
    if not places:
        index = _index(jobs)
        if index is None:
            raise ConfigError(
                "where do the data lie? Name their folder with --data, or their index by data.index in a job file"
            )
        place = _place(index)
        if place is None:
            return None
        places = [place]
    found: list[str] = []
    for place in places:
        if not os.path.exists(place):
            raise ConfigError(f"--data {place}: there is no such file or folder")
        found += _files(place)
    if not found:
        raise ConfigError(f"--data {' '.join(places)}: no file in it")
    return sorted(found)


def places_of(jobs: Sequence[Job], paths: Iterable[str] = ()) -> list[str]:
    """Return the known places of the jobs' data: at those of ``paths`` that exist, else where their index has
    them. Empty: nothing says so, or they lie in no file system of this machine.

    Raises:
        ForeseeError, OSError: the index cannot be read.
    """
    found = [path for path in paths if os.path.exists(path)]
    if not found and (index := _index(jobs)) is not None and (place := _place(index)) is not None:
        found = [place]
    return found


def in_files(jobs: Sequence[Job]) -> bool:
    """Whether the jobs' data lie in a file system of this machine: they do unless their index says otherwise.

    Raises:
        ForeseeError, OSError: the index cannot be read.
    """
    index = _index(jobs)
    return index is None or _place(index) is not None


def share_in_memory(places: Iterable[str]) -> float | None:
    """The share of the data at ``places`` that is in memory now, by the first files of each that are found: jobs read
    in a random order, so these are as good as others. None: there are none, or the kernel does not tell us.

    Raises:
        OSError: a file cannot be read.
    """
    files = [path for place in places for path in itertools.islice(_files(place), _GLIMPSE)]
    kept, looked_at = resident(files) if files else (None, 0)
    return None if kept is None or looked_at == 0 else kept / looked_at


def holds(places: Iterable[str], size: float) -> bool:
    """Whether there are as many bytes at ``places``; nothing is read, and counting stops there."""
    total = 0
    for path in itertools.chain.from_iterable(map(_files, places)):
        total += os.stat(path).st_size
        if total >= size:
            return True
    return False


def touched(files: Iterable[str]) -> bool:
    """Whether any of ``files`` is in memory, as far as the kernel tells us; looks no further than the first that is.

    Raises:
        OSError: a file cannot be read.
    """
    for path in files:
        with _opened(path) as file:
            if _in_memory(file, path):
                return True
    return False


def _index(jobs: Sequence[Job]) -> str | None:
    return next((job.data.index for job in jobs if job.data.index is not None), None)


def _place(index: str) -> str | None:
    """Return the place of an index's data in a file system of this machine, or None."""
    from foresee._native import Index

    uri = Index.open(index).uri
    parts = urlsplit(uri)
    if parts.scheme not in {"", "file"}:
        return None
    return unquote(parts.path) if parts.scheme else uri


def _files(place: str) -> Iterator[str]:
    """One file, or those of a folder."""
    return iter([place]) if os.path.isfile(place) else _below(place)


def _below(place: str) -> Iterator[str]:
    """Files in a folder and in those below it, as loaders list them: through links too, each folder once."""
    seen = set()
    for folder, inner, names in os.walk(place, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            inner.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                yield path


def evict(files: Sequence[str], *, machine: bool = False) -> Evicted:
    """Drive ``files`` out of the page cache.

    Args:
        files: regular ones, readable.
        machine: where that is not enough, drop the page cache of the whole machine; root may.

    Raises:
        PageCacheKept: they stay in memory, or they may not be dropped.
        OSError: a file cannot be read.
    """
    total = looked_at = 0
    kept: int | None = None
    for path in files:
        with _opened(path) as file:
            size = os.fstat(file).st_size
            total += size
            _drop(file)
            left = _in_memory(file, path)
            if left != 0:
                # Dirty pages stay. To write them takes ten times as long as the rest, so only where something stayed.
                with contextlib.suppress(OSError):
                    os.fsync(file)
                _drop(file)
                left = _in_memory(file, path)
            if left is not None:
                looked_at += size
                kept = (kept or 0) + left
    if kept is not None and kept > _KEPT_MAX * looked_at and machine:
        os.sync()
        try:
            with open(_DROP, "w", encoding="ascii") as file_:
                file_.write("1")
        except OSError as error:
            raise PageCacheKept(
                f"{_DROP}: {error.strerror}; only root may drop the machine's page cache"
            ) from None
        kept, looked_at = resident(files)
    if kept is not None and kept > _KEPT_MAX * looked_at:
        raise PageCacheKept(
            f"{kept} of {looked_at} bytes of the data stay in memory ({files[0]} and others), so nothing can be "
            "measured cold: a tmpfs keeps its files there, and files that a process has mapped stay too; "
            + (
                "move the data to a disk"
                if machine
                else "move the data to a disk, or try --drop-caches as root"
            )
        )
    return Evicted(files=len(files), bytes=total, kept=kept)


def drop(files: Sequence[str]) -> None:
    """Drive the clean pages of ``files`` out of the page cache, as far as that goes, without looking whether it did."""
    for path in files:
        with contextlib.suppress(OSError), _opened(path) as file:
            _drop(file)


def resident(files: Sequence[str]) -> tuple[int | None, int]:
    """Bytes of ``files`` that are in memory, and bytes that were looked at; None: the kernel does not tell us."""
    looked_at = 0
    kept: int | None = None
    for path in files[:: -(-len(files) // _LOOKED_AT)]:
        with _opened(path) as file:
            left = _in_memory(file, path)
            if left is not None:
                looked_at += os.fstat(file).st_size
                kept = (kept or 0) + left
    return kept, looked_at


def _drop(file: int) -> None:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _in_memory(file: int, path: str) -> int | None:
    """Bytes of one file that are in memory; None: the kernel does not tell us, or the file is empty."""
    status = os.fstat(file)
    size = status.st_size
    # To others the kernel says that all is in memory.
    ours = os.geteuid() in {0, status.st_uid} or os.access(path, os.W_OK)
    if size == 0 or not ours:
        return None
    libc = _libc()
    address = libc.mmap(None, size, _PROT_READ, _MAP_SHARED, file, 0)
    if address == _FAILED:
        return None
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    failed = libc.mincore(address, size, pages.ctypes.data)
    libc.munmap(address, size)
    return None if failed else min(int(np.count_nonzero(pages & 1)) * mmap.PAGESIZE, size)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return libc


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)
