# SPDX-License-Identifier: Apache-2.0
"""The samples of a part, as files in the folder of the bucket."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common import s3, samples
from common.proof import U64, checksums

from .sizes import Size


@dataclass(frozen=True)
class Data:
    """The samples of a part."""

    #: In the bucket, with its slash.
    prefix: str
    #: CRC-32 of each sample, from its file.
    crcs: U64


def make(size: Size, home: Path, seed: int) -> Data:
    """Write the samples unless they exist, below ``home``, which is the folder that the bucket's server serves."""
    shape = size.shape(seed)
    folder = home / s3.BUCKET / samples.fingerprint(shape)
    is_new = not folder.with_name(f"{folder.name}.json").exists()
    samples.make(folder, shape)
    if is_new:
        s3.tag(folder)
    return Data(f"{folder.name}/", checksums(folder, size.samples))
