# SPDX-License-Identifier: Apache-2.0
"""What all datasets share: an index, plain reads, and how bytes become a sample.

A dataset knows its samples, not their order. ``foresee.torch.DataLoader`` takes the bytes from its engine and
asks the dataset only for ``decode_bytes``, ``finish`` and ``stack``; a stock ``DataLoader`` calls
``__getitem__`` or ``__getitems__``, which read the origin directly. Picklable, so that worker processes of
either kind can have it.
"""

from __future__ import annotations

import inspect
import logging
import operator
import os
import tempfile
import threading
from abc import abstractmethod
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
from foresee._loading.summary import source_line
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from foresee._loading.batch import Bytes, Ints

_log = logging.getLogger("foresee")
# torchvision.datasets.folder.IMG_EXTENSIONS, so that an order learned there holds here.
PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# Reads of one __getitems__ that are under way at once: enough to hide an object store's latency.
_READS_MAX = 16


class OriginDataset(Dataset[Any]):
    """A map-style dataset over an index; base of the public ones."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._reader = Reader(source)

    @property
    def index(self) -> _native.Index:
        """What the data set consists of."""
        return self._source.index

    @property
    def source(self) -> Source:
        """The index, and where its objects lie."""
        return self._source

    def __len__(self) -> int:
        return len(self._source.index)

    def __repr__(self) -> str:
        """Samples, bytes, classes and place; never fails."""
        name = type(self).__name__
        try:
            return source_line(name, self._source)
        except Exception:  # noqa: BLE001 - a debugger shows objects that are half made
            return f"{name}(not open)"

    def __getitem__(self, i: int) -> Any:
        """Sample ``i``, 0 to ``len - 1``, read from the origin now."""
        sample = self._checked(i)
        return self._make(sample, self._reader.read(sample))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples, read at once and in the order asked for."""
        samples = [self._checked(i) for i in indices]
        if type(self).__getitem__ is not OriginDataset.__getitem__:
            data = dict(zip(samples, self._reader.read_all(samples), strict=True))
            with self.supplied(data):
                return [self[i] for i in indices]
        return [
            self._make(sample, data)
            for sample, data in zip(samples, self._reader.read_all(samples), strict=True)
        ]

    @property
    def is_overridden(self) -> bool:
        """Whether a subclass makes its samples by a ``__getitem__`` or ``__getitems__`` of its own."""
        return type(self).__getitem__ is not OriginDataset.__getitem__ or self.makes_batches

    @property
    def makes_batches(self) -> bool:
        """Whether a subclass makes the samples of a batch in one call, by a ``__getitems__`` of its own."""
        return type(self).__getitems__ is not OriginDataset.__getitems__

    @property
    def given(self) -> Dataset[Any]:
        """The dataset that the user has given to the loader."""
        return self

    def check(self) -> None:
        """Refuse what a loader that is open does not take over.

        Raises:
            ConfigError: names it.
        """

    @contextmanager
    def supplied(
        self, data: Mapping[int, bytes | Bytes], generator: torch.Generator | None = None
    ) -> Iterator[Supply]:
        """Within it this thread's ``__getitem__`` takes the bytes of these samples from ``data``, not from the origin.

        ``generator``: for random transforms that accept one; None: torch's default generator.
        """
        before = self._reader.supply
        self._reader.supply = supply = Supply(data, generator or torch.default_generator)
        try:
            yield supply
        finally:
            self._reader.supply = before

    @abstractmethod
    def decode_bytes(self, data: Bytes) -> Any:
        """An object from the bytes of a sample. ``data`` lives as long as the object refers to it."""

    def decode_sample(self, data: Bytes, label: int) -> Any:  # noqa: ARG002 - one label is enough for most
        """As ``decode_bytes``, for a dataset to which the label says how the bytes are divided."""
        return self.decode_bytes(data)

    @abstractmethod
    def finish(self, decoded: Any, label: int, generator: torch.Generator | None) -> Any:
        """The sample, from what ``decode_bytes`` gave. ``generator``: for random transforms that accept
        one.
        """

    @abstractmethod
    def stack(self, data: Bytes, offsets: Ints, labels: Ints) -> Any:
        """A whole batch without copying; only where ``per_sample`` is false."""

    @property
    @abstractmethod
    def per_sample(self) -> bool:
        """Whether samples need work one by one."""

    def _make(self, sample: int, data: bytes | Bytes) -> Any:
        label = self._source.index.label(sample)
        label = -1 if label is None else label
        supply = self._reader.supply
        try:
            decoded = self.decode_sample(
                np.frombuffer(bytearray(data), dtype=np.uint8) if isinstance(data, bytes) else data, label
            )
        except Exception as error:
            if supply is not None:
                supply.undecodable = error
            raise
        generator = torch.default_generator if supply is None else supply.generator
        return self.finish(decoded, label, generator)

    def _checked(self, i: int) -> int:
        sample = operator.index(i)
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of a data set of {len(self)}")
        return sample

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the reader, which is a process's own."""
        state = self.__dict__.copy()
        del state["_reader"]
        state["_source"] = Portable(self._source)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._source = state["_source"].source
        self._reader = Reader(self._source)


@dataclass(eq=False)
class Supply:
    """Bytes of samples that need not be read; see ``OriginDataset.supplied``."""

    data: Mapping[int, bytes | Bytes]
    generator: torch.Generator
    undecodable: Exception | None = None
    """The last error of ``decode_bytes``."""


class Reader:
    """Reads single samples from the origin: no plan, no cache. A forked child opens its own."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._owner: tuple[int, _native.Loader, ThreadPoolExecutor] | None = None
        self._of_thread = threading.local()

    @property
    def supply(self) -> Supply | None:
        """What this thread need not read."""
        return getattr(self._of_thread, "supply", None)

    @supply.setter
    def supply(self, supply: Supply | None) -> None:
        self._of_thread.supply = supply

    def read(self, sample: int) -> bytes | Bytes:
        """One sample; waits."""
        supply = self.supply
        if supply is not None and sample in supply.data:
            return supply.data[sample]
        return self._open()[0].read(sample)

    def read_all(self, samples: Sequence[int]) -> list[bytes | Bytes]:
        """Several samples, up to 16 at once."""
        supply = self.supply
        there = {} if supply is None else supply.data
        missing = [sample for sample in samples if sample not in there]
        if missing:
            native, pool = self._open()
            there = {**there, **dict(zip(missing, pool.map(native.read, missing), strict=True))}
        return [there[sample] for sample in samples]

    def _open(self) -> tuple[_native.Loader, ThreadPoolExecutor]:
        with self._lock:
            if self._owner is None or self._owner[0] != os.getpid():
                native = plain_loader(self._source)
                self._owner = (os.getpid(), native, ThreadPoolExecutor(_READS_MAX, "foresee-read"))
            return self._owner[1:]


class Portable:
    """An index that can be pickled: as the bytes of its file, unless the pickler has a shorter way."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (self.source.file_bytes(), self.source.uri, self.source.options)


def restored(data: bytes, uri: str, options: Mapping[str, str]) -> Portable:
    """The index of ``data``, elsewhere."""
    with tempfile.NamedTemporaryFile(prefix="foresee-", suffix=".fidx") as file:
        file.write(data)
        file.flush()
        # The mapping outlives the name.
        return Portable(Source(_native.Index.open(file.name), uri, options))


def stacked(whole: torch.Tensor, offsets: Ints) -> torch.Tensor | list[torch.Tensor]:
    """The samples of a batch: one tensor of shape (samples, bytes) where all sizes are equal, else a list; views."""
    sizes = offsets[1:] - offsets[:-1]
    if (sizes == sizes[0]).all():
        return whole.view(len(sizes), int(sizes[0]))
    return list(torch.split(whole, sizes.tolist()))


def check_dtype(dtype: np.dtype[Any], uri: str) -> None:
    """Refuse a dtype of the data at ``uri`` that no tensor can have.

    Raises:
        ConfigError: as said.
    """
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{uri}: torch has no dtype {dtype.str!r}; convert the file, big-endian numbers to little-endian ones too"
        ) from error


def check_callables(**callables: object) -> None:
    """Refuse arguments that are neither None nor callable.

    Raises:
        ConfigError: every one of them.
    """
    faults = [
        f"{name}={value!r}; a callable, or leave it out"
        for name, value in callables.items()
        if value is not None and not callable(value)
    ]
    if faults:
        raise ConfigError(faults)


def call(transform: Callable[..., Any], value: Any, generator: torch.Generator | None) -> Any:
    """``transform(value)``, with ``generator=`` where it takes one."""
    if generator is not None and accepts_generator(transform):
        return transform(value, generator=generator)
    return transform(value)


def accepts_generator(transform: Callable[..., Any]) -> bool:
    """Whether ``transform`` has a parameter named ``generator`` that no generator of the user's is bound to."""
    try:
        parameter = inspect.signature(transform).parameters.get("generator")
    except (TypeError, ValueError):
        return False
    return parameter is not None and (
        parameter.default is None or parameter.default is inspect.Parameter.empty
    )


def source_of(dataset: Any) -> Source | MapSource:
    """What a loader knows of the samples of ``dataset``: an index, or how many there are.

    Raises:
        ConfigError: it is no map-style dataset.
    """
    if isinstance(dataset, OriginDataset):
        return dataset.source
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise ConfigError(
            f"dataset is the IterableDataset {name}, which has no order that could be known ahead; give it __len__ and "
            "__getitem__ instead of __iter__, name its files in a foresee.torch.FileDataset, or use "
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
            "%s reads its samples of %s one batch at a time, without read-ahead or cache; give the loader that dataset "
            "itself or a torch.utils.data.Subset of it, or name all files in one foresee.torch.FileDataset",
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
