# SPDX-License-Identifier: Apache-2.0
"""What ``foresee stagger calibrate`` calls cold: data and caches that are driven out, and how it knows that they were."""

from __future__ import annotations

import itertools
import os
import pathlib
import tempfile
from collections.abc import Iterator

import pytest
from support.calibrations import CHUNK, CHUNKS, calibrate, run, write

from foresee import job
from foresee.errors import PageCacheKept
from foresee.jobs import Catalog, cold, process
from foresee.jobs.calibrate import Plan
from foresee.jobs.calibrate import calibrate as calibrated

pytestmark = pytest.mark.usefixtures("kept_here")


@pytest.fixture
def in_memory() -> Iterator[pathlib.Path]:
    """A folder that no page cache lies before."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (pathlib.Path(folder) / "chunks.bin").write_bytes(bytes(CHUNKS * CHUNK))
        yield pathlib.Path(folder)


def test_a_disk_cache_is_empty_at_each_cold_start_and_kept_for_the_warm_one(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    # Named in the job's own code, where no variable of ours would have a say.
    pair = [write(tmp_path, name, data, "--cache", str(tmp_path / "cache")) for name in ("a", "b")]
    calibrate(tmp_path, data, *pair, "--folder", str(tmp_path / "logs"))
    told = sorted(
        (tmp_path / "logs").glob("*/*/caches"), key=lambda file: (int(file.parts[-3].split("-")[0]), file)
    )
    caches = [file.read_text().strip() for file in told]
    assert [caches.index(cache) for cache in caches] == [0, 0, 2, 2, 4, 4]
    assert all(cache.startswith(str(tmp_path / "cache" / "calibrate-")) for cache in caches)
    assert list((tmp_path / "cache").iterdir()) == []


def test_data_behind_links_are_driven_out_too(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    (folder / "labels.csv").write_text("0")
    (folder / "train").symlink_to(data)
    (folder / "again").symlink_to(folder)
    found = cold.files_of([], [str(folder)])
    assert found == [str(folder / "labels.csv"), str(folder / "train" / "chunks.bin")]


def test_data_that_stay_in_memory_are_not_called_cold(
    tmp_path: pathlib.Path, in_memory: pathlib.Path
) -> None:
    jobs = [write(tmp_path, name, in_memory) for name in ("a", "b")]
    said = calibrate(tmp_path, in_memory, *jobs, code=3)
    assert f"{CHUNKS * CHUNK} of {CHUNKS * CHUNK} bytes of the data stay in memory" in said
    assert "tmpfs" in said


def test_a_cache_that_nobody_may_look_into_is_cold_only_if_the_storage_was_read(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for whoever does not own the files: the kernel says nothing, and the test runs as root.
    monkeypatch.setattr(cold, "_in_memory", lambda file, path: None)
    monkeypatch.setattr(process.Process, "read_bytes", lambda self: 0)
    jobs = [job.read(write(tmp_path, name, data)) for name in ("a", "b")]
    plan = Plan(steps=6, warmup=1, patience=20, data=(str(data),))
    (tmp_path / "runs").mkdir()
    with (
        Catalog.open(tmp_path / "jobs.db", write=True) as catalog,
        pytest.raises(PageCacheKept, match="a had the storage read nothing, so the data were in memory"),
    ):
        calibrated(jobs, catalog, "here", plan, str(tmp_path / "runs"), program="test")


def calibrated_short(tmp_path: pathlib.Path, data: pathlib.Path) -> list[str]:
    """What is said of two jobs that are calibrated in this process."""
    jobs = [job.read(write(tmp_path, name, data)) for name in ("a", "b")]
    plan = Plan(steps=6, warmup=1, patience=20, short=True, data=(str(data),))
    (tmp_path / "runs").mkdir()
    said: list[str] = []
    with Catalog.open(tmp_path / "jobs.db", write=True) as catalog:
        calibrated(jobs, catalog, "here", plan, str(tmp_path / "runs"), program="test", tell=said.append)
    return said


@pytest.mark.parametrize(
    "read", [[None, None], [0, None], [4096, 0]], ids=["never told", "ended", "one process less"]
)
def test_bytes_that_nobody_knows_are_not_taken_for_none(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch, read: list[int | None]
) -> None:
    monkeypatch.setattr(cold, "_in_memory", lambda file, path: None)
    told = itertools.cycle(read)
    monkeypatch.setattr(process.Process, "read_bytes", lambda self: next(told))
    assert not any("storage read nothing" in line for line in calibrated_short(tmp_path, data))


def test_bytes_count_from_the_first_step_on(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its libraries, or data that it read before: what it read from then on was in memory.
    monkeypatch.setattr(cold, "_in_memory", lambda file, path: None)
    monkeypatch.setattr(process.Process, "read_bytes", lambda self: 1 << 20)
    with pytest.raises(PageCacheKept, match="a had the storage read nothing, so the data were in memory"):
        calibrated_short(tmp_path, data)


def test_data_that_lie_elsewhere_than_what_was_driven_out_are_not_called_cold(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "chunks.bin").write_bytes(os.urandom(CHUNK))
    (data / "chunks.bin").read_bytes()
    said = calibrate(tmp_path, other, *pair, code=3)
    assert "a had the storage read nothing, and nothing of what was driven out of memory (" in said
    assert "their data lie elsewhere, name that folder with --data" in said
    with Catalog.open(tmp_path / "jobs.db") as catalog:
        assert catalog.keys() == []
        assert catalog.places("here", "sleepy") == ()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (None, None, None),
        (
            "touched",
            False,
            "is there again after a: unless they read past the page cache their data lie elsewhere",
        ),
        (
            "read_bytes",
            0,
            "a had the storage read nothing by the kernel's count, though data came into memory",
        ),
    ],
)
def test_a_cold_start_that_looks_odd_is_doubted(
    tmp_path: pathlib.Path,
    data: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str | None,
    value: object,
    expected: str | None,
) -> None:
    if name == "touched":
        monkeypatch.setattr(cold, "touched", lambda files: value)
    elif name == "read_bytes":
        monkeypatch.setattr(process.Process, "read_bytes", lambda self: value)
    said = [line for line in calibrated_short(tmp_path, data) if ": " not in line[:6]]
    if expected is None:
        assert said == []
    else:
        assert expected in said[0]


def test_the_catalog_keeps_where_the_data_lie(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    calibrate(tmp_path, data, *pair, "--short")
    with Catalog.open(tmp_path / "jobs.db") as catalog:
        assert catalog.places("here", "sleepy") == (str(data.resolve()),)


def test_data_in_a_bucket_are_said_to_stay_where_they_are(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Files stand for the bucket: what counts is that the index names no place of this machine.
    monkeypatch.setattr(cold, "files_of", lambda jobs, paths: None)
    jobs = [job.read(write(tmp_path, name, data)) for name in ("a", "b")]
    plan = Plan(steps=6, warmup=1, patience=20, short=True)
    (tmp_path / "runs").mkdir()
    said: list[str] = []
    with Catalog.open(tmp_path / "jobs.db", write=True) as catalog:
        calibrated(jobs, catalog, "here", plan, str(tmp_path / "runs"), program="test", tell=said.append)
    assert "the data are in no file system of this machine, so that none are driven out of memory" in said[0]


def test_the_whole_cache_is_dropped_only_when_told(
    tmp_path: pathlib.Path, in_memory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = tmp_path / "drop_caches"
    drop.write_text("")
    monkeypatch.setattr(cold, "_DROP", str(drop))
    files = [str(in_memory / "chunks.bin")]
    with pytest.raises(PageCacheKept, match="try --drop-caches as root"):
        cold.evict(files)
    assert drop.read_text() == ""
    with pytest.raises(PageCacheKept, match=r"move the data to a disk$"):
        cold.evict(files, machine=True)
    assert drop.read_text() == "1"
    monkeypatch.setattr(cold, "_DROP", str(tmp_path / "missing" / "drop_caches"))
    with pytest.raises(PageCacheKept, match="only root may drop"):
        cold.evict(files, machine=True)


def test_files_on_a_disk_are_driven_out_and_seen_to_be(data: pathlib.Path) -> None:
    files = [str(data / "chunks.bin")]
    assert cold.resident(files) == (CHUNKS * CHUNK, CHUNKS * CHUNK)
    assert cold.evict(files) == cold.Evicted(files=1, bytes=CHUNKS * CHUNK, kept=0)
    (data / "chunks.bin").read_bytes()
    assert cold.resident(files) == (CHUNKS * CHUNK, CHUNKS * CHUNK)


def test_where_the_data_lie_has_to_be_known(tmp_path: pathlib.Path, pair: list[str]) -> None:
    steps = ("--steps", "12", "--warmup", "2")
    assert "Name their folder with --data" in run(tmp_path, *pair, *steps, code=2)
    assert "there is no such file or folder" in run(tmp_path, *pair, *steps, "--data", "/no/such", code=2)
    (tmp_path / "empty").mkdir()
    assert "no file in it" in run(tmp_path, *pair, *steps, "--data", str(tmp_path / "empty"), code=2)
