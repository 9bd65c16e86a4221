# SPDX-License-Identifier: Apache-2.0
"""``TokenDataset``: windows over long arrays of tokens, each with the targets of a language model."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foresee import _native
from foresee._loading import data_source, store_options
from foresee.errors import ConfigError
from foresee.torch.data.dataset import OriginDataset, check_dtype, numpy_dtype

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from foresee._loading.batch import Bytes, Ints, Writable
    from foresee._loading.data_source import PathLike
    from foresee._loading.store_options import StorageOptions

__all__ = ["TokenDataset"]

_log = logging.getLogger("foresee")


class TokenDataset(OriginDataset):
    """Windows over one-dimensional ``.npy`` files, or ``.bin`` files without header.

    Sample ``i`` is ``(x, y)``: ``x = tokens[s : s + window]`` and ``y = tokens[s + offset : s + offset + window]``,
    where ``s`` grows by ``stride`` from sample to sample. A window with its targets never crosses the end of its file.

    Args:
        uri: a file, several in their order, a directory or prefix of ``.npy`` and ``.bin`` files (in the order of their
            names), or an index of such windows (``.fidx``).
        window: tokens of ``x``, 1 or more.
        stride: tokens from one sample to the next, 1 or more; default ``window``.
        dtype: of a token, NumPy's or torch's, such as ``"uint16"``; needed for ``.bin`` files.
        offset: tokens from ``x`` to ``y``, 0 or more.
        drop_tail: omit the tokens at a file's end that fill no window; their number is logged once. False: one further
            window of each file ends with the file, and repeats tokens of the one before. Files that are shorter than a
            window are omitted, and logged, in both cases.
        cast: dtype of the batches, which are copies then; None keeps the stored type, and batches are views of the
            loader's memory.
        exclude: patterns of files and folders to omit, as in ``FolderDataset``.
        storage_options: of the origin, or a store of obstore.

    Raises:
        ConfigError: an argument is wrong, or ``dtype`` is missing.
        IndexInvalid: a file is no array of one axis, or none is as long as a window.
        OriginError: the origin cannot be read.
    """

    def __init__(
        self,
        uri: str | PathLike | Iterable[str | PathLike],
        window: int,
        stride: int | None = None,
        *,
        dtype: DTypeLike | torch.dtype | None = None,
        offset: int = 1,
        drop_tail: bool = True,
        cast: torch.dtype | None = torch.int64,
        exclude: str | Iterable[str] | None = None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        stride = window if stride is None else stride
        faults = [
            f"{name}={value!r}; a whole number of tokens, {least} or more"
            for name, value, least in (("window", window, 1), ("stride", stride, 1), ("offset", offset, 0))
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least
        ]
        faults += [
            f"{name}={value!r}; {expected}"
            for name, value, kind, expected in (
                ("cast", cast, torch.dtype, "a torch.dtype, or None to keep the stored type"),
                ("drop_tail", drop_tail, bool, "True or False"),
            )
            if not (isinstance(value, kind) or (name == "cast" and value is None))
        ]
        known = None
        if dtype is not None:
            try:
                known = numpy_dtype(dtype)
            except TypeError:
                faults.append(f"dtype={dtype!r}; NumPy has no such type")
        if faults:
            raise ConfigError(faults)
        self.window, self.offset = int(window), int(offset)
        self.cast = cast
        length = self.window + self.offset
        opened = _opened(uri)
        if opened is None:
            source, tokens, files = data_source.windows(
                uri,
                dtype=known,
                length=length,
                stride=int(stride),
                drop_tail=drop_tail,
                exclude=exclude,
                options=storage_options,
            )
            if tokens:
                _log.warning(
                    "%s: %d tokens at the ends of %d files are in no window", source.uri, tokens, files
                )
        else:
            source = data_source.Source(
                opened, opened.uri, store_options.storage_options(storage_options), str(uri)
            )
            _check(opened, length, int(stride), drop_tail=drop_tail)
        super().__init__(source)
        self.dtype = np.dtype(self.index.row_dtype)
        if known not in (None, self.dtype):
            raise ConfigError(f"dtype={dtype!r}: {self.index.uri} has tokens of {self.dtype}")
        check_dtype(self.dtype, source.uri)

    @property
    def stride(self) -> int:
        """Tokens from one sample to the next."""
        assert self.index.stride is not None, "an index of windows"
        return self.index.stride

    @property
    def per_sample(self) -> bool:
        """Whether each sample needs work: never."""
        return False

    def decode_bytes(self, data: Writable) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``(x, y)``, each of shape (window,)."""
        x, y = self._divided(torch.from_numpy(np.frombuffer(data, self.dtype)))
        return x, y

    # A window has neither label nor random transforms.
    def finish(self, decoded: Any, label: int, generator: torch.Generator | None) -> Any:  # noqa: ARG002
        """Return the sample unchanged."""
        return decoded

    def stack(self, data: Bytes, offsets: Ints, labels: Ints) -> list[torch.Tensor]:  # noqa: ARG002 - as above
        """Return ``[x, y]``, each of shape (samples, window)."""
        return self._divided(torch.from_numpy(data.view(self.dtype).reshape(len(offsets) - 1, -1)))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} windows of {self.window} tokens, stride {self.stride}, "
            f"{self.dtype} in {self.index.uri})"
        )

    def _divided(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        parts = [tokens[..., : self.window], tokens[..., self.offset : self.offset + self.window]]
        return parts if self.cast is None else [part.to(self.cast, copy=True).contiguous() for part in parts]


def _opened(uri: object) -> _native.Index | None:
    """Return the index, if ``uri`` is one or its file."""
    if isinstance(uri, str) and uri.endswith(".fidx"):
        return _native.Index.open(uri)
    return uri if isinstance(uri, _native.Index) else None


def _check(index: _native.Index, length: int, stride: int, *, drop_tail: bool) -> None:
    """Raise ``ConfigError`` for an index of other windows, or of none."""
    expected = ((length,), stride, drop_tail)
    if index.layout != "windows" or (index.row_shape, index.stride, index.drop_tail) != expected:
        raise ConfigError(
            f"{index.uri}: its index has layout {index.layout!r}, rows of {index.row_shape}, stride {index.stride} and "
            f"drop_tail={index.drop_tail}; window= and offset= make {length} tokens, with stride={stride} and "
            f"drop_tail={drop_tail}: make another index, or pass the same values"
        )
