# SPDX-License-Identifier: Apache-2.0
"""A cached dataset with ``__getitems__`` is read in batches, and returns what it returns without a cache."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from support.waiting import wait_until
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, SequentialSampler, Subset

import foresee.torch as ft
from foresee.errors import ConfigError

N = 200


class Batched:
    """Records the indices of each call; sample i is 100 bytes of i."""

    def __init__(self) -> None:
        self.alone: list[int] = []
        self.batches: list[list[int]] = []
        self.failing: set[int] = set()
        self.change = list
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> np.ndarray:
        with self.lock:
            self.alone.append(i)
        return self.sample(i)

    def __getitems__(self, indices: list[int]) -> list[np.ndarray]:
        with self.lock:
            self.batches.append(indices)
        return self.change(self.sample(i) for i in indices)

    def sample(self, i: int) -> np.ndarray:
        if i in self.failing:
            raise ValueError(f"row {i} is damaged")
        if not -N <= i < N:
            raise IndexError(f"no row {i}")
        return np.full(100, i % N, np.uint8)

    def read(self) -> list[int]:
        """Return the indices read so far, sorted."""
        return sorted([*self.alone, *(i for batch in self.batches for i in batch)])


def ids(loader):
    return [batch[:, 0].tolist() for batch in loader]


def announcing(dataset, sampler, batch_size=8, **sizes):
    return DataLoader(dataset, batch_size, sampler=ft.PrefetchSampler(sampler, dataset, **sizes))


def test_missing_samples_of_a_batch_are_read_by_one_call():
    inner = Batched()
    dataset = ft.CachedDataset(inner)
    assert [row[0] for row in dataset.__getitems__([7, 3])] == [7, 3]
    assert (inner.alone, inner.batches) == ([7, 3], []), "the first two are checked for random numbers"
    assert [row[0] for row in dataset.__getitems__([5, 3, 9, 7, 1])] == [5, 3, 9, 7, 1]
    assert [row[0] for row in dataset.__getitems__([1, 9])] == [1, 9]
    assert inner.batches == [[5, 9, 1]]
    assert dataset.stats()["misses"] == 5
    assert dataset.stats()["hits"] == 4


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("share", [0.0, 0.2, 2.0])
def test_batches_are_those_of_the_dataset(threads, share):
    inner = Batched()
    dataset = ft.CachedDataset(inner, threads=threads, cache=ft.Cache(ram=int(share * N * 200)))
    for _ in range(3):
        torch.manual_seed(3)
        expected = ids(DataLoader(Batched(), 8, sampler=RandomSampler(range(N))))
        torch.manual_seed(3)
        assert ids(announcing(dataset, RandomSampler(range(N)))) == expected
    if share > 1:
        assert inner.read() == list(range(N))


def test_announced_samples_are_read_in_growing_bounded_groups():
    inner = Batched()
    dataset = ft.CachedDataset(inner)
    batches = iter(announcing(dataset, SequentialSampler(dataset), fetch_size=N, threshold=0))
    next(batches)
    wait_until(lambda: dataset.stats()["samples"] == N, what="reading of the announced samples")
    assert inner.read() == list(range(N))
    sizes = [len(batch) for batch in inner.batches]
    assert max(sizes) == 64
    assert len(sizes) + len(inner.alone) < N // 4
    assert [i for batch in batches for i in batch[:, 0].tolist()] == list(range(8, N))


def test_a_group_fills_a_small_part_of_the_cache():
    inner = Batched()
    dataset = ft.CachedDataset(inner, cache=ft.Cache(ram=9000))
    list(announcing(dataset, SequentialSampler(dataset), batch_size=1, fetch_size=20, threshold=20))
    stats = dataset.stats()
    most = max(len(batch) for batch in inner.batches)
    assert 1 < most <= 9000 / 8 / (stats["bytes"] / stats["samples"])


def test_an_error_in_a_group_is_that_of_one_sample():
    inner = Batched()
    inner.failing = {50}
    dataset = ft.CachedDataset(inner)
    batches = iter(announcing(dataset, SequentialSampler(dataset), batch_size=10, fetch_size=N, threshold=0))
    next(batches)
    wait_until(lambda: dataset.stats()["samples"] == N - 1, what="reading of the others")
    for first in range(10, 50, 10):
        assert next(batches)[:, 0].tolist() == list(range(first, first + 10))
    with pytest.raises(ValueError, match="row 50 is damaged"):
        next(batches)
    assert inner.batches[-1] == [50]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda samples: list(samples)[1:],
            r"__getitems__ of Batched returned \d+ samples for \d+ indices; return",
        ),
        (
            lambda samples: [*samples, 0],
            r"__getitems__ of Batched returned \d+ samples for \d+ indices; return",
        ),
        (
            lambda samples: np.stack(list(samples)),
            "__getitems__ of Batched returned a ndarray; return a list",
        ),
    ],
    ids=["fewer", "more", "array"],
)
@pytest.mark.parametrize("is_announced", [False, True])
def test_a_dataset_that_returns_another_number_of_samples_is_reported(change, message, is_announced):
    inner = Batched()
    inner.change = change
    dataset = ft.CachedDataset(inner)
    sampler = SequentialSampler(dataset)
    loader = announcing(dataset, sampler) if is_announced else DataLoader(dataset, 8, sampler=sampler)
    with pytest.raises(ConfigError, match=message):
        list(loader)


def test_errors_of_a_batch_are_those_of_torch():
    inner = Batched()
    inner.failing = {5}
    for dataset in (inner, ft.CachedDataset(inner)):
        with pytest.raises(ValueError, match="row 5 is damaged"):
            list(DataLoader(dataset, 4))
        with pytest.raises(IndexError, match="no row 200"):
            list(DataLoader(dataset, 4, sampler=[1, 2, 3, 200]))
    with pytest.raises(TypeError):
        ft.CachedDataset(inner).__getitems__(["a"])


def test_indices_that_are_repeated_or_counted_from_the_end_are_those_of_the_dataset():
    dataset = ft.CachedDataset(Batched())
    for _ in range(2):
        rows = dataset.__getitems__([3, 3, -1, 4, 4, np.int64(5), -1])
        assert [row[0] for row in rows] == [3, 3, N - 1, 4, 4, 5, N - 1]
    rows[3][:] = 0
    assert rows[4][0] == dataset[4][0] == 4


def test_a_transform_runs_for_each_sample_unless_its_result_is_cached():
    for is_after in (False, True):
        calls = []

        def double(row):
            calls.append(int(row[0]))  # noqa: B023 - within its turn of the loop
            return torch.from_numpy(row.astype(np.int64)) * 2

        dataset = ft.CachedDataset(Batched(), transform=double, cache_after_transform=is_after)
        for _ in range(3):
            assert [int(row[0]) for row in dataset.__getitems__([5, 6, 7, 8])] == [10, 12, 14, 16]
        assert calls.count(8) == (1 if is_after else 3)


def test_only_a_dataset_that_reads_batches_is_read_in_batches():
    class Plain:
        __len__ = Batched.__len__
        __getitem__ = Batched.sample
        failing = ()

    assert ft.CachedDataset(Plain()).__getitems__ is None
    assert ft.CachedDataset(Subset(Plain(), [1, 2])).__getitems__ is None
    assert ft.CachedDataset(ConcatDataset([Batched(), Batched()])).__getitems__ is None
    inner = Batched()
    for dataset in (
        ft.CachedDataset(Subset(inner, list(range(0, N, 2)))),
        Subset(ft.CachedDataset(inner), range(0, N, 2)),
    ):
        inner.batches.clear()
        assert ids(DataLoader(dataset, 10)) == [list(range(i, i + 20, 2)) for i in range(0, N, 20)]
        assert len(inner.batches) == 10
    joined = ConcatDataset([ft.CachedDataset(Batched()), ft.CachedDataset(Plain())])
    assert [i for batch in ids(DataLoader(joined, 16)) for i in batch] == [*range(N), *range(N)]


def test_without_a_cache_the_dataset_is_called(monkeypatch):
    monkeypatch.setenv("FORESEE_OFF", "1")
    inner = Batched()
    dataset = ft.CachedDataset(inner, transform=lambda row: row + 1)
    assert [row[0] for row in dataset.__getitems__([1, 2, 1])] == [2, 3, 2]
    assert inner.batches == [[1, 2, 1]]


class Recorded:
    """Sample i is 100 bytes of i. Each call appends a line with its indices to a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "reads"
        self.file.touch()

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> np.ndarray:
        return self.__getitems__([i])[0]

    def __getitems__(self, indices: list[int]) -> list[np.ndarray]:
        file = os.open(self.file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, (" ".join(map(str, indices)) + "\n").encode())
        finally:
            os.close(file)
        return [np.full(100, i, np.uint8) for i in indices]

    def calls(self) -> list[list[int]]:
        """Return the indices of each call so far."""
        return [list(map(int, line.split())) for line in self.file.read_text().splitlines()]


@pytest.mark.parametrize(("method", "is_announced"), [("fork", False), ("fork", True), ("spawn", True)])
def test_workers_read_each_sample_once_in_batches(tmp_path, method, is_announced):
    inner = Recorded(tmp_path)
    dataset = ft.CachedDataset(inner)
    order = list(np.random.default_rng(1).permutation(N))
    sampler = ft.PrefetchSampler(order, dataset) if is_announced else order
    context = multiprocessing.get_context(method)
    loader = DataLoader(
        dataset, 20, sampler=sampler, num_workers=2, multiprocessing_context=context, persistent_workers=True
    )
    for _ in range(2):
        assert [i for batch in ids(loader) for i in batch] == order
    assert sorted(i for call in inner.calls() for i in call) == list(range(N))
    assert len(inner.calls()) < N // 2
