# SPDX-License-Identifier: Apache-2.0
"""The lower bound: the same loop over batches in memory, without I/O."""

from __future__ import annotations

from collections.abc import Iterator

from support.job import Job

from .base import Batch, batches_of, local_reader, permutation


class Arm:
    """Read everything before the first epoch."""

    order = "exact"

    def prepare(self, job: Job) -> None:
        """Do nothing: the samples are read unconverted."""

    def open(self, job: Job) -> _Loader:
        """Read all samples into memory, bypassing the server of a bucket."""
        read = local_reader(job)
        return _Loader(job, [read(sample) for sample in range(job.samples)])


class _Loader:
    def __init__(self, job: Job, samples: list[bytes]) -> None:
        self._samples = samples
        self._epochs = [
            [[samples[at] for at in batch] for batch in batches_of(job, permutation(job, epoch))]
            for epoch in range(job.epochs + 1)
        ]

    def epoch(self, number: int) -> Iterator[Batch]:
        """Return the prepared batches."""
        return iter(self._epochs[number])

    def close(self) -> None:
        """Do nothing."""
