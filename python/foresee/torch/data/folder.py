# SPDX-License-Identifier: Apache-2.0
"""``FolderDataset``: one file or object per sample, with its folder as its class, as torchvision's ImageFolder."""

from __future__ import annotations

import logging
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from foresee import _native
from foresee._loading import data_source
from foresee._loading.packages import pillow
from foresee.errors import IndexInvalid
from foresee.torch.data.dataset import (
    PICTURES,
    OriginDataset,
    call_transform,
    check_callables,
    check_decode,
    decode_with,
    stack_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from foresee._loading.batch import Bytes, Ints, Writable
    from foresee._loading.data_source import PathLike
    from foresee._loading.store_options import StorageOptions

__all__ = ["FolderDataset"]

_log = logging.getLogger("foresee")


class FolderDataset(OriginDataset):
    """Files below a directory or bucket prefix, one folder per class, or without classes.

    Classes, labels and order are those of ``torchvision.datasets.ImageFolder``. A sample is ``(data, label)``. Without
    class folders, and in an index of layout ``flat``, it is ``data`` alone, and files are sorted by the bytes of their
    names. Files next to class folders are no samples; a warning has their number.

    Args:
        uri: directory, or ``s3://``, ``gs://``, ``az://``, ``hf://`` or ``http(s)://`` prefix, or an index of it
            (``.fidx``). Without an index it is listed at every start.
        transform: from a decoded sample to what the model takes. Random ones: see ``DataLoader``.
        target_transform: from a label to a target.
        decode: decoder of the bytes. ``None``: a uint8 tensor of the bytes. ``pil``: an RGB image, exactly as
            torchvision's default loader. A callable gets the bytes as a read-write buffer. ``auto``: ``pil`` if there
            is a ``transform`` and every file has the extension of an image, else None.
        extensions: of files that are samples; default: torchvision's for images.
        allow_empty: whether a class may have no sample. Without it a folder whose name begins with ``.`` or ``_`` and
            that has no sample is no class, and any other one is an error.
        exclude: patterns of files and folders to omit, such as ``"*.tmp"``, ``"old/"`` or
            ``["train/old/", "lost+found"]``: one without ``/`` matches a name on any level, one with ``/`` the path
            below ``uri``, in which ``**`` stands for any folders. Letter case counts.
        index: index of the data, if there is one; then nothing is listed.
        storage_options: of the origin, such as ``endpoint`` or ``region``, or a store of obstore.

    Raises:
        ConfigError: an argument is wrong.
        IndexInvalid: there are no samples, or no usable index.
        OriginError: the origin cannot be listed.
        PackageMissing: ``decode`` is ``pil`` and Pillow is not installed.
    """

    def __init__(
        self,
        uri: str | PathLike,
        *,
        transform: Callable[..., Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        decode: Literal["auto", "pil"] | Callable[[memoryview], Any] | None = "auto",
        extensions: Iterable[str] | None = None,
        allow_empty: bool = False,
        exclude: str | Iterable[str] | None = None,
        index: str | PathLike | _native.Index | None = None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        check_callables(transform=transform, target_transform=target_transform)
        check_decode(decode)
        source = data_source.resolve(
            uri,
            index=index,
            layout="folder",
            or_flat=True,
            extensions=extensions,
            allow_empty=allow_empty,
            exclude=exclude,
            options=storage_options,
            name="uri",
        )
        if source.index.layout not in ("folder", "flat"):
            raise IndexInvalid(
                f"{source.uri}: index of layout {source.index.layout!r}; FolderDataset needs folder or flat, "
                "arrays are for ArrayDataset"
            )
        if source.index.outside:
            _log.warning(
                "%s: %d files next to the class folders are no samples, as in torchvision; move them into a "
                "class folder, or leave them out with exclude=",
                source.uri,
                source.index.outside,
            )
        super().__init__(source)
        self.classes = source.index.classes
        """Class names in label order; empty where the index has none."""
        self.transform = transform
        self.target_transform = target_transform
        if decode == "auto":
            decode = "pil" if transform is not None and self._all_pictures(extensions, index) else None
        if decode == "pil":
            pillow()
        self.decode = decode

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class."""
        return {name: label for label, name in enumerate(self.classes)}

    @cached_property
    def targets(self) -> list[int]:
        """Label of each sample."""
        return self.index.labels().tolist()  # type: ignore[no-any-return] # numpy types tolist() as Any

    @cached_property
    def samples(self) -> list[tuple[str, int]]:
        """Path or URI, and label, of each sample; made on first use, for small data sets."""
        top = self.source.uri.rstrip("/")
        return [(f"{top}/{os.fsdecode(self.index.key(i))}", label) for i, label in enumerate(self.targets)]

    @property
    def per_sample(self) -> bool:
        """Whether each sample needs work."""
        return self.transform is not None or self.target_transform is not None or self.decode is not None

    def decode_bytes(self, data: Writable) -> Any:
        """Make a tensor or an image of the bytes, or call the decoder."""
        return decode_with(self.decode, data)

    def finish(self, decoded: Any, label: int, generator: torch.Generator | None) -> Any:
        """Return ``(data, label)``, or ``data`` without classes."""
        data = decoded if self.transform is None else call_transform(self.transform, decoded, generator)
        if not self.classes:
            return data
        return data, label if self.target_transform is None else self.target_transform(label)

    def stack(self, data: Bytes, offsets: Ints, labels: Ints) -> Any:
        """Return ``[data, labels]``; data have shape (samples, bytes) if all sizes are equal, else they are a list."""
        tensors = stack_bytes(torch.from_numpy(data), offsets)
        return [tensors, torch.from_numpy(labels)] if self.classes else tensors

    def _all_pictures(self, extensions: Iterable[str] | None, index: object) -> bool:
        if index is None and extensions is None:
            return True
        suffixes = tuple(suffix.encode() for suffix in PICTURES)
        return all(self.index.key(i).lower().endswith(suffixes) for i in range(len(self)))
