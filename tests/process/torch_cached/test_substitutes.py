# SPDX-License-Identifier: Apache-2.0
"""``on_error`` of a ``CachedDataset``: batches keep their length, and substitutes are the same everywhere."""

from __future__ import annotations

import itertools
import logging
import pathlib
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import foresee.torch as ft
from foresee.errors import ConfigError, OriginError, SampleFault

N = 40
BAD = {3, 17, 30}


class Rows:
    """Samples of which some cannot be read."""

    def __init__(self, error: type[Exception] = ValueError) -> None:
        self.error = error

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> torch.Tensor:
        if i in BAD:
            raise self.error(f"row {i} is damaged")
        return [torch.tensor(j) for j in range(N)][i]


def epoch(dataset, rank=0, **options):
    sampler = ft.PrefetchSampler(DistributedSampler(dataset, 2, rank, seed=3), dataset)
    batches = [batch.tolist() for batch in DataLoader(dataset, 4, sampler=sampler, **options)]
    return batches, list(sampler)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_replaced_and_all_ranks_have_equally_many_batches(workers):
    lengths, substitutes = [], {}
    for rank in range(2):
        dataset = ft.CachedDataset(Rows(), on_error="replace")
        batches, order = epoch(dataset, rank, num_workers=workers)
        lengths.append([len(batch) for batch in batches])
        found = dict(zip(order, itertools.chain(*batches), strict=True))
        assert all(value == sample for sample, value in found.items() if sample not in BAD)
        substitutes.update({sample: found[sample] for sample in BAD & found.keys()})
    assert lengths == [[4] * 5] * 2
    assert set(substitutes) == BAD
    assert not set(substitutes.values()) & BAD
    again = pickle.loads(pickle.dumps(ft.CachedDataset(Rows(), on_error="replace")))
    assert {sample: int(again[sample]) for sample in BAD} == substitutes


def test_bad_samples_of_a_dataset_that_reads_batches_are_replaced():
    class Batches(Rows):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    replaced = ft.CachedDataset(Batches(), on_error="replace")
    alone = ft.CachedDataset(Rows(), on_error="replace")
    assert epoch(replaced)[0] == epoch(alone)[0]


def test_a_replaced_sample_is_reported_once_with_its_error(caplog):
    dataset = ft.CachedDataset(Rows(), on_error="replace")
    with caplog.at_level(logging.WARNING, "foresee"):
        for _ in range(2):
            dataset[17]
    (record,) = caplog.records
    assert (
        "sample 17 (Rows[17]) on rank 0: the dataset raised ValueError: row 17 is damaged" in record.message
    )
    assert "replaced by sample" in record.message


def test_a_sample_whose_transform_raises_is_replaced():
    def transform(value):
        if value == 5:
            raise ZeroDivisionError
        return value + 100

    assert ft.CachedDataset(list(range(N)), transform=transform, on_error="replace")[5] not in (5, 105)


def test_a_callable_chooses_the_substitute():
    faults = []

    def choose(fault: SampleFault) -> int:
        faults.append((fault.sample, fault.kind, type(fault.__cause__)))
        return 7

    assert ft.CachedDataset(Rows(), on_error=choose)[3] == 7
    assert faults[0] == (3, "dataset", ValueError)
    with pytest.raises(ValueError, match="on_error returned 40; the dataset has 40 samples"):
        ft.CachedDataset(Rows(), on_error=lambda _: N)[3]
    with pytest.raises(ValueError, match="row 17 is damaged"):
        ft.CachedDataset(Rows(), on_error=lambda _: 17)[3]


@pytest.mark.parametrize("error", [OriginError, MemoryError, ConfigError, KeyboardInterrupt])
def test_what_is_no_fault_of_a_sample_is_raised(error):
    with pytest.raises(error):
        ft.CachedDataset(Rows(error), on_error="replace")[3]


def test_an_index_that_the_dataset_does_not_have_is_raised():
    dataset = ft.CachedDataset(Rows(), on_error="replace")
    with pytest.raises(IndexError):
        dataset[N]
    with pytest.raises(TypeError):
        dataset["a"]
    assert dataset[-1] == N - 1


def test_a_missing_file_is_replaced(tmp_path: pathlib.Path):
    for i in range(1, 6):
        (tmp_path / f"{i}.bin").write_bytes(bytes([i]))
    names = [f"{i}.bin" for i in range(6)]
    files = ft.FileDataset(
        names, list(range(6)), root=tmp_path, decode=lambda data: data[0], allow_missing=True
    )
    value, target = ft.CachedDataset(files, on_error="replace")[0]
    assert value == target != 0


def test_without_a_readable_substitute_the_error_is_raised():
    class Broken(Rows):
        def __getitem__(self, i):
            raise ValueError("the disk is gone")

    with pytest.raises(ValueError, match="the disk is gone"):
        ft.CachedDataset(Broken(), on_error="replace")[3]


@pytest.mark.parametrize(
    ("on_error", "words"),
    [
        ("skip", 'use "replace", or foresee.torch.DataLoader'),
        ("ignore", "on_error='ignore'; use"),
        (3, "on_error=3"),
    ],
)
def test_wrong_arguments_are_named(on_error, words):
    with pytest.raises(ConfigError, match=words):
        ft.CachedDataset(Rows(), on_error=on_error)
