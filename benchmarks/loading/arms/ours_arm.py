# SPDX-License-Identifier: Apache-2.0
"""Foresee as in its README: the same files or objects, two changed lines, default settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.job import Job

import foresee.torch as ft

from .base import Batch, aws_environment


class Arm:
    """Settings: none."""

    order = "exact"

    def prepare(self, job: Job) -> None:
        """Do nothing: the samples are read unconverted."""

    def open(self, job: Job) -> _Loader:
        """Create a loader with the workload's cache budgets."""
        return _Loader(job)


class _Loader:
    def __init__(self, job: Job) -> None:
        place = job.place.folder
        if job.place.kind == "s3":
            os.environ.update(aws_environment(job.place), AWS_ALLOW_HTTP="true")
            place = f"s3://{job.place.bucket}/{job.place.prefix}"
        cache: dict[str, Any] = {"ram": job.ram_bytes}
        if job.disk_bytes:
            cache["disk"] = str(Path(job.scratch) / "cache")
            cache["disk_size"] = job.disk_bytes
        self._equal = job.equal
        self._loader = ft.DataLoader(
            ft.FolderDataset(place, extensions=(".bin",), decode=None),
            batch_size=job.batch,
            shuffle=True,
            seed=job.seed,
            epochs=job.epochs + (not job.verify),
            # Samples of one size form one tensor over the staging buffer; others are a list.
            collate_fn=None if job.equal else list,
            cache=ft.Cache(**cache),
        )

    def epoch(self, number: int) -> Iterator[Batch]:
        """Return the batches of one epoch."""
        self._loader.set_epoch(number)
        if self._equal:
            return (samples for samples, _ in self._loader)
        return ([sample for sample, _ in batch] for batch in self._loader)

    def close(self) -> None:
        """Stop the engine."""
        self._loader.close()
