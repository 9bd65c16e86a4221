# SPDX-License-Identifier: Apache-2.0
"""Orders that are known for a whole run, and the samples of one epoch where no such order is known.

The core computes the orders of a run; this module names them and computes the positions of a rank. Orders that are
drawn in each epoch come from ``foresee.torch``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from foresee import _native
from foresee._loading.avoided_samples import substituted
from foresee._runtime import step_times
from foresee._runtime.ranks import World

if TYPE_CHECKING:
    from foresee._loading.batch import Ints


class EpochSamples(NamedTuple):
    """Samples of one rank in one epoch, from where the epoch begins or resumes."""

    ids: Ints
    """Shape (samples,)."""
    lengths: Ints | None
    """Shape (steps,): samples of each batch; None: the batch size."""


@dataclass(frozen=True)
class RunOrder:
    """An order that is a function of (seed, epoch), at any world size."""

    name: str
    """``torch.distributed`` or ``keyed-1``."""
    n: int
    """Samples of the data set."""
    seed: int = 0
    """Seed of the order, and of random transforms."""
    shuffle: bool = True
    """False: 0, 1, 2, ... in every epoch."""
    drop_last: bool = False
    """Whether the epoch is cut to a multiple of the world size; else it is padded from its start."""
    avoid: tuple[int, ...] = ()
    """Samples that have a substitute in every epoch, ascending."""

    @property
    def native(self) -> dict[str, Any]:
        """The core's description."""
        if self.name == "keyed-1":
            return {"name": self.name, "seed": _signed(self.seed)}
        return {
            "name": self.name,
            "seed": _signed(self.seed),
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }

    @property
    def order_hash(self) -> int:
        """Hash that jobs with shared data compare; without drop_last and padding, which change an epoch's end only."""
        if not self.shuffle:
            return step_times.order_hash(f"sequential {self.n}")
        name = "keyed" if self.name == "keyed-1" else "distributed"
        return step_times.order_hash(f"{name} {self.n} {self.seed}")

    def describe(self) -> dict[str, Any]:
        """Return the order's fields of a state."""
        return {**self.native, "n": self.n}

    def ids(self, epoch: int, position: int, world: World) -> Ints:
        """Return the samples of the rank in ``epoch`` from ``position`` on, as the engine returns them."""
        return self._substituted(epoch, self._planned(epoch, position, world))

    def at(self, epoch: int, positions: Ints) -> Ints:
        """Return the samples at global ``positions`` of ``epoch``; past the end the epoch is padded from its start."""
        where = positions % self.n
        if self.name == "keyed-1":
            planned = self._keyed(epoch, where)
        elif self.shuffle:
            planned = self._planned(epoch, 0, World(0, 1))[where]
        else:
            planned = where
        return self._substituted(epoch, planned)

    def samples_per_rank(self, position: int, world_size: int) -> int:
        """Return the number of samples per rank in an epoch from ``position`` on."""
        rest = self.n - position
        return rest // world_size if self.drop_last and self.name != "keyed-1" else -(-rest // world_size)

    def steps(self, position: int, world_size: int, batch_size: int, *, drop_last: bool) -> int:
        """Return the number of steps of an epoch from ``position`` on; ``drop_last``: without a short last batch."""
        samples = self.samples_per_rank(position, world_size)
        return samples // batch_size if drop_last else -(-samples // batch_size)

    def _substituted(self, epoch: int, ids: Ints) -> Ints:
        return substituted(ids, self.avoid, samples=self.n, seed=self.native["seed"], epoch=epoch)

    def _keyed(self, epoch: int, positions: Ints) -> Ints:
        return _native.order_keyed(self.n, self.seed, epoch, positions.astype(np.uint64)).astype(np.int64)

    def _planned(self, epoch: int, position: int, world: World) -> Ints:
        if self.name == "keyed-1":
            count = -(-(self.n - position) // world.size)
            # Padded from the start of the epoch, as by DistributedSampler.
            return self._keyed(epoch, positions(position, 0, count, world) % self.n)
        return _native.order_distributed(
            self.n,
            world.size,
            world.rank,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            start=position,
        ).astype(np.int64)

    def position(self, start: int, samples: int, world: World) -> int:
        """Return the global position after ``samples`` of each rank since ``start``."""
        return min(start + samples * world.size, self.n)


def positions(start: int, first: int, count: int, world: World) -> Ints:
    """Return the global positions of ``count`` samples of a rank from its ``first`` one after ``start`` on."""
    return start + (first + np.arange(count, dtype=np.int64)) * world.size + world.rank


def sequential(n: int) -> RunOrder:
    """Return the order 0, 1, 2, ..., distributed round-robin over the ranks, padded from its start."""
    return RunOrder("torch.distributed", n, shuffle=False)


def shuffled(n: int, seed: int) -> RunOrder:
    """Return the order of ``torch.utils.data.DistributedSampler(seed=seed)`` with ``set_epoch`` every epoch."""
    return RunOrder("torch.distributed", n, seed=seed)


def keyed(n: int, seed: int) -> RunOrder:
    """Return a keyed permutation, which takes no memory per sample; not torch's order."""
    return RunOrder("keyed-1", n, seed=seed)


def _signed(seed: int) -> int:
    """Return a 64-bit seed in two's complement, as torch takes it."""
    return seed - 2**64 if seed >= 2**63 else seed
