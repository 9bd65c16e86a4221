# SPDX-License-Identifier: Apache-2.0
"""Base of the datasets: an index, plain reads, and the way from bytes to a sample.

A dataset has no order. ``foresee.torch.DataLoader`` takes the bytes from its engine and calls only ``decode_bytes``,
``finish`` and ``stack``; torch's ``DataLoader`` calls ``__getitem__`` or ``__getitems__``, which read the origin
directly. Datasets can be pickled for worker processes of either loader.
"""

from __future__ import annotations

import inspect
import io
import logging
import operator
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from foresee import _native
from foresee._loading.data_source import Source, plain_loader
from foresee._loading.map_source import MapSource
from foresee._loading.packages import pillow
from foresee._loading.summary import source_line
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import DTypeLike

    from foresee._loading.batch import Bytes, Ints, Writable

_log = logging.getLogger("foresee")
# torchvision.datasets.folder.IMG_EXTENSIONS, so that the samples are the same.
PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# Reads of one __getitems__ in flight: enough to hide an object store's latency.
_READS_MAX = 16


class OriginDataset(Dataset[Any]):
    """A map-style dataset over an index. Subclasses have ``decode_bytes``, ``finish``, ``stack`` and ``per_sample``."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._reader = Reader(source)

    @property
    def index(self) -> _native.Index:
        """Index of the data set."""
        return self._source.index

    @property
    def source(self) -> Source:
        """Index, and the place of its objects."""
        return self._source

    def __len__(self) -> int:
        return len(self._source.index)

    def __repr__(self) -> str:
        """Samples, bytes, classes and URI; never fails."""
        name = type(self).__name__
        try:
            return source_line(name, self._source)
        except Exception:  # noqa: BLE001 - a debugger shows unfinished objects
            return f"{name}(not open)"

    def __getitem__(self, i: int) -> Any:
        """Read sample ``i``, 0 to ``len - 1``, from the origin."""
        (sample,) = self._checked((i,))
        return self._make_all((sample,), (self._reader.read(sample),))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Read several samples at once, and return them in the order of ``indices``."""
        samples = self._checked(indices)
        data = self._reader.read_all(samples)
        if type(self).__getitem__ is not OriginDataset.__getitem__:
            with self.supplied(dict(zip(samples, data, strict=True))):
                return [self[i] for i in indices]
        return self._make_all(samples, data)

    def read_bytes(self, i: int) -> bytes | Writable:
        """Read the bytes of sample ``i``, 0 to ``len - 1``, from the origin; any number of threads may do so."""
        (sample,) = self._checked((i,))
        return self._reader.read(sample)

    def read_bytes_of(self, indices: Sequence[int]) -> list[bytes]:
        """Read the bytes of several samples as ``read_bytes`` does, small neighbours in an object with one request."""
        return [bytes(data) for data in self._reader.read_all(self._checked(indices))]

    def plain_loader(self) -> _native.Loader | None:
        """Return the native loader that ``read_bytes`` uses in this process; None if a subclass overrides that."""
        is_plain = type(self).read_bytes is OriginDataset.read_bytes
        return self._reader.native() if is_plain else None

    @property
    def is_overridden(self) -> bool:
        """Whether a subclass overrides ``__getitem__`` or ``__getitems__``."""
        return type(self).__getitem__ is not OriginDataset.__getitem__ or self.makes_batches

    @property
    def makes_batches(self) -> bool:
        """Whether a subclass overrides ``__getitems__``, which makes all samples of a batch in one call."""
        return type(self).__getitems__ is not OriginDataset.__getitems__

    @property
    def original(self) -> Dataset[Any]:
        """Dataset that the user passed to the loader."""
        return self

    @property
    def base(self) -> OriginDataset:
        """Dataset that decodes the samples."""
        return self

    def check(self) -> None:
        """Raise ``ConfigError`` for changes that an open loader does not take over."""

    @contextmanager
    def supplied(
        self, data: Mapping[int, bytes | Writable], generator: torch.Generator | None = None
    ) -> Iterator[SuppliedBytes]:
        """Let ``__getitem__`` on this thread take the bytes of these samples from ``data``, not from the origin.

        ``generator``: for random transforms that accept one; None: torch's default generator.
        """
        before = self._reader.supply
        self._reader.supply = supply = SuppliedBytes(data, generator or torch.default_generator)
        try:
            yield supply
        finally:
            self._reader.supply = before

    def decode_bytes(self, data: Writable) -> Any:
        """Decode the bytes of a sample. ``data`` lives as long as the result refers to it."""
        raise NotImplementedError

    def decode_sample(self, data: Writable, label: int) -> Any:  # noqa: ARG002 - for the override of FileDataset
        """As ``decode_bytes``; ``label`` determines how a dataset of several objects per sample divides the bytes."""
        return self.decode_bytes(data)

    def finish(self, decoded: Any, label: int, generator: torch.Generator | None) -> Any:
        """Make the sample of the result of ``decode_bytes``; ``generator``: for random transforms that accept one."""
        raise NotImplementedError

    def stack(self, data: Bytes, offsets: Ints, labels: Ints) -> Any:
        """Make a whole batch without copying; only where ``per_sample`` is false."""
        raise NotImplementedError

    @property
    def per_sample(self) -> bool:
        """Whether each sample needs work."""
        raise NotImplementedError

    def _make_all(self, samples: Sequence[int], data: Sequence[bytes | Writable]) -> list[Any]:
        supply = self._reader.supply
        generator = torch.default_generator if supply is None else supply.generator
        # Looked up once: a batch of small samples costs little more than these calls.
        label_of, decode, finish = self._source.index.label, self.decode_sample, self.finish
        made = []
        for sample, given in zip(samples, data, strict=True):
            label = label_of(sample)
            label = -1 if label is None else label
            part = bytearray(given) if isinstance(given, bytes) else given
            try:
                decoded = decode(part, label)
            except Exception as error:
                if supply is not None:
                    supply.undecodable = error
                raise
            made.append(finish(decoded, label, generator))
        return made

    def _checked(self, indices: Sequence[int]) -> list[int]:
        samples, count = list(map(operator.index, indices)), len(self)
        if samples and not (min(samples) >= 0 and max(samples) < count):
            outside = next(sample for sample in samples if not 0 <= sample < count)
            raise IndexError(f"sample {outside} of a data set of {count}")
        return samples

    def __getstate__(self) -> dict[str, Any]:
        """Omit the reader, which each process opens for itself."""
        state = self.__dict__.copy()
        del state["_reader"]
        state["_source"] = PortableSource(self._source)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._source = state["_source"].source
        self._reader = Reader(self._source)


@dataclass(eq=False)
class SuppliedBytes:
    """Bytes of samples in memory; see ``OriginDataset.supplied``."""

    data: Mapping[int, bytes | Writable]
    generator: torch.Generator
    undecodable: Exception | None = None
    """The last error of ``decode_bytes``."""


class Reader:
    """Reads single samples from the origin, without plan and cache. A forked child opens its own engine."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._owner: tuple[int, _native.Loader, ThreadPoolExecutor] | None = None
        self._of_thread = threading.local()

    @property
    def supply(self) -> SuppliedBytes | None:
        """Samples that this thread need not read."""
        return getattr(self._of_thread, "supply", None)

    @supply.setter
    def supply(self, supply: SuppliedBytes | None) -> None:
        self._of_thread.supply = supply

    def read(self, sample: int) -> bytes | Writable:
        """Read one sample."""
        supply = self.supply
        if supply is not None and sample in supply.data:
            return supply.data[sample]
        return self._open()[0].read(sample)

    def read_all(self, samples: Sequence[int]) -> list[bytes | Writable]:
        """Read several samples, small neighbours in an object with one request, and up to 16 requests in parallel."""
        supply = self.supply
        data = {} if supply is None else supply.data
        missing = [sample for sample in samples if sample not in data]
        if missing:
            native, pool = self._open()
            groups = native.read_groups(missing)
            read = pool.map(native.read_all, groups) if len(groups) > 1 else map(native.read_all, groups)
            data = dict(data)
            for group, parts in zip(groups, read, strict=True):
                data.update(zip(group, parts, strict=True))
        return [data[sample] for sample in samples]

    def native(self) -> _native.Loader:
        """Return the native loader of this process, whose samples are those of the source."""
        return self._open()[0]

    def _open(self) -> tuple[_native.Loader, ThreadPoolExecutor]:
        with self._lock:
            if self._owner is None or self._owner[0] != os.getpid():
                native = plain_loader(self._source)
                self._owner = (os.getpid(), native, ThreadPoolExecutor(_READS_MAX, "foresee-read"))
            return self._owner[1:]


class PortableSource:
    """A source that can be pickled: with the bytes of its index, unless the pickler replaces it."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __reduce__(self) -> tuple[Any, ...]:
        return restore_source, (self.source.file_bytes(), self.source.uri, self.source.options)


def restore_source(data: bytes, uri: str, options: Mapping[str, str]) -> PortableSource:
    """Open the index file ``data`` in another process."""
    with tempfile.NamedTemporaryFile(prefix="foresee-", suffix=".fidx") as file:
        file.write(data)
        file.flush()
        # The index maps the file, so the file may be removed.
        return PortableSource(Source(_native.Index.open(file.name), uri, options))


def stack_bytes(whole: torch.Tensor, offsets: Ints) -> torch.Tensor | list[torch.Tensor]:
    """Return views of the samples: one tensor of shape (samples, bytes) if all sizes are equal, else a list."""
    sizes = offsets[1:] - offsets[:-1]
    if (sizes == sizes[0]).all():
        return whole.view(len(sizes), int(sizes[0]))
    return list(torch.split(whole, sizes.tolist()))


def check_dtype(dtype: np.dtype[Any], uri: str) -> None:
    """Raise ``ConfigError`` for a dtype of the data at ``uri`` that torch does not have."""
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{uri}: torch has no dtype {dtype.str!r}; convert the file, big-endian numbers to little-endian ones too"
        ) from error


def numpy_dtype(dtype: DTypeLike | torch.dtype) -> np.dtype[Any]:
    """Convert a dtype of NumPy or torch to NumPy's; ``TypeError`` if NumPy has no such dtype."""
    return torch.empty(0, dtype=dtype).numpy().dtype if isinstance(dtype, torch.dtype) else np.dtype(dtype)


def callable_faults(**callables: object) -> list[str]:
    """Return a fault for each argument that is neither None nor callable."""
    return [
        f"{name}={value!r}; a callable, or leave it out"
        for name, value in callables.items()
        if value is not None and not callable(value)
    ]


def check_callables(**callables: object) -> None:
    """Raise ``ConfigError`` for arguments that are neither None nor callable."""
    if faults := callable_faults(**callables):
        raise ConfigError(faults)


def check_decode(decode: object) -> None:
    """Raise ``ConfigError`` for an argument that is no decoder."""
    if not (decode is None or decode in ("auto", "pil") or callable(decode)):
        raise ConfigError(f'decode={decode!r}; use "auto", "pil", None or a callable(bytes) -> object')


def decode_with(decode: Any, data: Writable) -> Any:
    """Make a tensor (``decode`` is None) or an RGB image (``pil``) of the bytes of a sample, or call ``decode``."""
    if decode is None:
        return bytes_tensor(data)
    view = memoryview(data) if isinstance(data, bytearray) else data.data
    if callable(decode):
        return decode(view)
    return pillow().open(io.BytesIO(view)).convert("RGB")


def bytes_tensor(data: Writable) -> torch.Tensor:
    """Return a tensor of uint8 that refers to ``data``."""
    if isinstance(data, np.ndarray):
        return torch.from_numpy(data)
    # torch rejects empty buffers.
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def call_transform(transform: Callable[..., Any], value: Any, generator: torch.Generator | None) -> Any:
    """Return ``transform(value)``, with ``generator=`` if it accepts one."""
    if generator is not None and accepts_generator(transform):
        return transform(value, generator=generator)
    return transform(value)


def accepts_generator(transform: Callable[..., Any]) -> bool:
    """Whether ``transform`` has a parameter ``generator`` to which the user has bound none."""
    try:
        parameter = inspect.signature(transform).parameters.get("generator")
    except (TypeError, ValueError):
        return False
    return parameter is not None and (
        parameter.default is None or parameter.default is inspect.Parameter.empty
    )


def source_of(dataset: Any) -> Source | MapSource:
    """Return the source of ``dataset``: an index, or the number of samples.

    Raises:
        ConfigError: ``dataset`` is no map-style dataset.
    """
    if isinstance(dataset, OriginDataset):
        return dataset.source
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise ConfigError(
            f"dataset is the IterableDataset {name}, which has no order that could be known ahead; give it __len__ and "
            "__getitem__ instead of __iter__, list its files in a foresee.torch.FileDataset, or use "
            "torch.utils.data.DataLoader"
        )
    if not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"dataset is a {name} without __getitem__; a map-style dataset has __getitem__ and __len__, as for "
            "torch.utils.data.DataLoader"
        )
    parts = [getattr(dataset, "dataset", None), *(getattr(dataset, "datasets", None) or [])]
    inner = next((part for part in parts if isinstance(part, OriginDataset)), None)
    if inner is not None:
        _log.warning(
            "%s reads its samples of %s one batch at a time, without read-ahead or cache; pass that dataset itself or "
            "a torch.utils.data.Subset of it, or list all files in one foresee.torch.FileDataset",
            name,
            type(inner).__name__,
        )
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError):
        return MapSource(name, None)
    if count == 0:
        raise ConfigError(f"dataset is a {name} of 0 samples; there is nothing to load")
    return MapSource(name, count)
