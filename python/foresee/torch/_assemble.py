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
        return self.collate_fn is None and not self.dataset.per_sample

    def assemble(self, work: Work, *, seed_globals: bool = False) -> Any:
        """The batch.

        Args:
            work: what it is made of.
            seed_globals: whether to seed ``random``, NumPy and torch before each sample: right in a process
                that does nothing else, wrong on a thread beside the training loop.

        Raises:
            SampleError: a sample could not be decoded or transformed.
        """
        if self.whole:
            return self.dataset.stack(work.data, work.offsets, work.labels)
        transform = getattr(self.dataset, "transform", None)
        generator = torch.Generator() if transform is not None and accepts_generator(transform) else None
        samples = []
        bounds, labels, positions = work.offsets.tolist(), work.labels.tolist(), work.positions.tolist()
        for place, position in enumerate(positions):
            seed = seed_of(work.seed, work.epoch, position)
            if generator is not None:
                generator.manual_seed(_signed(seed))
            if seed_globals:
                _seed_globals(seed)
            try:
                decoded = self.dataset.decode_bytes(work.data[bounds[place] : bounds[place + 1]])
            except Exception as error:
                raise SampleError(place, "decode") from error
            try:
                samples.append(self.dataset.finish(decoded, labels[place], generator))
            except Exception as error:
                raise SampleError(place, "transform") from error
        return (self.collate_fn or default_collate)(samples)


def _seed_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the generator that transforms of others use
    # torch.manual_seed would also visit every CUDA device: 104 us against 1.3 us.
    torch.default_generator.manual_seed(_signed(seed))


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed
