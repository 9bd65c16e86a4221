# SPDX-License-Identifier: Apache-2.0
"""Steps of one rank, epoch after epoch, for engines in Python.

As in the native engine, the order of a run continues with the next epoch by itself. Without such an order, each epoch
begins with its samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from foresee.errors import ConfigError

if TYPE_CHECKING:
    from foresee._loading.batch import Bytes, Ints
    from foresee._loading.orders import EpochSamples, RunOrder
    from foresee._runtime.ranks import World
    from foresee._runtime.waits import Turn

_NO_BYTES: Bytes = np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class StepBatch:
    """A batch with the fields of the native engine's; ids alone, unless an engine adds bytes."""

    epoch: int
    step: int
    """From where the epoch began or was resumed."""
    start: int
    """Samples of this rank before it, from the same place."""
    last: bool
    ids: Ints
    offsets: Ints
    labels: Ints
    data: Bytes = field(default_factory=lambda: _NO_BYTES)
    faults: list[tuple[int, str, str, bool]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


class EpochSteps:
    """Batches of ids, with ``begin_epoch`` of an engine."""

    def __init__(self, order: RunOrder | None, world: World, batch_size: int, *, drop_last: bool) -> None:
        self._order = order
        self._world = world
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._epoch = -1
        self._ids: Ints = np.zeros(0, np.int64)
        self._bounds: Ints = np.zeros(1, np.int64)
        self._step = 0

    def begin_epoch(self, epoch: int, position: int, order: EpochSamples | None = None) -> None:
        """Continue at ``position`` of ``epoch``; ``order``: its samples, needed if and only if the run has no order.

        Raises:
            ConfigError: ``order`` is missing, or the run has one.
        """
        if self._order is None:
            if order is None:
                raise ConfigError(
                    ["an epoch begins without its samples, and the run has no order; give one of the two"]
                )
            ids, lengths = order
        else:
            if order is not None:
                raise ConfigError(
                    ["an epoch is given samples, but the run has an order; leave out one of the two"]
                )
            ids, lengths = self._order.ids(epoch, position, self._world), None
        if lengths is None:
            end = len(ids) - len(ids) % self._batch_size if self._drop_last else len(ids)
            bounds = np.append(np.arange(0, end, self._batch_size, dtype=np.int64), np.int64(end))
        else:
            bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        self._epoch, self._ids, self._bounds, self._step = epoch, ids, bounds, 0

    def next(self) -> StepBatch | None:
        """Return the next batch; None at the epoch's end, after which the next epoch of the run's order begins."""
        steps = len(self._bounds) - 1
        if self._step >= steps:
            if self._epoch >= 0 and self._order is not None:
                self.begin_epoch(self._epoch + 1, 0)
            return None
        start, stop = int(self._bounds[self._step]), int(self._bounds[self._step + 1])
        self._step += 1
        ids = np.ascontiguousarray(self._ids[start:stop])
        return StepBatch(
            self._epoch,
            self._step - 1,
            start,
            self._step == steps,
            ids,
            offsets=np.zeros(len(ids) + 1, np.int64),
            labels=np.full(len(ids), -1, np.int64),
        )

    def count(self, position: int) -> int:
        """Steps of the run's order from ``position`` of an epoch on."""
        assert self._order is not None, "other epochs have the length of their samples"
        return self._order.steps(position, self._world.size, self._batch_size, drop_last=self._drop_last)
