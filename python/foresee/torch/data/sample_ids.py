# SPDX-License-Identifier: Apache-2.0
"""Ids of the samples of a batch: from the loader's sampler, from a Foresee loader, or from the batch itself.

A sampler is wrapped while the loader opens an iterator, and restored at the first batch. Indices are matched with the
batches that the loop receives, so prefetched batches that were not received do not count.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
)

from foresee._loading.base_loader import BaseLoader
from foresee.errors import ConfigError
from foresee.torch.data.wrapped import length_of, share_state_methods

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foresee._loading.session import Session

_INNER = ("base_dataloader", "dataloader", "_dataloader", "loader")


class SampleIds(ABC):
    """Source of the ids of a loader's batches."""

    name: str
    """Name in a report."""
    hashed = False
    """Whether ids are hashes of the content of a batch, not indices."""

    @abstractmethod
    def open(self) -> Iterator[tuple[Any, NDArray[np.uint64] | str]]:
        """Iterate over one epoch: its batches, and the ids of each, or the reason why they are unknown."""

    def facts(self) -> dict[str, Any]:
        """Return the facts of the loader, as fields of ``RankFacts``."""
        return {}

    def chosen(self) -> NDArray[np.uint64] | None:
        """Return the samples of this rank's subset, ascending; None: it reads all of the data set."""
        return None


def source_of(
    loader: Iterable[Any], key: Callable[[Any], Any] | None, fields: Sequence[Any] | None
) -> SampleIds:
    """Return the source of ids for ``loader``.

    Raises:
        ConfigError: there is none; the message has the argument to pass.
    """
    if key is not None and fields is not None:
        raise ConfigError("key= with fields=; give one of them")
    if key is not None:
        return BatchIds(loader, lambda batch: _rows(key(batch)), "key=")
    if fields is not None:
        names = list(fields)
        if not names or isinstance(fields, str):
            raise ConfigError(f"fields={fields!r}; names or positions of batch entries, such as [0]")
        return BatchIds(loader, lambda batch: _field_rows(batch, names), f"hashes of fields {names!r}")
    if isinstance(loader, BaseLoader):
        return ForeseeIds(loader)
    stock = _stock(loader)
    if stock is not None and not isinstance(stock.dataset, IterableDataset):
        return SamplerIds(loader, stock)
    raise ConfigError(
        f"the samples of a {type(loader).__name__} are not known; pass key=, a function from a batch to "
        "the ids of its samples, or fields=, names or positions of batch entries to hash, such as fields=[0]"
    )


def _stock(loader: object) -> DataLoader[Any] | None:
    """Return the instance of torch's DataLoader that ``loader`` is, or that a framework has wrapped in it."""
    for _ in range(4):
        inner = next((vars(loader)[name] for name in _INNER if name in getattr(loader, "__dict__", {})), None)
        if isinstance(loader, DataLoader) and "sampler" in vars(loader):
            return loader
        if inner is None:
            return None
        loader = inner
    return None


class SamplerIds(SampleIds):
    """Indices of the sampler of torch's loader, mapped through ``Subset`` to those of the whole data set."""

    name = "sampler"

    def __init__(self, loader: Iterable[Any], stock: DataLoader[Any]) -> None:
        self._loader = loader
        self._stock = stock
        # A batch sampler returns the indices of a batch; without batches a sampler returns one index at a time.
        self._attribute = "sampler" if stock.batch_sampler is None else "batch_sampler"
        sampler = getattr(stock, self._attribute)
        self._recorder = _RecordingSampler(sampler)
        self._subset, self._base = _base(stock.dataset)

    def open(self) -> Iterator[tuple[Any, NDArray[np.uint64] | str]]:
        """Iterate over batches, each with the oldest recorded indices."""
        recorded: deque[Any] = deque()
        self._recorder.recorded = recorded
        vars(self._stock)[self._attribute] = self._recorder
        try:
            for batch in self._loader:
                # A framework's iterator opens the stock one at its first batch, not before.
                self._restore()
                yield batch, self._ids(recorded)
        finally:
            self._restore()

    def _restore(self) -> None:
        """Restore the sampler; the iterator of persistent workers keeps the recorder, which drops later indices."""
        vars(self._stock)[self._attribute] = self._recorder.sampler
        self._recorder.recorded = deque(maxlen=0)

    def _ids(self, recorded: deque[Any]) -> NDArray[np.uint64] | str:
        if not recorded:
            return (
                "not auditable: batches have no indices of the sampler, as where one rank reads for all; pass "
                "key=, a function from a batch to the ids of its samples"
            )
        indices = recorded.popleft()
        ids = np.asarray(indices if self._attribute == "batch_sampler" else [indices])
        if ids.dtype.kind not in "iu":
            return (
                f"not auditable: the sampler returns {type(indices).__name__}, not whole numbers; pass key=, a "
                "function from a batch to the ids of its samples"
            )
        return (ids if self._subset is None else self._subset[ids]).astype(np.uint64)

    def chosen(self) -> NDArray[np.uint64] | None:
        """Return the indices of a ``Subset`` or ``SubsetRandomSampler``."""
        sampler = self._stock.sampler
        if type(sampler) is SubsetRandomSampler:
            ids = np.unique(np.asarray(list(sampler.indices), np.int64))
            return (ids if self._subset is None else np.unique(self._subset[ids])).astype(np.uint64)
        return None if self._subset is None else np.unique(self._subset).astype(np.uint64)

    def facts(self) -> dict[str, Any]:
        """Return the facts of torch's loader, its samplers and its data set."""
        stock, sampler = self._stock, self._stock.sampler
        shared = sampler if isinstance(sampler, DistributedSampler) else None
        return {
            "expected": length_of(self._base),
            "chosen": self.chosen() is not None,
            "share": None if shared is None else (shared.rank, shared.num_replicas),
            "padded_by_batch": type(stock.batch_sampler).__name__ == "BatchSamplerShard",
            "drop_last": bool(stock.drop_last or getattr(sampler, "drop_last", False)),
            "replacement": bool(getattr(sampler, "replacement", False)),
            "dataset": (
                type(self._base).__name__,
                length_of(self._base),
                getattr(self._base, "_fingerprint", None),
            ),
            "workers": stock.num_workers,
            # The batches that Accelerate's skip_first_batches omits were returned before.
            "resumed": bool(getattr(stock.batch_sampler, "skip_batches", 0)),
        }


class ForeseeIds(SampleIds):
    """Planned ids of a Foresee loader, whose own audit proves them."""

    name = "Foresee's order"

    def __init__(self, loader: BaseLoader) -> None:
        self._loader = loader

    @property
    def _session(self) -> Session:
        return self._loader._session  # noqa: SLF001 - a part of the loader

    def open(self) -> Iterator[tuple[Any, NDArray[np.uint64] | str]]:
        """Iterate over batches with their planned ids; the loader's own audit has the substitutes of ``on_error``."""
        recorded: deque[NDArray[np.uint64]] = deque()
        batches = iter(self._loader)  # type: ignore[call-overload] # both loaders have it, their base has not
        # The session is final once an iterator is open.
        self._session.on_ids = lambda ids: recorded.append(ids.astype(np.uint64))
        for batch in batches:
            yield batch, recorded.popleft()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the loader's order and ranks."""
        own, loader, session = self._loader.audit(), self._loader, self._session
        dataset, order = getattr(loader, "dataset", None), session.order
        return {
            "expected": session.samples,
            "share": (own["rank"], own["world_size"]),
            "drop_last": session.drop_last or (order is not None and order.drop_last),
            "replacement": bool(getattr(getattr(loader, "sampler", None), "replacement", False)),
            "dataset": (type(dataset).__name__, session.samples),
            "own": bool(own["ok"]),
            "resumed": own["start"] > 0,
        }


class BatchIds(SampleIds):
    """Hashes of ids or contents that a function takes from a batch."""

    hashed = True

    def __init__(self, loader: Iterable[Any], rows: Callable[[Any], Iterable[Any]], name: str) -> None:
        self.name = name
        self._loader = loader
        self._rows = rows

    def open(self) -> Iterator[tuple[Any, NDArray[np.uint64] | str]]:
        """Iterate over batches, each with one hash per sample."""
        for batch in self._loader:
            yield batch, np.array([_hash(row) for row in self._rows(batch)], np.uint64)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the loader's attributes."""
        dataset = getattr(self._loader, "dataset", None)
        iterable = isinstance(dataset, IterableDataset)
        expected = None if iterable or dataset is None else length_of(dataset)
        return {
            "expected": expected,
            "drop_last": bool(getattr(self._loader, "drop_last", False)),
            "workers": getattr(self._loader, "num_workers", 0) or 0,
            "iterable": iterable,
        }


def _field_rows(batch: Any, names: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
    """Return the entries ``names`` of each sample of a batch."""
    try:
        columns = [_rows(batch[name]) for name in names]
    except (KeyError, IndexError, TypeError) as error:
        entries = f" with {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else ""
        raise ConfigError(
            f"fields={list(names)!r}: a batch is a {type(batch).__name__}{entries}; pass names or positions of its "
            "entries, or key="
        ) from error
    return zip(*columns, strict=True)


def _rows(value: Any) -> list[Any]:
    """Return one hashable value for each sample of a batch's entry."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return [
            np.ascontiguousarray(row).tobytes() if row.ndim else row.item() for row in map(np.asarray, value)
        ]
    if isinstance(value, list | tuple):
        return [row for each in value for row in ([_rows(each[None])[0]] if _is_array(each) else [each])]
    raise ConfigError(
        f"ids of a batch are a {type(value).__name__}; a tensor, an array or a list with one entry per sample"
    )


def _is_array(value: object) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _hash(value: Any) -> int:
    content = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _base(dataset: Dataset[Any]) -> tuple[NDArray[np.int64] | None, Dataset[Any]]:
    """Return the indices of ``dataset`` in its whole data set, and that data set; None: it is whole."""
    indices: NDArray[np.int64] | None = None
    while isinstance(dataset, Subset):
        own = np.asarray(list(dataset.indices), np.int64)
        indices = own if indices is None else own[indices]
        dataset = dataset.dataset
    return indices, dataset


class _RecordingSampler:
    """A sampler whose indices are collected."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.recorded: deque[Any] = deque()
        share_state_methods(sampler, self)

    def __iter__(self) -> Iterator[Any]:
        return _RecordingIterator(iter(self.sampler), self.recorded)

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)


class _RecordingIterator:
    """Iterator of a recording sampler."""

    def __init__(self, iterator: Iterator[Any], recorded: deque[Any]) -> None:
        self._iterator = iterator
        self._recorded = recorded
        share_state_methods(iterator, self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        value = next(self._iterator)
        self._recorded.append(list(value) if isinstance(value, list) else value)
        return value
