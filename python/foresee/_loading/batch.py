# SPDX-License-Identifier: Apache-2.0
"""A batch of either loader: the engine's arrays, and the place of each sample in the epoch.

Arrays of a batch are the engine's memory; those of a repaired batch (a sample was replaced or skipped) are copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Batch"]

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
# Bytes of one sample, which its tensor may refer to.
Writable = bytearray | Bytes


class Receipt(Protocol):
    """The fields by which a returned batch is counted."""

    @property
    def ids(self) -> Ints: ...
    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def last(self) -> bool: ...
    def __len__(self) -> int: ...


class RawBatch(Receipt, Protocol):
    """A batch of an engine: ``_native.Batch``, or ``StepBatch`` of an engine in Python."""

    @property
    def data(self) -> Bytes: ...
    @property
    def offsets(self) -> Ints: ...
    @property
    def labels(self) -> Ints: ...
    @property
    def faults(self) -> list[tuple[int, str, str, bool]]: ...
    @property
    def turns(self) -> list[tuple[str, int]]: ...


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples of this rank in one step, in order.

    The memory is the loader's and is used again when the batch and all its arrays are gone: a program that keeps every
    batch stalls the loader. Writing into ``data`` is allowed.
    """

    data: Bytes
    """Shape (bytes,): the samples one after another."""
    offsets: Ints
    """Shape (samples + 1,): sample i is ``data[offsets[i]:offsets[i + 1]]``."""
    ids: Ints
    """Shape (samples,): ids of the samples; a substitute has its own id."""
    labels: Ints
    """Shape (samples,): index into the classes; -1 where a sample has none."""
    epoch: int
    """Epoch of the batch, from 0."""
    step: int
    """Step within the epoch, counted from where it began or was resumed."""
    positions: Ints
    """Shape (samples,): position of each sample in the epoch over all ranks."""
    planned: Ints
    """Shape (samples,): ids of the order; they differ from ``ids`` where a sample was replaced."""
    tries: Ints
    """Shape (samples,): substitutes tried in each place."""
    row_dtype: str | None = None
    """NumPy dtype of a row, where the data are arrays."""
    row_shape: tuple[int, ...] | None = None
    """Shape of a row, where the data are arrays."""

    def __len__(self) -> int:
        return len(self.ids)

    def sample(self, i: int) -> Bytes:
        """Return the bytes of the sample in place ``i``, 0 to ``len(self) - 1``, as a view."""
        if not 0 <= i < len(self):
            raise IndexError(f"place {i} of a batch of {len(self)} samples")
        return self.data[self.offsets[i] : self.offsets[i + 1]]

    def rows(self) -> NDArray[np.generic]:
        """Return all samples as one view of shape (samples, *row), or (samples, bytes) of uint8 without a row shape.

        Raises:
            ValueError: the samples differ in size.
        """
        sizes = np.diff(self.offsets)
        if len(sizes) and not (sizes == sizes[0]).all():
            raise ValueError(f"samples of {sizes.min()} to {sizes.max()} bytes make no array; use sample(i)")
        if self.row_dtype is None or self.row_shape is None:
            return self.data.reshape(len(self), -1)
        return self.data.view(self.row_dtype).reshape(len(self), *self.row_shape)

    def with_samples(self, chosen: Sequence[tuple[int, int, Bytes, int, int]]) -> Batch:
        """Copy ``(place in this batch, id, bytes, label, tries)`` into a new batch."""
        places = np.array([place for place, *_ in chosen], dtype=np.int64)
        sizes = np.array([len(data) for _, _, data, _, _ in chosen], dtype=np.int64)
        return Batch(
            data=np.concatenate([data for _, _, data, _, _ in chosen]),
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]),
            ids=np.array([sample for _, sample, *_ in chosen], dtype=np.int64),
            labels=np.array([label for *_, label, _ in chosen], dtype=np.int64),
            epoch=self.epoch,
            step=self.step,
            positions=self.positions[places],
            planned=self.planned[places],
            tries=np.array([tries for *_, tries in chosen], dtype=np.int64),
            row_dtype=self.row_dtype,
            row_shape=self.row_shape,
        )
