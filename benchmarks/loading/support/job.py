# SPDX-License-Identifier: Apache-2.0
"""What a loading process is asked to do, and what it answers: one line of JSON each."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where the samples lie: a folder, or a bucket behind an endpoint."""

    #: "dir" or "s3".
    kind: str
    #: The folder with the samples; over S3 the one that the server keeps them in. Converted data go beside it.
    folder: str
    #: For "s3": where the server (or the proxy before it) listens.
    endpoint: str = ""
    bucket: str = ""
    #: What comes before the samples' names in the bucket, with its slash.
    prefix: str = ""
    access: str = ""
    secret: str = ""


@dataclass(frozen=True)
class Job:
    """One run of one arm on one workload."""

    arm: str
    workload: str
    place: Place
    samples: int
    #: Mean bytes of a sample; all samples have it where ``equal`` holds.
    sample_bytes: int
    equal: bool
    batch: int
    epochs: int
    seed: int
    #: Seconds that the loop computes after each batch; 0 for none.
    compute_s: float
    #: Budgets of arms with a cache, in bytes; 0 for none.
    ram_bytes: int
    disk_bytes: int
    #: A folder of this run's own on a fast disk, removed after it: for caches.
    scratch: str
    #: "prepare" converts the data into the arm's own format, "run" loads them.
    phase: str = "run"
    #: Whether every sample of the timed epochs is checked; otherwise one epoch more is, untimed.
    verify: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Job:
        """The job of one line."""
        given = json.loads(line)
        given["place"] = Place(**given["place"])
        return cls(**given)


@dataclass
class Epoch:
    """One pass over the data."""

    seconds: float = 0.0
    #: Time inside ``next()``, without the first batch of the run.
    waited_s: float = 0.0
    #: Time until the first batch of the epoch.
    first_s: float = 0.0
    samples: int = 0
    bytes: int = 0
    #: User and system time of the process and its children in it.
    cpu_s: float = 0.0
    #: Sum of the samples' CRC-32 modulo 2^64, and sum of their ids; 0 where not verified.
    checksum: int = 0
    ids: int = 0
    verified: bool = False


@dataclass
class Result:
    """What a run gave; everything that the loading process itself cannot see is added by its parent."""

    arm: str
    workload: str
    settings: dict[str, Any]
    order: str
    #: Conversion into the arm's own format, before the clock starts.
    prepare_s: float
    #: Opening the loader until the first batch.
    start_s: float
    epochs: list[Epoch]
    #: User and system time of the process and its children while opening.
    open_cpu_s: float = 0.0
    error: str = ""

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Result:
        """The result of one line."""
        given = json.loads(line)
        given["epochs"] = [Epoch(**epoch) for epoch in given["epochs"]]
        return cls(**given)
