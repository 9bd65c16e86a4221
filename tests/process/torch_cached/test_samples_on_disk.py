# SPDX-License-Identifier: Apache-2.0
"""Samples of a dataset on the disk, under a key: later runs, other processes, workers, damage, and disks that fail."""

from __future__ import annotations

import itertools
import json
import logging
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from support.waiting import wait_until
from torch.utils.data import DataLoader, SequentialSampler

import foresee.torch as ft

N = 40


class Recorded:
    """Sample i is 5000 bytes of i. Each read appends i to a file."""

    def __init__(self, folder: pathlib.Path, count: int = N) -> None:
        self.file, self.count = folder / "reads", count
        self.file.touch()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> np.ndarray:
        file = os.open(self.file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, f"{i}\n".encode())
        finally:
            os.close(file)
        return np.full(5000, i, np.uint8)

    def reads(self) -> list[int]:
        """Return the samples read since the last call."""
        read = [int(line) for line in self.file.read_text().split()]
        self.file.write_text("")
        return read


@pytest.fixture
def inner(tmp_path: pathlib.Path) -> Recorded:
    """A dataset that records its reads."""
    return Recorded(tmp_path)


def cached(inner, disk, *, key="numbers-1", ram=0, disk_size="64MB", **arguments):
    cache = ft.Cache(ram=ram, disk=disk, disk_size=disk_size)
    return ft.CachedDataset(inner, cache=cache, key=key, **arguments)


def read(dataset, samples=range(N)):
    """Read these samples and check them."""
    for i in samples:
        sample = dataset[i]
        assert (sample.dtype, sample.shape) == (np.uint8, (5000,))
        assert (sample == i).all()


def segments(disk):
    return sorted(disk.glob("*/partition-0/*.seg"))


def test_a_second_run_reads_no_sample_of_the_dataset(inner, tmp_path):
    dataset = cached(inner, tmp_path / "disk")
    read(dataset)
    assert (inner.reads(), dataset.stats()["disk_hits"]) == (list(range(N)), 0)
    read(dataset)
    assert (inner.reads(), dataset.stats()["disk_hits"]) == ([], N)
    del dataset
    dataset = cached(inner, tmp_path / "disk", ram="64MB")
    for _ in range(2):
        read(dataset)
    stats = dataset.stats()
    assert (inner.reads(), stats["misses"], stats["disk_hits"], stats["hits"]) == ([], N, N, N)


def test_samples_are_read_ahead_from_the_disk(inner, tmp_path):
    read(cached(inner, tmp_path / "disk"))
    inner.reads()
    dataset = cached(inner, tmp_path / "disk", ram="64MB", threads=2)
    sampler = ft.PrefetchSampler(SequentialSampler(dataset), dataset, fetch_size=N)
    batches = iter(DataLoader(dataset, 4, sampler=sampler))
    next(batches)
    wait_until(lambda: dataset.stats()["samples"] == N, what="reading ahead")
    assert [i for batch in batches for i in batch[:, 0].tolist()] == list(range(4, N))
    assert (inner.reads(), dataset.stats()["disk_hits"]) == ([], N)


@pytest.mark.parametrize(
    "other",
    [
        {"key": "numbers-2"},
        {"allow_pickle": True},
        {"transform": np.copy, "cache_after_transform": True},
        {"count": N + 1},
    ],
)
def test_samples_of_another_key_length_or_setting_are_not_used(inner, tmp_path, other):
    read(cached(inner, tmp_path / "disk"))
    inner.reads()
    inner.count = other.pop("count", N)
    read(cached(inner, tmp_path / "disk", **other))
    assert set(inner.reads()) == set(range(N))
    assert len(list((tmp_path / "disk").glob("key-numbers-*"))) == 2


def test_the_version_of_the_encoding_is_part_of_what_names_a_sample(inner, tmp_path, monkeypatch):
    read(cached(inner, tmp_path / "disk"))
    inner.reads()
    monkeypatch.setattr("foresee.torch.cached.dataset.ENCODING", 0)
    read(cached(inner, tmp_path / "disk"))
    assert inner.reads() == list(range(N))


def test_a_transform_runs_after_the_disk_unless_its_result_is_cached(inner, tmp_path):
    for add in (1, 2):
        dataset = cached(inner, tmp_path / "disk", transform=lambda sample, add=add: sample[:3] + add)
        assert dataset[5].tolist() == [5 + add] * 3
    dataset = cached(
        inner, tmp_path / "disk", transform=lambda sample: sample[:3], cache_after_transform=True
    )
    assert dataset[5].tolist() == [5] * 3


def test_another_process_that_runs_at_the_same_time_finds_the_samples(inner, tmp_path):
    dataset = cached(inner, tmp_path / "disk")
    read(dataset, range(0, N, 2))
    inner.reads()
    context = multiprocessing.get_context("fork")
    other = context.Process(target=read, args=(dataset,))
    other.start()
    other.join()
    assert (other.exitcode, inner.reads()) == (0, list(range(1, N, 2)))
    read(dataset)
    assert inner.reads() == [], "what the other one has read is found by this one"


def test_processes_that_read_at_the_same_time_return_right_samples(inner, tmp_path):
    context = multiprocessing.get_context("fork")
    readers = [context.Process(target=read, args=(cached(inner, tmp_path / "disk"),)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0] * 3
    inner.reads()
    read(cached(inner, tmp_path / "disk"))
    assert inner.reads() == []


def test_worker_processes_use_the_disk(inner, tmp_path):
    def run():
        dataset = cached(inner, tmp_path / "disk", ram="64MB")
        loader = DataLoader(dataset, 4, num_workers=2, multiprocessing_context="fork")
        assert [i for batch in loader for i in batch[:, 0].tolist()] == list(range(N))
        return dataset.stats()

    assert run()["disk_hits"] == 0
    assert sorted(inner.reads()) == list(range(N))
    stats = run()
    assert (inner.reads(), stats["disk_hits"], stats["samples"]) == ([], N, N)


def test_a_pickled_dataset_uses_the_disk(inner, tmp_path):
    dataset = cached(inner, tmp_path / "disk")
    read(dataset)
    inner.reads()
    read(pickle.loads(pickle.dumps(dataset)))
    assert inner.reads() == []


@pytest.mark.parametrize("damage", ["flipped", "cut", "foreign"])
def test_damaged_samples_are_read_again(inner, tmp_path, damage):
    read(cached(inner, tmp_path / "disk"))
    inner.reads()
    for path in segments(tmp_path / "disk"):
        data = bytearray(path.read_bytes())
        if damage == "flipped":
            data[300] ^= 1
        path.write_bytes({"flipped": data, "cut": data[:70_000], "foreign": b"no segment" * 1000}[damage])
    read(cached(inner, tmp_path / "disk"))
    again = inner.reads()
    assert Counter(again).most_common(1)[0][1] == 1
    assert {"flipped": len(again) == 1, "cut": 20 < len(again) < N, "foreign": len(again) == N}[damage]
    read(cached(inner, tmp_path / "disk"))
    assert inner.reads() == []


def test_a_full_budget_keeps_what_is_there(tmp_path, caplog):
    inner, disk = Recorded(tmp_path, 250), tmp_path / "disk"
    with caplog.at_level(logging.WARNING, "foresee"):
        read(cached(inner, disk, disk_size="1MiB"), range(250))
        inner.reads()
        read(cached(inner, disk, disk_size="1MiB"), range(250))
    again = inner.reads()
    assert 50 < len(again) < 150
    assert again == list(range(250 - len(again), 250))
    assert sum(path.stat().st_blocks * 512 for path in disk.rglob("*")) <= 1 << 20
    assert caplog.text == ""


def test_a_directory_that_cannot_be_used_is_one_warning(inner, tmp_path, caplog):
    (tmp_path / "file").touch()
    dataset = cached(inner, tmp_path / "file", ram="64MB")
    with caplog.at_level(logging.WARNING, "foresee"):
        read(dataset)
        loader = DataLoader(dataset, 4, num_workers=2, multiprocessing_context="fork")
        assert len(list(itertools.chain(*loader))) == N
    assert sorted(inner.reads()) == list(range(N))
    (record,) = caplog.records
    assert "read without a disk cache" in record.message
    assert "is a file" in record.message


def test_a_directory_that_vanishes_is_one_warning(tmp_path, caplog):
    inner, disk = Recorded(tmp_path, 250), tmp_path / "disk"
    dataset = cached(inner, disk, disk_size="2MB")
    read(dataset, range(3))
    subprocess.run(["rm", "-r", disk], check=True)
    with caplog.at_level(logging.WARNING, "foresee"):
        read(dataset, range(250))
        read(dataset, range(250))
    (record,) = caplog.records
    assert f"no more samples are added to the cache directory {disk}" in record.message


READ = """
import sys, logging, foresee.torch as ft
logging.basicConfig(format="%(message)s")
rows = [bytes([i]) * 5000 for i in range(40)]
dataset = ft.CachedDataset(rows, cache=ft.Cache(ram=0, disk=sys.argv[1], disk_size="64MB"), key="rows")
assert [dataset[i] for i in range(40)] == rows
print(dataset.stats()["disk_hits"])
"""


@pytest.mark.hosts
def test_a_read_only_directory_is_read_with_one_warning(tmp_path):
    disk = tmp_path / "disk"
    dataset = cached([bytes([i]) * 5000 for i in range(40)], disk, key="rows")
    assert len({dataset[i] for i in range(30)}) == 30
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && "$@"'
    unshared = ["unshare", "--mount", "sh", "-c", script, disk, sys.executable, "-c", READ, disk]
    done = subprocess.run(unshared, check=True, capture_output=True, text=True)
    assert done.stdout == "30\n"
    assert done.stderr.count("is read-only") == 1
    assert done.stderr.count("\n") == 1


def test_the_command_line_lists_verifies_and_deletes_the_samples_of_a_key(inner, tmp_path):
    disk = tmp_path / "disk"

    def run(*words):
        command = [sys.executable, "-m", "foresee", "cache", *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout)

    dataset = cached(inner, disk)
    read(dataset)
    (source,) = run("ls", disk)[1]["sources"]
    assert source["source"].startswith("key-numbers-1-")
    assert source["processes"] in ([os.getpid()], [])
    assert source["partitions_in_use"] == 1
    assert run("rm", disk, source["source"])[0] == 1
    del dataset
    (source,) = run("ls", disk)[1]["sources"]
    assert (source["entries"], source["partitions_in_use"]) == (N, 0)
    assert run("verify", disk)[1]["entries"] == N
    assert run("rm", disk, source["source"])[0] == 0
    assert run("ls", disk)[1]["sources"] == []


def test_with_foresee_off_the_disk_is_not_used(inner, tmp_path, monkeypatch):
    monkeypatch.setenv("FORESEE_OFF", "1")
    read(cached(inner, tmp_path / "disk"))
    assert not (tmp_path / "disk").exists()
