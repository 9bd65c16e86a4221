# SPDX-License-Identifier: Apache-2.0
"""The sizes of PROTOCOL.md, for the full and the quick run."""

from __future__ import annotations

from dataclasses import dataclass

from common.samples import Shape

MB = 1_000_000
MIB = 1 << 20

RANKS = 8
#: Rate of compute over the rate of the origin.
COMPUTE_OVER_ORIGIN = 1.3
#: Share of the first job's first epoch after which the second job starts.
SECOND_START = 0.3
#: Latency of a bucket.
LATENCY_MS = 20.0
#: Memory of a loader and of the service over the data, and in addition for staging and tables.
ROOM, ROOM_BYTES = 1.25, 64 * MIB


@dataclass(frozen=True)
class Size:
    """Data and rates of one part."""

    part: str
    samples: int
    sample_bytes: int
    batch: int
    #: Timed epochs.
    epochs: int
    #: Limit of the bucket; 0 for files in memory, and for a bucket without one.
    bytes_per_s: int = 0
    #: Caps of requests per second: at first, and raised.
    caps: tuple[int, int] = (0, 0)
    #: Seconds after which the cap is raised.
    raised_after_s: float = 0.0

    @property
    def is_bucket(self) -> bool:
        """Whether the samples are objects; else files in memory."""
        return self.part != "small"

    @property
    def data_bytes(self) -> int:
        """Bytes of all samples."""
        return self.samples * self.sample_bytes

    @property
    def ram_bytes(self) -> int:
        """Memory of a loader and of the service: room for the data once."""
        return int(ROOM * self.data_bytes) + ROOM_BYTES

    @property
    def origin_pass_s(self) -> float:
        """Seconds in which the bucket delivers all data once."""
        return self.data_bytes / self.bytes_per_s if self.bytes_per_s else 0.0

    @property
    def compute_s(self) -> float:
        """Seconds of compute per step in part ``jobs``."""
        return self.origin_pass_s / COMPUTE_OVER_ORIGIN * self.batch / self.samples

    @property
    def second_start_step(self) -> int:
        """Step of the first job, counted from 1, at whose end the second job starts."""
        return max(1, round(SECOND_START * self.samples / self.batch))

    def shape(self, seed: int) -> Shape:
        """Return the shape of the data."""
        return Shape(self.samples, self.sample_bytes, self.sample_bytes, seed)


FULL = (
    Size("ranks", 4096, 110_000, 16, 4, 60 * MB),
    Size("start", 4096, 110_000, 16, 1),
    Size("jobs", 2048, 110_000, 16, 2, 30 * MB),
    Size("first_epoch", 2048, 110_000, 16, 1, 30 * MB),
    Size("small", 64_000, 1_000, 64, 21),
    Size("cap", 20_000, 1_000, 64, 1, caps=(200, 400), raised_after_s=20.0),
)

#: Fewer samples with the same rates, so that the quick run takes less than 3 minutes.
QUICK = (
    Size("ranks", 1024, 110_000, 16, 4, 60 * MB),
    Size("start", 1024, 110_000, 16, 1),
    Size("jobs", 512, 110_000, 16, 2, 30 * MB),
    Size("first_epoch", 512, 110_000, 16, 1, 30 * MB),
    Size("small", 25_600, 1_000, 64, 21),
    Size("cap", 20_000, 1_000, 64, 1, caps=(200, 400), raised_after_s=11.0),
)
