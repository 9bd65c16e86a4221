# SPDX-License-Identifier: Apache-2.0
"""Worker processes of torch's ``DataLoader`` share one cache: what they read, and what happens when one of them is lost."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.waiting import wait_until
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler, Subset, get_worker_info

import foresee.torch as ft

N = 60


class Recorded:
    """Sample i is 5000 bytes of i. Each read appends i and the number of its process to a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "reads"
        self.file.touch()

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> np.ndarray:
        line = f"{i} {os.getpid()}\n".encode()
        file = os.open(self.file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line)
        finally:
            os.close(file)
        return np.full(5000, i, np.uint8)

    def reads(self) -> list[tuple[int, int]]:
        """Return the samples read so far, each with its process."""
        return [tuple(map(int, line.split())) for line in self.file.read_text().splitlines()]

    def samples(self) -> list[int]:
        """Return the samples read so far."""
        return [sample for sample, _ in self.reads()]


def loader_of(dataset, sampler, method="fork", **options):
    context = multiprocessing.get_context(method)
    return DataLoader(dataset, 4, sampler=sampler, num_workers=2, multiprocessing_context=context, **options)


def ids(loader):
    return [i for batch in loader for i in batch[:, 0].tolist()]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("threads", [1, 4])
def test_each_sample_is_read_once_by_all_workers_together(tmp_path, persistent, threads):
    inner = Recorded(tmp_path)
    dataset = ft.CachedDataset(inner, threads=threads)
    order = DistributedSampler(dataset, 1, 0, seed=1)
    sampler = ft.PrefetchSampler(order, dataset, fetch_size=9, threshold=9)
    loader = loader_of(dataset, sampler, persistent_workers=persistent)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert ids(loader) == list(order)
    assert Counter(inner.samples()) == dict.fromkeys(range(N), 1)
    assert os.getpid() not in {process for _, process in inner.reads()}
    stats = dataset.stats()
    assert stats["misses"] + stats["fetches"] == N
    assert stats["samples"] == N


def test_workers_read_announced_samples_ahead(tmp_path):
    inner = Recorded(tmp_path)
    dataset = ft.CachedDataset(inner)
    sampler = ft.PrefetchSampler(SequentialSampler(dataset), dataset, fetch_size=40, threshold=0)
    batches = iter(loader_of(dataset, sampler))
    next(batches)
    # The loader alone has 2 batches of each worker, and those that it gives out for the one taken.
    wait_until(lambda: len(inner.reads()) >= 40, what="reading of the announced samples")
    assert sorted(inner.samples()) == list(range(40))
    assert [i for batch in batches for i in batch[:, 0].tolist()] == list(range(4, N))


@pytest.mark.parametrize("share", [0, 0.1, 0.5])
def test_a_smaller_cache_returns_the_same_and_keeps_its_capacity(tmp_path, share):
    dataset = ft.CachedDataset(Recorded(tmp_path), cache=ft.Cache(ram=int(share * N * 5200)))
    sampler = ft.PrefetchSampler(SequentialSampler(dataset), dataset)
    loader = loader_of(dataset, sampler, persistent_workers=True)
    for _ in range(3):
        assert ids(loader) == list(range(N))
    stats = dataset.stats()
    assert stats["bytes"] <= stats["capacity_bytes"]
    assert stats["hits"] + stats["joins"] + stats["misses"] >= 3 * N - 64, "but for hits not reported yet"


def test_samples_that_the_parent_has_read_are_not_read_again(tmp_path):
    inner = Recorded(tmp_path)
    dataset = ft.CachedDataset(inner)
    assert ids(DataLoader(dataset, 4)) == list(range(N))
    halves = loader_of(Subset(dataset, list(range(0, N, 2))), None)
    assert ids(halves) == list(range(0, N, 2))
    assert sorted(inner.samples()) == list(range(N))


def test_a_worker_that_is_killed_takes_no_sample_with_it(tmp_path):
    inner = Recorded(tmp_path)
    dataset = ft.CachedDataset(inner, transform=kill_at(tmp_path, 21))
    # Numbers: the memory of a tensor would be fetched from the worker, which may be gone.
    numbers = loader_of(dataset, SequentialSampler(dataset), collate_fn=first_bytes)
    with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly"):
        list(numbers)
    assert ids(loader_of(dataset, SequentialSampler(dataset))) == list(range(N))
    assert set(inner.samples()) == set(range(N))


def first_bytes(samples):
    return [int(sample[0]) for sample in samples]


def kill_at(folder, sample):
    """Return a transform that kills the worker process of a sample, once."""
    marker = folder / "killed"

    def transform(value):
        if value[0] == sample and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    return transform


def test_without_a_directory_for_the_socket_each_worker_has_a_cache_of_its_own(tmp_path, monkeypatch, caplog):
    home = tmp_path / "open"
    (home / "foresee").mkdir(parents=True)
    (home / "foresee").chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    dataset = ft.CachedDataset(Recorded(tmp_path))
    with caplog.at_level(logging.WARNING, "foresee"):
        assert ids(loader_of(dataset, SequentialSampler(dataset))) == list(range(N))
    assert "worker processes do not share the cache of this process" in caplog.text
    assert str(home) in caplog.text


def test_the_statistics_of_a_worker_are_those_of_all(tmp_path):
    dataset = ft.CachedDataset(Recorded(tmp_path))
    dataset.transform = lambda value: (int(value[0]), get_worker_info().id, dataset.stats()["samples"])
    rows = list(itertools.chain(*loader_of(dataset, SequentialSampler(dataset), collate_fn=list)))
    assert max(samples for _, _, samples in rows) > N // 2


def test_another_process_has_a_cache_of_its_own(tmp_path):
    inner = Recorded(tmp_path)
    dataset = ft.CachedDataset(inner)
    assert ids(DataLoader(dataset, 4)) == list(range(N))
    rank = multiprocessing.get_context("fork").Process(target=read_all, args=(dataset,))
    rank.start()
    rank.join()
    assert rank.exitcode == 0
    assert Counter(inner.samples()) == dict.fromkeys(range(N), 2)


def read_all(dataset):
    sampler = ft.PrefetchSampler(SequentialSampler(dataset), dataset)
    assert ids(DataLoader(dataset, 4, sampler=sampler)) == list(range(N))


def test_workers_of_a_loader_of_foresee_share_the_cache_too(tmp_path):
    inner = Recorded(tmp_path)
    dataset = ft.CachedDataset(inner)
    loader = ft.DataLoader(dataset, 4, num_workers=2, shuffle=True, seed=3)
    for _ in range(2):
        assert sorted(ids(loader)) == list(range(N))
    assert Counter(inner.samples()) == dict.fromkeys(range(N), 1)
