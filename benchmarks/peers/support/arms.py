# SPDX-License-Identifier: Apache-2.0
"""The loader of each arm."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from common import s3
from common.samples import key
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import foresee.torch as ft

from .task import Task

REGION = "us-east-1"
#: Settings of torch's loader.
WORKERS, THREADS, PREFETCH = 2, 8, 4
#: Counts of the exchange of a node, and of repeated reads at the origin, in the statistics of its host.
PEERS, READS = ("missing", "late", "silent"), ("retries", "throttles", "hedges")


class Ours:
    """A loader of ours, on a cache that exchanges samples with those of other nodes, or that does not."""

    def __init__(self, task: Task) -> None:
        uris = [f"s3://{task.bucket}/{task.prefix}{key(sample)}" for sample in range(task.samples)]
        # With their sizes, the dataset opens without a listing, as that of torch's loader does.
        dataset = ft.FileDataset(
            uris,
            decode=None,
            sizes=[task.sample_bytes] * task.samples,
            storage_options={
                "endpoint": task.endpoint,
                "region": REGION,
                "access_key_id": s3.ACCESS,
                "secret_access_key": s3.SECRET,
                "allow_http": "true",
            },
        )
        peers = None if task.arm == "exact" else False
        self._loader = ft.DataLoader(
            dataset,
            batch_size=task.batch,
            shuffle=True,
            seed=task.seed,
            epochs=task.epochs,
            cache=ft.Cache(ram=task.ram_bytes, peers=peers),
        )

    def epoch(self, number: int) -> Iterator[torch.Tensor]:
        """Return the batches of the next epoch: uint8 tensors of shape (samples, bytes)."""
        del number
        return iter(self._loader)

    def counts(self) -> dict[str, float]:
        """Return samples by source, and what the node exchanged and repeated."""
        return counts_of(self._loader.stats())

    def close(self) -> None:
        """End the threads and the host."""
        self._loader.close()


class Objects(Dataset[torch.Tensor]):
    """One GET with obstore per sample, those of a batch in a pool of threads."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._opened: tuple[int, Any, ThreadPoolExecutor] | None = None

    def __len__(self) -> int:
        return self._task.samples

    def __getitem__(self, sample: int) -> torch.Tensor:
        import obstore

        content = obstore.get(self._open()[0], self._task.prefix + key(sample)).bytes()
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)

    def __getitems__(self, samples: Sequence[int]) -> list[torch.Tensor]:
        """Read the samples of a batch."""
        return list(self._open()[1].map(self.__getitem__, samples))

    def _open(self) -> tuple[Any, ThreadPoolExecutor]:
        # Neither a client nor threads survive a fork.
        if self._opened is None or self._opened[0] != os.getpid():
            from obstore.store import S3Store

            store = S3Store(
                self._task.bucket,
                endpoint=self._task.endpoint,
                access_key_id=s3.ACCESS,
                secret_access_key=s3.SECRET,
                region=REGION,
                client_options={"allow_http": True},
            )
            self._opened = os.getpid(), store, ThreadPoolExecutor(THREADS)
        return self._opened[1], self._opened[2]


class Stock:
    """torch's loader, with worker processes."""

    def __init__(self, task: Task) -> None:
        dataset = Objects(task)
        self._sampler: DistributedSampler[torch.Tensor] = DistributedSampler(dataset, seed=task.seed)
        self._loader = DataLoader(
            dataset,
            batch_size=task.batch,
            sampler=self._sampler,
            num_workers=WORKERS,
            persistent_workers=True,
            prefetch_factor=PREFETCH,
        )

    def epoch(self, number: int) -> Iterator[torch.Tensor]:
        """Return the batches of an epoch: uint8 tensors of shape (samples, bytes)."""
        self._sampler.set_epoch(number)
        return iter(self._loader)

    def counts(self) -> dict[str, float]:
        """Return nothing: this loader counts nothing."""
        return {}

    def close(self) -> None:
        """End the workers, with the loader."""
        del self._loader


def open_arm(task: Task) -> Ours | Stock:
    """Open the loader of an arm."""
    return Stock(task) if task.arm == "torch" else Ours(task)


def counts_of(stats: Mapping[str, Any]) -> dict[str, float]:
    """Return the counts of a rank from ``loader.stats()``: samples by source, those of the exchange, and repeated reads."""
    node = stats["node"]
    if node is None:
        reads = {place: each["read"]["ok"] for place, each in stats["operations"].items()}
        counts = {
            f"from_{place}": float(read["samples"]) for place, read in reads.items() if read is not None
        }
        return counts | {name: float(stats["origin"].get(name, 0)) for name in READS if "origin" in stats}
    counts = {f"from_{place}": float(each["samples"]) for place, each in node["sources"].items()}
    host = node["host"]
    if host is None:
        return counts
    counts |= {name: float(host["origin"].get(name, 0)) for name in READS}
    peers = host["peers"]
    if peers is not None:
        counts |= {f"peers_{name}": float(peers[name]) for name in PEERS}
        for direction in ("received", "sent"):
            counts |= {
                f"{direction}_samples": float(peers[direction]["samples"]),
                f"{direction}_bytes": float(peers[direction]["bytes"]),
            }
    return counts
