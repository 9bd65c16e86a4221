# SPDX-License-Identifier: Apache-2.0
"""The task of a rank, and its results: one line of JSON each."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Task:
    """The work of each rank of a job."""

    #: Path of the index, or the URI that each rank lists.
    data: str
    batch: int
    #: Timed epochs.
    epochs: int
    seed: int
    ram_bytes: int
    #: Seconds of compute after each batch; 0 for none.
    compute_s: float = 0.0
    #: Report the end of this step of the first epoch, counted from 1; 0 for none.
    report_step: int = 0
    #: Wait for all ranks between the first and the second epoch.
    waits_after_first: bool = False
    #: End after the first batch.
    only_first_batch: bool = False
    #: Read one more epoch, untimed, with a checksum of each sample.
    checks: bool = True

    def to_line(self) -> str:
        """Return one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Task:
        """Parse a task from one line."""
        return cls(**json.loads(line))


@dataclass
class Epoch:
    """One pass of one rank; times are those of the host's monotonic clock."""

    began: float = 0.0
    ended: float = 0.0
    samples: int = 0
    bytes: int = 0
    #: Sum of the samples' own numbers.
    ids: int = 0
    #: Seconds at which each step requested its batch, and at which its compute ended.
    requested: list[float] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)


@dataclass
class Result:
    """Result of one rank."""

    #: When it opened its loader, and when it had its first batch.
    opened: float = 0.0
    first_batch: float = 0.0
    #: User and system time from opening to the last timed step.
    cpu_s: float = 0.0
    epochs: list[Epoch] = field(default_factory=list)
    #: Sum of the CRC-32 of each sample of the checked epoch.
    checksum: int = 0

    def to_line(self) -> str:
        """Return one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Result:
        """Parse a result from one line."""
        given = json.loads(line)
        given["epochs"] = [Epoch(**epoch) for epoch in given["epochs"]]
        return cls(**given)
