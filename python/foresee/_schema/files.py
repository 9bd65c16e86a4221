# SPDX-License-Identifier: Apache-2.0
"""Paths as users write them, and small files that are read and written as a whole.

The size of a file is bounded, its faults start with its name, and a write replaces the file as a whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

from foresee.errors import ConfigError

_T = TypeVar("_T")
# pathlib turns s3://bucket/prefix into this.
_DAMAGED_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")


def user_path(value: object, name: str) -> str:
    """Return a path or URI that a user gave as the argument ``name``, with ``~`` expanded.

    Raises:
        ConfigError: no path, a path of bytes, or a URI that went through ``pathlib``.
    """
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str):
        remedy = "; decode it with os.fsdecode()" if isinstance(path, bytes) else ""
        raise ConfigError(f"{name}={value!r}: a string or a pathlib.Path expected{remedy}")
    if not isinstance(value, str) and _DAMAGED_URI.match(path):
        scheme, _, rest = path.partition(":/")
        raise ConfigError(
            f"{name}={value!r}: pathlib joins the slashes of a URI; pass the string {f'{scheme}://{rest}'!r}"
        )
    return os.path.expanduser(path)


def read(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of the file.

    Raises:
        ConfigError: more than ``most`` bytes; the message names the file.
        OSError: the file cannot be read.
    """
    shown = os.fspath(path)
    with open(shown, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ConfigError(f"{shown}: larger than {most} bytes, the limit for such a file")
    return content


def named(path: str | os.PathLike[str], make: Callable[[], _T]) -> _T:
    """Return the result of ``make``, whose faults get the file's name as prefix."""
    try:
        return make()
    except ConfigError as error:
        raise ConfigError([f"{os.fspath(path)}: {fault}" for fault in error.faults]) from None


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Replace the file ``path`` as a whole: write a temporary file next to it, then rename that.

    Raises:
        OSError: the file cannot be written; the error names it, and an older file is unchanged.
    """
    shown = os.fspath(path)
    draft = f"{shown}.{os.getpid()}.tmp"
    try:
        with open(draft, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(draft, shown)
    except BaseException as error:
        if os.path.exists(draft):
            os.remove(draft)
        if isinstance(error, OSError):
            # The user does not know the name of the temporary file.
            raise OSError(error.errno, error.strerror, shown) from None
        raise
