# SPDX-License-Identifier: Apache-2.0
"""Generate the samples: seeded noise, each starting with its own number, in class folders."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

#: Number of class folders.
CLASSES = 8
#: A sample starts with its number, little-endian.
ID_BYTES = 8


@dataclass(frozen=True)
class Shape:
    """Number and sizes of the samples; sizes are uniform between the minimum and the maximum."""

    samples: int
    bytes_min: int
    bytes_max: int
    seed: int

    @property
    def equal(self) -> bool:
        """Whether all samples have one size."""
        return self.bytes_min == self.bytes_max


@dataclass(frozen=True)
class Truth:
    """Sums that a complete epoch must reach."""

    samples: int
    bytes: int
    checksum: int
    ids: int


def key(sample: int) -> str:
    """Return the name of a sample relative to the data's folder."""
    return f"c{sample % CLASSES}/{sample:07d}.bin"


def make(folder: Path, shape: Shape) -> Truth:
    """Write the samples unless they exist; a file next to the folder stores their sums."""
    note = folder.with_name(folder.name + ".json")
    if note.is_file():
        cached = json.loads(note.read_text())
        if cached["shape"] == asdict(shape) and folder.is_dir():
            return Truth(**cached["truth"])
    for at in range(CLASSES):
        (folder / f"c{at}").mkdir(parents=True, exist_ok=True)
    rng = np.random.Generator(np.random.Philox(shape.seed))
    total = checksum = 0
    for sample in range(shape.samples):
        size = int(rng.integers(shape.bytes_min, shape.bytes_max + 1))
        content = sample.to_bytes(ID_BYTES, "little") + rng.bytes(size - ID_BYTES)
        (folder / key(sample)).write_bytes(content)
        total += size
        checksum += zlib.crc32(content)
    truth = Truth(shape.samples, total, checksum % 2**64, shape.samples * (shape.samples - 1) // 2)
    note.write_text(json.dumps({"shape": asdict(shape), "truth": asdict(truth)}))
    return truth


def fingerprint(shape: Shape) -> str:
    """Return a short name of a shape, unique per data set."""
    return hashlib.blake2b(json.dumps(asdict(shape)).encode(), digest_size=6).hexdigest()
