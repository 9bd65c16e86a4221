# SPDX-License-Identifier: Apache-2.0
"""Arguments of ``CachedDataset`` and ``PrefetchSampler``: faults, defaults, and what is passed on."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)

import foresee.torch as ft
from foresee.errors import ConfigError

N = 23


def numbers():
    return TensorDataset(torch.arange(N))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Unsized:
    def __getitem__(self, i):
        return i


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (object(), "object has no __getitem__"),
        (Unsized(), "Unsized has no __len__"),
        (Stream(), "an IterableDataset has no indices"),
    ],
)
def test_a_dataset_that_is_not_map_style_is_refused(dataset, words):
    with pytest.raises(ConfigError, match=words):
        ft.CachedDataset(dataset)


def test_a_dataset_is_not_cached_twice():
    with pytest.raises(ConfigError, match="is a CachedDataset already"):
        ft.CachedDataset(ft.CachedDataset(numbers()))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"cache": "8GB"}, r'such as Cache\(ram="8GB"\)'),
        ({"cache": ft.Cache(disk="/nvme", disk_size="1GB")}, r"disk='/nvme' of the cache without key="),
        (
            {"cache": ft.Cache(disk="/nvme", disk_size="1KB"), "key": "a"},
            "disk_size='1KB' of the cache; 1MiB",
        ),
        (
            {"cache": ft.Cache(), "key": "a"},
            r"key='a' without a disk: .*; pass cache=Cache\(disk=, disk_size=\)",
        ),
        ({"key": "a"}, "key='a' without a disk: .*FORESEE_CACHE_DIR"),
        ({"key": ""}, "key=''; a name of the data expected"),
        ({"key": " "}, "key=' '; a name"),
        ({"key": 3}, "key=3; a name"),
        ({"threads": 0}, "threads=0; a whole number of 1 or more"),
        ({"threads": True}, "threads=True"),
        ({"transform": 3}, "transform=3; a callable"),
        ({"cache_after_transform": True}, "cache_after_transform=True without transform="),
    ],
)
def test_wrong_arguments_of_a_dataset_are_named(arguments, words):
    with pytest.raises(ConfigError, match=words):
        ft.CachedDataset(numbers(), **arguments)


def test_all_faults_are_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        ft.CachedDataset(object(), cache=3, threads=-1)
    assert len(caught.value.faults) == 3


def test_the_disk_of_the_environment_needs_a_key(monkeypatch, tmp_path):
    monkeypatch.setenv("FORESEE_CACHE_DIR", str(tmp_path / "disk"))
    monkeypatch.setenv("FORESEE_DISK_SIZE", "16MB")
    assert ft.CachedDataset(numbers())[3] == (torch.tensor(3),)
    assert not (tmp_path / "disk").exists()
    assert ft.CachedDataset(numbers(), key="numbers")[3] == (torch.tensor(3),)
    again = ft.CachedDataset(numbers(), key="numbers")
    assert (again[3], again.stats()["disk_hits"]) == ((torch.tensor(3),), 1)


def test_a_disk_of_no_bytes_is_none(tmp_path):
    for arguments in ({}, {"key": "numbers"}):
        cache = ft.Cache(disk=tmp_path / "disk", disk_size=0)
        assert ft.CachedDataset(numbers(), cache=cache, **arguments)[3] == (torch.tensor(3),)
    assert not (tmp_path / "disk").exists()


def test_one_cache_is_for_one_dataset():
    cache = ft.Cache(ram="1MB")
    first = ft.CachedDataset(numbers(), cache=cache)
    with pytest.raises(ConfigError, match="in use by another dataset or loader"):
        ft.CachedDataset(numbers(), cache=cache)
    del first
    ft.CachedDataset(numbers(), cache=cache)


def test_attributes_pass_through_but_not_the_way_past_the_cache():
    class Named(TensorDataset):
        classes = ("a", "b")

        def __getitems__(self, indices):
            raise AssertionError("past the cache")

    dataset = ft.CachedDataset(Named(torch.arange(N)))
    assert (dataset.classes, len(dataset)) == (("a", "b"), N)
    first = [dataset[i] for i in range(3)]
    assert dataset.__getitems__([0, 1, 2]) == first, "from memory"
    assert ft.CachedDataset(numbers()).__getitems__ is None
    with pytest.raises(AttributeError, match="absent"):
        _ = dataset.absent


def test_a_pickled_dataset_has_its_arguments_and_an_empty_cache():
    dataset = ft.CachedDataset(numbers(), cache=ft.Cache(ram="1MB"), transform=repr)
    assert dataset[3] == "(tensor(3),)"
    again = pickle.loads(pickle.dumps(dataset))
    assert again.stats()["samples"] == 0
    assert (again[3], again.stats()["capacity_bytes"]) == ("(tensor(3),)", 1_000_000)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fetch_size": 0}, "fetch_size=0; a whole number of 1 or more"),
        ({"fetch_size": 1.5}, "fetch_size=1.5"),
        ({"threshold": -1}, "threshold=-1; a whole number of 0 or more"),
        ({"sampler": 3}, "sampler=3; a sampler or batch sampler"),
        (
            {"dataset": Subset(ft.CachedDataset(numbers()), [1])},
            "dataset=Subset; pass the CachedDataset itself",
        ),
    ],
)
def test_wrong_arguments_of_a_sampler_are_named(arguments, words):
    dataset = ft.CachedDataset(numbers())
    with pytest.raises(ConfigError, match=words):
        ft.PrefetchSampler(**{"sampler": SequentialSampler(dataset), "dataset": dataset, **arguments})


def test_a_sampler_passes_on_its_length_its_epoch_and_its_attributes_but_no_state():
    class Stateful(DistributedSampler):
        def state_dict(self):
            raise AssertionError("it is ahead")

    dataset = ft.CachedDataset(numbers())
    inner = Stateful(dataset, 2, 1)
    sampler = ft.PrefetchSampler(inner, dataset)
    sampler.set_epoch(3)
    assert (inner.epoch, len(sampler), sampler.num_replicas) == (3, 12, 2)
    assert not hasattr(sampler, "state_dict")
    batches = ft.PrefetchSampler(BatchSampler(inner, 5, False), dataset)
    batches.set_epoch(4)
    assert (inner.epoch, len(batches), batches.batch_size) == (4, 3, 5)
    with pytest.raises(TypeError):
        len(ft.PrefetchSampler(iter([1]), dataset))
