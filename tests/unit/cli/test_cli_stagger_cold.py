# SPDX-License-Identifier: Apache-2.0
"""Cold starts of ``foresee stagger calibrate`` in virtual time: evicted data and caches, and the checks of eviction.

Tests with a real kernel are in ``tests/process/storage/test_page_cache.py``.
"""

from __future__ import annotations

import itertools
import os
import pathlib

import pytest
from support.calibrations import FEW, calibrate, refuse, write
from support.virtual import Virtual

from foresee.errors import PageCacheKept
from foresee.stagger import Catalog
from foresee.storage import page_cache


@pytest.fixture
def _files_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that all bytes of files stay in memory, as in a tmpfs."""
    monkeypatch.setattr(page_cache, "_resident", lambda file, path: os.path.getsize(path))


def doubts(virtual: Virtual, data: pathlib.Path, *jobs: str, code: int = 0) -> list[str]:
    """Return the messages of a short calibration, except those that announce runs and the version."""
    errors = virtual.command(
        "calibrate",
        *(*jobs, "--short", "--steps", "6", "--warmup", "1", "--data", str(data)),
        *("--catalog", str(data.parent / "jobs.db"), "--machine", "here"),
        code=code,
    )[1]
    lines = [line.removeprefix("foresee: ") for line in errors.splitlines()]
    return [line for line in lines if line.partition(": ")[0] not in {"cold", "warm"}]


def test_a_disk_cache_is_empty_at_cold_starts_and_retained_for_warm_ones(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    # Named in the job's code, which no environment variable changes.
    pair = [write(tmp_path, name, data, "--cache", str(tmp_path / "cache")) for name in ("a", "b")]
    calibrate(virtual, data, *pair, "--folder", str(tmp_path / "logs"))
    result = sorted(
        (tmp_path / "logs").glob("*/*/caches"), key=lambda file: (int(file.parts[-3].split("-")[0]), file)
    )
    caches = [file.read_text().strip() for file in result]
    assert [caches.index(cache) for cache in caches] == [0, 0, 2, 2, 4, 4]
    assert all(cache.startswith(str(tmp_path / "cache" / "calibrate-")) for cache in caches)
    assert list((tmp_path / "cache").iterdir()) == []


def test_data_behind_links_are_evicted(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    (folder / "labels.csv").write_text("0")
    (folder / "train").symlink_to(data)
    (folder / "again").symlink_to(folder)
    found = page_cache.find_files([], [str(folder)])
    assert found == [str(folder / "labels.csv"), str(folder / "train" / "chunks.bin")]


@pytest.mark.usefixtures("_files_stay_in_memory")
def test_data_that_stay_in_memory_are_not_called_cold(
    data: pathlib.Path, pair: list[str], virtual: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual.storage, "evict", page_cache.evict)
    errors = refuse(virtual, data, *pair, code=3)
    size = (data / "chunks.bin").stat().st_size
    assert f"{size} of {size} bytes of the data stay in memory" in errors
    assert "tmpfs" in errors
    assert all(job.code is not None for job in virtual.calibrated)


def test_an_unreadable_cache_is_cold_only_if_the_storage_was_read(
    data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    # As for a user that does not own the files: the kernel reports nothing.
    virtual.storage.resident = None
    virtual.storage.counts = lambda job: 0
    (errors,) = doubts(virtual, data, *pair, code=3)
    assert errors.startswith("a read nothing from storage, so the data were in memory")


@pytest.mark.parametrize(
    "read", [[None, None], [0, None], [4096, 0]], ids=["never told", "ended", "one process less"]
)
def test_unknown_bytes_do_not_count_as_zero(
    data: pathlib.Path, pair: list[str], virtual: Virtual, read: list[int | None]
) -> None:
    virtual.storage.resident = None
    result = itertools.cycle(read)
    virtual.storage.counts = lambda job: next(result)
    assert not any("storage read nothing" in line for line in doubts(virtual, data, *pair))


def test_bytes_count_from_the_first_step_on(data: pathlib.Path, pair: list[str], virtual: Virtual) -> None:
    # Its libraries, or earlier data: later reads were in memory.
    virtual.storage.resident = None
    virtual.storage.counts = lambda job: 1 << 20
    (errors,) = doubts(virtual, data, *pair, code=3)
    assert errors.startswith("a read nothing from storage, so the data were in memory")


def test_data_outside_the_evicted_place_are_not_called_cold(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "chunks.bin").write_bytes(b"other chunks")
    virtual.storage.memory = {(str(data / "chunks.bin"), step) for step in range(40)}
    errors = refuse(virtual, other, *pair, code=3)
    assert "a read nothing from storage, and none of the evicted data (" in errors
    assert "their data are in another folder, name it with --data" in errors
    with Catalog.open(tmp_path / "jobs.db") as catalog:
        assert catalog.keys() == []
        assert catalog.places("here", "sleepy") == ()


def test_a_cold_start_that_looks_like_one_is_not_doubted(
    data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    assert doubts(virtual, data, *pair) == []


def test_data_that_do_not_come_back_into_memory_are_doubted(
    data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    virtual.storage.looks = False
    errors = doubts(virtual, data, *pair)[0]
    assert (
        "are in memory again after a: unless they bypass the page cache, their data are in another folder"
        in errors
    )


def test_storage_without_counted_reads_is_doubted(
    data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    virtual.storage.counts = lambda job: 0
    errors = doubts(virtual, data, *pair)[0]
    assert "a read nothing from storage by the kernel's count, though data came into memory" in errors


def test_the_catalog_stores_the_place_of_the_data(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    calibrate(virtual, data, *pair, "--short")
    with Catalog.open(tmp_path / "jobs.db") as catalog:
        assert catalog.places("here", "sleepy") == (str(data.resolve()),)


def test_data_in_a_bucket_are_not_evicted(
    data: pathlib.Path, pair: list[str], virtual: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual.storage, "find_files", lambda jobs, paths: None)
    errors = doubts(virtual, data, *pair)[0]
    assert errors.startswith(
        "the data are not in a file system of this host, so none are evicted from memory"
    )


@pytest.mark.usefixtures("_files_stay_in_memory")
def test_the_whole_cache_is_dropped_only_on_request(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = tmp_path / "drop_caches"
    drop.write_text("")
    monkeypatch.setattr(page_cache, "_DROP", str(drop))
    monkeypatch.setattr(os, "sync", lambda: None)
    files = [str(data / "chunks.bin")]
    with pytest.raises(PageCacheKept, match="try --drop-caches as root"):
        page_cache.evict(files)
    assert drop.read_text() == ""
    with pytest.raises(PageCacheKept, match=r"move the data to a disk$"):
        page_cache.evict(files, machine=True)
    assert drop.read_text() == "1"
    monkeypatch.setattr(page_cache, "_DROP", str(tmp_path / "missing" / "drop_caches"))
    with pytest.raises(PageCacheKept, match="only root may drop"):
        page_cache.evict(files, machine=True)


def test_the_place_of_the_data_is_required(tmp_path: pathlib.Path, pair: list[str], virtual: Virtual) -> None:
    assert "name their folder with --data" in virtual.refuse(*pair, *FEW)
    assert "there is no such file or folder" in virtual.refuse(*pair, *FEW, "--data", "/no/such")
    (tmp_path / "empty").mkdir()
    assert "no file in it" in virtual.refuse(*pair, *FEW, "--data", str(tmp_path / "empty"))
