# SPDX-License-Identifier: Apache-2.0
"""The samples of a part, as files in the folder of the bucket: noise, or the pictures of Fashion-MNIST."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import s3, samples
from common.proof import U64, checksums
from numpy.typing import NDArray

from .sizes import MNIST_BYTES, Size
from .task import Place

#: Pictures of Debian's package `dataset-fashion-mnist`.
PICTURES = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
#: Bytes of the header of an IDX file with three dimensions.
_IDX_HEADER = 16


@dataclass(frozen=True)
class Data:
    """The samples of a part."""

    folder: Path
    #: `fashion-mnist` or `noise`.
    content: str
    #: CRC-32 of each sample, from its file.
    crcs: U64

    def place(self, endpoint: str) -> Place:
        """Return where a rank finds the samples."""
        return Place(str(self.folder), endpoint, s3.BUCKET, f"{self.folder.name}/")


def make(size: Size, home: Path, seed: int, pictures: Path = PICTURES) -> Data:
    """Write the samples unless they exist, below ``home``, which is the folder that the bucket's server serves.

    Args:
        size: the part.
        home: folder on a fast disk where objects are kept for later runs.
        seed: of noise.
        pictures: file of pictures; without it they are noise too.
    """
    bucket = home / s3.BUCKET
    if size.theme == "deli_mnist" and pictures.exists():
        folder, content = bucket / f"fashion-mnist-{size.samples}", "fashion-mnist"
        mark = folder.with_name(f"{folder.name}.json")
        if not mark.exists():
            write_rows(folder, read_pictures(pictures, size.samples))
            s3.tag(folder)
            mark.write_text("{}")
    else:
        shape = size.shape(seed)
        folder, content = bucket / samples.fingerprint(shape), "noise"
        is_new = not folder.with_name(f"{folder.name}.json").exists()
        samples.make(folder, shape)
        if is_new:
            s3.tag(folder)
    return Data(folder, content, checksums(folder, size.samples))


def read_pictures(file: Path, count: int) -> NDArray[np.uint8]:
    """Return the first pictures of an IDX file, one per row.

    Raises:
        ValueError: the file has no such pictures.
    """
    pixels = MNIST_BYTES - samples.ID_BYTES
    with gzip.open(file) as stream:
        stream.read(_IDX_HEADER)
        content = stream.read(count * pixels)
    if len(content) != count * pixels:
        raise ValueError(f"{file} has fewer than {count} pictures of {pixels} pixels")
    return np.frombuffer(content, np.uint8).reshape(count, pixels)


def write_rows(folder: Path, rows: NDArray[np.uint8]) -> None:
    """Write one sample per row: its number, then the row."""
    for number in range(samples.CLASSES):
        (folder / f"c{number}").mkdir(parents=True, exist_ok=True)
    for sample, row in enumerate(rows):
        content = sample.to_bytes(samples.ID_BYTES, "little") + row.tobytes()
        (folder / samples.key(sample)).write_bytes(content)
