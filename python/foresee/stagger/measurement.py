# SPDX-License-Identifier: Apache-2.0
"""Times of one job in one run of a calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Measurement"]


@dataclass(frozen=True)
class Measurement:
    """Measurement of one job in a run; seconds."""

    kind: str
    """``cold``, ``warm`` or ``pair``."""
    name: str
    beside: str | None
    """The other job of a pair."""
    compute: tuple[float, float]
    """Mean and standard deviation per step."""
    wait: tuple[float, float]
    """Likewise."""
    steps: int
    """Steps that count."""
    lasted: float
    """From the start of the process to its end."""
    read_bytes: int | None
    """Bytes that its processes read from storage from their first step on; None: unknown."""

    def facts(self) -> dict[str, Any]:
        """Return the measurement in plain values."""
        return {
            "kind": self.kind,
            "job": self.name,
            "beside": self.beside,
            "compute_seconds": self.compute[0],
            "compute_seconds_sd": self.compute[1],
            "wait_seconds": self.wait[0],
            "wait_seconds_sd": self.wait[1],
            "steps": self.steps,
            "lasted_seconds": self.lasted,
            "read_bytes": self.read_bytes,
        }
