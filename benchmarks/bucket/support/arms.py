# SPDX-License-Identifier: Apache-2.0
"""The loader of each arm: torch's DataLoader over one of the datasets."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import s3
from common.samples import ID_BYTES, key
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

import foresee.torch as ft

from .task import Place, Task

REGION = "us-east-1"
#: Connections of a client without a thread pool; reads ahead of `ours_boto3` have a thread each.
_CONNECTIONS = 32
_making_client = threading.Lock()


class Opened:
    """An open loader of an arm."""

    def __init__(
        self,
        loader: DataLoader[Any],
        sampler: DistributedSampler[Any] | ft.PrefetchSampler,
        cached: ft.CachedDataset | None = None,
    ) -> None:
        self._loader, self._sampler, self._cached = loader, sampler, cached

    def epoch(self, number: int) -> Iterator[torch.Tensor]:
        """Return the batches of an epoch: uint8 tensors of shape (samples, bytes)."""
        self._sampler.set_epoch(number)
        return iter(self._loader)

    def counts(self) -> dict[str, float]:
        """Return the counts of this process's cache; none without one."""
        return (
            {} if self._cached is None else {f"cache_{name}": n for name, n in self._cached.stats().items()}
        )


class Objects(Dataset[torch.Tensor]):
    """One GET with boto3 per sample. Any number of threads may read."""

    def __init__(self, task: Task) -> None:
        self._place, self._samples = task.place, task.samples
        self._connections = task.settings.get("threads", _CONNECTIONS)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, sample: int) -> torch.Tensor:
        return as_tensor(self.read(sample))

    def read(self, sample: int) -> bytes:
        """Read the bytes of a sample."""
        client = _client(self._place.endpoint, self._connections)
        answer = client.get_object(Bucket=self._place.bucket, Key=self._place.prefix + key(sample))
        content: bytes = answer["Body"].read()
        return content


class ObjectsInThreads(Objects):
    """The same, with the samples of a batch read by a pool of threads."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._threads = task.settings["threads"]
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __getitems__(self, samples: Sequence[int]) -> list[torch.Tensor]:
        """Read the samples of a batch."""
        # Threads do not survive a fork.
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(self._threads)
        return list(self._pool[1].map(self.__getitem__, samples))


class ObjectsOfStore(Dataset[torch.Tensor]):
    """One GET with obstore per sample: a native client, with its own pool of connections."""

    def __init__(self, task: Task) -> None:
        from obstore.store import S3Store

        self._place, self._samples = task.place, task.samples
        self._store = S3Store(
            task.place.bucket,
            endpoint=task.place.endpoint,
            access_key_id=s3.ACCESS,
            secret_access_key=s3.SECRET,
            region=REGION,
            client_options={"allow_http": True},
        )

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, sample: int) -> torch.Tensor:
        import obstore

        return as_tensor(obstore.get(self._store, self._place.prefix + key(sample)).bytes())


class Files(Dataset[torch.Tensor]):
    """One local file per sample."""

    def __init__(self, task: Task) -> None:
        self._folder, self._samples = Path(task.place.folder), task.samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, sample: int) -> torch.Tensor:
        with (self._folder / key(sample)).open("rb", buffering=0) as file:
            return as_tensor(file.read())


class Arrays(Dataset[NDArray[np.uint8]]):
    """Arrays in memory; each starts with the number of its sample."""

    def __init__(self, task: Task) -> None:
        noise = np.random.Generator(np.random.Philox(task.seed))
        self._rows = noise.integers(0, 256, (task.samples, task.sample_bytes), np.uint8)
        self._rows[:, :ID_BYTES] = np.arange(task.samples, dtype="<u8").view(np.uint8).reshape(-1, ID_BYTES)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, sample: int) -> NDArray[np.uint8]:
        row: NDArray[np.uint8] = self._rows[sample].copy()
        return row


def open_arm(task: Task) -> Opened:
    """Open the loader of an arm."""
    makers: dict[str, Callable[[Task], Opened]] = {
        "direct": lambda task: _stock(task, Objects(task)),
        "threads": lambda task: _stock(task, ObjectsInThreads(task)),
        "disk": lambda task: _stock(task, Files(task)),
        "plain": lambda task: _stock(task, Objects(task)),
        "boto3": lambda task: _stock(task, Objects(task)),
        "boto3_threads": lambda task: _stock(task, ObjectsInThreads(task)),
        "ours": lambda task: cached(task, _objects_of_ours(task)),
        "ours_boto3": lambda task: cached(task, Objects(task)),
        "ours_obstore": lambda task: cached(task, ObjectsOfStore(task)),
        "direct_obstore": lambda task: _stock(task, ObjectsOfStore(task)),
        "cache": swept,
        "window": swept,
        "s3torchconnector": lambda task: _stock(task, _connector(task)),
        "litdata_raw": lambda task: _stock(task, _litdata_raw(task), _collate_bytes),
    }
    return makers[task.arm](task)


def cached(task: Task, dataset: Any, collate: Callable[[list[Any]], Any] | None = None) -> Opened:
    """Open the loader of a cached dataset, with the sampler that reads ahead."""
    samples = ft.CachedDataset(
        dataset, cache=ft.Cache(ram=task.cache_bytes), threads=task.settings.get("threads")
    )
    window = task.window or None
    sampler = ft.PrefetchSampler(order_of(task, samples), samples, fetch_size=window, threshold=window)
    # With worker processes the counts are theirs.
    counted = None if task.settings.get("workers") else samples
    return Opened(_loader(task, samples, sampler, collate), sampler, counted)


def swept(task: Task) -> Opened:
    """Open the loader of a sweep: the settings have the cache and the window, both in samples.

    Without ``fetch`` nothing is read ahead.
    """
    settings = task.settings
    capacity = (settings["cache"] or task.samples) * _cached_bytes(task.sample_bytes)
    samples = ft.CachedDataset(
        ObjectsOfStore(task), cache=ft.Cache(ram=capacity), threads=settings["threads"]
    )
    order: DistributedSampler[Any] = order_of(task, samples)
    if not settings["fetch"]:
        return Opened(_loader(task, samples, order, None), order, samples)
    sampler = ft.PrefetchSampler(
        order, samples, fetch_size=settings["fetch"], threshold=settings["threshold"]
    )
    return Opened(_loader(task, samples, sampler, None), sampler, samples)


def order_of(task: Task, dataset: Dataset[Any]) -> DistributedSampler[Any]:
    """Return the order of a rank."""
    return DistributedSampler(dataset, num_replicas=task.ranks, rank=task.rank, seed=task.seed)


def storage_options(place: Place) -> dict[str, str]:
    """Return the options with which Foresee reaches the bucket."""
    return {
        "endpoint": place.endpoint,
        "region": REGION,
        "access_key_id": s3.ACCESS,
        "secret_access_key": s3.SECRET,
        "allow_http": "true",
    }


def as_tensor(content: Any) -> torch.Tensor:
    """Return bytes, or any buffer of them, as a uint8 tensor that may be changed."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _cached_bytes(sample_bytes: int) -> int:
    """Return the bytes of the cache that a sample takes."""
    one = ft.CachedDataset([as_tensor(bytes(sample_bytes))], cache=ft.Cache(ram=1 << 20))
    _ = one[0]
    return one.stats()["bytes"]


def _stock(task: Task, dataset: Dataset[Any], collate: Callable[[list[Any]], Any] | None = None) -> Opened:
    sampler = order_of(task, dataset)
    return Opened(_loader(task, dataset, sampler, collate), sampler)


def _loader(
    task: Task, dataset: Dataset[Any], sampler: Sampler[Any], collate: Callable[[list[Any]], Any] | None
) -> DataLoader[Any]:
    workers = task.settings.get("workers", 0)
    return DataLoader(
        dataset,
        batch_size=task.batch,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=task.settings.get("prefetch_factor"),
        collate_fn=collate,
    )


def _collate_bytes(samples: list[bytes]) -> torch.Tensor:
    return torch.stack([as_tensor(sample) for sample in samples])


def _uris(task: Task) -> list[str]:
    place = task.place
    return [f"s3://{place.bucket}/{place.prefix}{key(sample)}" for sample in range(task.samples)]


def _objects_of_ours(task: Task) -> ft.FileDataset:
    # With their sizes, the dataset opens without a listing, as the other arms do.
    sizes = [task.sample_bytes] * task.samples
    return ft.FileDataset(_uris(task), decode=None, sizes=sizes, storage_options=storage_options(task.place))


def _client(endpoint: str, connections: int) -> Any:
    with _making_client:
        return _client_of_process(endpoint, connections, os.getpid())


@cache
def _client_of_process(endpoint: str, connections: int, process: int) -> Any:  # noqa: ARG001 - none crosses a fork
    import boto3
    from botocore.config import Config

    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=s3.ACCESS,
        aws_secret_access_key=s3.SECRET,
        region_name=REGION,
        config=Config(
            max_pool_connections=connections,
            retries={"max_attempts": 5},
            s3={"addressing_style": "path"},
            signature_version="s3v4",
        ),
    )


def _connector(task: Task) -> Dataset[Any]:
    from s3torchconnector import S3ClientConfig, S3MapDataset

    os.environ.update(_aws_environment(task.place))
    samples: Dataset[Any] = S3MapDataset.from_objects(
        _uris(task),
        region=REGION,
        endpoint=task.place.endpoint,
        transform=lambda opened: as_tensor(opened.read()),
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    return samples


def _litdata_raw(task: Task) -> Dataset[Any]:
    from litdata.raw import StreamingRawDataset
    from litdata.raw.indexer import BaseIndexer, FileMetadata
    from litdata.streaming import downloader

    class KnownKeys(BaseIndexer):  # type: ignore[misc]
        """The files in the order of their numbers, without a listing."""

        def discover_files(self, *_: Any) -> list[FileMetadata]:
            return [FileMetadata(uri, task.sample_bytes) for uri in _uris(task)]

        def build_or_load_index(self, *_: Any) -> list[FileMetadata]:
            return self.discover_files()

    # The downloader rejects plain HTTP and has no setting for it.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
    samples: Dataset[Any] = StreamingRawDataset(
        f"s3://{task.place.bucket}/{task.place.prefix}",
        cache_dir=task.scratch,
        indexer=KnownKeys(),
        storage_options={
            "endpoint_url": task.place.endpoint,
            "aws_access_key_id": s3.ACCESS,
            "aws_secret_access_key": s3.SECRET,
            "region_name": REGION,
        },
        cache_files=bool(task.settings["cache_files"]),
    )
    return samples


def _aws_environment(place: Place) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": s3.ACCESS,
        "AWS_SECRET_ACCESS_KEY": s3.SECRET,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": place.endpoint,
    }
