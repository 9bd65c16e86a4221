# SPDX-License-Identifier: Apache-2.0
"""Resolution of a URI, a path or an index to an index and the place of its objects.

The objects of a given index are never listed again. Without an index, the data are listed at every start, by one rank
of each node; where that takes long, make an index with ``foresee index``.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
import sys
import tempfile
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from foresee import _native
from foresee._loading.node_listing import Listed, shared
from foresee._loading.store_options import StorageOptions, storage_options
from foresee._schema.files import user_path
from foresee.errors import ConfigError, NoSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    PathLike: TypeAlias = os.PathLike[str]
else:
    PathLike = os.PathLike

LAYOUTS = ("auto", "folder", "flat", "npy", "bin")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class Source:
    """An index, and the place of its objects."""

    index: _native.Index
    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Storage options; never shown, because they may contain credentials."""
    file: str | None = None
    """File of the index, if it was opened from one."""
    listed: bool = False
    """Whether the index is a new listing of ``uri`` with ``options``."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def mean_bytes(self) -> float:
        """Mean bytes of a sample."""
        return self.index.total_bytes / max(1, len(self.index))

    @property
    def fingerprint(self) -> str:
        """Fingerprint in a state."""
        return self.index.fingerprint

    @property
    def row_dtype(self) -> str | None:
        return self.index.row_dtype

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        return self.index.row_shape

    def ids(self, keys: list[Any]) -> NDArray[np.int64]:
        """Convert the keys of a sampler to ids.

        Raises:
            ConfigError: a sample does not exist.
        """
        import numpy as np  # the command line starts without it

        ids = np.array([operator.index(key) for key in keys], dtype=np.int64)
        wrong = (ids < 0) | (ids >= len(self))
        if wrong.any():
            raise ConfigError(f"the sampler gave index {ids[wrong][0]}; the data set has {len(self)} samples")
        return ids

    def select(self, samples: NDArray[np.int64]) -> Source:
        """Return a source of these samples in this order; an id may be repeated.

        Raises:
            ConfigError: a sample does not exist, or ``samples`` is empty.
        """
        return replace(self, index=self.index.select(samples))

    def label(self, sample: int) -> int | None:
        return self.index.label(sample)

    def sample_uri(self, sample: int) -> str:
        """Present URI of the sample, for messages."""
        return self.index.sample_uri(sample, base=self.uri)

    def file_bytes(self) -> bytes:
        """Return the bytes of an index file."""
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
    or_flat: bool = False,
    extensions: Iterable[str] | None = None,
    allow_empty: bool = False,
    row_bytes: int | None = None,
    exclude: str | Iterable[str] | None = None,
    options: StorageOptions | None = None,
    name: str = "data",
) -> Source:
    """Return the source of ``data``, whose index is ``data`` or its file, ``index``, or a new listing.

    ``name``: name of the argument, for messages.

    Raises:
        ConfigError: the arguments contradict each other.
        IndexInvalid: no index, or no samples.
        OriginError: the data cannot be listed.
    """
    store = storage_options(options)
    opened = _opened(data, index, name)
    if opened is not None:
        given = [word for word, value in (("exclude=", exclude), ("allow_empty=", allow_empty)) if value]
        if given:
            raise ConfigError(
                f"{' and '.join(given)} with an index, which is not listed again; make the index with `foresee index` "
                "and --exclude or --allow-empty"
            )
        found, uri, file = opened
        return Source(found, uri if index is None else split(uri, layout)[0], store, file)
    uri = user_path(data, name)
    known, patterns = _texts(extensions, "extensions", ".jpg"), _texts(exclude, "exclude", "*.tmp")

    def listed() -> Listed:
        built = build(
            uri,
            layout=layout,
            or_flat=or_flat,
            extensions=known,
            allow_empty=allow_empty,
            row_bytes=row_bytes,
            exclude=patterns,
            options=store,
        )
        return Listed(built)

    place = absolute(uri)
    arguments = (
        "index",
        place,
        layout,
        or_flat,
        known,
        allow_empty,
        row_bytes,
        patterns,
        sorted(store.items()),
    )
    return Source(shared(arguments, listed).built, split(uri, layout)[0], store, listed=True)


def _opened(
    data: str | PathLike | _native.Index, index: str | PathLike | _native.Index | None, name: str
) -> tuple[_native.Index, str, str | None] | None:
    """Return the index in the arguments, the URI of its data, and its file; None if there is no index."""
    if isinstance(data, _native.Index):
        if index is not None:
            raise ConfigError(
                "data is an index already; leave index= out, or give the URI of the data as data"
            )
        return data, data.uri, None
    uri = user_path(data, name)
    if isinstance(index, _native.Index):
        return index, uri, None
    if index is not None:
        index = user_path(index, "index")
        return _native.Index.open(index), uri, os.path.abspath(index)
    if uri.endswith(".fidx"):
        opened = _native.Index.open(uri)
        return opened, opened.uri, os.path.abspath(uri)
    return None


def table(
    columns: list[tuple[str, list[str]]],
    *,
    root: str | None,
    sizes: Sequence[NDArray[np.int64] | None],
    allow_missing: bool,
    options: StorageOptions | None,
) -> Source:
    """Return the source of the objects in ``columns``; relative ones are below ``root`` (None: working directory).

    Raises:
        ConfigError: a row has no object.
        OriginMissing: objects do not exist.
        OriginError: the origin does not answer.
    """
    store, base = storage_options(options), absolute(root or ".")

    def listed() -> Listed:
        with _listing(f"{len(columns[0][1]):,} rows" if root is None else root) as progress:
            built = _native.Index.table(
                columns,
                root=base,
                sizes=list(sizes),
                allow_missing=allow_missing,
                options=store,
                progress=progress,
            )
        return Listed(built)

    if all(known is not None for known in sizes):
        index = listed().built  # nothing is requested
    else:
        given = [None if known is None else known.tobytes() for known in sizes]
        arguments = ("table", columns, base, given, allow_missing, sorted(store.items()))
        index = shared(arguments, listed).built
    return Source(index, index.uri, store, listed=True)


def windows(
    uri: str | PathLike | Iterable[str | PathLike],
    *,
    dtype: np.dtype[Any] | None,
    length: int,
    stride: int,
    drop_tail: bool,
    exclude: str | Iterable[str] | None,
    options: StorageOptions | None,
) -> tuple[Source, int, int]:
    """Return windows over one or several files, a directory or a prefix, with the numbers of unused elements and files.

    Raises:
        ConfigError: as in ``ft.TokenDataset``.
        IndexInvalid: there are no windows.
        OriginError: a file cannot be read.
    """
    store, patterns = storage_options(options), _texts(exclude, "exclude", "*.tmp")
    place: str | None = None
    files: tuple[str, list[str]] | None = None
    if isinstance(uri, (str, os.PathLike)):
        text = user_path(uri, "uri")
        path = local_path(text)
        is_file = os.path.isfile(path) if path is not None else os.path.splitext(text)[1] != ""
        place, files = (None, ("uri", [text])) if is_file else (text, None)
    else:
        files = ("uri", [user_path(one, f"uri[{i}]") for i, one in enumerate(uri)])
    base, kind = absolute("."), "" if dtype is None else dtype.str

    def listed() -> Listed:
        with _listing(place or "files") as progress:
            built = _native.Index.windows(
                place,
                files,
                root=base,
                dtype=kind,
                item_bytes=1 if dtype is None else dtype.itemsize,
                length=length,
                stride=stride,
                drop_tail=drop_tail,
                exclude=None if patterns is None else [os.fsencode(pattern) for pattern in patterns],
                options=store,
                progress=progress,
            )
        return Listed(*built)

    arguments = (
        "windows",
        place,
        files,
        base,
        kind,
        length,
        stride,
        drop_tail,
        patterns,
        sorted(store.items()),
    )
    index, elements, cut = shared(arguments, listed)
    return Source(index, index.uri if place is None else place, store, listed=True), elements, cut


def absolute(place: str) -> str:
    """Make a path absolute; a URI is unchanged."""
    path = local_path(place)
    return place if path is None else os.path.abspath(path)


def read_file(uri: str, options: StorageOptions | None = None) -> bytes:
    """Read one object, such as a table in a bucket.

    Raises:
        OriginError: it cannot be read.
    """
    source = table([("table", [uri])], root=None, sizes=[None], allow_missing=False, options=options)
    return plain_loader(source).read(0)


def plain_loader(source: Source) -> _native.Loader:
    """Return a native loader without plan and cache, for ``read``."""
    return _native.Loader(
        source.index,
        _native.Cache(ram_bytes=0, disk_dir=None, disk_bytes=0),
        uri=source.uri,
        options=source.options,
        batch_size=1,
        drop_last=False,
        order=None,
        epochs=None,
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        staging_bytes=None,
        threads=None,
        run_dir=None,
        listed=False,
        avoid=[],
    )


def split(uri: str, layout: str) -> tuple[str, str | None]:
    """Return the directory or prefix of the data, and the name of the file if ``uri`` is a single array."""
    path = local_path(uri)
    is_npy = uri.endswith(".npy") and layout in ("auto", "npy")
    if path is not None:
        single = (is_npy or layout in ("npy", "bin")) and os.path.isfile(path)
    else:
        single = is_npy or (layout == "bin" and os.path.splitext(uri)[1] != "")
    if not single:
        return uri, None
    folder, _, name = uri.rpartition("/")
    return folder or ("/" if uri.startswith("/") else "."), name


def build(
    uri: str,
    *,
    layout: str,
    or_flat: bool = False,
    extensions: Iterable[str] | None = None,
    allow_empty: bool = False,
    row_bytes: int | None = None,
    keys: Iterable[bytes] | None = None,
    exclude: str | Iterable[str] | None = None,
    options: StorageOptions | None = None,
    note: Callable[[str], None] | None = None,
) -> _native.Index:
    """List ``uri``, with progress on stderr if that is a terminal.

    ``layout``: ``auto`` is ``npy`` for ``.npy`` files and directories that contain nothing else, else ``folder`` if
    there are class folders, else ``flat``; ``note`` gets the result. ``or_flat``: ``folder`` without class folders is
    ``flat``.
    """
    uri = user_path(uri, "uri")
    known = _texts(extensions, "extensions", ".jpg")
    patterns = _texts(exclude, "exclude", "*.tmp")
    if faults := _faults(layout, allow_empty, row_bytes):
        raise ConfigError(faults)
    place, single = split(uri, layout)
    path = local_path(uri)
    if path is not None and os.path.isfile(path) and single is None:
        raise ConfigError(f"{uri} is a file; name the directory that holds it")
    chosen = [layout] if layout != "auto" else _guess(uri)
    listed = [os.fsencode(single)] if single is not None else None if keys is None else list(keys)
    for attempt, name in enumerate(chosen):
        try:
            with _listing(uri) as progress:
                built = _native.Index.build(
                    place,
                    layout=name,
                    or_flat=or_flat,
                    extensions=known,
                    allow_empty=allow_empty,
                    row_bytes=row_bytes,
                    keys=listed,
                    exclude=None if patterns is None else [os.fsencode(pattern) for pattern in patterns],
                    options=storage_options(options),
                    progress=progress,
                )
        except NoSamples:
            if attempt + 1 == len(chosen):
                raise
            continue
        if note is not None and layout == "auto":
            note(f"layout: {name}")
        return built
    raise AssertionError("the last layout returns or raises")


def _faults(layout: object, allow_empty: object, row_bytes: object) -> list[str]:
    faults = []
    if layout not in LAYOUTS:
        faults.append(f"layout={layout!r}; use {', '.join(LAYOUTS)}")
    if not isinstance(allow_empty, bool):
        faults.append(f"allow_empty={allow_empty!r}; True or False")
    is_number = isinstance(row_bytes, int) and not isinstance(row_bytes, bool)
    if row_bytes is not None and not (is_number and 1 <= row_bytes < 2**63):  # type: ignore[operator]
        faults.append(f"row_bytes={row_bytes!r}; bytes of a row, a whole number of 1 or more")
    if layout == "bin" and row_bytes is None:
        faults.append('layout="bin" without row_bytes=; pass the bytes of a row')
    return faults


def _guess(uri: str) -> list[str]:
    if uri.endswith(".npy"):
        return ["npy"]
    path = local_path(uri)
    if path is None:
        return ["folder", "flat"]
    try:
        with os.scandir(path) as entries:
            kinds = {"folder" if entry.is_dir() else os.path.splitext(entry.name)[1] for entry in entries}
    except OSError:
        # The listing fails too, and its error has the remedy.
        return ["folder"]
    if kinds == {".npy"}:
        return ["npy"]
    return ["folder", "flat"] if "folder" in kinds else ["flat"]


def _texts(given: object, name: str, example: str) -> list[str] | None:
    """Return the texts of the argument ``name``."""
    if given is None or isinstance(given, str):
        return None if given is None else [given]
    texts = list(given) if isinstance(given, Iterable) and not isinstance(given, bytes) else [given]
    known = [text for text in texts if isinstance(text, str)]
    if len(known) < len(texts):
        raise ConfigError(f"{name}={given!r}; a text or a list of texts, such as [{example!r}]")
    return known


def local_path(uri: str) -> str | None:
    """Return the path of a local URI, else None."""
    scheme = uri[: len("file://")]
    if scheme.lower() == "file://":
        return os.fsdecode(urllib.parse.unquote_to_bytes(uri.removeprefix(scheme)))
    return None if _SCHEME.match(uri) else uri


@contextlib.contextmanager
def _listing(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show the progress of a listing in one line on stderr, rewritten in place; None: stderr is no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    end = ""

    def show(objects: int, bytes_: int) -> None:
        nonlocal end
        print(f"\rlisting {name}: {objects:,} objects, {bytes_ / 1e9:,.1f} GB", end="", file=sys.stderr)
        end = "\n"

    try:
        yield show
    finally:
        print(end=end, file=sys.stderr)
