# SPDX-License-Identifier: Apache-2.0
"""Orders of epochs that a sampler has not drawn yet, where they are a function of its seed.

An expectation only guides what leaves the cache. The planner compares it with what the sampler yields, and drops it
where they differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from foresee import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


class ExpectedEpochs:
    """The epochs of ``sampler``: the one that begins, and the next."""

    def __init__(self, sampler: object) -> None:
        self._sampler = sampler
        self._last: int | None = None
        # A loop that never calls `set_epoch` repeats its first epoch.
        self._step = 1

    def epochs(self) -> Iterator[NDArray[np.uint64]]:
        """Return the order of the epoch that begins and of the one after it; nothing where they are unknown."""
        base, batches = _base(self._sampler)
        epoch = getattr(base, "epoch", 0)
        if self._last is not None:
            self._step = epoch - self._last
        self._last = epoch
        for number in (epoch, epoch + self._step):
            order = _order(base, number)
            if order is None:
                return
            if batches is not None and batches.drop_last:
                order = order[: len(order) // batches.batch_size * batches.batch_size]
            yield np.ascontiguousarray(order, np.uint64)


def _base(sampler: object) -> tuple[Any, BatchSampler | None]:
    """Return the sampler of indices, and the batch sampler around it."""
    if isinstance(sampler, BatchSampler) and type(sampler).__iter__ is BatchSampler.__iter__:
        return sampler.sampler, sampler
    return sampler, None


def _order(sampler: Any, epoch: int) -> NDArray[Any] | None:
    """Return the order of an epoch; None if it is no function of a seed, or if a subclass may have another one."""
    iterates = getattr(type(sampler), "__iter__", None)
    if iterates is SequentialSampler.__iter__:
        return np.arange(len(sampler))
    if iterates is DistributedSampler.__iter__ and epoch >= 0:
        return _native.order_distributed(
            len(sampler.dataset),
            sampler.num_replicas,
            sampler.rank,
            seed=sampler.seed,
            epoch=epoch,
            shuffle=sampler.shuffle,
            drop_last=sampler.drop_last,
        )
    return None
