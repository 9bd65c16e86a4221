# SPDX-License-Identifier: Apache-2.0
"""Orders of epochs that a sampler has not drawn yet: functions of its seed, or what it has yielded before.

An expectation only guides what leaves the cache. The planner compares it with what the sampler yields, and drops it
where they differ.
"""

from __future__ import annotations

from array import array
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
        # Of a sampler whose order is no function of a seed.
        self._recorded: _RecordedOrder | None = None

    def epochs(self) -> Iterator[NDArray[np.uint64]]:
        """Return the order of the epoch that begins and of the one after it; nothing where they are unknown.

        Call it once when an epoch begins.
        """
        base, batches = _base(self._sampler)
        epoch = getattr(base, "epoch", 0)
        if self._last is not None:
            self._step = epoch - self._last
        self._last = epoch
        for number in (epoch, epoch + self._step):
            order = _order(base, number)
            if order is None:
                self._recorded = self._recorded or _RecordedOrder()
                yield from self._recorded.epochs()
                return
            if batches is not None and batches.drop_last:
                order = order[: len(order) // batches.batch_size * batches.batch_size]
            yield np.ascontiguousarray(order, np.uint64)

    def note(self, samples: list[int]) -> None:
        """The sampler has yielded these next samples of the epoch."""
        if self._recorded is not None:
            self._recorded.note(samples)

    def note_end(self) -> None:
        """The sampler has ended."""
        if self._recorded is not None:
            self._recorded.note_end()


class _RecordedOrder:
    """What a sampler without a seed has yielded in its first whole epoch, as long as each epoch repeats it."""

    def __init__(self) -> None:
        self._samples = array("Q")
        self._position = 0
        self._is_whole = self._differs = False

    def epochs(self) -> Iterator[NDArray[np.uint64]]:
        """Begin an epoch, and return the orders that are expected of it and of the next."""
        self._position = 0
        if self._is_whole:
            order = np.array(self._samples, np.uint64)
            yield order
            yield order
        else:
            # The last epoch was left early.
            del self._samples[:]

    def note(self, samples: list[int]) -> None:
        """Record the next samples, or compare them with the recorded ones."""
        if self._differs:
            return
        if not self._is_whole:
            self._samples.extend(samples)
            return
        begin, self._position = self._position, self._position + len(samples)
        if self._samples[begin : self._position] != array("Q", samples):
            self._forget()

    def note_end(self) -> None:
        """End an epoch."""
        if self._is_whole and self._position != len(self._samples):
            self._forget()
        self._is_whole = not self._differs

    def _forget(self) -> None:
        self._differs, self._is_whole = True, False
        self._samples = array("Q")


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
