# SPDX-License-Identifier: Apache-2.0
"""The task of a rank, and its results; both are JSON between the processes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Place:
    """The samples: objects below a prefix of a bucket, which are files of a folder too."""

    folder: str
    endpoint: str
    bucket: str
    #: With its slash.
    prefix: str


@dataclass(frozen=True)
class Task:
    """One arm of one rank."""

    arm: str
    place: Place
    samples: int
    sample_bytes: int
    batch: int
    epochs: int
    seed: int
    rank: int
    ranks: int
    #: Seconds of compute per sample; 0 for none.
    compute_s: float
    cache_bytes: int
    #: ``fetch_size`` and ``threshold``; 0: the defaults.
    window: int
    #: Samples to read of each epoch: whole batches, or all.
    read: int
    #: Folder of this run for files that an arm caches.
    scratch: str
    #: ``workers``, ``threads``, ``prefetch_factor``, ``cache_files``.
    settings: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Task:
        """Parse a JSON object."""
        return cls(**{**given, "place": Place(**given["place"])})


@dataclass
class Epoch:
    """One pass of one rank."""

    #: From the request of the first batch to the end of the loop.
    seconds: float = 0.0
    #: Time inside ``next()`` of each step; the last one found the end of the loop.
    waits_s: list[float] = field(default_factory=list)
    #: From the request of each batch to the end of its compute.
    steps_s: list[float] = field(default_factory=list)
    samples: int = 0
    bytes: int = 0
    #: CRC-32 of the sequence of the samples' numbers, each with 8 bytes.
    order: int = 0
    #: Sum of the CRC-32 of each sample, modulo 2^64.
    checksum: int = 0
    #: Counts of the cache since its start, at the end of the epoch; empty without a cache in this process.
    counts: dict[str, float] = field(default_factory=dict)


@dataclass
class Result:
    """Result of one rank."""

    epochs: list[Epoch] = field(default_factory=list)
    #: User and system time of the process and its children during the epochs.
    cpu_s: float = 0.0
    #: Further values by name: counts of the cache, times of hits.
    values: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Result:
        """Parse a JSON object."""
        return cls(**{**given, "epochs": [Epoch(**epoch) for epoch in given["epochs"]]})
