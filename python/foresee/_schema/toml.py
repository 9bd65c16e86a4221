# SPDX-License-Identifier: Apache-2.0
"""TOML: files and texts as tables, the check of their version, and values formatted as TOML.

Python has a reader since 3.11 (``tomllib``) and no writer; ``tomli`` is the same reader for 3.10.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from foresee._schema import files
from foresee.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FILE_BYTES_MAX = 16 * 2**20

_T = TypeVar("_T")


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the tables of a file.

    Raises:
        ConfigError: the file is no TOML; the message names it.
        OSError: the file cannot be read.
    """
    content = files.read(path, _FILE_BYTES_MAX)

    def tables() -> dict[str, Any]:
        try:
            return parse(content.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ConfigError(f"no TOML: {error}") from None

    return files.named(path, tables)


def read(path: str | os.PathLike[str], make: Callable[[dict[str, Any]], _T]) -> _T:
    """Return the result of ``make`` for the file's tables.

    Raises:
        ConfigError: the file is no TOML, or ``make`` found faults; each has the file's name.
        OSError: the file cannot be read.
    """
    tables = load(path)
    return files.named(path, lambda: make(tables))


def parse(text: str) -> dict[str, Any]:
    """Return the tables of a text.

    Raises:
        ConfigError: the text is no TOML.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"no TOML: {error}") from None
    return tables


def version_fault(table: Mapping[str, object], version: int, what: str) -> str | None:
    """Return the fault of a file's ``version``, or None."""
    found = table.get("version")
    if found is None:
        return f"version is missing; write version = {version}, the version of the format of a {what}"
    if isinstance(found, bool) or found != version or not isinstance(found, int):
        return (
            f"version = {found!r}; this program reads version {version} of a {what}: write the file again, or install "
            "the release that wrote it"
        )
    return None


def written(value: object) -> str:
    r"""Format a text, number, truth value, date or list as TOML.

    >>> written('a "b"'), written(0.1), written([1, True])
    ('"a \\"b\\""', '0.1', '[1, true]')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(written, value)) + "]"
    assert isinstance(value, str)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
