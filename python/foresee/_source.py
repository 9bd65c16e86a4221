# SPDX-License-Identifier: Apache-2.0
"""From what a user names (a URI, a path, an index) to an index and the place of its objects.

An index that is given is never listed again. Without one the data are listed at every start, by every rank:
make one with ``foresee index`` where that takes long.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from foresee import _native
from foresee._files import user_path
from foresee.errors import ConfigError, IndexInvalid, OriginMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    PathLike: TypeAlias = os.PathLike[str]
else:
    PathLike = os.PathLike

LAYOUTS = ("auto", "folder", "flat", "npy", "bin")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class Source:
    """An index, and where and how its objects are read."""

    index: _native.Index
    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Storage options: credentials may be among them, so they are never shown."""
    file: str | None = None
    """The index's file, where it was opened from one."""
    listed: bool = False
    """The index is a listing of ``uri`` made a moment ago, with ``options``."""

    def file_bytes(self) -> bytes:
        """The index as the bytes of its file."""
        with tempfile.TemporaryDirectory(prefix="foresee-") as folder:
            path = os.path.join(folder, "index.fidx")
            self.index.save(path)
            with open(path, "rb") as file:
                return file.read()


def resolve(
    data: str | PathLike | _native.Index,
    *,
    index: str | PathLike | _native.Index | None = None,
    layout: str = "auto",
    extensions: Iterable[str] | None = None,
    row_bytes: int | None = None,
    options: Mapping[str, str] | None = None,
    name: str = "data",
) -> Source:
    """The index of ``data``: itself, the file it names, ``index``, or a new listing.

    ``name``: what the caller's argument is called.

    Raises:
        ConfigError: the arguments contradict each other.
        IndexInvalid: no index, or no samples.
        OriginError: the data cannot be listed.
    """
    kept = dict(options or {})
    if isinstance(data, _native.Index):
        if index is not None:
            raise ConfigError(
                "data is an index already; leave index= out, or give the URI of the data as data"
            )
        return Source(data, data.uri, kept)
    uri = user_path(data, name)
    place, _ = split(uri, layout)
    if isinstance(index, _native.Index):
        return Source(index, place, kept)
    if index is not None:
        index = user_path(index, "index")
        return Source(_native.Index.open(index), place, kept, os.path.abspath(index))
    if uri.endswith(".fidx"):
        opened = _native.Index.open(uri)
        return Source(opened, opened.uri, kept, os.path.abspath(uri))
    built = build(uri, layout=layout, extensions=extensions, row_bytes=row_bytes, options=kept)
    return Source(built, place, kept, listed=True)


def split(uri: str, layout: str) -> tuple[str, str | None]:
    """The directory or prefix that holds the data, and the one file in it where ``uri`` names a single array."""
    path = local_path(uri)
    named = uri.endswith(".npy") and layout in ("auto", "npy")
    if path is not None:
        single = (named or layout in ("npy", "bin")) and os.path.isfile(path)
    else:
        single = named or (layout == "bin" and os.path.splitext(uri)[1] != "")
    if not single:
        return uri, None
    folder, _, name = uri.rpartition("/")
    return folder or ("/" if uri.startswith("/") else "."), name


def build(
    uri: str,
    *,
    layout: str,
    extensions: Iterable[str] | None = None,
    row_bytes: int | None = None,
    keys: Iterable[bytes] | None = None,
    options: Mapping[str, str] | None = None,
    note: Callable[[str], None] | None = None,
) -> _native.Index:
    """List ``uri``, with progress on stderr if that is a terminal.

    ``layout``: ``auto`` is ``npy`` for names that end so and directories of nothing else, else ``folder``
    where there are class folders, else ``flat``; ``note`` is told which one it was.
    """
    uri = os.path.expanduser(uri)
    if layout not in LAYOUTS:
        raise ConfigError(f"layout={layout!r}; use {', '.join(LAYOUTS)}")
    place, single = split(uri, layout)
    path = local_path(uri)
    if path is not None and os.path.isfile(path) and single is None:
        raise ConfigError(f"{uri} is a file; name the directory that holds it")
    chosen = [layout] if layout != "auto" else _guess(uri)
    known = None if extensions is None else list(extensions)
    listed = [os.fsencode(single)] if single is not None else None if keys is None else list(keys)
    for attempt, name in enumerate(chosen):
        progress = _Progress(uri)
        try:
            built = _native.Index.build(
                place,
                layout=name,
                extensions=known,
                row_bytes=row_bytes,
                keys=listed,
                options=dict(options or {}),
                progress=progress if progress.shown else None,
            )
        except IndexInvalid:
            if attempt + 1 == len(chosen):
                raise
            continue
        finally:
            progress.end()
        if note is not None and layout == "auto":
            note(f"layout: {name}")
        return built
    raise AssertionError("the last layout returns or raises")


def _guess(uri: str) -> list[str]:
    if uri.endswith(".npy"):
        return ["npy"]
    path = local_path(uri)
    if path is None:
        return ["folder", "flat"]
    try:
        with os.scandir(path) as entries:
            kinds = {"folder" if entry.is_dir() else os.path.splitext(entry.name)[1] for entry in entries}
    except FileNotFoundError as error:
        raise OriginMissing(f"{uri}: no such directory; check the path") from error
    if kinds == {".npy"}:
        return ["npy"]
    return ["folder", "flat"] if "folder" in kinds else ["flat"]


def local_path(uri: str) -> str | None:
    """The path of a local URI, or None."""
    if uri.startswith("file://"):
        return uri.removeprefix("file://")
    return None if _SCHEME.match(uri) else uri


class _Progress:
    """One line on a terminal, rewritten in place."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._printed = False
        self.shown = sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, objects: int, bytes_: int) -> None:
        self._printed = True
        print(f"\rlisting {self._uri}: {objects:,} objects, {bytes_ / 1e9:,.1f} GB", end="", file=sys.stderr)

    def end(self) -> None:
        if self._printed:
            print(file=sys.stderr)
