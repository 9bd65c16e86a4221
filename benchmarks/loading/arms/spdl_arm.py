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
        """Reads the samples as they are."""

    def open(self, job: Job) -> _Loader:
        """One pipeline per epoch, as SPDL's documentation does it."""
        return _Loader(job)


class _Loader:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._read = reader(job)

    def epoch(self, number: int) -> Iterator[Batch]:
        """One pass."""
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
        """Pipelines end with their epochs."""
