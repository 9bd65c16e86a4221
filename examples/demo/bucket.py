# SPDX-License-Identifier: Apache-2.0
"""Images in a bucket as a torch data set without Foresee: listed once, one GET per sample.

boto3 lists and signs; urllib3 reads over persistent connections, because ``get_object`` of boto3 takes twice the
processor time per object. Settings and credentials come from the environment, as for boto3.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import boto3
import torch
import urllib3
from botocore.config import Config
from PIL import Image
from torch.utils.data import Dataset

#: Image extensions of torchvision's ImageFolder.
PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
#: Seconds that a signed URL is valid; it is used at once.
SIGNED_FOR_S = 600


@dataclass(frozen=True)
class Listing:
    """Keys and labels, in the order of torchvision's ImageFolder."""

    bucket: str
    keys: list[str]
    labels: list[int]
    classes: list[str]


def list_pictures(uri: str) -> Listing:
    """List ``s3://BUCKET/PREFIX``: classes are its folders, samples the images in and below them."""
    name, _, prefix = uri.removeprefix("s3://").partition("/")
    prefix = prefix.rstrip("/") + "/" if prefix else ""
    found: list[tuple[str, str, str]] = []
    for page in client().get_paginator("list_objects_v2").paginate(Bucket=name, Prefix=prefix):
        for entry in page.get("Contents", ()):
            label, _, rest = entry["Key"][len(prefix) :].partition("/")
            if rest.lower().endswith(PICTURES):
                folder, _, file = rest.rpartition("/")
                found.append((label, folder, file))
    if not found:
        raise SystemExit(
            f"demo: no images in class folders below {uri}; pass the folder that contains the class folders"
        )
    found.sort()
    classes = sorted({label for label, _, _ in found})
    numbers = {label: number for number, label in enumerate(classes)}
    keys = [prefix + "/".join(part for part in parts if part) for parts in found]
    return Listing(name, keys, [numbers[label] for label, _, _ in found], classes)


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """One GET per sample, decoded as torchvision does it."""

    def __init__(self, listing: Listing, transform: Callable[[Image.Image], torch.Tensor]) -> None:
        self._listing = listing
        self._transform = transform
        self._owner: int | None = None

    @property
    def classes(self) -> list[str]:
        """Class names in label order."""
        return self._listing.classes

    def __len__(self) -> int:
        return len(self._listing.keys)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        picture = Image.open(io.BytesIO(self._read(self._listing.keys[i]))).convert("RGB")
        return self._transform(picture), self._listing.labels[i]

    def _read(self, key: str) -> bytes:
        # Created on use, so that no connection is shared after a fork.
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._client = client()
            self._pool = urllib3.PoolManager(
                retries=urllib3.Retry(5, status_forcelist=(500, 503), backoff_factor=0.1)
            )
        parameters = {"Bucket": self._listing.bucket, "Key": key}
        url = self._client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=SIGNED_FOR_S)
        response = self._pool.request("GET", url)
        if response.status != 200:
            raise OSError(f"s3://{self._listing.bucket}/{key}: the origin answered {response.status}")
        return response.data


def client() -> Any:
    """Return a new client."""
    return boto3.session.Session().client("s3", config=Config(signature_version="s3v4"))
