# SPDX-License-Identifier: Apache-2.0
"""Columns of paths, targets and sizes, from arguments or from a table in a file.

Separate from the dataset, which does not depend on the format of a table. Rows are counted from 0, as samples are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils.data import default_collate

from foresee._loading import data_source
from foresee._loading.packages import pyarrow
from foresee._schema.files import user_path
from foresee.errors import ConfigError, OriginError, OriginMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from foresee._loading.batch import Ints

Format = Literal["csv", "jsonl", "parquet"]


def paths(values: object, name: str) -> list[str]:
    """Return a column of paths or URIs; ``name``: for messages.

    Raises:
        ConfigError: the value is no column, or a cell is no path.
    """
    rows: list[Any] = _listed(values, name)
    if set(map(type, rows)) <= {str}:
        return rows
    for row, value in enumerate(rows):
        if not isinstance(value, str):
            rows[row] = user_path(value, f"{name}, row {row}: path")
    return rows


def sizes(values: object, name: str, count: int) -> NDArray[np.int64]:
    """Return a column of ``count`` sizes in bytes.

    Raises:
        ConfigError: a cell is no whole number of 0 or more.
    """
    rows = _listed(values, name)
    same_length(name, len(rows), count)
    if set(map(type, rows)) <= {int} and all(0 <= value < 2**63 for value in rows):
        return np.array(rows, dtype=np.int64)
    for row, value in enumerate(rows):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            raise ConfigError(f"{name}, row {row}: {value!r}; bytes expected, a whole number of 0 or more")
    return np.array(rows, dtype=np.int64)


def same_length(name: str, found: int, expected: int) -> None:
    """Raise ``ConfigError`` for a column of another length than the first one."""
    if found != expected:
        raise ConfigError(f"{name} has {found} rows, uris has {expected}; pass one for each sample")


def _listed(values: object, name: str) -> list[Any]:
    for method in ("to_pylist", "tolist", "to_list"):
        convert: Callable[[], list[Any]] | None = getattr(values, method, None)
        if convert is not None:
            values = convert()
            break
    if isinstance(values, str | bytes | os.PathLike | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"{name}={values!r}; a column expected, such as a list with one entry per sample")
    return list(values)


@dataclass(frozen=True, eq=False)
class Targets:
    """Targets of the samples."""

    values: Any
    """Sequence, array or tensor with one entry per sample; class indices where the targets were texts."""
    classes: list[str]
    """Names of the classes; empty unless the targets were texts."""
    numbers: NDArray[np.int64] | None
    """``values`` if all of them are ints, whose batches need no work."""

    def batch(self, rows: Ints) -> Any:
        """Collate the targets of ``rows`` as torch's ``default_collate``."""
        if self.numbers is not None:
            return torch.from_numpy(self.numbers[rows])
        return default_collate([self.values[row] for row in rows.tolist()])

    @staticmethod
    def of(given: object, count: int, classes: Literal["auto"] | Sequence[str] | None, name: str) -> Targets:
        """Return the targets of ``count`` samples.

        Raises:
            ConfigError: their number differs, or a text is none of ``classes``.
        """
        values: Any = given
        is_array = isinstance(given, np.ndarray) and given.dtype.kind not in "OUS"
        if not (is_array or isinstance(given, torch.Tensor)):
            values = _listed(given, name)
        same_length(name, len(values), count)
        if not isinstance(values, list):
            return Targets(values, [], None)
        kinds = set(map(type, values))
        if classes is not None and values and all(issubclass(kind, str) for kind in kinds):
            known = sorted(set(values)) if isinstance(classes, str) else list(classes)
            places = {text: place for place, text in enumerate(known)}
            for row, value in enumerate(values):
                if value not in places:
                    raise ConfigError(
                        f"{name}, row {row}: {value!r} is not among the {len(known)} classes; correct it, or add it to "
                        "classes="
                    )
            numbers = np.array([places[value] for value in values], dtype=np.int64)
            return Targets(numbers.tolist(), known, numbers)
        if kinds <= {int} and all(-(2**63) <= value < 2**63 for value in values):
            return Targets(values, [], np.array(values, dtype=np.int64))
        return Targets(values, [], None)


def read(
    table: object,
    kind: Format,
    columns: Sequence[str],
    texts: Sequence[str],
    options: Mapping[str, str] | None,
) -> tuple[dict[str, Any], str]:
    """Read ``columns`` of a table; return them with its folder. ``texts``: columns of paths.

    Raises:
        ConfigError: a column is missing, a cell is empty, or the file has another format.
        OriginError: the table cannot be read; OriginMissing if it does not exist.
        PackageMissing: PyArrow is not installed.
    """
    place = user_path(table, "table")
    local = data_source.local_path(place)
    tables = pyarrow("lib")
    folder = data_source.absolute(place).rpartition("/")[0] or "/"
    content = local if local is not None else tables.BufferReader(data_source.read_file(place, options))
    try:
        found = _parsed(content, kind, place, columns, texts)
    except (tables.ArrowInvalid, tables.ArrowKeyError, tables.ArrowTypeError) as error:
        raise ConfigError(f"{place} is no {kind} table: {error}") from error
    except FileNotFoundError as error:
        raise OriginMissing(f"{place} does not exist; check the path of the table") from error
    except OSError as error:
        raise OriginError(f"{place} cannot be read: {error}") from error
    missing = [column for column in columns if column not in found.column_names]
    if missing:
        raise ConfigError(
            f"{place} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, found.column_names))}"
        )
    cells = {}
    for column in dict.fromkeys(columns):
        values = found.column(column).to_pylist()
        if None in values or "" in values:
            row = next(row for row, value in enumerate(values) if value is None or value == "")
            raise ConfigError(
                f"{place}: {column}, row {row}: the cell is empty; fill it, or leave the row out"
            )
        cells[column] = values
    return cells, folder


def _parsed(content: Any, kind: Format, place: str, columns: Sequence[str], texts: Sequence[str]) -> Any:
    if kind == "parquet":
        with pyarrow("parquet").ParquetFile(content) as file:
            # If a column is missing, the caller reports the names of all.
            known = set(columns) <= set(file.schema_arrow.names)
            return (
                file.read(columns=list(dict.fromkeys(columns))) if known else file.schema_arrow.empty_table()
            )
    if kind == "jsonl":
        return pyarrow("json").read_json(content)
    csv = pyarrow("csv")
    types = dict.fromkeys(texts, pyarrow("lib").string())
    delimiter = "\t" if place.endswith((".tsv", ".tsv.gz")) else ","
    return csv.read_csv(
        content,
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=types),
    )
