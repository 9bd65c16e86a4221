# SPDX-License-Identifier: Apache-2.0
"""Tables of files and arrays of tokens from a real bucket, in worker processes and with the disk cache.

The testbed in front of the bucket counts the requests.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from support.data import content, key
from support.equal_batches import assert_same
from support.servers import Bucket
from torch.utils.data import DataLoader

import foresee
import foresee.torch as ft
from foresee.errors import OriginMissing


def rows(root: object, count: int) -> list[str]:
    """Paths or URIs of the samples of `folder`, the last one first."""
    return [f"{root}/{key(sample, count)}" for sample in reversed(range(count))]


def test_rows_of_a_bucket_are_read_once_and_in_the_order_of_the_table(
    bucket: Bucket, folder: pathlib.Path, sizes: list[int]
) -> None:
    bucket.put_folder(folder)
    count = len(sizes)
    uris = rows(bucket.uri, count)
    bucket.testbed.reset()
    dataset = ft.FileDataset([*uris, uris[3]], [*range(count), 3], storage_options=bucket.options)
    counters = bucket.testbed.counters()
    assert (counters["requests"]["HEAD"]["200"], counters["body_bytes"]) == (count, 0)
    with ft.DataLoader(
        dataset, batch_size=7, shuffle=True, seed=2, epochs=2, cache=foresee.Cache(ram="64MB")
    ) as loader:
        for _ in range(2):
            for data, targets in loader:
                for one, target in zip(data, targets.tolist(), strict=True):
                    assert one.numpy().tobytes() == content(count - 1 - target, sizes[count - 1 - target])
            assert loader.audit()["ok"]
        hedged = loader.stats()["origin"]["hedged_bytes"]
    assert 0 <= bucket.testbed.counters()["body_bytes"] - sum(sizes) <= hedged


def test_many_rows_of_a_bucket_are_looked_up_by_listing_their_prefix(bucket: Bucket) -> None:
    names = [f"{i % 3}/{i:04}" for i in range(600)]
    for name in names:
        bucket.put(name, name.encode())
    bucket.testbed.reset()
    uris = [f"{bucket.uri}/{name}" for name in names]
    dataset = ft.FileDataset(uris, storage_options=bucket.options)
    counters = bucket.testbed.counters()
    assert counters["lists"] < 50
    assert "HEAD" not in counters["requests"]
    assert bytes(dataset[17].numpy()) == names[17].encode()
    with pytest.raises(OriginMissing, match=r"1 rows name objects.*uris, row 600: .*/absent does not exist"):
        ft.FileDataset([*uris, f"{bucket.uri}/absent"], storage_options=bucket.options)


def test_a_table_in_a_bucket_names_objects_next_to_it(bucket: Bucket) -> None:
    for name in "ab":
        bucket.put(f"pictures/{name}", name.encode() * 3)
        bucket.put(f"masks/{name}", name.encode())
    bucket.put("tables/train.csv", b"path,label,mask\n../pictures/b,x,../masks/b\n")
    bucket.put("train.csv", b"path,label,mask\npictures/a,w,masks/a\npictures/b,x,masks/b\n")
    for table, target in (("tables/train.csv", 0), ("train.csv", 1)):
        dataset = ft.FileDataset.from_csv(
            f"{bucket.uri}/{table}", extra="mask", storage_options=bucket.options
        )
        data, label = dataset[len(dataset) - 1]
        assert (bytes(data["path"].numpy()), bytes(data["mask"].numpy()), label) == (b"bbb", b"b", target)


def first_two(sample: dict[str, torch.Tensor]) -> torch.Tensor:
    """First byte of each object."""
    return torch.stack([part[0] for part in sample.values()])


@pytest.mark.parametrize("transform", [None, first_two])
def test_worker_processes_make_the_batches_of_the_training_process(
    folder: pathlib.Path, sizes: list[int], transform: Any
) -> None:
    paths = rows(folder, len(sizes))
    dataset = ft.FileDataset(
        paths,
        [f"t{i % 4}" for i in range(len(sizes))],
        extra={"other": paths[::-1]},
        decode=None,
        transform=transform,
    )
    made = []
    for workers in (0, 2):
        with ft.DataLoader(
            dataset,
            batch_size=8,
            shuffle=True,
            seed=1,
            num_workers=workers,
            collate_fn=None if transform else list,
        ) as loader:
            made.append(list(loader))
            assert loader.audit()["ok"]
    assert_same(made[1], made[0])


def test_a_dataset_works_in_the_processes_of_torchs_own_loader(
    folder: pathlib.Path, sizes: list[int]
) -> None:
    paths = rows(folder, len(sizes))
    dataset = ft.FileDataset(paths, range(len(sizes)), extra=[paths[::-1]])
    loader = DataLoader(
        dataset, 2, sampler=[0, 5], collate_fn=list, num_workers=1, multiprocessing_context="spawn"
    )
    assert_same(next(iter(loader)), [dataset[0], dataset[5]])


def test_the_next_run_and_a_folder_of_the_same_files_read_the_disk_cache(
    folder: pathlib.Path, sizes: list[int], tmp_path: pathlib.Path
) -> None:
    def origin_bytes(dataset: Any) -> int:
        cache = foresee.Cache(ram=0, disk=tmp_path / "cache", disk_size="64MB")
        with ft.DataLoader(dataset, batch_size=8, shuffle=True, seed=1, cache=cache) as loader:
            samples = sum(len(labels) for _, labels in loader)
            assert samples == len(dataset)
            read = loader.stats()["operations"]["origin"]["read"]["ok"]
            return 0 if read is None else int(read["bytes"])

    paths = rows(folder, len(sizes))
    twice = [*paths, *paths[:5]]
    assert origin_bytes(ft.FileDataset(twice, range(len(twice)))) == sum(sizes)
    assert origin_bytes(ft.FileDataset(twice, range(len(twice)))) == 0
    assert origin_bytes(ft.FolderDataset(folder)) == 0


def test_tokens_of_a_bucket_are_those_of_local_files(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    for number, name in enumerate(("a.bin", "b.npy")):
        tokens = np.arange(number * 1000, number * 1000 + 500, dtype=np.uint16)
        if name.endswith(".npy"):
            np.save(tmp_path / name, tokens)
        else:
            tokens.tofile(tmp_path / name)
    bucket.put_folder(tmp_path)
    local = ft.TokenDataset(tmp_path, 32, 24, dtype="uint16", drop_tail=False)
    for uri in (bucket.uri, [f"{bucket.uri}/a.bin", f"{bucket.uri}/b.npy"]):
        dataset = ft.TokenDataset(
            uri, 32, 24, dtype="uint16", drop_tail=False, storage_options=bucket.options
        )
        made = []
        for one, workers in ((local, 0), (dataset, 2 if uri == bucket.uri else 0)):
            with ft.DataLoader(one, batch_size=8, shuffle=True, seed=3, num_workers=workers) as loader:
                made.append(list(loader))
        assert_same(made[1], made[0])


def test_a_bucket_without_class_folders_is_a_flat_folder(bucket: Bucket) -> None:
    for name in ("b.jpg", "a.jpg", "notes.txt"):
        bucket.put(name, name.encode())
    dataset = ft.FolderDataset(bucket.uri, storage_options=bucket.options)
    assert dataset.classes == []
    assert [bytes(dataset[i].numpy()) for i in range(len(dataset))] == [b"a.jpg", b"b.jpg"]
