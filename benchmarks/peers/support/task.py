# SPDX-License-Identifier: Apache-2.0
"""The task of a rank, and its results; both are JSON between the processes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Task:
    """One arm, the same for all ranks."""

    #: `exact`, `alone` or `torch`.
    arm: str
    endpoint: str
    bucket: str
    #: Of the samples, with its slash.
    prefix: str
    samples: int
    sample_bytes: int
    batch: int
    epochs: int
    seed: int
    ram_bytes: int
    #: Seconds of compute of a step; 0 for none.
    step_s: float
    #: Interface whose received bytes count; empty for none.
    interface: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Task:
        """Parse a JSON object."""
        return cls(**given)


@dataclass
class Epoch:
    """One pass of one rank; times are those of the host's monotonic clock, which all ranks share."""

    began: float = 0.0
    ended: float = 0.0
    #: Time inside ``next()`` of each step; the last one found the end of the epoch.
    waits_s: list[float] = field(default_factory=list)
    #: Time at the barriers after the steps.
    barriers_s: float = 0.0
    #: Bytes that the interface received.
    received_bytes: int = 0
    samples: int = 0
    bytes: int = 0
    #: CRC-32 of the sequence of the samples' numbers, each with 8 bytes.
    order: int = 0
    #: Sum of the CRC-32 of each sample, modulo 2^64.
    checksum: int = 0
    #: Samples by source since the start, at the end of the epoch, and what the node exchanged and repeated.
    counts: dict[str, float] = field(default_factory=dict)


@dataclass
class Result:
    """Result of one rank."""

    epochs: list[Epoch] = field(default_factory=list)
    #: User and system time of the process and its children during the epochs.
    cpu_s: float = 0.0
    #: Counts as in the epochs, when all ranks had ended.
    counts: dict[str, float] = field(default_factory=dict)
    #: Seconds from the first request to the first meeting of the nodes; None if they did not meet.
    met_s: float | None = None
    #: What the logger ``foresee`` reported.
    messages: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Result:
        """Parse a JSON object."""
        return cls(**{**given, "epochs": [Epoch(**epoch) for epoch in given["epochs"]]})
