# SPDX-License-Identifier: Apache-2.0
"""Rows of an array in a bucket, in a random order: they are read in large ranges while the cache has space for them.

The testbed in front of the bucket counts requests and bytes.
"""

from __future__ import annotations

import io
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.node_ranks import digests, expected, outcomes, ranks
from support.servers import Bucket

import foresee
import foresee.torch as ft

#: 640 KB.
SMALL = (18_300, 35)
#: 3 MB in rows of 1 KB.
LARGE = (3_000, 1_000)


def put_array(bucket: Bucket, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Put an array of random bytes into the bucket, as its only object."""
    array = np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    np.save(file, array)
    bucket.put("rows.npy", file.getvalue())
    return array


def assert_few_reads(counters: dict[str, Any], size: int) -> None:
    """Check the requests and bytes of a run that needed `size` bytes."""
    assert sum(counters["requests"]["GET"].values()) <= size / 1e6 + 64
    assert counters["body_bytes"] <= 1.2 * size


@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_shuffled_rows_are_read_once_in_few_requests(
    bucket: Bucket, tmp_path: pathlib.Path, shape: tuple[int, int], place: str
) -> None:
    array = put_array(bucket, shape)
    data = ft.ArrayDataset(bucket.uri, storage_options=bucket.options)
    bucket.testbed.reset()
    disk = {"disk": tmp_path, "disk_size": "64MB"} if place == "disk" else {}
    cache = foresee.Cache(ram="64MB" if place == "memory" else 0, **disk)  # type: ignore[arg-type]
    with ft.DataLoader(data, batch_size=64, shuffle=True, seed=3, epochs=2, cache=cache) as loader:
        for _ in range(2):
            rows = torch.cat(list(loader)).numpy()
            assert sorted(map(bytes, rows)) == sorted(map(bytes, array))
        assert loader.audit()["ok"]
    assert_few_reads(bucket.testbed.counters(), array.nbytes)


def test_ranks_of_a_node_read_rows_once_in_few_requests(
    bucket: Bucket, job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    array = put_array(bucket, SMALL)
    index = tmp_path / "rows.fidx"
    foresee.Index.build(bucket.uri, layout="npy", options=bucket.options).save(str(index))
    bucket.testbed.reset()
    plan = {"root": str(index), "storage_options": bucket.options, "epochs": 2, "batch_size": 64}
    with ranks(job, [plan, plan]) as programs:
        seen = [digests(lines) for lines, _ in outcomes(programs)]
    assert_few_reads(bucket.testbed.counters(), array.nbytes)
    # The same array on the disk, where rows are read alone in less time.
    folder = tmp_path / "rows"
    folder.mkdir()
    np.save(folder / "rows.npy", array)
    foresee.Index.build(str(folder), layout="npy").save(str(index))
    assert seen == [expected(index, rank, 2, 2, batch_size=64) for rank in range(2)]


def test_rows_without_space_in_the_cache_are_exact(bucket: Bucket) -> None:
    array = put_array(bucket, (1_000, 3_000))
    data = ft.ArrayDataset(bucket.uri, storage_options=bucket.options)
    # A third of the array.
    with ft.DataLoader(
        data, batch_size=64, shuffle=True, seed=3, epochs=2, cache=foresee.Cache(ram="1MB")
    ) as loader:
        for _ in range(2):
            rows = torch.cat(list(loader)).numpy()
            assert sorted(map(bytes, rows)) == sorted(map(bytes, array))


def test_a_fault_of_a_large_range_is_retried(bucket: Bucket) -> None:
    array = put_array(bucket, LARGE)
    data = ft.ArrayDataset(bucket.uri, storage_options=bucket.options)
    bucket.testbed.reset()
    bucket.testbed.faults(
        {"kind": "status", "status": 500, "path": "/train/", "percent": 30, "seed": 2, "next": 8}
    )
    with ft.DataLoader(data, batch_size=64, shuffle=True, seed=3, epochs=1) as loader:
        rows = torch.cat(list(loader)).numpy()
        assert sorted(map(bytes, rows)) == sorted(map(bytes, array))
        assert loader.stats()["origin"]["retries"] > 0
