# SPDX-License-Identifier: Apache-2.0
"""``ArrayDataset``: rows of arrays in files, each row a sample."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from foresee import _native
from foresee._loading import data_source
from foresee.errors import ConfigError
from foresee.torch.data.dataset import (
    OriginDataset,
    call_transform,
    check_callables,
    check_dtype,
    numpy_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import DTypeLike

    from foresee._loading.batch import Bytes, Ints, Writable
    from foresee._loading.data_source import PathLike
    from foresee._loading.store_options import StorageOptions

__all__ = ["ArrayDataset"]


class ArrayDataset(OriginDataset):
    """Rows of ``.npy`` files, or of files of rows without header (``bin``), in the order of the files' names.

    A sample is a tensor of one row. Without ``transform`` a batch is one tensor over the loader's memory, without a
    copy.

    Args:
        uri: of a directory or prefix of such files, or of its index (``.fidx``). All rows have one dtype and shape.
        dtype: of a row, NumPy's or torch's, for ``bin`` files; a ``.npy`` file has it in its header.
        shape: of a row, for ``bin`` files; ``()`` for single numbers, 7 is ``(7,)``.
        transform: from the tensor of a row to what the model takes.
        exclude: patterns of files and folders to omit, as in ``FolderDataset``.
        index: index of the data, if there is one.
        storage_options: of the origin, or a store of obstore.

    Raises:
        ConfigError: ``dtype`` or ``shape`` is missing, superfluous, or torch has no such dtype.
        IndexInvalid: there are no rows, or an array is not C-ordered.
        OriginError: the origin cannot be read.
    """

    def __init__(
        self,
        uri: str | PathLike,
        *,
        dtype: DTypeLike | torch.dtype | None = None,
        shape: int | Sequence[int] | None = None,
        transform: Callable[..., Any] | None = None,
        exclude: str | Iterable[str] | None = None,
        index: str | PathLike | _native.Index | None = None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        check_callables(transform=transform)
        if (dtype is None) != (shape is None):
            raise ConfigError(
                f"dtype={dtype!r}, shape={shape!r}: pass both for rows without header, or neither for .npy"
            )
        row = None if dtype is None or shape is None else _Row.of(dtype, shape)
        layout, row_bytes = ("npy", None) if row is None else ("bin", row.bytes)
        source = data_source.resolve(
            uri,
            index=index,
            layout=layout,
            row_bytes=row_bytes,
            exclude=exclude,
            options=storage_options,
            name="uri",
        )
        super().__init__(source)
        self.transform = transform
        self.dtype, self.shape = self._row(row)
        check_dtype(self.dtype, source.uri)

    @property
    def per_sample(self) -> bool:
        """Whether each sample needs work."""
        return self.transform is not None

    def decode_bytes(self, data: Writable) -> torch.Tensor:
        """Return the row as a tensor."""
        return torch.from_numpy(np.frombuffer(data, self.dtype).reshape(self.shape))

    # Rows have no label.
    def finish(self, decoded: Any, label: int, generator: torch.Generator | None) -> Any:  # noqa: ARG002
        """Transform the row."""
        return decoded if self.transform is None else call_transform(self.transform, decoded, generator)

    # Rows have no label.
    def stack(self, data: Bytes, offsets: Ints, labels: Ints) -> torch.Tensor:  # noqa: ARG002
        """Return one tensor of shape (samples, *row)."""
        return torch.from_numpy(data.view(self.dtype).reshape(len(offsets) - 1, *self.shape))

    def _row(self, given: _Row | None) -> _Row:
        index = self.index
        if index.row_dtype is not None and index.row_shape is not None:
            row = _Row(np.dtype(index.row_dtype), index.row_shape)
            if given not in (None, row):
                raise ConfigError(f"{index.uri} has rows of {row}, not {given}")
            return row
        if given is None:
            raise ConfigError(f"{index.uri} has no header; pass dtype= and shape= of a row")
        if index.uniform_size != given.bytes:
            raise ConfigError(
                f"{index.uri} has rows of {index.uniform_size} bytes, {given} takes {given.bytes}"
            )
        return given


class _Row(NamedTuple):
    """Dtype and shape of a row."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @staticmethod
    def of(dtype: DTypeLike | torch.dtype, shape: int | Sequence[int]) -> _Row:
        """Check the dtype and shape of a user.

        Raises:
            ConfigError: they are no dtype or shape, or a row has no byte, or more than 2**63 - 1.
        """
        try:
            known = numpy_dtype(dtype)
        except TypeError as error:
            raise ConfigError(f"dtype={dtype!r}: NumPy has no such type") from error
        sides = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        if not all(isinstance(side, int | np.integer) and side is not True and side >= 1 for side in sides):
            raise ConfigError(f"shape={shape!r}: whole numbers of 1 or more; a row has at least one element")
        row = _Row(known, tuple(int(side) for side in sides))
        if not 0 < row.bytes < 2**63:
            raise ConfigError(f"dtype={dtype!r}, shape={shape!r}: no file has rows of {row.bytes} bytes")
        return row

    @property
    def bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"
