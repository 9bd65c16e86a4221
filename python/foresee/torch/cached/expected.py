# SPDX-License-Identifier: Apache-2.0
"""Orders of epochs that a sampler has not drawn yet: functions of its seed or generator, or what it has yielded before.

An expectation guides what leaves the cache, and which samples are read before the next epoch begins. It is compared
with what the sampler yields, and dropped where they differ.
"""

from __future__ import annotations

import copy
import itertools
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from foresee import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# Samplers that draw all of an epoch from their generator.
_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
# Further epochs are known as well, but hardly change what leaves the cache.
_EPOCHS_MAX = 32
_NOTHING: NDArray[np.uint64] = np.empty(0, np.uint64)


class ExpectedEpochs:
    """The epochs of ``sampler``: the one that begins, and those after it."""

    def __init__(self, sampler: object) -> None:
        self._sampler = sampler
        self._last_epoch: int | None = None
        # A loop that never calls `set_epoch` repeats its first epoch.
        self._step = 1
        # Expected of this epoch and of the next one; None where they are unknown.
        self._this: NDArray[np.uint64] | None = None
        self._next: NDArray[np.uint64] | None = None
        # Samples yielded in this epoch.
        self._position = 0
        self._is_as_expected = False
        # Whether the last epoch whose order was expected before it began had that order.
        self._came_true = True
        # Of a sampler whose order is no function of a seed: its first whole epoch, as long as each epoch repeats it.
        self._recording: array[int] | None = None
        self._recorded: NDArray[np.uint64] | None = None
        self._may_repeat = True

    def epochs(self, samples: int = 0) -> list[NDArray[np.uint64]]:
        """Return the order of the epoch that begins and of the one after it, as far as they are known.

        Further ones follow until those after this one have ``samples`` different samples, the number that the cache
        holds: of ranks that share the samples, each has few of them in one epoch. Call it once when an epoch begins,
        before the sampler draws.
        """
        orders = self._seeded(samples)
        is_seeded = orders is not None
        if orders is None:
            orders = [] if self._recorded is None else [self._recorded, self._recorded]
        before = self._next
        self._this, self._next = (*orders, None, None)[:2]
        if before is not None and self._this is not None:
            self._came_true = np.array_equal(before, self._this)
        self._position = 0
        self._is_as_expected = self._this is not None
        # What was recorded of an epoch that was left early is dropped.
        records = not is_seeded and self._may_repeat and self._recorded is None
        self._recording = array("Q") if records else None
        return orders

    def note(self, samples: list[int]) -> None:
        """The sampler has yielded these next samples of the epoch."""
        begin, self._position = self._position, self._position + len(samples)
        if self._recording is not None:
            self._recording.extend(samples)
        elif self._this is not None and not np.array_equal(self._this[begin : self._position], samples):
            self._note_other()

    def note_end(self) -> None:
        """The sampler has ended."""
        if self._recording is not None:
            self._recorded = np.array(self._recording, np.uint64)
        elif self._this is not None and self._position != len(self._this):
            self._note_other()

    def next_samples(self, count: int) -> NDArray[np.uint64]:
        """Return the first samples of the next epoch, at most ``count``; none if expectations were wrong."""
        if self._next is None or not (self._is_as_expected and self._came_true):
            return _NOTHING
        return self._next[:count]

    def _note_other(self) -> None:
        self._is_as_expected = False
        if self._recorded is not None:
            self._recorded, self._may_repeat = None, False

    def _seeded(self, samples: int) -> list[NDArray[np.uint64]] | None:
        """Return the orders of a sampler that are known before it is drawn, one or more; None if there are none."""
        base = _base(self._sampler)
        epoch = getattr(base, "epoch", 0)
        if self._last_epoch is not None:
            self._step = epoch - self._last_epoch
        self._last_epoch = epoch
        drawn = _orders(base, epoch, self._step)
        if drawn is None:
            return None
        orders = [_in_batches(self._sampler, order) for order in itertools.islice(drawn, 2)]
        found = np.unique(orders[-1])
        while 1 < len(orders) < _EPOCHS_MAX and len(found) < samples:
            order = next(drawn, None)
            if order is None:
                break
            orders.append(_in_batches(self._sampler, order))
            before, found = found, np.union1d(found, orders[-1])
            if len(found) == len(before):
                break
        return orders


def _base(sampler: Any) -> Any:
    """Return the sampler of indices inside of batch samplers."""
    if _is_batch_sampler(sampler):
        return _base(sampler.sampler)
    return _base(sampler.batch_sampler) if _is_shard(sampler) else sampler


def _in_batches(sampler: Any, order: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the indices that a sampler yields if the sampler of indices in it yields ``order``."""
    if _is_batch_sampler(sampler) and sampler.drop_last:
        order = order[: len(order) // sampler.batch_size * sampler.batch_size]
    elif _is_shard(sampler):
        batches = sampler.batch_sampler
        shard = copy.copy(sampler)
        shard.batch_sampler = BatchSampler(order.tolist(), batches.batch_size, batches.drop_last)
        order = np.fromiter(itertools.chain.from_iterable(shard), np.uint64)
    return np.ascontiguousarray(order, np.uint64)


def _orders(sampler: Any, epoch: int, step: int) -> Iterator[NDArray[Any]] | None:
    """Return the orders of an epoch and of those after it; None if a subclass may have other ones."""
    iterates = getattr(type(sampler), "__iter__", None)
    if iterates is SequentialSampler.__iter__:
        return itertools.repeat(np.arange(len(sampler)))
    if iterates is DistributedSampler.__iter__:
        return _distributed(sampler, epoch, step)
    if _is_of_accelerate(sampler, "SeedableRandomSampler"):
        # It seeds its generator in each epoch, and counts them.
        sampler = copy.copy(sampler)
        sampler.generator = torch.Generator()
        return _drawn(sampler)
    if not any(iterates is kind.__iter__ for kind in _DRAWING):
        return None
    generator = _copy(sampler.generator or torch.default_generator)
    if generator is None:
        return None
    is_own = sampler.generator is not None
    if not is_own and iterates is RandomSampler.__iter__:
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_(generator=generator)))
    sampler = copy.copy(sampler)
    sampler.generator = generator
    # Everything draws from the generator of the process, so its later epochs are unknown.
    return _drawn(sampler) if is_own else itertools.islice(_drawn(sampler), 1)


def _distributed(sampler: DistributedSampler[Any], epoch: int, step: int) -> Iterator[NDArray[Any]]:
    for number in itertools.count(epoch, step):
        if number < 0:
            return
        yield _native.order_distributed(
            len(sampler.dataset),  # type: ignore[arg-type]
            sampler.num_replicas,
            sampler.rank,
            seed=sampler.seed,
            epoch=number,
            shuffle=sampler.shuffle,
            drop_last=sampler.drop_last,
        )


def _drawn(sampler: Any) -> Iterator[NDArray[np.uint64]]:
    while True:
        yield np.fromiter(sampler, np.uint64)


def _copy(generator: torch.Generator) -> torch.Generator | None:
    """Return a generator with the same state; None for one of a device, where this would wait for its work."""
    if generator.device.type != "cpu":
        return None
    made = torch.Generator()
    made.set_state(generator.get_state())
    return made


def _is_batch_sampler(sampler: object) -> bool:
    return isinstance(sampler, BatchSampler) and type(sampler).__iter__ is BatchSampler.__iter__


def _is_shard(sampler: Any) -> bool:
    """Whether a batch sampler of Accelerate shares the batches of one of torch's among ranks."""
    return _is_of_accelerate(sampler, "BatchSamplerShard") and _is_batch_sampler(sampler.batch_sampler)


def _is_of_accelerate(sampler: object, name: str) -> bool:
    kind = type(sampler)
    return (kind.__module__, kind.__qualname__) == ("accelerate.data_loader", name)
