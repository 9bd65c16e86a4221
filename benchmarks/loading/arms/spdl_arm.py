# SPDX-License-Identifier: Apache-2.0
"""SPDL: a pipeline of threads over one file or object per sample."""

from __future__ import annotations

from collections.abc import Iterator

from spdl.pipeline import PipelineBuilder
from support.job import Job

from .base import Batch, permutation, reader


class Arm:
    """Settings: ``threads``, ``client``."""

    order = "exact"

    def prepare(self, job: Job) -> None:
        """Do nothing: the samples are read unconverted."""

    def open(self, job: Job) -> _Loader:
        """Create a loader with one pipeline per epoch, as in SPDL's documentation."""
        return _Loader(job)


class _Loader:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._read = reader(job)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one epoch."""
        threads = self._job.settings["threads"]
        pipeline = (
            PipelineBuilder()
            .add_source(permutation(self._job, number).tolist())
            .pipe(self._read, concurrency=threads, output_order="input")
            .aggregate(self._job.batch)
            .add_sink(buffer_size=8)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)

    def close(self) -> None:
        """Do nothing: pipelines end with their epochs."""
