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
    "Eviction",
    "drop",
    "drop_machine_caches",
    "evict",
    "find_files",
    "find_places",
    "has_bytes",
    "has_resident",
    "is_local",
    "may_drop_machine_caches",
    "resident_bytes",
    "resident_share",
]

#: Largest number of checked files, evenly spread: a few ten thousand calls would outlast the measurement.
_CHECKED_MAX = 4096
#: Files that suffice to see whether data are in memory.
_SHARE_FILES = 1024
#: Share of the bytes that may stay: pages that another process touches at this moment.
_RESIDENT_MAX = 0.01
_DROP = "/proc/sys/vm/drop_caches"
_PROT_READ, _MAP_SHARED = 1, 1
_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True)
class Eviction:
    """The evicted files."""

    files: int
    """Their number."""
    bytes: int
    """Their sizes."""
    resident: int | None
    """Bytes that are still in memory; None: the kernel reports this to the owner only."""


def find_files(jobs: Sequence[Job], paths: Iterable[str]) -> list[str] | None:
    """Return the sorted files that jobs read: at ``paths``, or else at the place of the jobs' index.

    None: the data are in no file system of this machine, so that there is nothing to drop.

    Raises:
        ConfigError: the place of the data is unknown or empty.
    """
    places = list(paths)
    if not places:
        index = _index(jobs)
        if index is None:
            raise ConfigError(
                "the place of the data is unknown; name their folder with --data, or their index by data.index in a "
                "job file"
            )
        place = _index_place(index)
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


def find_places(jobs: Sequence[Job], paths: Iterable[str] = ()) -> list[str]:
    """Return the places of the jobs' data: those of ``paths`` that exist, else the place of their index.

    Empty: the place is unknown, or in no file system of this machine.

    Raises:
        ForeseeError, OSError: the index cannot be read.
    """
    found = [path for path in paths if os.path.exists(path)]
    if not found and (index := _index(jobs)) is not None and (place := _index_place(index)) is not None:
        found = [place]
    return found


def is_local(jobs: Sequence[Job]) -> bool:
    """Return whether the jobs' data are in a file system of this machine; without an index they are.

    Raises:
        ForeseeError, OSError: the index cannot be read.
    """
    index = _index(jobs)
    return index is None or _index_place(index) is not None


def resident_share(places: Iterable[str]) -> float | None:
    """Return the share of the data at ``places`` that is in memory, from the first files of each place.

    Jobs read in a random order, so these files are representative. None: no files, or the kernel does not report it.

    Raises:
        OSError: a file cannot be read.
    """
    files = [path for place in places for path in itertools.islice(_files(place), _SHARE_FILES)]
    resident, checked = resident_bytes(files) if files else (None, 0)
    return None if resident is None or checked == 0 else resident / checked


def has_bytes(places: Iterable[str], size: float) -> bool:
    """Return whether ``places`` have at least ``size`` bytes; counting stops there."""
    sizes = (os.stat(path).st_size for place in places for path in _files(place))
    return any(total >= size for total in itertools.accumulate(sizes))


def has_resident(files: Iterable[str]) -> bool:
    """Return whether the kernel reports any of ``files`` in memory; the first one ends the search.

    Raises:
        OSError: a file cannot be read.
    """
    for path in files:
        with _open_file(path) as file:
            if _resident(file, path):
                return True
    return False


def evict(files: Sequence[str], *, machine: bool = False) -> Eviction:
    """Evict ``files`` from the page cache.

    Args:
        files: regular ones, readable.
        machine: if that is not enough, drop the page cache of the whole machine, as root.

    Raises:
        PageCacheKept: they stay in memory, or they may not be dropped.
        OSError: a file cannot be read.
    """
    total = checked = 0
    resident: int | None = None
    for path in files:
        with _open_file(path) as file:
            size = os.fstat(file).st_size
            total += size
            _drop(file)
            left = _resident(file, path)
            if left != 0:
                # Dirty pages stay. Writing them takes ten times as long as the rest, so only if something stayed.
                with contextlib.suppress(OSError):
                    os.fsync(file)
                _drop(file)
                left = _resident(file, path)
            if left is not None:
                checked += size
                resident = (resident or 0) + left
    if resident is not None and resident > _RESIDENT_MAX * checked and machine:
        try:
            drop_machine_caches("1")
        except OSError as error:
            raise PageCacheKept(
                f"{_DROP}: {error.strerror}; only root may drop the machine's page cache"
            ) from None
        resident, checked = resident_bytes(files)
    if resident is not None and resident > _RESIDENT_MAX * checked:
        more = "" if machine else ", or try --drop-caches as root"
        raise PageCacheKept(
            f"{resident} of {checked} bytes of the data stay in memory ({files[0]} and others), so no cold measurement "
            "is possible: a tmpfs keeps its files there, and files that a process has mapped stay too; move the data "
            f"to a disk{more}"
        )
    return Eviction(files=len(files), bytes=total, resident=resident)


def drop(files: Sequence[str]) -> None:
    """Drop the clean pages of ``files`` from the page cache without a check."""
    for path in files:
        with contextlib.suppress(OSError), _open_file(path) as file:
            _drop(file)


def may_drop_machine_caches() -> bool:
    """Return whether this process may drop the machine's caches."""
    return os.access(_DROP, os.W_OK)


def drop_machine_caches(which: str) -> None:
    """Drop the machine's clean caches: ``"1"``: pages; ``"3"``: also names and inodes.

    Raises:
        OSError: this process may not.
    """
    os.sync()
    with open(_DROP, "w", encoding="ascii") as file:
        file.write(which)


def resident_bytes(files: Sequence[str]) -> tuple[int | None, int]:
    """Return the bytes of ``files`` in memory, and the checked bytes; None: the kernel does not report it."""
    checked = 0
    resident: int | None = None
    for path in files[:: -(-len(files) // _CHECKED_MAX)]:
        with _open_file(path) as file:
            left = _resident(file, path)
            if left is not None:
                checked += os.fstat(file).st_size
                resident = (resident or 0) + left
    return resident, checked


def _index(jobs: Sequence[Job]) -> str | None:
    return next((job.data.index for job in jobs if job.data.index is not None), None)


def _index_place(index: str) -> str | None:
    """Return the place of an index's data in a file system of this machine, or None."""
    from foresee._native import Index

    uri = Index.open(index).uri
    parts = urlsplit(uri)
    if parts.scheme not in {"", "file"}:
        return None
    return unquote(parts.path) if parts.scheme else uri


def _files(place: str) -> Iterator[str]:
    """Yield a file, or those in a folder and below, as loaders list them: through links too, each folder once."""
    if os.path.isfile(place):
        yield place
        return
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


def _drop(file: int) -> None:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _resident(file: int, path: str) -> int | None:
    """Return the bytes of one file that are in memory; None: the kernel does not report it, or the file is empty."""
    status = os.fstat(file)
    size = status.st_size
    # To other users, mincore reports all pages as resident.
    is_reported = os.geteuid() in {0, status.st_uid} or os.access(path, os.W_OK)
    if size == 0 or not is_reported:
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
def _open_file(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)
