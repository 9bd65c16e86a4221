# SPDX-License-Identifier: Apache-2.0
"""The workloads of PROTOCOL.md, for the full and the quick run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from common.samples import Shape

MB = 1_000_000
MIB = 1 << 20

#: Rate of compute over the rate of the origin.
COMPUTE_OVER_ORIGIN = 1.3


@dataclass(frozen=True)
class Rates:
    """Limits of the origin; 0 means no limit."""

    bytes_per_s: int = 0
    requests_per_s: int = 0
    latency_ms: float = 0.0


@dataclass(frozen=True)
class Workload:
    """One workload."""

    name: str
    #: "disk", "s3" or "tmpfs".
    origin: str
    rates: Rates
    samples: int
    bytes_min: int
    bytes_max: int
    batch: int
    epochs: int
    #: Whether the loop computes between batches.
    computes: bool
    #: Capacity of the cache in memory and on a fast disk, as a share of the data; above 1, everything fits.
    ram_share: float
    disk_share: float

    def shape(self, seed: int) -> Shape:
        """Return the shape of the data."""
        return Shape(self.samples, self.bytes_min, self.bytes_max, seed)

    @property
    def sample_bytes(self) -> int:
        """Mean bytes of a sample."""
        return (self.bytes_min + self.bytes_max) // 2

    def origin_pass_s(self, data_bytes: int) -> float:
        """Return the shortest time in which the origin can deliver all data once."""
        by_bytes = data_bytes / self.rates.bytes_per_s if self.rates.bytes_per_s else 0.0
        by_requests = self.samples / self.rates.requests_per_s if self.rates.requests_per_s else 0.0
        return max(by_bytes, by_requests)

    def compute_s(self, data_bytes: int) -> float:
        """Return the seconds of compute after each batch."""
        if not self.computes:
            return 0.0
        return self.origin_pass_s(data_bytes) / COMPUTE_OVER_ORIGIN * self.batch / self.samples

    def ram_bytes(self, data_bytes: int) -> int:
        """Return the RAM budget: with staging and tables if everything fits, otherwise at least four batches."""
        if self.ram_share > 1:
            return 2 * data_bytes + 64 * MIB
        if self.ram_share == 0:
            return 0
        return max(int(self.ram_share * data_bytes), 4 * self.batch * self.bytes_max)

    def disk_bytes(self, data_bytes: int) -> int:
        """Return the budget on the fast disk."""
        if self.disk_share > 1:
            return 2 * data_bytes + 64 * MIB
        return int(self.disk_share * data_bytes)


_DISK = Rates(60 * MB, 1_500)
_S3 = Rates(20 * MB, 1_000, 20.0)
_S3_WIDE = Rates(60 * MB, 0, 20.0)

FULL = [
    Workload("disk-110k", "disk", _DISK, 8192, 60_000, 160_000, 64, 3, True, 1 / 3, 2),
    Workload("disk-12m", "disk", _DISK, 96, 12 * MIB, 12 * MIB, 8, 3, True, 1 / 4, 2),
    Workload("disk-none", "disk", _DISK, 8192, 60_000, 160_000, 64, 1, True, 0, 0),
    Workload("s3-1k", "s3", _S3, 14_000, 1_000, 1_000, 64, 3, True, 2, 0),
    Workload("s3-1k-fast", "s3", _S3, 14_000, 1_000, 1_000, 64, 1, False, 2, 0),
    Workload("s3-half", "s3", _S3_WIDE, 2048, 110_000, 110_000, 64, 3, False, 0, 0.5),
    Workload("ram-1k", "tmpfs", Rates(), 20_000, 1_000, 1_000, 64, 3, False, 2, 0),
    Workload("ram-110k", "tmpfs", Rates(), 4096, 110_000, 110_000, 64, 3, False, 2, 0),
]

#: Fewer samples with the same rates, so that the quick run takes about a minute.
_QUICK_SAMPLES = {
    "disk-110k": 576,
    "disk-none": 576,
    "s3-1k": 1536,
    "s3-1k-fast": 2560,
    "s3-half": 256,
    "ram-1k": 12_800,
    "ram-110k": 2048,
}

QUICK = [replace(one, samples=_QUICK_SAMPLES[one.name]) for one in FULL if one.name in _QUICK_SAMPLES]


def grid(arm: str, workload: Workload) -> list[dict[str, Any]]:
    """Return the settings of an arm by PROTOCOL.md; none if it does not support the workload.

    Settings that are likely to be fast come first, so that slow ones are stopped early.
    """
    over_s3 = workload.origin == "s3"
    readers: list[dict[str, Any]] = [{"threads": 8}, {"threads": 16}]
    # Each thread holds the sample that it reads, and memory is limited: use few threads for 12 MiB samples.
    in_pool = (2, 4) if workload.bytes_max > 8 * MIB else (64, 16)
    pools: list[dict[str, Any]] = [{"threads": count} for count in in_pool]
    if over_s3:
        readers = pools = [{"threads": 64, "client": "obstore"}, {"threads": 64, "client": "boto3"}]
    grids: dict[str, list[dict[str, Any]]] = {
        "bound": [{}],
        "ours": [{}],
        "torch": [{"workers": count} for count in (8, 4, 2, 0)],
        "spdl": readers,
        "grain": readers,
        "pool": pools,
        "s3torchconnector": [{"workers": count} for count in (8, 4, 2)] if over_s3 else [],
        "streaming": [{"workers": count} for count in (2, 4)],
        "litdata": [{"workers": count} for count in (0, 2)],
        "webdataset": [{"workers": count} for count in (2, 4)],
    }
    return grids[arm]


#: Arms of the quick run by workload, each with one good setting.
QUICK_ARMS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "ram-1k": [("ours", {}), ("torch", {"workers": 0}), ("torch", {"workers": 2})],
    "ram-110k": [("ours", {}), ("torch", {"workers": 0}), ("pool", {"threads": 16})],
    "s3-1k-fast": [("ours", {}), ("pool", {"threads": 64, "client": "obstore"})],
    "s3-1k": [("ours", {})],
    "s3-half": [("ours", {})],
    "disk-110k": [("ours", {})],
    "disk-none": [("ours", {}), ("torch", {"workers": 4})],
}
