# SPDX-License-Identifier: Apache-2.0
"""WebDataset: samples in tar shards, with shuffled shards and a shuffle buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import webdataset as wds
from support.job import Job, Place

from .base import Batch, boto3_client, converted, local_reader
from .torch_arm import join, split

SHARD_BYTES = 8 << 20
#: Size of the shuffle buffer; WebDataset's examples use 1000 and more.
BUFFER = 1_000


class Arm:
    """Settings: ``workers``."""

    order = "approximate"

    def prepare(self, job: Job) -> None:
        """Write tar shards."""
        read = local_reader(job)
        out = converted(job, "tar")
        if out.exists():
            return
        out.mkdir()
        with wds.ShardWriter(str(out / "%05d.tar"), maxsize=SHARD_BYTES, maxcount=10**9, verbose=0) as writer:
            for sample in range(job.samples):
                writer.write({"__key__": f"{sample:07d}", "bin": read(sample)})

    def open(self, job: Job) -> _Loader:
        """Create WebDataset's own loader."""
        shards = sorted(converted(job, "tar").glob("*.tar"))
        if job.place.kind == "s3":
            return _Loader(
                job, [_presigned(job.place, f"{shard.parent.name}/{shard.name}") for shard in shards]
            )
        return _Loader(job, [str(shard) for shard in shards])


def _presigned(place: Place, name: str) -> str:
    """Return an address for curl, with which WebDataset reads over HTTP."""
    url: str = boto3_client(place).generate_presigned_url(
        "get_object", Params={"Bucket": place.bucket, "Key": name}, ExpiresIn=24 * 3600
    )
    return f"pipe:curl -s -L '{url}'"


class _Loader:
    def __init__(self, job: Job, shards: list[str]) -> None:
        workers = job.settings["workers"]
        dataset = (
            wds.WebDataset(
                shards, shardshuffle=len(shards), seed=job.seed, nodesplitter=None, empty_check=False
            )
            .shuffle(BUFFER)
            .map(_sample)
            .batched(job.batch, collation_fn=join)
        )
        self._loader = wds.WebLoader(
            dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        )

    def epoch(self, number: int) -> Iterator[Batch]:  # noqa: ARG002 - it counts its epochs itself
        """Return the batches of one epoch."""
        return map(split, self._loader)

    def close(self) -> None:
        """Stop the workers."""
        del self._loader


def _sample(parts: dict[str, Any]) -> bytes:
    content: bytes = parts["bin"]
    return content
