# SPDX-License-Identifier: Apache-2.0
"""The steps of one rank, epoch after epoch, for engines that are written in Python.

As the native engine: a known order goes on to the next epoch by itself, any other one is announced epoch by epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from foresee._batch import Ints
    from foresee._orders import RunOrder
    from foresee._world import World


@dataclass(frozen=True, eq=False)
class EpochStep:
    """The samples of one batch."""

    epoch: int
    step: int
    """Counted from where the epoch began or was resumed."""
    start: int
    """This rank's samples before it, counted likewise."""
    last: bool
    ids: Ints


class EpochSteps:
    """What ``seek``, ``announce`` and ``next_batch`` of an engine say about samples."""

    def __init__(self, order: RunOrder | None, world: World, batch_size: int, *, drop_last: bool) -> None:
        self._order = order
        self._world = world
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._epoch = -1
        self._ids: Ints = np.zeros(0, np.int64)
        self._bounds: Ints = np.zeros(1, np.int64)
        self._step = 0

    def seek(self, epoch: int, position: int) -> None:
        """Go on at ``position`` of ``epoch``; an order that is not known is announced next."""
        if self._order is not None:
            self._begin(epoch, self._order.ids(epoch, position, self._world), None)

    def announce(self, epoch: int, ids: Ints, lengths: Ints | None) -> None:
        """Take this rank's samples of ``epoch``; ``lengths``: of its batches, None where all have the batch size."""
        self._begin(epoch, ids, lengths)

    def next(self) -> EpochStep | None:
        """The next batch; None at the epoch's end, after which the next epoch of a known order begins."""
        steps = len(self._bounds) - 1
        if self._step >= steps:
            if self._epoch >= 0:
                self.seek(self._epoch + 1, 0)
            return None
        start, stop = int(self._bounds[self._step]), int(self._bounds[self._step + 1])
        self._step += 1
        ids = np.ascontiguousarray(self._ids[start:stop])
        return EpochStep(self._epoch, self._step - 1, start, self._step == steps, ids)

    def count(self, position: int) -> int:
        """Steps that a known order has from ``position`` of an epoch on."""
        assert self._order is not None, "announced epochs are counted by whoever announces them"
        samples = self._order.samples_per_rank(position, self._world.size)
        whole, rest = divmod(samples, self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def _begin(self, epoch: int, ids: Ints, lengths: Ints | None) -> None:
        if lengths is None:
            end = len(ids) - len(ids) % self._batch_size if self._drop_last else len(ids)
            bounds = np.append(np.arange(0, end, self._batch_size, dtype=np.int64), np.int64(end))
        else:
            bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        self._epoch, self._ids, self._bounds, self._step = epoch, ids, bounds, 0
