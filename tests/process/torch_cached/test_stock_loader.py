# SPDX-License-Identifier: Apache-2.0
"""The stock ``DataLoader`` with a ``CachedDataset`` and a ``PrefetchSampler`` returns what it returns without them."""

from __future__ import annotations

import multiprocessing
import random
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

import foresee.torch as ft

N = 45
EPOCHS = 3
WORKERS = 2


class Rows:
    """Sample i is a dict of an array, a tensor, texts and numbers."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, object]:
        return {
            "array": np.full((3, 2), i, np.float32),
            "tensor": torch.full((2, 2), i, dtype=torch.bfloat16),
            "pair": (i, i / 3, f"row {i}", True),
            "bytes": [bytes([i]), None],
        }


def add_noise(sample: dict[str, object]) -> dict[str, object]:
    """Draw from all global generators."""
    noise = torch.rand(2) + random.random() + np.random.rand()  # noqa: NPY002 - as transforms do
    return {**sample, "bytes": sample["bytes"][0], "noise": noise}


def without_none(sample: dict[str, object]) -> dict[str, object]:
    return {**sample, "bytes": sample["bytes"][0]}


def same(one: object, other: object) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


class Plain:
    """The dataset without a cache."""

    def __init__(self, dataset, transform):
        self.dataset, self.transform = dataset, transform

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return self.transform(self.dataset[i])


def epochs_of(make, transform, *, cached: bool, leaves_early: bool = False):
    """Return all batches of some epochs, and the states of the generators after them."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    generator = torch.Generator().manual_seed(11)
    dataset = ft.CachedDataset(Rows(), transform=transform) if cached else Plain(Rows(), transform)

    def announced(sampler):
        return ft.PrefetchSampler(sampler, dataset, fetch_size=7, threshold=5) if cached else sampler

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader, set_epoch = make(dataset, announced, generator)
        batches = []
        for epoch in range(EPOCHS):
            set_epoch(epoch)
            for step, batch in enumerate(loader):
                batches.append(batch)
                if leaves_early and epoch == 1 and step == 2:
                    break
    return batches, [torch.get_rng_state(), generator.get_state()], dataset


def no_epoch(_epoch):
    pass


def distributed(dataset, announced, _generator, **options):
    sampler = announced(DistributedSampler(dataset, 2, 1, seed=3))
    return DataLoader(dataset, 4, sampler=sampler, **options), sampler.set_epoch


def batched(dataset, announced, _generator, **options):
    sampler = announced(BatchSampler(DistributedSampler(dataset, 2, 0, seed=3), 4, drop_last=True))
    inner = getattr(sampler, "sampler", sampler)
    return DataLoader(dataset, batch_sampler=sampler, **options), inner.set_epoch


def dropping(dataset, announced, _generator, **options):
    return DataLoader(
        dataset, 4, sampler=announced(SequentialSampler(dataset)), drop_last=True, **options
    ), no_epoch


def shuffled(dataset, announced, _generator, **options):
    return DataLoader(dataset, 4, sampler=announced(RandomSampler(dataset)), **options), no_epoch


def generated(dataset, announced, generator, **options):
    sampler = announced(RandomSampler(dataset, generator=generator))
    return DataLoader(dataset, 4, sampler=sampler, generator=generator, **options), no_epoch


def weighted(dataset, announced, _generator, **options):
    sampler = announced(WeightedRandomSampler([1.0, 2.0, 3.0] * 15, 60))
    return DataLoader(dataset, 4, sampler=sampler, **options), no_epoch


ORDERS = [distributed, batched, dropping, shuffled, generated, weighted]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
@pytest.mark.parametrize("leaves_early", [False, True])
def test_batches_and_generators_are_those_of_torch(order, leaves_early):
    ours = epochs_of(order, add_noise, cached=True, leaves_early=leaves_early)
    torchs = epochs_of(order, add_noise, cached=False, leaves_early=leaves_early)
    assert same(ours[0], torchs[0])
    assert same(ours[1], torchs[1])


def with_workers(order, method, *, persistent):
    """Return ``order`` with worker processes."""

    def make(dataset, announced, generator):
        return order(
            dataset,
            announced,
            generator,
            num_workers=WORKERS,
            multiprocessing_context=multiprocessing.get_context(method),
            persistent_workers=persistent,
        )

    return make


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("order", [distributed, batched, generated], ids=lambda order: order.__name__)
def test_batches_of_forked_workers_are_those_of_torch(order, persistent):
    make = with_workers(order, "fork", persistent=persistent)
    ours, torchs = (epochs_of(make, add_noise, cached=cached) for cached in (True, False))
    assert same(ours[0], torchs[0])
    assert same(ours[1], torchs[1])
    assert_read_once(ours[2], ended=WORKERS if persistent else WORKERS * EPOCHS)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_batches_of_fresh_workers_are_those_of_torch(method):
    ours = epochs_of(with_workers(distributed, method, persistent=True), add_noise, cached=True)
    # The start method changes no batch of torch's loader.
    torchs = epochs_of(with_workers(distributed, "fork", persistent=True), add_noise, cached=False)
    assert same(ours[0], torchs[0])
    assert same(ours[1], torchs[1])
    assert_read_once(ours[2], ended=WORKERS)


def assert_read_once(dataset, *, ended):
    """Worker processes share the samples that any of them has read. Each of the `ended` ones may lose one that it reads ahead."""
    stats = dataset.stats()
    assert stats["samples"] > N // 2
    assert 0 <= stats["misses"] + stats["fetches"] - stats["samples"] <= ended


def test_a_loader_of_foresee_takes_a_cached_dataset():
    def values(dataset):
        loader = ft.DataLoader(dataset, 4, shuffle=True, seed=5)
        return [batch["pair"][0].tolist() for _ in range(2) for batch in loader]

    dataset = ft.CachedDataset(Rows(), transform=without_none)
    assert values(dataset) == values(Plain(Rows(), without_none))
    assert dataset.stats()["misses"] == N


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_foresee_takes_a_prefetch_sampler(workers):
    def values(cached):
        dataset = ft.CachedDataset(Rows(), transform=without_none) if cached else Plain(Rows(), without_none)
        sampler = order = DistributedSampler(dataset, 2, 1, seed=3)
        if cached:
            sampler = ft.PrefetchSampler(order, dataset, fetch_size=7, threshold=5)
        loader = ft.DataLoader(dataset, 4, sampler=sampler, num_workers=workers)
        batches = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            batches += [batch["pair"][0].tolist() for batch in loader]
        return batches, dataset

    (ours, dataset), (torchs, _) = values(cached=True), values(cached=False)
    assert ours == torchs
    assert_read_once(dataset, ended=workers)
    assert dataset.stats()["fetches"] > 0


def test_foresee_off_reads_the_dataset_itself(monkeypatch):
    monkeypatch.setenv("FORESEE_OFF", "1")
    ours, _, dataset = epochs_of(distributed, add_noise, cached=True)
    assert same(ours, epochs_of(distributed, add_noise, cached=False)[0])
    assert dataset.stats()["misses"] == 0
