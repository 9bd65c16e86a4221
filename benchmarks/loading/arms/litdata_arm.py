# SPDX-License-Identifier: Apache-2.0
"""LitData: samples in its chunks, streamed by its own loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming import downloader
from litdata.streaming.writer import BinaryWriter
from support.job import Job

from .base import Batch, address, converted, local_reader
from .torch_arm import join, split

CHUNK_BYTES = 8 << 20


class Arm:
    """Settings: ``workers``."""

    order = "approximate"

    def prepare(self, job: Job) -> None:
        """Write chunks."""
        read = local_reader(job)
        out = converted(job, "chunks")
        if out.exists():
            return
        out.mkdir()
        writer = BinaryWriter(str(out), chunk_bytes=CHUNK_BYTES)
        for sample in range(job.samples):
            writer[sample] = read(sample)
        writer.done()
        writer.merge()

    def open(self, job: Job) -> _Loader:
        """Create LitData's loader over a dataset with the workload's cache budget."""
        return _Loader(job, address(job, converted(job, "chunks")))


class _Loader:
    def __init__(self, job: Job, place: str) -> None:
        settings: dict[str, Any] = {}
        if "://" in place:
            # The downloader rejects plain HTTP and has no setting for it.
            downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
            settings["storage_options"] = {
                "endpoint_url": job.place.endpoint,
                "aws_access_key_id": job.place.access,
                "aws_secret_access_key": job.place.secret,
                "region_name": "us-east-1",
            }
            settings["cache_dir"] = str(Path(job.scratch) / "chunk-cache")
        samples = StreamingDataset(
            place,
            shuffle=True,
            seed=job.seed,
            max_cache_size=job.disk_bytes or "100GB",
            **settings,
        )
        self._loader = StreamingDataLoader(
            samples, batch_size=job.batch, num_workers=job.settings["workers"], collate_fn=join
        )

    def epoch(self, number: int) -> Iterator[Batch]:  # noqa: ARG002 - it counts its epochs itself
        """Return the batches of one epoch."""
        return map(split, self._loader)

    def close(self) -> None:
        """Stop the workers."""
        del self._loader
