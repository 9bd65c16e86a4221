# SPDX-License-Identifier: Apache-2.0
"""The disk cache: its capacity, reads of changed or copied data sets, and permissions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import wait_until

import foresee
from foresee.errors import ForeseeError, OriginError

FILES = 60
BYTES = 9_000
DISK_SIZE = 2_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "c").mkdir(parents=True)
    for nth in range(FILES):
        write(tmp_path / "data", nth, 0)
    return tmp_path / "data"


def write(folder: Path, nth: int, version: int) -> None:
    (folder / "c" / f"{nth:03}.bin").write_bytes(bytes([nth, version]) * (BYTES // 2))


def used(directory: Path) -> int:
    """Return the bytes that a directory uses on the disk."""
    found: Iterator[Path] = directory.rglob("*")
    return sum(path.lstat().st_blocks * 512 for path in (directory, *found))


def read(
    data: Path | str | foresee.Index, cache: Path, *, copies: int, **arguments: object
) -> dict[int, bytes]:
    """Return the samples by id. ``copies``: number of samples that must be written to the disk, no more and no fewer.

    Reads at the origin are not counted: it serves samples that are late on the disk, too.
    """
    budget = foresee.Cache(ram=0, disk=cache, disk_size=DISK_SIZE)
    with foresee.Loader(data, batch_size=8, cache=budget, **arguments) as loader:  # type: ignore[arg-type]
        samples = {
            int(id_): bytes(batch.sample(place)) for batch in loader for place, id_ in enumerate(batch.ids)
        }
        # The last copies are still being written.
        wait_until(lambda: copied(loader) >= copies, what="the disk's writes")
    assert copied(loader) == copies
    return samples


def copied(loader: foresee.Loader) -> int:
    """Return the number of samples that were written to the disk."""
    tally = loader.stats()["operations"]["disk"]["write"]["ok"]
    return 0 if tally is None else tally["samples"]


def test_a_changed_file_is_copied_once_and_the_directory_stays_within_its_budget(
    folder: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    read(folder, cache, copies=FILES)
    for version in range(1, 5):
        write(folder, 7, version)
        os.utime(folder / "c" / "007.bin", ns=(version, version))
        samples = read(folder, cache, copies=1)
        assert samples[7] == bytes([7, version]) * (BYTES // 2)
        assert used(cache) <= DISK_SIZE


def test_other_data_sets_are_evicted_when_their_space_is_needed(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for nth in range(8):
        copy = tmp_path / f"copy-{nth}"
        shutil.copytree(folder, copy)
        read(copy, cache, copies=FILES)
        assert used(cache) <= DISK_SIZE
    read(tmp_path / "copy-7", cache, copies=0)


def test_an_index_fits_a_copy_with_equal_sizes_and_times(folder: Path, tmp_path: Path) -> None:
    with foresee.Loader(folder, batch_size=1) as loader:
        loader.index.save(tmp_path / "data.fidx")
    shutil.copytree(folder, tmp_path / "copy")
    index = foresee.Index.open(tmp_path / "data.fidx")
    samples = read(index, tmp_path / "cache", copies=FILES, uri=str(tmp_path / "copy"))
    assert len(samples) == FILES


def test_with_inode_numbers_in_its_tags_an_index_does_not_fit_a_copy(folder: Path, tmp_path: Path) -> None:
    strict = {"file_tag": "inode"}
    with foresee.Loader(folder, batch_size=1, storage_options=strict) as loader:
        assert len(list(loader)) == FILES
        loader.index.save(tmp_path / "data.fidx")
    shutil.copytree(folder, tmp_path / "copy")
    index = foresee.Index.open(tmp_path / "data.fidx")
    with pytest.raises(ForeseeError, match="has changed since it was indexed"):
        read(index, tmp_path / "cache", copies=0, uri=str(tmp_path / "copy"))


def test_a_file_tag_that_does_not_exist_is_refused(folder: Path) -> None:
    with pytest.raises(OriginError, match=r'file_tag.*"ctime" is neither "mtime" nor "inode"'):
        foresee.Loader(folder, batch_size=1, storage_options={"file_tag": "ctime"})


def test_a_planted_link_is_refused_and_its_target_is_not_written(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    read(folder, cache, copies=FILES)
    (segment,) = cache.glob("*/partition-0/*.seg")
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    segment.unlink()
    segment.symlink_to(victim)
    with pytest.raises(ForeseeError, match=r"\.seg is a link; remove it, or choose another directory"):
        read(folder, cache, copies=0)
    assert victim.read_bytes() == b"precious"
