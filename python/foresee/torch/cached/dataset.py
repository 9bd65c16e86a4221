# SPDX-License-Identifier: Apache-2.0
"""``CachedDataset``: any map-style dataset, with its samples in memory and on the disk."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.context
import operator
import os
import random
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from foresee.config import Cache, Settings
from foresee.errors import ConfigError
from foresee.torch.cached.encode import ENCODING, decode, encode
from foresee.torch.cached.process_cache import InvalidBatchError, OwnedCache, WorkerCache
from foresee.torch.cached.sample_disk import disk_faults, disk_place, without_disk
from foresee.torch.cached.source import SampleSource, read_batch, reads_batches
from foresee.torch.cached.substitutes import OnError, Substitutes
from foresee.torch.cached.substitutes import checked as on_error_faults
from foresee.torch.data.dataset import OriginDataset, check_callables
from foresee.torch.data.selected import SelectedDataset, is_selection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from foresee.torch.cached.process_cache import ProcessCache
    from foresee.torch.cached.sample_disk import SampleDisk

_log = logging.getLogger("foresee")
# Foresee's own datasets wait for the origin, and allow calls from any number of threads.
_THREADS_OF_OUR_DATASETS = 16
# First requests of a process, for which it is checked whether the dataset draws random numbers.
_CHECKED = 2
_SEEDS = (0x5EED, 0xF00D)
_used: weakref.WeakKeyDictionary[Cache, weakref.ref[CachedDataset]] = weakref.WeakKeyDictionary()
_datasets: weakref.WeakSet[CachedDataset] = weakref.WeakSet()


class CachedDataset(Dataset[Any]):
    """Any map-style dataset, with its samples in memory and on disk, for the ``DataLoader`` of torch or of Foresee.

    A sample is read once and then copied from memory as long as it is there. With a ``PrefetchSampler`` samples are
    also read ahead. Attributes of ``dataset`` are available here.

    Samples must not be random: what is cached does not change. Random transforms belong in ``transform``, which runs at
    every access, in the process and thread of the access. Samples may be tensors of the CPU, arrays, images of PIL,
    numbers, bytes, str, None, and tuples, lists and dicts of them. They come back equal, and may be changed without an
    effect on the cache. Of Foresee's own datasets the bytes are cached, before they are decoded and transformed.

    A dataset with ``__getitems__`` is called with several samples at once. Small neighbours in an object of Foresee's
    own datasets are read together.

    Worker processes of a loader share the cache of the process that starts them, and read ahead for it. Other
    processes, such as ranks, have caches of their own in memory. On the disk, all processes of the node that pass the
    same ``key`` share the samples, also in later runs.

    Args:
        dataset: anything with ``__getitem__`` and ``__len__``.
        cache: memory to use, its ``ram``, of which a sample takes its bytes and at most 71 more, and a directory of
            the disk, which needs ``key``. Default: that of the environment. One ``Cache`` is for one dataset.
        key: name of the data for the disk, not empty. Pass another one whenever the dataset would return other samples
            under the same indices, and whenever a cached ``transform`` changes.
        transform: called with each sample.
        threads: threads that read ahead in each process that reads. Default: 16 for Foresee's datasets. Otherwise 1:
            then no two calls of ``dataset`` run at a time in a process. Pass more for a dataset whose ``__getitem__``
            may run in several threads at once.
        cache_after_transform: cache the result of ``transform``, which must not be random. This is checked with the
            first two samples.
        allow_pickle: cache values of other types too, with pickle.
        on_error: what to do with a sample for which the dataset or the transform raises: ``raise``, ``replace`` by
            another sample, or a callable that gets the ``SampleFault`` and returns the index of another one. So batches
            keep their length, and ranks their number of batches. The substitute is a function of the index.

    Raises:
        ConfigError: arguments are wrong; all faults at once.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        cache: Cache | None = None,
        key: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        threads: int | None = None,
        cache_after_transform: bool = False,
        allow_pickle: bool = False,
        on_error: OnError = "raise",
    ) -> None:
        check_callables(transform=transform)
        faults = _faults(dataset, cache, threads) + disk_faults(cache, key) + on_error_faults(on_error)
        if cache_after_transform and transform is None:
            faults.append(
                "cache_after_transform=True without transform=; pass the transform, or leave it out"
            )
        if faults:
            raise ConfigError(faults)
        settings = Settings.read()
        self._dataset = dataset
        self._cache = cache
        chosen = settings.cache() if cache is None else cache
        if key is not None and chosen.disk is None:
            raise ConfigError(without_disk(key))
        self._capacity = chosen.ram_bytes
        self._disk = disk_place(chosen, key)
        self.is_off: bool = settings.off
        """Whether ``FORESEE_OFF`` was set: the dataset is then read without a cache."""
        self.transform = transform
        self._after = cache_after_transform
        self._allow_pickle = allow_pickle
        self._substitutes = None if on_error == "raise" else Substitutes(on_error, type(dataset).__name__)
        self._ours: OriginDataset | None = None
        if not cache_after_transform and isinstance(dataset, OriginDataset):
            self._ours = dataset
        elif not cache_after_transform and is_selection(dataset):
            self._ours = SelectedDataset(dataset)
        is_ours = isinstance(dataset, OriginDataset) or is_selection(dataset)
        self._threads = threads or (_THREADS_OF_OUR_DATASETS if is_ours else 1)
        self._reads_batches = self._ours is not None or reads_batches(dataset)
        # Socket of the cache that worker processes share.
        self._socket: str | None = None
        self._reset()
        if cache is not None:
            _used[cache] = weakref.ref(self)

    @property
    def wrapped(self) -> Any:
        """The dataset whose samples are cached."""
        return self._dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, i: int) -> Any:
        """Return sample ``i``, from memory if it is there.

        Raises:
            TypeError: ``i`` is no whole number.
            ConfigError: the sample has a value of another type.
            Exception: whatever the dataset or the transform raises, unless ``on_error`` replaces the sample.
        """
        try:
            return self._get(i)
        except Exception as error:
            if self._substitutes is None:
                raise
            return self._substitutes.value(operator.index(i), len(self._dataset), self._get, error)

    def _get(self, i: int) -> Any:
        sample = operator.index(i)
        if self.is_off:
            return self._transformed(self._dataset[i])
        cache = self.process_cache()
        if not 0 <= sample < cache.count:
            # An index that the dataset counts from its end, or does not have.
            return self._transformed(cache.call(lambda: self._dataset[i]))
        is_checked = self._checked >= _CHECKED
        if not is_checked:
            self._checked += 1
            if self._after:
                cache.call(lambda: self._check_transform(sample))
            before = _random_states()
        data = cache.get(sample)
        if not is_checked and _random_states() != before:
            self._warn_about_random(sample)
        if self._ours is not None:
            with self._ours.supplied({sample: data}):
                return self._transformed(self._ours[sample])
        value = decode(data)
        return value if self._after else self._transformed(value)

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]] | None:
        """Method that returns several samples, as torch's loader calls it; None if ``dataset`` has none.

        Samples that are neither in memory nor being read are read by one call of ``dataset.__getitems__``. The method
        raises what that call raises, unless ``on_error`` replaces samples, and ``ConfigError`` if it returns no list
        with one sample for each index.
        """
        return self._get_all if self._reads_batches else None

    def stats(self) -> dict[str, int]:
        """Return the counts of the cache, over all processes that share it.

        ``hits``, ``joins`` (waited for a read in flight) and ``misses`` of requests; ``fetches`` (read ahead),
        ``disk_hits`` (of the misses and fetches those that were on the disk), ``bypasses`` (read, but not cached in
        memory) and ``evictions`` of samples; ``samples`` and ``bytes`` that are cached in memory; ``capacity_bytes``.
        """
        return self.process_cache().stats()

    def process_cache(self) -> ProcessCache:
        """Return the cache as this process uses it; a new one if the dataset has another length."""
        count = len(self._dataset)
        cache = self._opened
        if cache is None or cache.process != os.getpid() or cache.count != count:
            cache = self._open(count)
        return cache

    def share(self) -> None:
        """Prepare the cache for worker processes that are about to start."""
        if self.is_off or get_worker_info() is not None:
            return
        cache = self.process_cache()
        assert isinstance(cache, OwnedCache), "only worker processes have another one"
        try:
            self._socket = cache.share()
        except OSError as error:
            self._socket = None
            _log.warning(
                "worker processes do not share the cache of this process, and have one each: %s", error
            )

    def __getattr__(self, name: str) -> Any:
        # torch's loader would call methods of the dataset, past the cache.
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._dataset, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._dataset!r}, {self._capacity} bytes)"

    def __getstate__(self) -> dict[str, Any]:
        """Omit what belongs to one process."""
        if multiprocessing.context.get_spawning_popen() is not None:
            self.share()
        state = self.__dict__.copy()
        for name in ("_opened", "_checked", "_opening"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        _datasets.add(self)
        self._opened: ProcessCache | None = None
        self._checked = 0
        self._opening = (os.getpid(), threading.Lock())

    def _open(self, count: int) -> ProcessCache:
        if self._opening[0] != os.getpid():
            # A thread of the parent may have held the lock.
            self._opening = (os.getpid(), threading.Lock())
            self._checked = 0
        with self._opening[1]:
            before = self._opened
            if before is not None and before.process == os.getpid():
                if before.count == count:
                    return before
                _log.warning(
                    "the dataset had %s samples and has %s now, so its samples may be others: the cache is emptied; "
                    "make changes between runs, or a new CachedDataset",
                    before.count,
                    count,
                )
                before.close()
            transform = self.transform if self._after else None
            # It refers to the dataset alone, so that the threads end with this object.
            read = SampleSource(self._dataset, self._ours, transform, allow_pickle=self._allow_pickle)
            cache = self._make(read, count)
            weakref.finalize(self, cache.close)
            self._opened = cache
            return cache

    def _make(self, read: SampleSource, count: int) -> ProcessCache:
        worker, disk = get_worker_info(), self._open_disk(count)
        if worker is None:
            self._socket = None
            return OwnedCache(read, self._capacity, self._threads, count, disk)
        if self._socket is not None:
            try:
                return WorkerCache(read, self._socket, self._threads, count, disk)
            except OSError as error:
                _log.warning(
                    "this worker process has a cache of its own, with a share of the memory: %s", error
                )
        return OwnedCache(read, self._capacity // worker.num_workers, self._threads, count, disk)

    def _open_disk(self, count: int) -> SampleDisk | None:
        if self._disk is None:
            return None
        content = f"encoding {ENCODING}" if self._ours is None else "bytes"
        place = "after" if self._after else "before"
        pickled = "with" if self._allow_pickle else "without"
        return self._disk.open(f"{count} samples {place} the transform, {content}, {pickled} pickle", count)

    def _get_all(self, indices: Sequence[int]) -> list[Any]:
        try:
            return self._get_batch(indices)
        except Exception as error:
            if self._substitutes is None or isinstance(error, InvalidBatchError):
                raise
            # One by one, to replace those that fail.
            return [self[i] for i in indices]

    def _get_batch(self, indices: Sequence[int]) -> list[Any]:
        if self.is_off:
            return [self._transformed(value) for value in read_batch(self._dataset, indices)]
        samples = [operator.index(i) for i in indices]
        alone = max(_CHECKED - self._checked, 0)
        if self._ours is not None and len(set(samples)) < len(samples):
            # Each has memory of its own.
            alone = len(samples)
        return [self[i] for i in samples[:alone]] + self._get_checked(samples[alone:])

    def _get_checked(self, samples: list[int]) -> list[Any]:
        cache = self.process_cache()
        inside = [sample for sample in samples if 0 <= sample < cache.count]
        data = cache.get_all(inside)
        if self._ours is not None:
            with self._ours.supplied(dict(zip(inside, data, strict=True))):
                return [self._transformed(value) for value in self._ours.__getitems__(samples)]
        outside = [sample for sample in samples if not 0 <= sample < cache.count]
        others = iter(cache.call(lambda: read_batch(self._dataset, outside)) if outside else ())
        cached = iter(data)
        values = []
        for sample in samples:
            if 0 <= sample < cache.count:
                value = decode(next(cached))
                values.append(value if self._after else self._transformed(value))
            else:
                values.append(self._transformed(next(others)))
        return values

    def _transformed(self, value: Any) -> Any:
        return value if self.transform is None else self.transform(value)

    def _check_transform(self, sample: int) -> None:
        assert self.transform is not None, "see __init__"
        results = []
        states = _random_states(), torch.random.get_rng_state()
        try:
            for seed in _SEEDS:
                random.seed(seed)
                np.random.seed(seed)  # noqa: NPY002 - the generator that transforms draw from
                torch.default_generator.manual_seed(seed)
                results.append(encode(self.transform(self._dataset[sample]), allow_pickle=self._allow_pickle))
        finally:
            random.setstate(states[0][0])
            np.random.set_state(states[0][1])  # noqa: NPY002 - as above
            torch.random.set_rng_state(states[1])
        if results[0] != results[1]:
            raise ConfigError(
                f"cache_after_transform=True, but sample {sample} is not the same under two seeds: dataset or "
                "transform are random; leave it out, so that samples are cached before the transform"
            )

    def _warn_about_random(self, sample: int) -> None:
        self._checked = _CHECKED
        _log.warning(
            "random numbers were drawn while sample %s was read: a cached sample never changes, so what the dataset "
            "draws is drawn once; move random transforms to transform= of CachedDataset",
            sample,
        )


def _share_all() -> None:
    """Share the caches of this process before a fork: the child may be a worker process."""
    for dataset in list(_datasets):
        # An error of its `__len__`, which its next use raises again.
        with contextlib.suppress(Exception):
            dataset.share()


os.register_at_fork(before=_share_all)


def _random_states() -> tuple[Any, ...]:
    """States of the global generators, comparable."""
    numbers = np.random.get_state()  # noqa: NPY002 - the generator that datasets draw from
    return random.getstate(), _Numbers(numbers), torch.random.get_rng_state().numpy().tobytes()


class _Numbers(tuple[Any, ...]):
    """State of NumPy's generator, which has an array."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers) and all(map(np.array_equal, self, other))

    def __hash__(self) -> int:
        return 0


def _faults(dataset: Any, cache: Any, threads: Any) -> list[str]:
    faults: list[str] = []
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        faults.append(
            f"dataset={name}: an IterableDataset has no indices to cache by; use a map-style dataset"
        )
    elif not hasattr(type(dataset), "__getitem__"):
        faults.append(f"dataset={name} has no __getitem__; use a map-style dataset")
    elif not hasattr(type(dataset), "__len__"):
        faults.append(f"dataset={name} has no __len__; add it, so that an index outside is known")
    elif isinstance(dataset, CachedDataset):
        faults.append("dataset= is a CachedDataset already; pass it as it is")
    if cache is not None and not isinstance(cache, Cache):
        faults.append(f'cache={cache!r}; a Cache expected, such as Cache(ram="8GB")')
    elif cache is not None:
        owner = _used.get(cache)
        if cache.is_open or (owner is not None and owner() is not None):
            faults.append("the Cache is in use by another dataset or loader; pass a Cache of its own")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        faults.append(f"threads={threads!r}; a whole number of 1 or more, or leave it out")
    return faults
