# SPDX-License-Identifier: Apache-2.0
"""The steps of one rank, epoch after epoch, for engines that are written in Python.

As in the native engine, an order that is known for the run continues with the next epoch by itself. Any other epoch
begins with its samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foresee.errors import ConfigError

if TYPE_CHECKING:
    from foresee._loading.batch import Ints
    from foresee._loading.orders import EpochSamples, RunOrder
    from foresee._runtime.ranks import World


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
    """Batches of ids, as ``begin_epoch`` and ``next_batch`` of an engine give them."""

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
        """Continue at ``position`` of ``epoch``; ``order``: its samples, where no order is known for the run.

        Raises:
            ConfigError: ``order`` is given although one is known, or is missing.
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

    def next(self) -> EpochStep | None:
        """The next batch; None at the epoch's end, after which the next epoch of a known order begins."""
        steps = len(self._bounds) - 1
        if self._step >= steps:
            if self._epoch >= 0 and self._order is not None:
                self.begin_epoch(self._epoch + 1, 0)
            return None
        start, stop = int(self._bounds[self._step]), int(self._bounds[self._step + 1])
        self._step += 1
        ids = np.ascontiguousarray(self._ids[start:stop])
        return EpochStep(self._epoch, self._step - 1, start, self._step == steps, ids)

    def count(self, position: int) -> int:
        """Steps that a known order has from ``position`` of an epoch on."""
        assert self._order is not None, "other epochs have the length of their samples"
        samples = self._order.samples_per_rank(position, self._world.size)
        whole, rest = divmod(samples, self._batch_size)
        return whole + (rest > 0 and not self._drop_last)
