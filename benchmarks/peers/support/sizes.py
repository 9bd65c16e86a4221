# SPDX-License-Identifier: Apache-2.0
"""The sizes of PROTOCOL.md, for the full and the quick run, and the bound of a run."""

from __future__ import annotations

from dataclasses import dataclass

from common.samples import Shape

MB = 1_000_000
#: Bytes per second of one Mbit/s.
MBIT = MB // 8

#: Latency of each request at the bucket.
LATENCY_MS = 20.0
#: Share of ``ram=`` that a node reserves for samples that other nodes read: without an eighth for the look-ahead, and
#: of the rest without a quarter for reads ahead and an eighth for requests.
RESERVED_SHARE = 7 / 8 * (1 - 1 / 4 - 1 / 8)
#: Rate of compute of all nodes over the rate of the bucket.
COMPUTE_OVER_ORIGIN = 1.3
#: Rate of compute of a node over the rate of its link, in part `links`.
COMPUTE_OVER_LINK = 0.6
#: Goodput of a shaped link over its rate.
GOODPUT = 0.956


@dataclass(frozen=True)
class Size:
    """Data, nodes and rates of one part."""

    part: str
    nodes: int
    samples: int
    sample_bytes: int
    #: Samples of a rank's batch.
    batch: int
    epochs: int
    #: Limit of the bucket; 0 for none.
    origin_bytes_per_s: int
    #: Rate of each node's link.
    link_mbit: int
    #: What all nodes reserve together, over the data.
    capacity: float = 1.3

    @property
    def data_bytes(self) -> int:
        """Bytes of all samples."""
        return self.samples * self.sample_bytes

    @property
    def ram_bytes(self) -> int:
        """``ram=`` of each node."""
        return int(self.capacity * self.data_bytes / self.nodes / RESERVED_SHARE)

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.samples // (self.nodes * self.batch)

    @property
    def epoch_compute_s(self) -> float:
        """Seconds of compute of an epoch; the same on all ranks, which train in step."""
        if self.part == "links":
            return self.data_bytes / self.nodes / (COMPUTE_OVER_LINK * self.link_mbit * MBIT)
        if not self.origin_bytes_per_s:
            return 0.0
        return self.data_bytes / (COMPUTE_OVER_ORIGIN * self.origin_bytes_per_s)

    @property
    def step_s(self) -> float:
        """Seconds of compute of a step."""
        return self.epoch_compute_s / self.steps

    @property
    def first_epoch_bound_s(self) -> float:
        """Seconds of the first epoch by the bucket's rate or the compute; 0 without either."""
        if not self.origin_bytes_per_s:
            return self.epoch_compute_s
        origin_s = self.data_bytes / self.origin_bytes_per_s
        return origin_s + self.step_s if origin_s > self.epoch_compute_s else self.epoch_compute_s

    @property
    def later_epoch_bound_s(self) -> float:
        """Seconds of each later epoch by the compute, or by a node's link and its share of samples of other nodes."""
        received = self.data_bytes / self.nodes * (self.nodes - 1) / self.nodes
        return max(self.epoch_compute_s, received / (GOODPUT * self.link_mbit * MBIT))

    @property
    def bound_s(self) -> float:
        """Seconds of the whole run; 0 if the first epoch has no bound."""
        if not self.first_epoch_bound_s:
            return 0.0
        return self.first_epoch_bound_s + (self.epochs - 1) * self.later_epoch_bound_s

    def shape(self, seed: int) -> Shape:
        """Return the shape of the data."""
        return Shape(self.samples, self.sample_bytes, self.sample_bytes, seed)

    def arms(self, *, quick: bool) -> tuple[str, ...]:
        """Return the arms of the part, in the order of a repeat."""
        if self.nodes == 1:
            return "exact", "torch"
        if self.part == "links" and quick:
            return ("exact",)
        if self.part in ("links", "small"):
            return "exact", "alone"
        return "exact", "alone", "torch"


FULL = (
    Size("nodes_1", 1, 4096, 110_000, 8, 5, 40 * MB, 500),
    Size("nodes_2", 2, 4096, 110_000, 8, 5, 40 * MB, 500),
    Size("nodes_4", 4, 4096, 110_000, 8, 5, 40 * MB, 500),
    Size("nodes_8", 8, 4096, 110_000, 8, 5, 40 * MB, 250),
    Size("links", 4, 2048, 110_000, 16, 6, 60 * MB, 200, 4 / 3),
    Size("small", 2, 20_480, 1_000, 64, 4, 0, 500),
)

#: Fewer samples and epochs, so that the quick run takes less than 3 minutes.
QUICK = (
    Size("nodes_1", 1, 640, 110_000, 8, 3, 20 * MB, 500),
    Size("nodes_2", 2, 640, 110_000, 8, 3, 20 * MB, 500),
    Size("nodes_4", 4, 640, 110_000, 8, 3, 20 * MB, 500),
    Size("links", 4, 960, 110_000, 16, 4, 60 * MB, 200, 4 / 3),
)

PARTS = [size.part for size in FULL]
