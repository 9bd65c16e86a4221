# SPDX-License-Identifier: Apache-2.0
"""Interface of an arm, and functions that several arms share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from common.samples import key
from numpy.typing import NDArray
from support.job import Job, Place

#: The samples of one step: one buffer or tensor each, or the rows of one array or tensor where all have one size.
Batch = list[Any] | NDArray[np.uint8] | torch.Tensor


class Loader(Protocol):
    """An open loader of an arm."""

    def epoch(self, number: int) -> Iterable[Batch]:
        """Return all batches of one epoch, in its order."""

    def close(self) -> None:
        """Stop threads and processes, and wait for them."""


class Arm(Protocol):
    """One loader."""

    #: "exact" or "approximate", as PROTOCOL.md defines them.
    order: str

    def prepare(self, job: Job) -> None:
        """Convert the data into the arm's own format, at ``converted(...)``, unless that exists."""

    def open(self, job: Job) -> Loader:
        """Create the loader; timed as startup."""


def permutation(job: Job, epoch: int) -> NDArray[np.int64]:
    """Return a uniform order of all samples, for arms whose order the user sets."""
    return np.random.Generator(np.random.Philox((job.seed, epoch))).permutation(job.samples)


def batches_of(job: Job, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split the order into batches; the last one may be smaller."""
    return [order[at : at + job.batch] for at in range(0, len(order), job.batch)]


def reader(job: Job) -> Callable[[int], bytes]:
    """Return a thread-safe function that reads one sample: a file, or an object through ``settings["client"]``."""
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
    """Read with boto3, one client per thread and process, as its documentation recommends."""
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
    """Return a client with its own session."""
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
    """Read with the object_store crate through its Python binding, which releases the GIL while it waits."""
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
    """Return environment variables for libraries that read their S3 settings from there."""
    return {
        "AWS_ACCESS_KEY_ID": place.access,
        "AWS_SECRET_ACCESS_KEY": place.secret,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": place.endpoint,
        "S3_ENDPOINT_URL": place.endpoint,
    }


def converted(job: Job, form: str) -> Path:
    """Return the folder of an arm's converted data, next to the samples on the same slow origin."""
    samples = Path(job.place.folder)
    return samples.with_name(f"{samples.name}-{form}")


def local_reader(job: Job) -> Callable[[int], bytes]:
    """Return a function with which a conversion reads samples from the folder, bypassing any server."""
    folder = Path(job.place.folder)
    return lambda sample: _read_file(folder / key(sample))


def address(job: Job, folder: Path) -> str:
    """Return the address of converted data for a library: a folder or an S3 URI."""
    if job.place.kind == "dir":
        return str(folder)
    return f"s3://{job.place.bucket}/{folder.name}"
