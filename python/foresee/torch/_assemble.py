# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a batch to what the training loop gets.

The same code in the training process, on its threads and in worker processes, so that where it runs can
change nothing but time. Each sample's randomness is a function of (seed, epoch, position).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

from foresee._mix import seed_of
from foresee.torch._dataset import OriginDataset, accepts_generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from foresee._batch import Bytes, Ints
    from foresee._waits import Turns


class SampleError(Exception):
    """The sample in ``place`` failed; ``kind`` is ``decode`` or ``transform``, the error is the
    ``__cause__``.
    """

    def __init__(self, place: int, kind: str) -> None:
        super().__init__(place, kind)
        self.place = place
        self.kind = kind


@dataclass(frozen=True, eq=False)
class Work:
    """The bytes of a batch, and what its randomness depends on. Has no reference to the engine."""

    data: Bytes
    offsets: Ints
    ids: Ints
    labels: Ints
    positions: Ints
    epoch: int
    seed: int


@dataclass(frozen=True)
class Recipe:
    """How a batch is made of its bytes."""

    dataset: OriginDataset
    collate_fn: Callable[[list[Any]], Any] | None
    """None: torch's ``default_collate``, or no work at all where the dataset stacks whole batches."""

    @property
    def whole(self) -> bool:
        """Whether batches need no work."""
        return self.collate_fn is None and not self.dataset.per_sample and not self.dataset.is_overridden

    def assemble(self, work: Work, *, seed_globals: bool = False, turns: Turns | None = None) -> Any:
        """The batch.

        Args:
            work: what it is made of.
            seed_globals: whether to seed ``random``, NumPy and torch before each sample: right in a process
                that does nothing else, wrong on a thread beside the training loop.
            turns: stages of the batch.

        Raises:
            SampleError: a sample could not be decoded or transformed.
        """
        dataset = self.dataset
        if self.whole:
            return dataset.stack(work.data, work.offsets, work.labels)
        transform = getattr(dataset, "transform", None)
        generator = torch.Generator() if transform is not None and accepts_generator(transform) else None
        seeds = _Seeds(work, generator, seed_globals=seed_globals)
        make = self._overridden if dataset.is_overridden else self._samples
        samples = make(work, seeds)
        if turns is not None:
            turns.enter("collate")
        return (self.collate_fn or default_collate)(samples)

    def _samples(self, work: Work, seeds: _Seeds) -> list[Any]:
        samples = []
        bounds, labels = work.offsets.tolist(), work.labels.tolist()
        for place in range(len(labels)):
            seeds.apply(place)
            try:
                decoded = self.dataset.decode_bytes(work.data[bounds[place] : bounds[place + 1]])
            except Exception as error:
                raise SampleError(place, "decode") from error
            try:
                samples.append(self.dataset.finish(decoded, labels[place], seeds.generator))
            except Exception as error:
                raise SampleError(place, "transform") from error
        return samples

    def _overridden(self, work: Work, seeds: _Seeds) -> list[Any]:
        """By the subclass's own ``__getitem__`` or ``__getitems__``, whose reads find the bytes here.

        ``__getitems__`` makes a whole batch in one call, which has the seed of its first sample.
        """
        dataset, ids, bounds = self.dataset, work.ids.tolist(), work.offsets.tolist()
        data = {sample: work.data[bounds[i] : bounds[i + 1]] for i, sample in enumerate(ids)}
        with dataset.supplied(data, seeds.generator) as supply:
            if type(dataset).__getitems__ is not OriginDataset.__getitems__:
                seeds.apply(0)
                return list(dataset.__getitems__(ids))
            samples = []
            for place, sample in enumerate(ids):
                seeds.apply(place)
                try:
                    samples.append(dataset[sample])
                except Exception as error:
                    kind = "decode" if supply.undecodable is error else "transform"
                    raise SampleError(place, kind) from error
            return samples


class _Seeds:
    """The randomness of a batch's samples: each one's is a function of (seed, epoch, position)."""

    def __init__(self, work: Work, generator: torch.Generator | None, *, seed_globals: bool) -> None:
        self.generator = generator
        self._work = work
        self._positions = work.positions.tolist()
        self._globals = seed_globals

    def apply(self, place: int) -> None:
        """The sample in ``place`` is next."""
        if self.generator is None and not self._globals:
            return
        seed = seed_of(self._work.seed, self._work.epoch, self._positions[place])
        if self.generator is not None:
            self.generator.manual_seed(_signed(seed))
        if self._globals:
            _seed_globals(seed)


def _seed_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the generator that transforms of others use
    # torch.manual_seed would also visit every CUDA device: 104 us against 1.3 us.
    torch.default_generator.manual_seed(_signed(seed))


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed
