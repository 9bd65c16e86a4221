# SPDX-License-Identifier: Apache-2.0
"""The set-ups of PROTOCOL.md, for the full and the quick run, and their samples."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

KB, MB = 1_000, 1_000_000
#: Capacity for all samples.
ALL = 2.0
#: A sample starts with its number, little-endian.
ID_BYTES = 8

PERFECT, NAIVE, STAGING, PINNED, OURS = (
    "perfect",
    "naive",
    "staging_buffer",
    "nopfs_on_access",
    "foresee",
)


@dataclass(frozen=True)
class SetUp:
    """One set-up."""

    name: str
    #: "mount" (also for set-ups that PROTOCOL.md names after a disk) or "bucket".
    origin: str
    #: Limits of the origin, shared by all ranks; 0 for no limit.
    bytes_per_s: int
    requests_per_s: int
    latency_ms: float
    ranks: int
    samples: int
    bytes_min: int
    bytes_max: int
    #: Samples per rank and step.
    batch: int
    #: Arguments ``ram=`` and ``disk_size=`` of a rank's loader, as shares of the data set.
    ram: float
    disk: float
    #: Rate of compute of all ranks over the rate of the origin.
    compute: float
    policies: tuple[str, ...]
    epochs: int = 3

    @property
    def mean(self) -> float:
        """Mean bytes of a sample."""
        return (self.bytes_min + self.bytes_max) / 2

    @property
    def rate(self) -> float:
        """Rate of the origin in bytes per second: the tighter of its limits."""
        limits = (self.bytes_per_s, self.requests_per_s * self.mean)
        return min(limit for limit in limits if limit)

    @property
    def compute_rate(self) -> float:
        """Rate of compute of one rank, in bytes per second."""
        return self.compute * self.rate / self.ranks

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return math.ceil(math.ceil(self.samples / self.ranks) / self.batch)

    def capacity_for(self, share: float) -> int:
        """Return the bytes of a share of the data set."""
        return int(share * self.samples * self.mean)

    def smaller(self, factor: int) -> SetUp:
        """Return the set-up with the samples divided by ``factor``."""
        whole = self.ranks * self.batch
        return replace(self, samples=max(whole * 6, self.samples // factor // whole * whole))


_P, _N, _S, _O, _F = PERFECT, NAIVE, STAGING, PINNED, OURS

#: The set-ups of the acceptance lines. They were not used to tune model, benchmark or loader.
TEN = (
    SetUp(
        "share-1", "mount", 55 * MB, 0, 0, 1, 480, 50 * KB, 190 * KB, 16, 1 / 4, 1 / 2, 1.35, (_P, _S, _O, _F)
    ),
    SetUp("share-2-slow", "mount", 28 * MB, 0, 0, 2, 360, 40 * KB, 120 * KB, 9, 1 / 3, 0, 1.2, (_P, _S, _F)),
    SetUp(
        "share-2-small", "mount", 0, 1100, 0, 2, 1680, 3 * KB, 11 * KB, 20, 1 / 3, 1 / 2, 1.3, (_P, _S, _F)
    ),
    SetUp("share-3-all", "mount", 60 * MB, 0, 0, 3, 540, 70 * KB, 150 * KB, 9, ALL, 0, 1.25, (_P, _S, _F)),
    SetUp("share-4", "mount", 85 * MB, 0, 0, 4, 640, 90 * KB, 150 * KB, 8, 1 / 5, 1 / 4, 1.3, (_P, _S, _F)),
    SetUp(
        "wide-1-large",
        "bucket",
        45 * MB,
        0,
        25,
        1,
        60,
        800 * KB,
        1600 * KB,
        3,
        1 / 2,
        0,
        1.25,
        (_P, _N, _S, _O, _F),
    ),
    SetUp(
        "wide-1-small", "bucket", 0, 850, 18, 1, 1260, 4 * KB, 10 * KB, 28, 1 / 4, 1 / 2, 1.35, (_P, _S, _F)
    ),
    SetUp("wide-2", "bucket", 50 * MB, 0, 10, 2, 480, 60 * KB, 160 * KB, 8, 1 / 3, 0, 0.85, (_P, _N, _S, _F)),
    SetUp(
        "wide-3-all", "bucket", 48 * MB, 0, 12, 3, 450, 50 * KB, 150 * KB, 6, ALL, 0, 1.3, (_P, _N, _S, _F)
    ),
    SetUp(
        "wide-4", "bucket", 65 * MB, 0, 8, 4, 560, 90 * KB, 130 * KB, 7, 1 / 3, 1 / 4, 1.35, (_P, _N, _S, _F)
    ),
)

#: The earlier tens. They revealed errors of model, benchmark and loader, so they are now set-ups for tuning.
SEEN = (
    SetUp(
        "cold-1", "mount", 35 * MB, 0, 0, 1, 360, 40 * KB, 160 * KB, 12, 1 / 2, 1 / 4, 1.3, (_P, _S, _O, _F)
    ),
    SetUp("cold-2", "mount", 65 * MB, 0, 0, 2, 560, 70 * KB, 170 * KB, 10, 1 / 5, 0, 1.25, (_P, _S, _F)),
    SetUp("cold-2-small", "mount", 0, 900, 0, 2, 1440, 4 * KB, 12 * KB, 20, ALL, 0, 1.3, (_P, _S, _F)),
    SetUp("cold-3", "mount", 55 * MB, 0, 0, 3, 480, 80 * KB, 140 * KB, 8, 1 / 3, 1 / 3, 1.4, (_P, _S, _F)),
    SetUp("cold-4-all", "mount", 75 * MB, 0, 0, 4, 560, 90 * KB, 170 * KB, 7, ALL, 0, 1.2, (_P, _S, _F)),
    SetUp("far-1-small", "bucket", 0, 800, 25, 1, 1200, 3 * KB, 7 * KB, 24, 1 / 2, 1 / 4, 1.3, (_P, _S, _F)),
    SetUp(
        "far-1-mixed",
        "bucket",
        40 * MB,
        0,
        18,
        1,
        360,
        30 * KB,
        190 * KB,
        12,
        1 / 3,
        0,
        1.25,
        (_P, _N, _S, _O, _F),
    ),
    SetUp(
        "far-2-all", "bucket", 55 * MB, 0, 15, 2, 520, 60 * KB, 140 * KB, 10, ALL, 0, 1.3, (_P, _N, _S, _F)
    ),
    SetUp(
        "far-3", "bucket", 45 * MB, 0, 20, 3, 450, 70 * KB, 130 * KB, 5, 1 / 4, 1 / 2, 1.2, (_P, _N, _S, _F)
    ),
    SetUp("far-4-all", "bucket", 70 * MB, 0, 6, 4, 640, 80 * KB, 120 * KB, 8, ALL, 0, 1.4, (_P, _N, _S, _F)),
    SetUp(
        "folder-1", "mount", 45 * MB, 0, 0, 1, 450, 30 * KB, 170 * KB, 15, 1 / 3, 1 / 3, 1.4, (_P, _S, _O, _F)
    ),
    SetUp("folder-2-slow", "mount", 30 * MB, 0, 0, 2, 320, 50 * KB, 150 * KB, 8, 1 / 4, 0, 1.3, (_P, _S, _F)),
    SetUp("folder-2-small", "mount", 0, 1000, 0, 2, 1600, 3 * KB, 9 * KB, 25, 1 / 2, 0, 1.2, (_P, _S, _F)),
    SetUp("folder-3-all", "mount", 70 * MB, 0, 0, 3, 630, 60 * KB, 180 * KB, 7, ALL, 0, 1.3, (_P, _S, _F)),
    SetUp("folder-4", "mount", 50 * MB, 0, 0, 4, 400, 100 * KB, 150 * KB, 5, 1 / 6, 1 / 3, 1.2, (_P, _S, _F)),
    SetUp(
        "store-1-large",
        "bucket",
        35 * MB,
        0,
        15,
        1,
        48,
        1 * MB,
        2 * MB,
        3,
        1 / 2,
        0,
        1.3,
        (_P, _N, _S, _O, _F),
    ),
    SetUp(
        "store-1-small", "bucket", 0, 900, 15, 1, 1350, 3 * KB, 9 * KB, 30, 1 / 3, 1 / 2, 1.3, (_P, _S, _F)
    ),
    SetUp("store-2", "bucket", 45 * MB, 0, 12, 2, 480, 50 * KB, 130 * KB, 8, 1 / 4, 0, 0.8, (_P, _N, _S, _F)),
    SetUp(
        "store-3-all", "bucket", 55 * MB, 0, 8, 3, 540, 60 * KB, 140 * KB, 6, ALL, 0, 1.4, (_P, _N, _S, _F)
    ),
    SetUp("store-4-small", "bucket", 0, 1100, 10, 4, 1920, 4 * KB, 16 * KB, 12, 1 / 3, 0, 1.3, (_P, _S, _F)),
    SetUp(
        "mount-1-mixed",
        "mount",
        25 * MB,
        0,
        0,
        1,
        400,
        20 * KB,
        220 * KB,
        20,
        1 / 2,
        0,
        1.5,
        (_P, _S, _O, _F),
    ),
    SetUp("mount-2-all", "mount", 80 * MB, 0, 0, 2, 600, 100 * KB, 200 * KB, 10, ALL, 0, 1.2, (_P, _S, _F)),
    SetUp("mount-2-small", "mount", 0, 800, 0, 2, 1200, 2 * KB, 10 * KB, 20, 1 / 3, 1 / 3, 1.3, (_P, _S, _F)),
    SetUp("mount-3", "mount", 60 * MB, 0, 0, 3, 540, 60 * KB, 140 * KB, 6, 1 / 6, 1 / 2, 1.1, (_P, _S, _F)),
    SetUp("mount-4", "mount", 60 * MB, 0, 0, 4, 480, 80 * KB, 160 * KB, 6, 1 / 4, 0, 0.8, (_P, _S, _F)),
    SetUp(
        "http-1-mixed",
        "bucket",
        30 * MB,
        0,
        8,
        1,
        300,
        20 * KB,
        180 * KB,
        15,
        2 / 5,
        1 / 2,
        1.4,
        (_P, _N, _S, _O, _F),
    ),
    SetUp("http-1-small", "bucket", 0, 700, 20, 1, 1050, 2 * KB, 6 * KB, 25, 1 / 2, 0, 1.2, (_P, _S, _F)),
    SetUp(
        "http-2-large", "bucket", 50 * MB, 0, 10, 2, 64, 1 * MB, 2 * MB, 2, 1 / 3, 0, 1.3, (_P, _N, _S, _F)
    ),
    SetUp(
        "http-3-slow", "bucket", 25 * MB, 0, 30, 3, 360, 40 * KB, 120 * KB, 6, 1 / 4, 0, 1.3, (_P, _N, _S, _F)
    ),
    SetUp("http-4", "bucket", 60 * MB, 0, 5, 4, 640, 80 * KB, 120 * KB, 8, 1 / 2, ALL, 1.5, (_P, _N, _S, _F)),
    SetUp("disk-1", "mount", 40 * MB, 0, 0, 1, 512, 60 * KB, 160 * KB, 16, 1 / 3, 0, 1.3, (_P, _S, _O, _F)),
    SetUp("disk-2", "mount", 40 * MB, 0, 0, 2, 512, 60 * KB, 160 * KB, 8, 1 / 8, ALL, 1.3, (_P, _S, _F)),
    SetUp("disk-3-small", "mount", 0, 500, 0, 3, 720, 4 * KB, 12 * KB, 12, 1 / 4, 0, 1.3, (_P, _S, _F)),
    SetUp("disk-4-large", "mount", 60 * MB, 0, 0, 4, 48, 2 * MB, 2 * MB, 1, 1 / 3, 0, 1.3, (_P, _S, _F)),
    SetUp("bucket-1-small", "bucket", 0, 1000, 10, 1, 1536, 4 * KB, 12 * KB, 32, ALL, 0, 1.3, (_P, _S, _F)),
    SetUp(
        "bucket-1-large",
        "bucket",
        40 * MB,
        0,
        20,
        1,
        24,
        2 * MB,
        4 * MB,
        2,
        1 / 2,
        0,
        1.3,
        (_P, _N, _S, _O, _F),
    ),
    SetUp("bucket-2-small", "bucket", 0, 1200, 5, 2, 1792, 8 * KB, 24 * KB, 16, 1 / 3, 0, 1.3, (_P, _S, _F)),
    SetUp(
        "bucket-2-compute",
        "bucket",
        40 * MB,
        0,
        5,
        2,
        512,
        60 * KB,
        160 * KB,
        8,
        1 / 4,
        0,
        0.7,
        (_P, _N, _S, _F),
    ),
    SetUp(
        "bucket-3", "bucket", 40 * MB, 0, 5, 3, 540, 60 * KB, 160 * KB, 6, 1 / 8, 1 / 3, 1.3, (_P, _N, _S, _F)
    ),
    SetUp(
        "bucket-4",
        "bucket",
        40 * MB,
        0,
        10,
        4,
        512,
        110 * KB,
        110 * KB,
        8,
        1 / 8,
        1 / 2,
        1.3,
        (_P, _N, _S, _F),
    ),
)

#: Set-ups for tuning the model and this benchmark.
TUNING = (
    *SEEN,
    SetUp("tune-disk", "mount", 50 * MB, 0, 0, 2, 400, 40 * KB, 200 * KB, 10, 1 / 4, 0, 1.2, (_P, _S, _F)),
    SetUp(
        "tune-bucket",
        "bucket",
        30 * MB,
        0,
        15,
        1,
        200,
        50 * KB,
        150 * KB,
        10,
        1 / 2,
        1,
        1.2,
        (_P, _N, _S, _O, _F),
    ),
)

QUICK = ("share-3-all", "wide-1-small", "share-2-small")


@dataclass(frozen=True)
class Truth:
    """The expected samples."""

    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all samples."""
        return sum(self.sizes)


def key(sample: int) -> str:
    """Return the name of a sample in its folder; the order of names is that of ids."""
    return f"{sample:07d}.bin"


def make(folder: Path, setup: SetUp, seed: int) -> Truth:
    """Write the samples unless they exist: noise that starts with the number of the sample."""
    note = folder.with_name(folder.name + ".json")
    if note.is_file() and folder.is_dir():
        return Truth(tuple(json.loads(note.read_text())))
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.Generator(np.random.Philox(seed))
    sizes = rng.integers(setup.bytes_min, setup.bytes_max + 1, setup.samples).tolist()
    for sample, size in enumerate(sizes):
        (folder / key(sample)).write_bytes(sample.to_bytes(ID_BYTES, "little") + rng.bytes(size - ID_BYTES))
    note.write_text(json.dumps(sizes))
    return Truth(tuple(sizes))


def fingerprint(setup: SetUp, seed: int) -> str:
    """Return a short name of a set-up's samples, unique per data set."""
    shape = (setup.samples, setup.bytes_min, setup.bytes_max, seed)
    return hashlib.blake2b(json.dumps(shape).encode(), digest_size=6).hexdigest()


def facts(setup: SetUp) -> dict[str, object]:
    """Return the fields for a raw line."""
    return asdict(setup)
