# SPDX-License-Identifier: Apache-2.0
"""The real page cache: files on a disk are evicted, and those of a tmpfs are not."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Iterator

import pytest
from support.stagger_job import CHUNK
from support.uncached import uncached_file

from foresee.errors import PageCacheKept
from foresee.storage import page_cache


@pytest.fixture
def in_memory() -> Iterator[pathlib.Path]:
    """A file on a file system without a page cache."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = pathlib.Path(folder) / "chunks.bin"
        path.write_bytes(bytes(8 * CHUNK))
        yield path


def test_files_on_a_disk_are_evicted_and_the_eviction_is_observed(tmp_path: pathlib.Path) -> None:
    path = uncached_file(tmp_path / "chunks.bin", 8 * CHUNK)
    files, whole = [str(path)], 8 * CHUNK
    assert page_cache.resident_bytes(files) == (0, whole)
    assert not page_cache.has_resident(files)
    assert page_cache.resident_share(files) == 0
    path.read_bytes()
    assert page_cache.resident_bytes(files) == (whole, whole)
    assert page_cache.has_resident(files)
    assert page_cache.resident_share(files) == 1
    assert page_cache.evict(files) == page_cache.Eviction(files=1, bytes=whole, resident=0)
    assert not page_cache.has_resident(files)


def test_dirty_pages_are_evicted_too(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "chunks.bin"
    path.write_bytes(os.urandom(8 * CHUNK))
    assert page_cache.evict([str(path)]).resident == 0


def test_files_of_a_tmpfs_stay_in_memory(in_memory: pathlib.Path) -> None:
    with pytest.raises(PageCacheKept, match=f"{8 * CHUNK} of {8 * CHUNK} bytes of the data stay in memory"):
        page_cache.evict([str(in_memory)])
