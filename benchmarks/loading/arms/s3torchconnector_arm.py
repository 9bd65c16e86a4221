# SPDX-License-Identifier: Apache-2.0
"""AWS's S3 connector for PyTorch: a map-style dataset with its own client, under torch's DataLoader."""

from __future__ import annotations

import os
from typing import Any

from common.samples import key
from s3torchconnector import S3ClientConfig, S3MapDataset
from support.job import Job
from torch.utils.data import Dataset

from .base import aws_environment
from .torch_arm import loader_of


class Arm:
    """Settings: ``workers``."""

    order = "exact"

    def prepare(self, job: Job) -> None:
        """Do nothing: the samples are read unconverted."""

    def open(self, job: Job) -> Any:
        """Create torch's loader over the connector's dataset, from known keys without a listing."""
        os.environ.update(aws_environment(job.place))
        uris = [f"s3://{job.place.bucket}/{job.place.prefix}{key(sample)}" for sample in range(job.samples)]
        config = S3ClientConfig(force_path_style=True)
        samples: Dataset[Any] = S3MapDataset.from_objects(
            uris, region="us-east-1", endpoint=job.place.endpoint, transform=_read, s3client_config=config
        )
        return loader_of(job, samples)


def _read(opened: Any) -> bytes:
    content: bytes = opened.read()
    return content
