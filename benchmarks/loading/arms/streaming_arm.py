# SPDX-License-Identifier: Apache-2.0
"""MosaicML Streaming: samples in MDS shards, shuffled by its default algorithm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import streaming
from streaming import MDSWriter, StreamingDataset
from support.job import Job
from torch.utils.data import DataLoader

from .base import Batch, address, aws_environment, converted, local_reader
from .torch_arm import join, split

SHARD_BYTES = 8 << 20


class Arm:
    """Settings: ``workers``."""

    order = "approximate"

    def prepare(self, job: Job) -> None:
        """Write MDS shards."""
        read = local_reader(job)
        out = converted(job, "mds")
        if out.exists():
            return
        with MDSWriter(out=str(out), columns={"sample": "bytes"}, size_limit=SHARD_BYTES) as writer:
            for sample in range(job.samples):
                writer.write({"sample": read(sample)})

    def open(self, job: Job) -> _Loader:
        """Create torch's DataLoader over a streaming dataset with the workload's cache budget."""
        streaming.base.util.clean_stale_shared_memory()
        os.environ.update(aws_environment(job.place))
        return _Loader(job, address(job, converted(job, "mds")))


class _Loader:
    def __init__(self, job: Job, place: str) -> None:
        remote = place if "://" in place else None
        local = str(Path(job.scratch) / "mds-cache") if remote else place
        self._samples = StreamingDataset(
            remote=remote,
            local=local,
            shuffle=True,
            shuffle_seed=job.seed,
            batch_size=job.batch,
            cache_limit=job.disk_bytes or None,
        )
        self._loader: DataLoader[Any] = DataLoader(
            self._samples,
            batch_size=job.batch,
            num_workers=job.settings["workers"],
            collate_fn=_join,
            persistent_workers=job.settings["workers"] > 0,
        )

    def epoch(self, number: int) -> Iterator[Batch]:  # noqa: ARG002 - it counts its epochs itself
        """Return the batches of one epoch."""
        return map(split, self._loader)

    def close(self) -> None:
        """Stop the workers and remove the shared memory."""
        del self._loader, self._samples
        streaming.base.util.clean_stale_shared_memory()


def _join(samples: list[dict[str, bytes]]) -> Any:
    return join([sample["sample"] for sample in samples])
