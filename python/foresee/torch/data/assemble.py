# SPDX-License-Identifier: Apache-2.0
"""From the samples of a batch to what the training loop gets.

The same code in the training process, on its threads and in worker processes, so that where it runs can
change nothing but time. Each sample's randomness is a function of (seed, epoch, position).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

from foresee._loading.map_source import MapSource
from foresee._loading.mix import seed_of
from foresee.torch.data.dataset import OriginDataset, accepts_generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from foresee._loading.batch import Batch, Bytes, Ints
    from foresee._loading.data_source import Source
    from foresee._runtime.waits import Turns


class SampleError(Exception):
    """The sample in ``place`` failed; ``kind`` is ``decode``, ``transform`` or ``dataset``, the error is the
    ``__cause__``.
    """

    def __init__(self, place: int, kind: str) -> None:
        super().__init__(place, kind)
        self.place = place
        self.kind = kind


@dataclass(frozen=True, eq=False)
class Work:
    """The samples of a batch, and what their randomness depends on. Has no reference to the engine."""

    data: Bytes
    offsets: Ints
    ids: Ints
    labels: Ints
    positions: Ints
    epoch: int
    seed: int
    keys: list[Any] | None
    """What a dataset without an index is asked for; None: the ids."""

    @staticmethod
    def of(batch: Batch, seed: int, source: Source | MapSource) -> Work:
        """The work that ``batch`` is."""
        keys = None
        if isinstance(source, MapSource) and source.keys:
            keys = [source.key(sample) for sample in batch.ids.tolist()]
        return Work(
            batch.data, batch.offsets, batch.ids, batch.labels, batch.positions, batch.epoch, seed, keys
        )


@dataclass(frozen=True)
class Recipe(ABC):
    """How a batch is made."""

    dataset: Any
    collate_fn: Callable[[Any], Any] | None
    """None: torch's ``default_collate``, or no work at all where the dataset stacks whole batches."""
    is_batched: bool
    """False: a batch is one sample as it is, and ``collate_fn`` gets it alone; None is torch's ``default_convert``."""

    @property
    def whole(self) -> bool:
        """Whether batches need no work."""
        return False

    @property
    def given(self) -> Any:
        """The dataset that the user has given to the loader."""
        return self.dataset

    def check(self) -> None:
        """Refuse changes of the dataset that the loader does not take over.

        Raises:
            ConfigError: names them.
        """

    def assemble(
        self,
        work: Work,
        made: dict[int, Any],
        *,
        seed_globals: bool = False,
        turns: Turns | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> Any:
        """The batch.

        Args:
            work: what it is made of.
            made: samples that an earlier attempt has made, by position; gets those that this one makes.
            seed_globals: whether to seed ``random``, NumPy and torch before each sample: right in a process
                that does nothing else, wrong on a thread next to the training loop.
            turns: stages of the batch.
            collate: what is used where there is no ``collate_fn``.

        Raises:
            SampleError: a sample could not be made.
        """
        samples = self._samples(work, made, seed_globals=seed_globals)
        if turns is not None:
            turns.enter("collate")
        if self.is_batched:
            return (self.collate_fn or collate)(samples)
        return (self.collate_fn or default_convert)(samples[0])

    @abstractmethod
    def _samples(self, work: Work, made: dict[int, Any], *, seed_globals: bool) -> Any:
        """The samples, in their order."""


class ByteRecipe(Recipe):
    """Samples of a Foresee dataset, from the bytes that the engine has read."""

    dataset: OriginDataset

    @property
    def whole(self) -> bool:
        """Whether batches need no work."""
        bare = self.collate_fn is None and self.is_batched
        return bare and not self.dataset.per_sample and not self.dataset.is_overridden

    @property
    def given(self) -> Any:
        """See ``Recipe``."""
        return self.dataset.given

    def check(self) -> None:
        """See ``Recipe``."""
        self.dataset.check()

    def assemble(self, work: Work, made: dict[int, Any], **options: Any) -> Any:
        """See ``Recipe``."""
        if self.whole:
            return self.dataset.stack(work.data, work.offsets, work.labels)
        return super().assemble(work, made, **options)

    def _samples(self, work: Work, made: dict[int, Any], *, seed_globals: bool) -> Any:
        transform = getattr(self.dataset, "transform", None)
        generator = torch.Generator() if transform is not None and accepts_generator(transform) else None
        seeds = _Seeds(work, generator, seed_globals=seed_globals)
        if self.dataset.is_overridden:
            return self._overridden(work, seeds, made)
        bounds, labels = work.offsets.tolist(), work.labels.tolist()

        def make(place: int) -> Any:
            try:
                data = work.data[bounds[place] : bounds[place + 1]]
                decoded = self.dataset.decode_sample(data, labels[place])
            except Exception as error:
                raise SampleError(place, "decode") from error
            try:
                return self.dataset.finish(decoded, labels[place], seeds.generator)
            except Exception as error:
                raise SampleError(place, "transform") from error

        return _each(seeds, made, make)

    def _overridden(self, work: Work, seeds: _Seeds, made: dict[int, Any]) -> list[Any]:
        """By the subclass's own ``__getitem__`` or ``__getitems__``, whose reads find the bytes here.

        ``__getitems__`` makes a whole batch in one call, which has the seed of its first sample.
        """
        dataset, ids, bounds = self.dataset, work.ids.tolist(), work.offsets.tolist()
        data = {sample: work.data[bounds[i] : bounds[i + 1]] for i, sample in enumerate(ids)}
        with dataset.supplied(data, seeds.generator) as supply:
            if dataset.makes_batches:
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
    """Samples that a dataset of the user's makes itself."""

    is_tolerant: bool
    """Whether a sample that fails is left out or replaced."""

    def _samples(self, work: Work, made: dict[int, Any], *, seed_globals: bool) -> Any:
        dataset, keys = self.dataset, work.ids.tolist() if work.keys is None else work.keys
        seeds = _Seeds(work, None, seed_globals=seed_globals)
        if self.is_batched and not made and getattr(dataset, "__getitems__", None):
            # As torch's loader: in one call, which has the seed of its first sample.
            seeds.apply(0)
            try:
                return dataset.__getitems__(keys)
            except Exception:
                # One by one, to know which of them it is.
                if not self.is_tolerant:
                    raise

        def make(place: int) -> Any:
            try:
                return dataset[keys[place]]
            except Exception as error:
                raise SampleError(place, "dataset") from error

        return _each(seeds, made, make)


def _each(seeds: _Seeds, made: dict[int, Any], make: Callable[[int], Any]) -> list[Any]:
    """Every sample of the batch, made now or in an earlier attempt."""
    for place, position in enumerate(seeds.positions):
        if position not in made:
            seeds.apply(place)
            made[position] = make(place)
    return [made[position] for position in seeds.positions]


class _Seeds:
    """The randomness of a batch's samples: each one's is a function of (seed, epoch, position)."""

    def __init__(self, work: Work, generator: torch.Generator | None, *, seed_globals: bool) -> None:
        self.generator = generator
        self.positions: list[int] = work.positions.tolist()
        self._work = work
        self._globals = seed_globals

    def apply(self, place: int) -> None:
        """The sample in ``place`` is next."""
        if self.generator is None and not self._globals:
            return
        seed = seed_of(self._work.seed, self._work.epoch, self.positions[place])
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
