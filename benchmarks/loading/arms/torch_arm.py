# SPDX-License-Identifier: Apache-2.0
"""torch's DataLoader over one file or object per sample.

Workers join a batch into one tensor, which needs one transfer through shared memory. Without workers the samples are
returned as read. Both are faster than the default collation of separate tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from support.job import Job
from torch.utils.data import DataLoader, Dataset

from .base import Batch, permutation, reader


class Arm:
    """Settings: ``workers``."""

    order = "exact"

    def prepare(self, job: Job) -> None:
        """Do nothing: the samples are read unconverted."""

    def open(self, job: Job) -> _Loader:
        """Create a loader with persistent workers."""
        return _Loader(job, _Samples(job))


class _Samples(Dataset[bytes]):
    def __init__(self, job: Job) -> None:
        self._job = job
        self._read: Any = None

    def __len__(self) -> int:
        return self._job.samples

    def __getitem__(self, sample: int) -> bytes:
        # Open it in the process that uses it, so that no client crosses a fork.
        if self._read is None:
            self._read = reader(self._job)
        content: bytes = self._read(sample)
        return content


class Order:
    """A sampler whose order the benchmark sets."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.number = 0

    def __len__(self) -> int:
        return self._job.samples

    def __iter__(self) -> Iterator[int]:
        return iter(permutation(self._job, self.number).tolist())


def join(samples: list[Any]) -> tuple[torch.Tensor, list[int]]:
    """Join a batch into one tensor; return it with the offsets of its samples."""
    ends = np.cumsum([0, *(len(sample) for sample in samples)])
    joined = torch.empty(int(ends[-1]), dtype=torch.uint8)
    target = joined.numpy()
    for sample, (begin, end) in zip(samples, pairwise(ends), strict=True):
        target[begin:end] = np.frombuffer(sample, np.uint8)
    return joined, ends.tolist()


def split(batch: tuple[torch.Tensor, list[int]]) -> Batch:
    """Return the samples of a joined batch without copying."""
    joined, ends = batch
    array = joined.numpy()
    return [array[begin:end] for begin, end in pairwise(ends)]


class _Loader:
    def __init__(self, job: Job, samples: Dataset[Any]) -> None:
        self._order = Order(job)
        workers = job.settings["workers"]
        self._has_workers = workers > 0
        self._loader: DataLoader[Any] = DataLoader(
            samples,
            batch_size=job.batch,
            sampler=self._order,
            num_workers=workers,
            collate_fn=join if workers else list,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
        )

    def epoch(self, number: int) -> Iterator[Batch]:
        """Return the batches of one epoch."""
        self._order.number = number
        return map(split, self._loader) if self._has_workers else iter(self._loader)

    def close(self) -> None:
        """Stop the workers."""
        del self._loader


def loader_of(job: Job, samples: Dataset[Any]) -> _Loader:
    """Create the same loader over another dataset."""
    return _Loader(job, samples)
