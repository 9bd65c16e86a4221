# SPDX-License-Identifier: Apache-2.0
"""Grain: a map-style dataset with a global shuffle and reader threads."""

from __future__ import annotations

from collections.abc import Iterator

import grain
from support.job import Job

from .base import Batch, reader


class Arm:
    """Settings: ``threads``, ``client``."""

    order = "exact"

    def prepare(self, job: Job) -> None:
        """Do nothing: the samples are read unconverted."""

    def open(self, job: Job) -> _Loader:
        """Create a loader with one iterator per epoch."""
        return _Loader(job)


class _Samples:
    """Grain's random access source."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._read = reader(job)

    def __len__(self) -> int:
        return self._job.samples

    def __getitem__(self, sample: int) -> bytes:
        return self._read(sample)


class _Loader:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._samples = _Samples(job)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Return the batches of one epoch."""
        job = self._job
        options = grain.ReadOptions(num_threads=job.settings["threads"], prefetch_buffer_size=4 * job.batch)
        shuffled = grain.MapDataset.source(self._samples).shuffle(seed=job.seed * 1_000 + number)
        return iter(shuffled.to_iter_dataset(options).batch(job.batch, batch_fn=list))

    def close(self) -> None:
        """Do nothing: threads end with their iterators."""
