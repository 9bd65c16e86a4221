# SPDX-License-Identifier: Apache-2.0
"""``ArrayDataset``: rows of arrays in files, each row a sample."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foresee import _native, _source
from foresee.errors import ConfigError
from foresee.torch._dataset import OriginDataset, call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import DTypeLike

    from foresee._batch import Bytes, Ints
    from foresee._source import PathLike

__all__ = ["ArrayDataset"]


class ArrayDataset(OriginDataset):
    """Rows of ``.npy`` files, or of files of rows without header (``bin``), in the order of the files' names.

    A sample is a tensor of one row. Without ``transform`` a batch is one tensor over the loader's memory: no
    copy.

    Args:
        uri: of a directory or prefix of such files, or of its index (``.fidx``). All rows are alike.
        dtype: of a row, for ``bin`` files; a ``.npy`` file says it.
        shape: of a row, for ``bin`` files; ``()`` for single numbers.
        transform: from the tensor of a row to what the model takes.
        index: of the data, if made before.
        storage_options: of the origin.

    Raises:
        ConfigError: ``dtype`` or ``shape`` is missing, superfluous, or torch has no such dtype.
        IndexInvalid: no rows, or no C-ordered array.
        OriginError: the origin cannot be read.
    """

    def __init__(
        self,
        uri: str | PathLike,
        *,
        dtype: DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        transform: Callable[..., Any] | None = None,
        index: str | PathLike | _native.Index | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        if (dtype is None) != (shape is None):
            raise ConfigError(
                f"dtype={dtype!r}, shape={shape!r}: give both for rows without header, or neither for .npy"
            )
        row_bytes = None
        if dtype is not None and shape is not None:
            row_bytes = np.dtype(dtype).itemsize * math.prod(shape)
            if row_bytes < 1:
                raise ConfigError(f"shape={tuple(shape)!r}: a row has at least one element")
        layout = "npy" if row_bytes is None else "bin"
        source = _source.resolve(
            uri, index=index, layout=layout, row_bytes=row_bytes, options=storage_options
        )
        super().__init__(source)
        self.transform = transform
        self.dtype, self.shape = self._row(dtype, shape)
        try:
            torch.from_numpy(np.empty(0, self.dtype))
        except TypeError as error:
            raise ConfigError(f"{source.uri}: torch has no dtype {self.dtype}; convert the file") from error

    @property
    def per_sample(self) -> bool:
        """Whether samples need work one by one."""
        return self.transform is not None

    def decode_bytes(self, data: Bytes) -> torch.Tensor:
        """The row as a tensor."""
        return torch.from_numpy(data.view(self.dtype).reshape(self.shape))

    # Rows have no label.
    def finish(self, decoded: Any, label: int, generator: torch.Generator | None) -> Any:  # noqa: ARG002
        """The transformed row."""
        return decoded if self.transform is None else call(self.transform, decoded, generator)

    # Rows have no label.
    def stack(self, data: Bytes, offsets: Ints, labels: Ints) -> torch.Tensor:  # noqa: ARG002
        """One tensor, shape (samples, *row)."""
        return torch.from_numpy(data.view(self.dtype).reshape(len(offsets) - 1, *self.shape))

    def _row(
        self, dtype: DTypeLike | None, shape: Sequence[int] | None
    ) -> tuple[np.dtype[Any], tuple[int, ...]]:
        index = self.index
        if index.row_dtype is not None and index.row_shape is not None:
            if (
                dtype is not None
                and shape is not None
                and (np.dtype(dtype), tuple(shape))
                != (
                    np.dtype(index.row_dtype),
                    index.row_shape,
                )
            ):
                raise ConfigError(
                    f"{index.uri} has rows of {index.row_dtype} {index.row_shape}, not {np.dtype(dtype)} {tuple(shape)}"
                )
            return np.dtype(index.row_dtype), index.row_shape
        if dtype is None or shape is None:
            raise ConfigError(f"{index.uri} has no header; give dtype= and shape= of a row")
        expected = np.dtype(dtype).itemsize * math.prod(shape)
        if index.uniform_size != expected:
            raise ConfigError(
                f"{index.uri} has rows of {index.uniform_size} bytes, {np.dtype(dtype)} {tuple(shape)} takes {expected}"
            )
        return np.dtype(dtype), tuple(shape)
