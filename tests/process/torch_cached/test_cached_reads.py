# SPDX-License-Identifier: Apache-2.0
"""Which reads of a dataset a cache saves, and what happens when reads fail or the dataset changes."""

from __future__ import annotations

import itertools
import logging
import pathlib
import random
import threading

import numpy as np
import pytest
import torch
from support.waiting import wait_until
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
)

import foresee.torch as ft
from foresee.errors import ConfigError
from foresee.torch.cached.encode import encode

N = 40
SIZE = 1000


class Counted:
    """Counts its calls; sample i is 1000 bytes of i."""

    def __init__(self, count: int = N) -> None:
        self.count = count
        self.reads: list[int] = []
        self.failing: set[int] = set()
        self.running = self.most = 0
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> np.ndarray:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.reads.append(i)
        try:
            if i in self.failing:
                raise ValueError(f"row {i} is damaged")
            if not 0 <= i < self.count:
                raise IndexError(f"no row {i}")
            return np.full(SIZE, i, np.uint8)
        finally:
            with self.lock:
                self.running -= 1


def loader_of(dataset, sampler, batch_size=4, **sizes):
    return DataLoader(dataset, batch_size, sampler=ft.PrefetchSampler(sampler, dataset, **sizes))


def ids(loader):
    return [batch[:, 0].tolist() for batch in loader]


def test_a_cache_for_all_samples_reads_each_once():
    inner = Counted()
    dataset = ft.CachedDataset(inner)
    loader = loader_of(dataset, RandomSampler(dataset))
    for _ in range(3):
        assert sorted(itertools.chain(*ids(loader))) == list(range(N))
    assert sorted(inner.reads) == list(range(N))
    assert inner.most == 1, "one thread reads one sample at a time"


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.8])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_smaller_cache_returns_the_same_and_keeps_its_capacity(share, threads):
    inner = Counted()
    dataset = ft.CachedDataset(inner, cache=ft.Cache(ram=int(share * N * (SIZE + 100))), threads=threads)
    loader = loader_of(dataset, DistributedSampler(dataset, 1, 0, seed=1))
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        assert list(itertools.chain(*ids(loader))) == list(loader.sampler)
    stats = dataset.stats()
    assert stats["bytes"] <= stats["capacity_bytes"]
    assert stats["hits"] + stats["joins"] + stats["misses"] >= 3 * N


@pytest.mark.parametrize("is_seeded", [True, False])
def test_a_cache_of_half_the_samples_serves_about_half_of_each_later_epoch(is_seeded):
    size = len(encode(Counted()[0]))
    inner = Counted()
    dataset = ft.CachedDataset(inner, cache=ft.Cache(ram=N // 2 * size))
    sampler = DistributedSampler(dataset, 1, 0, seed=2) if is_seeded else RandomSampler(dataset)
    loader = loader_of(dataset, sampler, batch_size=1, fetch_size=1, threshold=1)
    for epoch in range(5):
        if is_seeded:
            loader.sampler.set_epoch(epoch)
        assert len(ids(loader)) == N
    # Samples in the window, and the one in flight, take the place of others.
    assert len(inner.reads) <= N + 4 * (N // 2 + 4)


def test_announced_samples_are_read_before_they_are_requested():
    inner = Counted()
    dataset = ft.CachedDataset(inner)
    loader = loader_of(dataset, SequentialSampler(dataset), fetch_size=8, threshold=4)
    batches = iter(loader)
    next(batches)
    wait_until(lambda: len(inner.reads) >= 8, what="reading of the announced samples")
    assert max(inner.reads) < 16


def test_the_first_samples_of_the_next_epoch_are_read_when_this_one_ends():
    inner = Counted(6 * N)
    dataset = ft.CachedDataset(inner, cache=ft.Cache(ram=20 * (SIZE + 100)))
    sampler = DistributedSampler(dataset, 6, 0, seed=4)
    loader = loader_of(dataset, sampler, fetch_size=8, threshold=8)
    assert list(itertools.chain(*ids(loader))) == list(sampler)
    sampler.set_epoch(1)
    order = list(sampler)
    wait_until(lambda: set(order[:8]) <= set(inner.reads), what="reading of the next epoch's first samples")
    misses = dataset.stats()["misses"]
    batches = iter(loader)
    assert next(batches)[:, 0].tolist() + next(batches)[:, 0].tolist() == order[:8]
    assert dataset.stats()["misses"] == misses


def test_an_iterator_that_is_left_withdraws_its_announcements():
    inner = Counted()
    dataset = ft.CachedDataset(inner)
    loader = loader_of(dataset, SequentialSampler(dataset))
    for _ in loader:
        break
    assert ids(loader) == ids(DataLoader(Counted(), 4, sampler=range(N)))
    assert sorted(inner.reads) == list(range(N))


def test_changing_a_sample_does_not_change_the_cache():
    dataset = ft.CachedDataset(Counted())
    dataset[3][:] = 99
    assert dataset[3][0] == 3


def test_a_sample_that_cannot_be_read_raises_its_own_error_and_is_tried_again():
    inner = Counted()
    inner.failing = {5}
    dataset = ft.CachedDataset(inner)
    loader = loader_of(dataset, SequentialSampler(dataset))
    batches = iter(loader)
    assert next(batches)[:, 0].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="row 5 is damaged"):
        next(batches)
    inner.failing = set()
    assert len(ids(loader)) == N // 4


def test_a_dataset_that_raises_in_a_worker_raises_as_in_torch():
    inner = Counted()
    inner.failing = {5}
    inner.lock = NoLock()
    loader = DataLoader(ft.CachedDataset(inner), 4, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(ValueError, match="row 5 is damaged"):
        list(loader)


class NoLock:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def test_a_sampler_that_repeats_or_leaves_the_range_acts_as_without_a_cache():
    dataset = ft.CachedDataset(Counted())
    assert ids(loader_of(dataset, [1, 1, 1, 2, np.int64(1)])) == [[1, 1, 1, 2], [1]]
    with pytest.raises(IndexError, match="no row 40"):
        ids(loader_of(dataset, [1, 2, 3, 40]))
    listed = ft.CachedDataset([torch.tensor([i]) for i in range(5)])
    assert ids(loader_of(listed, [-1, 0])) == [[4, 0]]
    with pytest.raises(TypeError):
        dataset["a"]


def test_a_sampler_that_never_ends_is_read_as_far_as_needed():
    taken = []

    def endless():
        for i in itertools.count():
            taken.append(i)
            yield i % N

    dataset = ft.CachedDataset(Counted())
    batches = iter(loader_of(dataset, endless(), fetch_size=6, threshold=2))
    for _ in range(30):
        next(batches)
    assert len(taken) <= 30 * 4 + 6 + 2 + 4


def test_a_window_larger_than_the_cache_is_reported_once_and_still_right(caplog):
    dataset = ft.CachedDataset(Counted(), cache=ft.Cache(ram=5 * SIZE))
    loader = loader_of(dataset, SequentialSampler(dataset), fetch_size=50, threshold=50)
    with caplog.at_level(logging.WARNING, "foresee"):
        for _ in range(2):
            assert list(itertools.chain(*ids(loader))) == list(range(N))
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "more samples than the cache holds" in caplog.text


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_prefetch_sampler_inside_of_the_sharding_among_ranks_is_reported(caplog, ranks):
    class Sharded:
        def __init__(self, batches):
            self.batches = batches

        def __iter__(self):
            return itertools.islice(self.batches, 0, None, ranks)

        def __len__(self):
            return len(self.batches) // ranks

    inner = Counted(200)
    dataset = ft.CachedDataset(inner)
    batches = ft.PrefetchSampler(BatchSampler(SequentialSampler(dataset), 2, False), dataset)
    with caplog.at_level(logging.WARNING, "foresee"):
        list(DataLoader(dataset, batch_sampler=Sharded(batches)))
    assert "it has to be the outermost sampler" in caplog.text
    caplog.clear()
    outer = ft.PrefetchSampler(Sharded(BatchSampler(SequentialSampler(dataset), 2, False)), dataset)
    with caplog.at_level(logging.WARNING, "foresee"):
        list(DataLoader(dataset, batch_sampler=outer))
    assert caplog.text == ""


def test_skipping_the_head_of_an_epoch_is_not_reported(caplog):
    dataset = ft.CachedDataset(Counted(200))
    sampler = iter(ft.PrefetchSampler(SequentialSampler(dataset), dataset, fetch_size=8, threshold=8))
    with caplog.at_level(logging.WARNING, "foresee"):
        for place, i in enumerate(sampler):
            if place >= 100:
                assert dataset[i][0] == i
    assert caplog.text == ""


def test_another_length_empties_the_cache_with_one_warning(caplog):
    inner = Counted()
    dataset = ft.CachedDataset(inner)
    loader = loader_of(dataset, SequentialSampler(dataset))
    ids(loader)
    inner.count = N + 4
    with caplog.at_level(logging.WARNING, "foresee"):
        assert list(itertools.chain(*ids(loader_of(dataset, SequentialSampler(dataset))))) == list(
            range(N + 4)
        )
    assert caplog.text.count("had 40 samples and has 44 now") == 1
    assert len(inner.reads) == 2 * N + 4


def test_a_dataset_that_draws_random_numbers_is_reported(caplog):
    class Noisy(Counted):
        def __getitem__(self, i):
            return torch.rand(3)

    with caplog.at_level(logging.WARNING, "foresee"):
        ft.CachedDataset(Counted())[0]
        assert caplog.text == ""
        ft.CachedDataset(Noisy())[0]
    assert "move random transforms to transform=" in caplog.text


def test_a_transform_runs_at_every_access_unless_its_result_is_cached():
    calls = []

    def double(sample):
        calls.append(int(sample[0]))
        return torch.from_numpy(sample) * 2

    dataset = ft.CachedDataset(Counted(), transform=double)
    assert [int(dataset[3][0]) for _ in range(3)] == [6, 6, 6]
    assert calls == [3, 3, 3]
    calls.clear()
    dataset = ft.CachedDataset(Counted(), transform=double, cache_after_transform=True)
    assert [int(dataset[i][0]) for i in (3, 4, 5, 5, 5, 3)] == [6, 8, 10, 10, 10, 6]
    assert calls.count(5) == 1


@pytest.mark.parametrize(
    "noise",
    [lambda: torch.rand(3), random.random, np.random.rand],
    ids=["torch", "random", "numpy"],
)
def test_a_random_transform_is_not_cached_after(noise):
    state = torch.get_rng_state()
    dataset = ft.CachedDataset(Counted(), transform=lambda _: noise(), cache_after_transform=True)
    with pytest.raises(ConfigError, match="is not the same under two seeds"):
        dataset[0]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_value_of_another_type_is_refused_at_its_request():
    loader = DataLoader(ft.CachedDataset([{1, 2}, {3}]), collate_fn=list)
    with pytest.raises(ConfigError, match="of type set"):
        list(loader)
    loader = DataLoader(ft.CachedDataset([{1, 2}, {3}], allow_pickle=True), collate_fn=list)
    assert list(loader) == [[{1, 2}], [{3}]]


def test_threads_end_with_their_dataset():
    def names():
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("foresee-cached")]

    dataset = ft.CachedDataset(Counted(), threads=3)
    loader = loader_of(dataset, SequentialSampler(dataset))
    before = len(names())
    ids(loader)
    assert len(names()) == before + 3
    del loader, dataset
    wait_until(lambda: len(names()) <= before, what="the end of the threads")


def test_the_bytes_of_our_datasets_are_cached_before_they_are_decoded(tmp_path: pathlib.Path):
    for i in range(6):
        (tmp_path / f"{i}.bin").write_bytes(bytes([i] * 10))
    decoded = []

    def decode(data):
        decoded.append(data[0])
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    inner = ft.FileDataset([f"{i}.bin" for i in range(6)], list(range(6)), root=tmp_path, decode=decode)
    for wrapped, expected in ((inner, range(6)), (Subset(inner, [4, 1]), [4, 1])):
        dataset = ft.CachedDataset(wrapped)
        for _ in range(2):
            batches = list(loader_of(dataset, SequentialSampler(dataset), 2))
            assert [target for _, targets in batches for target in targets.tolist()] == list(expected)
            assert [row[0] for data, _ in batches for row in data.tolist()] == list(expected)
        stats = dataset.stats()
        assert (stats["samples"], stats["misses"] + stats["fetches"]) == (len(expected), len(expected))
    assert len(decoded) == 2 * 6 + 2 * 2


def test_files_of_ours_without_bytes_are_tensors_without_elements(tmp_path: pathlib.Path):
    sizes = (0, 3, 0)
    for i, size in enumerate(sizes):
        (tmp_path / f"{i}.bin").write_bytes(bytes(size))
    dataset = ft.CachedDataset(ft.FileDataset([f"{i}.bin" for i in range(3)], root=tmp_path, decode=None))
    for _ in range(2):
        for sample, size in zip(dataset.__getitems__([0, 1, 2]), sizes, strict=True):
            assert (sample.dtype, sample.shape) == (torch.uint8, (size,))
