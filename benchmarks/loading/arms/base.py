# SPDX-License-Identifier: Apache-2.0
"""What an arm is, and the few things that several of them need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from support.data import key
from support.job import Job, Place

#: The samples of one step: one buffer or tensor each, or the rows of one array or tensor where all have one size.
Batch = list[Any] | NDArray[np.uint8] | torch.Tensor


class Loader(Protocol):
    """An arm at work."""

    def epoch(self, number: int) -> Iterable[Batch]:
        """All batches of one pass over the data, in that epoch's order."""

    def close(self) -> None:
        """End threads and processes, and wait for them."""


class Arm(Protocol):
    """One loader."""

    #: "exact" or "approximate", as PROTOCOL.md defines them.
    order: str

    def prepare(self, job: Job) -> None:
        """Convert the data into the arm's own format, at ``converted(...)``, unless they are there."""

    def open(self, job: Job) -> Loader:
        """Make the loader; timed as start-up."""


def permutation(job: Job, epoch: int) -> NDArray[np.int64]:
    """A uniform order of all samples, for arms that leave it to the user."""
    return np.random.Generator(np.random.Philox((job.seed, epoch))).permutation(job.samples)


def batches_of(job: Job, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The order in steps; the last one may be short."""
    return [order[at : at + job.batch] for at in range(0, len(order), job.batch)]


def reader(job: Job) -> Callable[[int], bytes]:
    """How one sample is read whole, from any thread: a file, or an object through ``settings["client"]``."""
    if job.place.kind == "dir":
        folder = Path(job.place.folder)
        return lambda sample: _read_file(folder / key(int(sample)))
    if job.settings.get("client") == "obstore":
        return _obstore_reader(job.place)
    return _boto3_reader(job.place)


def _read_file(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read()


def _boto3_reader(place: Place) -> Callable[[int], bytes]:
    """boto3 with one client per thread and process, as its documentation asks for."""
    local = threading.local()

    def read(sample: int) -> bytes:
        client = getattr(local, "client", None)
        if client is None:
            client = local.client = boto3_client(place)
        body: bytes = client.get_object(Bucket=place.bucket, Key=place.prefix + key(int(sample)))[
            "Body"
        ].read()
        return body

    return read


def boto3_client(place: Place) -> Any:
    """A client of its own session."""
    import boto3
    from botocore.config import Config

    config = Config(
        max_pool_connections=4,
        retries={"max_attempts": 5},
        s3={"addressing_style": "path"},
        signature_version="s3v4",
    )
    return boto3.session.Session().client(
        "s3",
        endpoint_url=place.endpoint,
        aws_access_key_id=place.access,
        aws_secret_access_key=place.secret,
        region_name="us-east-1",
        config=config,
    )


def _obstore_reader(place: Place) -> Callable[[int], bytes]:
    """The object_store crate through its Python binding; it releases the interpreter while it waits."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        place.bucket,
        endpoint=place.endpoint,
        access_key_id=place.access,
        secret_access_key=place.secret,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    return lambda sample: memoryview(obstore.get(store, place.prefix + key(int(sample))).bytes())  # type: ignore[return-value]


def aws_environment(place: Place) -> dict[str, str]:
    """For libraries that take their S3 settings from the environment."""
    return {
        "AWS_ACCESS_KEY_ID": place.access,
        "AWS_SECRET_ACCESS_KEY": place.secret,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": place.endpoint,
        "S3_ENDPOINT_URL": place.endpoint,
    }


def converted(job: Job, form: str) -> Path:
    """Where an arm's converted data lie: beside the samples, on the same slow place."""
    samples = Path(job.place.folder)
    return samples.with_name(f"{samples.name}-{form}")


def local_reader(job: Job) -> Callable[[int], bytes]:
    """How a conversion reads samples: from the folder, also if a server stands before it."""
    folder = Path(job.place.folder)
    return lambda sample: _read_file(folder / key(sample))


def address(job: Job, folder: Path) -> str:
    """How converted data are named to a library: a folder, or an S3 address."""
    if job.place.kind == "dir":
        return str(folder)
    return f"s3://{job.place.bucket}/{folder.name}"
