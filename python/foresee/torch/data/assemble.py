# SPDX-License-Identifier: Apache-2.0
"""Decoding, transforms and collation of a batch.

The training process, its threads and worker processes run the same code, so the place changes only the time. Random
numbers of a sample are a function of (seed, epoch, position).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

from foresee._loading.hashing import seed_of
from foresee._loading.map_source import MapSource
from foresee.torch.data.dataset import OriginDataset, accepts_generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from foresee._loading.batch import Batch, Bytes, Ints
    from foresee._loading.data_source import Source
    from foresee._runtime.waits import Turns


class SampleError(Exception):
    """The sample in ``place`` failed; ``kind`` is ``decode``, ``transform`` or ``dataset``, ``__cause__`` the error."""

    def __init__(self, place: int, kind: str) -> None:
        super().__init__(place, kind)
        self.place = place
        self.kind = kind


@dataclass(frozen=True, eq=False)
class BatchInput:
    """Samples of a batch, and what their random numbers depend on; without a reference to the engine."""

    data: Bytes
    offsets: Ints
    ids: Ints
    labels: Ints
    positions: Ints
    epoch: int
    seed: int
    keys: list[Any] | None
    """Arguments of ``__getitem__`` of a dataset without an index; None: the ids."""

    @staticmethod
    def of(batch: Batch, seed: int, source: Source | MapSource) -> BatchInput:
        """Return the input for ``batch``."""
        keys = None
        if isinstance(source, MapSource) and source.keys:
            keys = [source.key(sample) for sample in batch.ids.tolist()]
        return BatchInput(
            batch.data, batch.offsets, batch.ids, batch.labels, batch.positions, batch.epoch, seed, keys
        )


@dataclass(frozen=True)
class Recipe(ABC):
    """Dataset and collation of a loader, which make its batches."""

    dataset: Any
    collate_fn: Callable[[Any], Any] | None
    """None: torch's ``default_collate``, or no work at all where the dataset stacks whole batches."""
    is_batched: bool
    """False: a batch is one sample, and ``collate_fn`` gets it alone; None is then torch's ``default_convert``."""

    @property
    def is_whole(self) -> bool:
        """Whether batches need no work."""
        return False

    @property
    def original(self) -> Any:
        """Dataset that the user passed to the loader."""
        return self.dataset

    def check(self) -> None:
        """Raise ``ConfigError`` for changes of the dataset that the loader does not take over."""

    def assemble(
        self,
        batch: BatchInput,
        made: dict[int, Any],
        *,
        seed_globals: bool = False,
        turns: Turns | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> Any:
        """Make the batch.

        Args:
            batch: its samples.
            made: samples of an earlier attempt, by position; updated with those of this one.
            seed_globals: whether to seed ``random``, NumPy and torch before each sample: only in a worker process,
            never
                on a thread of the training process.
            turns: stages of the batch.
            collate: replaces ``collate_fn`` if that is None.

        Raises:
            SampleError: a sample could not be made.
        """
        samples = self._samples(batch, made, seed_globals=seed_globals)
        if turns is not None:
            turns.enter("collate")
        if self.is_batched:
            return (self.collate_fn or collate)(samples)
        return (self.collate_fn or default_convert)(samples[0])

    @abstractmethod
    def _samples(self, batch: BatchInput, made: dict[int, Any], *, seed_globals: bool) -> Any:
        """Make the samples, in their order."""


class ByteRecipe(Recipe):
    """Recipe of a Foresee dataset, for samples from the bytes of the engine."""

    dataset: OriginDataset

    @property
    def is_whole(self) -> bool:
        """Whether batches need no work."""
        base = self.dataset.base
        return self.collate_fn is None and self.is_batched and not base.per_sample and not base.is_overridden

    @property
    def original(self) -> Any:
        """See ``Recipe``."""
        return self.dataset.original

    def check(self) -> None:
        """See ``Recipe``."""
        self.dataset.check()

    def assemble(self, batch: BatchInput, made: dict[int, Any], **options: Any) -> Any:
        """See ``Recipe``."""
        if self.is_whole:
            return self.dataset.base.stack(batch.data, batch.offsets, batch.labels)
        return super().assemble(batch, made, **options)

    def _samples(self, batch: BatchInput, made: dict[int, Any], *, seed_globals: bool) -> Any:
        base = self.dataset.base
        transform = getattr(base, "transform", None)
        generator = torch.Generator() if transform is not None and accepts_generator(transform) else None
        seeds = _Seeds(batch, generator, seed_globals=seed_globals)
        if base.is_overridden:
            return self._overridden(batch, seeds, made)
        bounds, labels = batch.offsets.tolist(), batch.labels.tolist()

        def make(place: int) -> Any:
            try:
                data = batch.data[bounds[place] : bounds[place + 1]]
                decoded = base.decode_sample(data, labels[place])
            except Exception as error:
                raise SampleError(place, "decode") from error
            try:
                return base.finish(decoded, labels[place], seeds.generator)
            except Exception as error:
                raise SampleError(place, "transform") from error

        return _each(seeds, made, make)

    def _overridden(self, batch: BatchInput, seeds: _Seeds, made: dict[int, Any]) -> list[Any]:
        """Make the samples by ``__getitem__`` or ``__getitems__`` of a subclass, with the bytes from memory.

        ``__getitems__`` makes a whole batch in one call, with the seed of its first sample.
        """
        dataset, ids, bounds = self.dataset, batch.ids.tolist(), batch.offsets.tolist()
        data = {sample: batch.data[bounds[i] : bounds[i + 1]] for i, sample in enumerate(ids)}
        with dataset.supplied(data, seeds.generator) as supply:
            if dataset.base.makes_batches:
                seeds.apply(0)
                return list(dataset.__getitems__(ids))

            def make(place: int) -> Any:
                try:
                    return dataset[ids[place]]
                except Exception as error:
                    kind = "decode" if supply.undecodable is error else "transform"
                    raise SampleError(place, kind) from error

            return _each(seeds, made, make)


@dataclass(frozen=True)
class MapRecipe(Recipe):
    """Recipe of a user's dataset that makes its samples."""

    is_tolerant: bool
    """Whether a failed sample is skipped or replaced."""

    def _samples(self, batch: BatchInput, made: dict[int, Any], *, seed_globals: bool) -> Any:
        dataset, keys = self.dataset, batch.ids.tolist() if batch.keys is None else batch.keys
        seeds = _Seeds(batch, None, seed_globals=seed_globals)
        if self.is_batched and not made and getattr(dataset, "__getitems__", None):
            # In one call, as by torch's loader, with the seed of the first sample.
            seeds.apply(0)
            try:
                return dataset.__getitems__(keys)
            except Exception:
                # One by one, to find the failed one.
                if not self.is_tolerant:
                    raise

        def make(place: int) -> Any:
            try:
                return dataset[keys[place]]
            except Exception as error:
                raise SampleError(place, "dataset") from error

        return _each(seeds, made, make)


def _each(seeds: _Seeds, made: dict[int, Any], make: Callable[[int], Any]) -> list[Any]:
    """Return every sample of the batch, made now or in an earlier attempt."""
    for place, position in enumerate(seeds.positions):
        if position not in made:
            seeds.apply(place)
            made[position] = make(place)
    return [made[position] for position in seeds.positions]


class _Seeds:
    """Seeds of a batch's samples, which are a function of (seed, epoch, position)."""

    def __init__(self, batch: BatchInput, generator: torch.Generator | None, *, seed_globals: bool) -> None:
        self.generator = generator
        self.positions: list[int] = batch.positions.tolist()
        self._batch = batch
        self._globals = seed_globals

    def apply(self, place: int) -> None:
        """Seed the sample in ``place``."""
        if self.generator is None and not self._globals:
            return
        seed = seed_of(self._batch.seed, self._batch.epoch, self.positions[place])
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
