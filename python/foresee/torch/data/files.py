# SPDX-License-Identifier: Apache-2.0
"""``FileDataset``: a table of paths or URIs, in the order of its rows; a sample is one object or several."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from foresee._loading import data_source
from foresee._loading.packages import pillow
from foresee._schema.files import user_path
from foresee.errors import ConfigError
from foresee.torch.data import sample_table
from foresee.torch.data.dataset import (
    PICTURES,
    OriginDataset,
    call_transform,
    check_callables,
    check_decode,
    decode_with,
    stack_bytes,
)
from foresee.torch.data.sample_table import Targets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from foresee._loading.batch import Bytes, Ints, Writable
    from foresee._loading.data_source import PathLike
    from foresee._loading.store_options import StorageOptions

__all__ = ["FileDataset"]

Paths: TypeAlias = "Iterable[str | os.PathLike[str]]"
Decode: TypeAlias = "Literal['auto', 'pil'] | Callable[[memoryview], Any] | None"

# Name of the first object where the others have names.
_FIRST = "data"


class FileDataset(OriginDataset):
    """The files or objects that a table names, one row per sample, in the table's order.

    Rows are never sorted. A file of several rows is read and cached once. A sample is ``(data, target)``, or ``data``
    alone without ``targets``. Without ``transform`` and ``decode``, data are the bytes as a uint8 tensor. All objects
    are in one file system, bucket or web server.

    Args:
        uris: a path or URI per sample: a list, or a column of NumPy, pandas or Arrow. Relative ones are below ``root``.
        targets: one per sample, any objects; entries of an array or tensor are not converted.
        transform: from decoded data to what the model takes; gets the whole tuple or dict of several objects.
        target_transform: from a target to what the model takes.
        decode: decoder of the bytes, as in ``FolderDataset``; one for all objects, or a sequence or mapping with one
        for
            each.
        classes: converts targets that are all texts to class indices. ``auto`` sorts the texts, as ``FolderDataset``
        does;
            a list gives the order, also for data that lack a class; None leaves texts unchanged.
        extra: further objects of each sample. A sequence of URIs, or several, makes data a tuple; a mapping from name
            to URIs makes them a dict.
        name: of the first object, where data are a dict.
        root: folder or prefix of relative rows; default: the working directory.
        sizes: bytes of each object of ``uris``, or a mapping from object name to them. The origin is then not queried,
            and a changed object is detected only by its size.
        allow_missing: accept rows without an object: reading one is a fault, which ``on_error`` handles. Without it
        they
            are an error. The number of samples is that of the rows in both cases.
        storage_options: of the origin, such as ``endpoint`` or ``region``, or a store of obstore.

    Raises:
        ConfigError: an argument or a row is wrong; the message has the row's number and value.
        OriginMissing: objects do not exist; the message has the first ones and their number.
        OriginError: the origin does not answer.
        PackageMissing: ``decode`` is ``pil`` and Pillow is not installed.
    """

    def __init__(
        self,
        uris: Paths,
        targets: object = None,
        *,
        transform: Callable[..., Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        decode: Decode | Sequence[Decode] | Mapping[str, Decode] = "auto",
        classes: Literal["auto"] | Sequence[str] | None = "auto",
        extra: Paths | Sequence[Paths] | Mapping[str, Paths] | None = None,
        root: str | PathLike | None = None,
        name: str = "data",
        sizes: object = None,
        allow_missing: bool = False,
        storage_options: StorageOptions | None = None,
    ) -> None:
        check_callables(transform=transform, target_transform=target_transform)
        further = _further(extra)
        if name in further:
            raise ConfigError(f"extra= has an object {name!r}, as the first one is called; pass another name")
        first = sample_table.paths(uris, "uris" if name == _FIRST else name)
        if not first:
            raise ConfigError("uris is empty; a data set has at least one row")
        columns = [("uris" if name == _FIRST else name, first)]
        for title, given in further.items():
            rows = sample_table.paths(given, title)
            sample_table.same_length(title, len(rows), len(first))
            columns.append((title, rows))
        names = [name, *further]
        decodes = [
            _decoder(one, rows, has_transform=transform is not None)
            for one, (_, rows) in zip(_decodes(decode, names), columns, strict=True)
        ]
        known = None if targets is None else Targets.of(targets, len(first), classes, "targets")
        super().__init__(
            data_source.table(
                columns,
                root=None if root is None else user_path(root, "root"),
                sizes=_sizes(sizes, names, len(first)),
                allow_missing=allow_missing,
                options=storage_options,
            )
        )
        self._decodes, self._targets = decodes, known
        self.names: tuple[str, ...] | None = tuple(names) if isinstance(extra, Mapping) else None
        """Names of the objects of a sample whose data are a dict, else None."""
        self.transform = transform
        self.target_transform = target_transform

    @property
    def classes(self) -> list[str]:
        """Class names in label order; empty where the targets are no texts."""
        return [] if self._targets is None else self._targets.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> Any:
        """Target of each sample, with class indices for texts; None without targets."""
        return None if self._targets is None else self._targets.values

    @property
    def per_sample(self) -> bool:
        """Whether each sample needs work."""
        works = (self.transform, self.target_transform, *self._decodes)
        return any(work is not None for work in works)

    def decode_bytes(self, data: Writable) -> Any:
        """Make a tensor or an image of the bytes, or call the decoder."""
        return decode_with(self._decodes[0], data)

    def decode_sample(self, data: Writable, label: int) -> Any:
        """As ``decode_bytes``; a tuple or dict for several objects. ``label``: the row."""
        if len(self._decodes) == 1:
            return self.decode_bytes(data)
        ends = self.index.part_sizes(np.array([label], np.int64))[0].cumsum()
        parts = np.split(np.frombuffer(data, np.uint8), ends[:-1])
        decoded = []
        for place, (decode, part) in enumerate(zip(self._decodes, parts, strict=True)):
            try:
                decoded.append(decode_with(decode, part))
            except Exception as error:
                uri = self.index.sample_uri(label, base=self.source.uri, part=place)
                raise ValueError(f"{uri}: {type(error).__name__}: {error}") from error
        return self._fold(tuple(decoded))

    def finish(self, decoded: Any, label: int, generator: torch.Generator | None) -> Any:
        """Return ``(data, target)``, or ``data`` without targets. ``label``: the row."""
        data = decoded if self.transform is None else call_transform(self.transform, decoded, generator)
        if self._targets is None:
            return data
        target = self._targets.values[label]
        return data, target if self.target_transform is None else self.target_transform(target)

    def stack(self, data: Bytes, offsets: Ints, labels: Ints) -> Any:
        """Return ``[data, targets]`` or data; per object one tensor if all sizes are equal, else a list of tensors."""
        whole = torch.from_numpy(data)
        if len(self._decodes) == 1:
            found: Any = stack_bytes(whole, offsets)
        else:
            sizes = self.index.part_sizes(labels)
            found = self._fold([_column(whole, sizes, part) for part in range(len(self._decodes))])
        return found if self._targets is None else [found, self._targets.batch(labels)]

    def __repr__(self) -> str:
        parts = "" if self.index.parts == 1 else f" of {self.index.parts} objects"
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"{type(self).__name__}({len(self)} samples{parts} in {self.index.uri}{classes})"

    def _fold(self, parts: Any) -> Any:
        """Return one value per object as a tuple or dict."""
        return parts if self.names is None else dict(zip(self.names, parts, strict=True))

    @classmethod
    def from_csv(
        cls,
        table: str | PathLike,
        uri: str = "path",
        target: str | None = "label",
        *,
        extra: str | Sequence[str] | Mapping[str, str] | None = None,
        size: str | Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Self:
        """Read the rows of a CSV file (``.tsv``: tabs) with a line of column names, also in a bucket.

        Args:
            table: path or URI. Relative rows are below its folder, unless ``root=`` is given.
            uri: column of paths or URIs.
            target: column of targets, or None. Numbers stay numbers, texts become class indices.
            extra: columns of further objects; data are then a dict by column name, or by the names of a mapping from
                name to column, in which the first object has the name of its column.
            size: column of sizes in bytes of ``uri``, or a mapping from object name to such a column.
            arguments: as in ``FileDataset``.

        Raises:
            ConfigError: a column is missing or a cell empty; see also ``FileDataset``.
            PackageMissing: PyArrow is not installed.
        """
        return cls._from_table("csv", table, uri, target, extra, size, arguments)

    @classmethod
    def from_parquet(
        cls,
        table: str | PathLike,
        uri: str = "path",
        target: str | None = "label",
        *,
        extra: str | Sequence[str] | Mapping[str, str] | None = None,
        size: str | Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Self:
        """Read the rows of a Parquet file; arguments and errors as in ``from_csv``."""
        return cls._from_table("parquet", table, uri, target, extra, size, arguments)

    @classmethod
    def from_jsonl(
        cls,
        table: str | PathLike,
        uri: str = "path",
        target: str | None = "label",
        *,
        extra: str | Sequence[str] | Mapping[str, str] | None = None,
        size: str | Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Self:
        """Read the lines of a file with one JSON object each; arguments and errors as in ``from_csv``."""
        return cls._from_table("jsonl", table, uri, target, extra, size, arguments)

    @classmethod
    def _from_table(
        cls,
        kind: sample_table.Format,
        table: str | PathLike,
        uri: str,
        target: str | None,
        extra: str | Sequence[str] | Mapping[str, str] | None,
        size: str | Mapping[str, str] | None,
        arguments: dict[str, Any],
    ) -> Self:
        known = {} if extra is None else {extra: extra} if isinstance(extra, str) else extra
        objects = {uri: uri, **(known if isinstance(known, Mapping) else {name: name for name in known})}
        sized = {} if size is None else {uri: size} if isinstance(size, str) else dict(size)
        wanted = [*objects.values(), *sized.values(), *([] if target is None else [target])]
        cells, folder = sample_table.read(
            table, kind, wanted, list(objects.values()), arguments.get("storage_options")
        )
        return cls(
            cells[uri],
            None if target is None else cells[target],
            **{
                "root": folder,
                "name": uri,
                "extra": {name: cells[column] for name, column in objects.items() if name != uri} or None,
                "sizes": {name: cells[column] for name, column in sized.items()} or None,
                **arguments,
            },
        )


def _further(extra: Paths | Sequence[Paths] | Mapping[str, Paths] | None) -> dict[str, Paths]:
    """Return the columns of ``extra`` by name."""
    if extra is None:
        return {}
    if isinstance(extra, Mapping):
        return dict(extra)
    listed: Any = extra if hasattr(extra, "__getitem__") and not isinstance(extra, str) else [extra]
    first = next(iter(listed), None)
    if isinstance(first, str | os.PathLike) or not isinstance(first, Iterable):
        column: Any = extra
        return {"extra": column}
    return {f"extra[{place}]": column for place, column in enumerate(listed)}


def _sizes(given: object, names: list[str], count: int) -> list[Any]:
    if not isinstance(given, Mapping):
        given = {} if given is None else {names[0]: given}
    for name in given:
        if name not in names:
            raise ConfigError(
                f"sizes= has {name!r}, which is none of the objects {', '.join(map(repr, names))}"
            )
    return [
        sample_table.sizes(given[name], f"sizes of {name}", count) if name in given else None
        for name in names
    ]


def _decodes(given: object, names: list[str]) -> list[Decode]:
    """Return the decoder of each object."""
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ConfigError(
                f"decode= has {unknown[0]!r}, which is none of the objects {', '.join(map(repr, names))}"
            )
        each: list[Any] = [given.get(name) for name in names]
    elif isinstance(given, list | tuple):
        each = list(given)
        if len(each) != len(names):
            raise ConfigError(f"decode= has {len(each)} entries for {len(names)} objects; pass one for each")
    else:
        each = [given] * len(names)
    for one in each:
        check_decode(one)
    return each


def _decoder(given: Decode, rows: list[str], *, has_transform: bool) -> Any:
    if given == "auto":
        given = "pil" if has_transform and all(row.lower().endswith(PICTURES) for row in rows) else None
    if given == "pil":
        pillow()
    return given


def _column(whole: torch.Tensor, sizes: Ints, part: int) -> torch.Tensor | list[torch.Tensor]:
    """Return object ``part`` of all samples, whose ``sizes`` are by sample and part; a view if all sizes are equal."""
    if (sizes == sizes[0]).all():
        start = int(sizes[0, :part].sum())
        return whole.view(len(sizes), -1)[:, start : start + int(sizes[0, part])]
    tensors = torch.split(whole, sizes.ravel().tolist())[part :: sizes.shape[1]]
    return torch.stack(tensors) if (sizes[:, part] == sizes[0, part]).all() else list(tensors)
