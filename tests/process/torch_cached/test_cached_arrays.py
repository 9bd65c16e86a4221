# SPDX-License-Identifier: Apache-2.0
"""Rows of an array in a bucket, in a random order through torch's loader: they are read in large ranges.

The testbed in front of the bucket counts requests and bytes.
"""

from __future__ import annotations

import io
import multiprocessing

import numpy as np
import pytest
import torch
from support.servers import Bucket
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Subset

import foresee.torch as ft
from foresee.errors import OriginError

#: 640 KB.
SHAPE = (18_300, 35)


def put_array(bucket: Bucket, shape: tuple[int, int] = SHAPE) -> np.ndarray:
    """Put an array of random bytes into the bucket, as its only object."""
    array = np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    np.save(file, array)
    bucket.put("rows.npy", file.getvalue())
    return array


def counted(bucket: Bucket) -> tuple[int, int]:
    """Return the requests and bytes since the last reset."""
    counters = bucket.testbed.counters()
    return sum(counters["requests"]["GET"].values()), counters["body_bytes"]


def assert_few_reads(bucket: Bucket, array: np.ndarray) -> None:
    requests, size = counted(bucket)
    assert requests <= array.nbytes / 1e6 + 64
    assert size <= 1.2 * array.nbytes


def rows(loader):
    return sorted(map(bytes, torch.cat(list(loader)).numpy()))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", [RandomSampler, lambda dataset: DistributedSampler(dataset, 1, 0)])
def test_shuffled_rows_are_read_once_in_few_requests(bucket: Bucket, workers, order) -> None:
    array = put_array(bucket)
    data = ft.ArrayDataset(bucket.uri, storage_options=bucket.options)
    bucket.testbed.reset()
    dataset = ft.CachedDataset(data, cache=ft.Cache(ram="64MB"))
    sampler = ft.PrefetchSampler(order(dataset), dataset)
    context = multiprocessing.get_context("fork") if workers else None
    loader = DataLoader(dataset, 64, sampler=sampler, num_workers=workers, multiprocessing_context=context)
    for _ in range(2):
        assert rows(loader) == sorted(map(bytes, array))
    assert_few_reads(bucket, array)


def test_without_announcements_the_first_batch_reads_a_small_array(bucket: Bucket) -> None:
    array = put_array(bucket)
    data = ft.ArrayDataset(bucket.uri, storage_options=bucket.options)
    bucket.testbed.reset()
    loader = DataLoader(ft.CachedDataset(data, cache=ft.Cache(ram="64MB")), 64, shuffle=True)
    assert rows(loader) == sorted(map(bytes, array))
    assert_few_reads(bucket, array)


def test_a_smaller_cache_returns_the_rows_of_the_dataset(bucket: Bucket) -> None:
    array = put_array(bucket, (2000, 1000))
    data = ft.ArrayDataset(bucket.uri, storage_options=bucket.options)
    dataset = ft.CachedDataset(data, cache=ft.Cache(ram="800KB"))
    sampler = DistributedSampler(dataset, 1, 0, seed=3)
    loader = DataLoader(dataset, 64, sampler=ft.PrefetchSampler(sampler, dataset))
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        assert np.array_equal(torch.cat(list(loader)).numpy(), array[list(sampler)])


def test_rows_of_one_rank_of_several_are_read_without_those_of_the_others(bucket: Bucket) -> None:
    array = put_array(bucket, (1600, 500))
    data = ft.ArrayDataset(bucket.uri, storage_options=bucket.options)
    bucket.testbed.reset()
    dataset = ft.CachedDataset(data, cache=ft.Cache(ram="64MB"))
    sampler = DistributedSampler(dataset, 16, 5, seed=3)
    loader = DataLoader(dataset, 20, sampler=ft.PrefetchSampler(sampler, dataset))
    expected = list(sampler)
    assert np.array_equal(torch.cat(list(loader)).numpy(), array[expected])
    assert counted(bucket)[1] <= 3 * len(expected) * 500, (
        "those of this epoch, and of the next one that are near"
    )


def test_batches_of_plain_rows_join_neighbours(bucket: Bucket) -> None:
    array = put_array(bucket)
    data = ft.ArrayDataset(bucket.uri, storage_options=bucket.options)
    bucket.testbed.reset()
    read = data.__getitems__([*range(64), 9000, 3, 3])
    assert np.array_equal(torch.stack(read).numpy(), array[[*range(64), 9000, 3, 3]])
    assert counted(bucket)[0] == 2
    with pytest.raises(IndexError, match="sample 18300 of a data set of 18300"):
        data.__getitems__([1, 18_300])
    half = ft.CachedDataset(Subset(data, range(100, 300)))
    bucket.testbed.reset()
    batches = list(DataLoader(half, 50))
    assert np.array_equal(torch.cat(batches).numpy(), array[100:300])
    assert counted(bucket)[0] <= 2 + len(batches)


def test_a_fault_of_a_range_costs_few_requests(bucket: Bucket) -> None:
    array = put_array(bucket)
    data = ft.ArrayDataset(bucket.uri, storage_options=bucket.options)
    dataset = ft.CachedDataset(data, cache=ft.Cache(ram="64MB"))
    bucket.testbed.faults(
        {"kind": "status", "status": 403, "path": "/train/", "percent": 50, "seed": 2, "next": 6}
    )
    loader = DataLoader(dataset, 64, sampler=ft.PrefetchSampler(RandomSampler(dataset), dataset))
    for _ in range(8):
        try:
            assert rows(loader) == sorted(map(bytes, array))
            break
        except OriginError:
            continue
    else:
        pytest.fail("every epoch failed, with at most 6 faults")
    # Not one for each of the rows.
    assert counted(bucket)[0] < 100
