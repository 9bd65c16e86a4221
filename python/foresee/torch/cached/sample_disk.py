# SPDX-License-Identifier: Apache-2.0
"""Encoded samples on the disk, under a key of the user.

Every process opens the files itself, also a forked child. A fault of the disk is one warning, and the dataset is read
without it from then on.
"""

from __future__ import annotations

import logging
from typing import Any

from foresee import _native
from foresee._runtime.step_times import disk_cache_folder
from foresee._schema.files import user_path
from foresee.config import Cache
from foresee.errors import CacheError

_log = logging.getLogger("foresee")
_BYTES_MIN = 1 << 20


class SampleDisk:
    """The files of one dataset, as this process uses them.

    Args:
        native: the open files.
        folder: the cache directory, for messages.
    """

    def __init__(self, native: _native.SampleFiles, folder: str) -> None:
        self.native = native
        """The open files."""
        self._folder = folder
        self._has_fault = False

    def get(self, sample: int) -> bytes | None:
        """Return the bytes of a sample; None if it is not there."""
        return self.native.get(sample)

    def insert(self, sample: int, data: bytes) -> None:
        """Add a sample that is not there, if there is space for it."""
        self.native.insert(sample, data)

    def report_fault(self) -> None:
        """Warn once of a fault, after which nothing is added."""
        if not self._has_fault and (fault := self.native.fault) is not None:
            self._has_fault = True
            _log.warning(
                "no more samples are added to the cache directory %s, and those that it has are read: %s",
                self._folder,
                fault,
            )

    def close(self) -> None:
        """End the use of the files; without effect in a forked child."""
        self.native.close()


class DiskPlace:
    """Where the samples of a dataset are on the disk.

    Args:
        cache: has the directory and its capacity.
        key: the user's name of the data.
    """

    def __init__(self, cache: Cache, key: str) -> None:
        self._folder = user_path(cache.disk, "disk")
        self._capacity = cache.disk_bytes
        self._key = key
        self._is_resolved = False
        self._is_usable = True

    def open(self, variant: str, count: int) -> SampleDisk | None:
        """Open the files in this process; None, after one warning, if the directory cannot be used.

        Args:
            variant: what has to be equal besides the key where bytes of samples are equal.
            count: samples of the dataset.
        """
        if not self._is_usable:
            return None
        if not self._is_resolved:
            self._folder, self._is_resolved = disk_cache_folder(self._folder), True
        try:
            native = _native.SampleFiles(
                self._folder, capacity_bytes=self._capacity, key=self._key, variant=variant, samples=count
            )
        except CacheError as error:
            self._is_usable = False
            _log.warning("the dataset is read without a disk cache: %s", error)
            return None
        if native.is_read_only:
            _log.warning(
                "the cache directory %s is read-only: its samples are read, and none are added", self._folder
            )
        return SampleDisk(native, self._folder)


def disk_place(cache: Cache, key: str | None) -> DiskPlace | None:
    """Return where samples under ``key`` are; None without a key, or with a ``disk_size`` of 0."""
    return None if key is None or cache.disk_bytes == 0 else DiskPlace(cache, key)


def disk_faults(cache: Any, key: Any) -> list[str]:
    """Faults of ``key`` and of the disk of ``cache``, which may be None or of a wrong type."""
    faults: list[str] = []
    if key is not None and (not isinstance(key, str) or not key.strip()):
        faults.append(
            f'key={key!r}; a name of the data expected, such as "pictures-1", that you change when they change'
        )
    if not isinstance(cache, Cache):
        return faults
    if cache.disk is not None and cache.disk_bytes > 0 and key is None:
        faults.append(
            f"disk={str(cache.disk)!r} of the cache without key=: nothing else tells the samples of one dataset from "
            'those of another; pass a name of the data, such as key="pictures-1", and change it when they change'
        )
    if 0 < cache.disk_bytes < _BYTES_MIN:
        faults.append(f"disk_size={cache.disk_size!r} of the cache; 1MiB or more, or 0 for none")
    if cache.disk is None and key is not None:
        faults.append(without_disk(key))
    return faults


def without_disk(key: str) -> str:
    """Message for a key that no disk belongs to."""
    return (
        f"key={key!r} without a disk: it names samples on the disk; pass cache=Cache(disk=, disk_size=), or set "
        "FORESEE_CACHE_DIR and FORESEE_DISK_SIZE, or leave it out"
    )
