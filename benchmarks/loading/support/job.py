# SPDX-License-Identifier: Apache-2.0
"""Job and result of a loading process: one line of JSON each."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Place:
    """Location of the samples: a folder, or a bucket behind an endpoint."""

    #: "dir" or "s3".
    kind: str
    #: The folder with the samples, for S3 the one that the server serves. Converted data are stored next to it.
    folder: str
    #: For "s3": address of the server, or of the proxy in front of it.
    endpoint: str = ""
    bucket: str = ""
    #: Prefix of the samples' names in the bucket, with its slash.
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
    #: Mean bytes of a sample; if ``equal``, the size of all samples.
    sample_bytes: int
    equal: bool
    batch: int
    epochs: int
    seed: int
    #: Seconds of compute after each batch; 0 for none.
    compute_s: float
    #: Cache budgets in bytes; 0 for no cache.
    ram_bytes: int
    disk_bytes: int
    #: Folder of this run for caches, on a fast disk; removed after the run.
    scratch: str
    #: "prepare" converts the data into the arm's format, "run" loads them.
    phase: str = "run"
    #: Whether every sample of the timed epochs is checked; otherwise an additional untimed epoch is checked.
    verify: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        """Return one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Job:
        """Parse a job from one line."""
        given = json.loads(line)
        given["place"] = Place(**given["place"])
        return cls(**given)


@dataclass
class Epoch:
    """One pass over the data."""

    seconds: float = 0.0
    #: Time inside ``next()``, except for the first batch of the run.
    waited_s: float = 0.0
    #: Time until the first batch of the epoch.
    first_s: float = 0.0
    samples: int = 0
    bytes: int = 0
    #: User and system time of the process and its children during the epoch.
    cpu_s: float = 0.0
    #: Sum of the samples' CRC-32 modulo 2^64, and sum of their ids; 0 if not verified.
    checksum: int = 0
    ids: int = 0
    verified: bool = False


@dataclass
class Result:
    """Result of a run as the loading process measures it; ``Run`` adds what its parent measures."""

    arm: str
    workload: str
    settings: dict[str, Any]
    order: str
    #: Seconds of the conversion into the arm's format, which is not part of the timed run.
    prepare_s: float
    #: Seconds from opening the loader to the first batch.
    start_s: float
    epochs: list[Epoch]
    #: User and system time of the process and its children while the loader opens.
    open_cpu_s: float = 0.0
    error: str = ""

    def to_line(self) -> str:
        """Return one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Result:
        """Parse a result from one line."""
        given = json.loads(line)
        given["epochs"] = [Epoch(**epoch) for epoch in given["epochs"]]
        return cls(**given)
