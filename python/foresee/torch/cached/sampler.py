# SPDX-License-Identifier: Apache-2.0
"""``PrefetchSampler``: a sampler that announces its samples to a ``CachedDataset`` before it hands them out."""

from __future__ import annotations

import logging
import operator
import os
from collections import deque
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from foresee.errors import ConfigError
from foresee.torch.cached.dataset import CachedDataset
from foresee.torch.cached.expected import ExpectedEpochs
from foresee.torch.cached.process_cache import OwnedCache, in_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_log = logging.getLogger("foresee")
# Before the first sample was read, its size is unknown. The cache bounds the bytes in any case.
_FIRST_WINDOW = 256
# The loader waits while entries are taken from the sampler.
_WINDOW_MAX = 1 << 14
# Accesses of an epoch from which on it is judged whether the loader requests them.
_JUDGED = 64


class PrefetchSampler(Sampler[Any]):
    """A sampler or batch sampler in the same order, whose samples are read ahead into the cache of ``dataset``.

    It takes ``fetch_size`` samples from ``sampler`` at a time and announces them, whenever at most ``threshold``
    announced samples are not yet requested by the loader. It never waits for a read. Announced samples stay in the
    cache until they are requested. Next use determines which others stay: over this epoch and later ones for samplers
    of torch and Accelerate with a seed or a generator, and for one that repeats its first epoch. Of a shuffled sampler
    without a generator only the epoch that runs is known. Otherwise samples stay as if those requested last were used
    latest.

    At the end of an epoch the first ``fetch_size`` samples of the next one are announced, where it is known. After the
    last epoch they are read in vain.

    Samples are read ahead by the processes that request them: that of the loop, or the worker processes.

    Args:
        sampler: yields indices, or lists of them. ``set_epoch`` and other attributes are passed on.
        dataset: the ``CachedDataset`` of the loader.
        fetch_size: samples announced at a time, 1 or more. Default: half of the samples that the cache holds, by their
            mean size, at most 16,384.
        threshold: samples that are announced and not requested, 0 or more, at which the next are announced. Default: as
            ``fetch_size``.

    Raises:
        ConfigError: arguments are wrong; all faults at once.
    """

    def __init__(
        self,
        sampler: Sampler[Any] | Iterable[Any],
        dataset: Any,
        *,
        fetch_size: int | None = None,
        threshold: int | None = None,
    ) -> None:
        faults: list[str] = []
        if not hasattr(sampler, "__iter__"):
            faults.append(f"sampler={sampler!r}; a sampler or batch sampler expected")
        if not isinstance(dataset, CachedDataset):
            faults.append(
                f"dataset={type(dataset).__name__}; pass the CachedDataset itself, which may have a Subset inside"
            )
        for name, value, least in (("fetch_size", fetch_size, 1), ("threshold", threshold, 0)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                faults.append(f"{name}={value!r}; a whole number of {least} or more, or leave it out")
        if faults:
            raise ConfigError(faults)
        self._sampler: Any = sampler
        self._dataset: CachedDataset = dataset
        self._fetch_size, self._threshold = fetch_size, threshold
        self._expected = ExpectedEpochs(sampler)
        self._has_warned = False
        # The last epoch that was handed out to its end: its last samples are still to be requested.
        self._ending: _Window | None = None
        # Process in which the samples of the last epoch were requested.
        self._reading: int | None = None

    def __iter__(self) -> Iterator[Any]:
        """Iterate over ``sampler`` once, in its order."""
        # When torch's loader begins an epoch, samplers draw from generators here, or at the first `next`.
        source: Iterator[Any] = iter(self._sampler)
        # In a worker process the cache is that of its parent, where the samplers are.
        cache = None if self._dataset.is_off else self._dataset.process_cache()
        return self._hand_out(source, cache) if isinstance(cache, OwnedCache) else source

    def __len__(self) -> int:
        return len(self._sampler)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of ``sampler``, or of the sampler inside of a batch sampler, if it has one."""
        for sampler in (self._sampler, getattr(self._sampler, "sampler", None)):
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(epoch)
                return

    def __getattr__(self, name: str) -> Any:
        # The state of the sampler is ahead of what was handed out.
        if name.startswith("__") or name in ("_sampler", "state_dict", "load_state_dict"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._sampler, name)

    def __getstate__(self) -> dict[str, Any]:
        """Omit what belongs to one process."""
        return {**self.__dict__, "_ending": None}

    def _hand_out(self, source: Iterator[Any], cache: OwnedCache) -> Iterator[Any]:
        if self._ending is not None:
            self._note_reading(self._ending)
        consumer = cache.attach(is_reading=self._reading == os.getpid())
        window = _Window(
            source, self._length(), cache, consumer, self._expected, self._fetch_size, self._threshold
        )
        try:
            held = cache.capacity // max(cache.mean_size or cache.capacity, 1)
            # Nothing leaves a cache that holds all samples.
            for samples in self._expected.epochs(held if held < cache.count else 0):
                cache.expect(consumer, samples)
            window.fill()
            # Only now, so that what the last epoch has announced of this one stays.
            self._end_last()
            for entry in window:
                if not self._has_warned and window.exceeds_cache:
                    self._warn(
                        "fetch_size + threshold of the PrefetchSampler are more samples than the cache holds, by "
                        "their mean size: what does not fit is read when it is requested; make them smaller, or the "
                        "cache larger"
                    )
                yield entry
        except BaseException:
            # The loop has left the epoch, or the sampler has failed.
            self._end_last()
            self._note_reading(window)
            window.end()
            raise
        self._ending = window
        self._expected.note_end()
        if not self._has_warned and window.leaves_many_out():
            self._warn(
                "more than a quarter of the samples that the PrefetchSampler handed out were not requested, so too "
                "much is read: it has to be the outermost sampler; if another one shares its samples among ranks, as "
                "Accelerate's prepare() does, wrap that one"
            )

    def _end_last(self) -> None:
        """End the last epoch, if that has not been left early."""
        window, self._ending = self._ending, None
        if window is not None:
            window.end()

    def _note_reading(self, window: _Window) -> None:
        if os.getpid() == window.process:
            self._reading = window.process if window.requested else None

    def _length(self) -> int | None:
        try:
            return len(self._sampler)
        except (TypeError, NotImplementedError):
            return None

    def _warn(self, text: str) -> None:
        self._has_warned = True
        _log.warning(text)


class _Window:
    """Entries of a sampler, announced in groups and handed out one by one."""

    def __init__(
        self,
        source: Iterator[Any],
        length: int | None,
        cache: OwnedCache,
        consumer: int,
        expected: ExpectedEpochs,
        fetch_size: int | None,
        threshold: int | None,
    ) -> None:
        self._source, self._cache, self._consumer = source, cache, consumer
        self._expected = expected
        self._fetch_size, self._threshold = fetch_size, threshold
        # Samplers draw from generators when they end, so their end is not requested ahead.
        self._left = length
        self._has_ended = False
        self.exceeds_cache = False
        """Whether the samples of a full window are larger than the cache, by the sizes given; as of the last `fill`."""
        # Samples of the next epoch that were announced.
        self._next_epoch = 0
        # Entries with the number of their samples that were announced.
        self._queue: deque[tuple[Any, int]] = deque()
        self._queued = self._handed_out = self._refill_at = 0
        # Handed out before the first request: of a resumed epoch, or by workers.
        self._before_first: int | None = None

    def __iter__(self) -> Iterator[Any]:
        while True:
            if not self._queue or self._is_due():
                self.fill()
            if not self._queue:
                return
            entry, count = self._queue.popleft()
            self._queued -= count
            self._handed_out += count
            self._cache.hand_out(self._consumer, self._handed_out)
            yield entry

    @property
    def process(self) -> int:
        """The process that has the cache."""
        return self._cache.process

    def end(self) -> None:
        """Withdraw what is announced and not requested."""
        self._cache.detach(self._consumer)

    @property
    def requested(self) -> int:
        """Samples that were requested of the cache."""
        return self._handed_out - sum(self._cache.outstanding(self._consumer))

    def leaves_many_out(self) -> bool:
        """Whether more than a quarter of the samples handed out since the first request were passed over."""
        if self._before_first is None:
            return False
        judged = self._handed_out - self._before_first
        passed_over = self._cache.outstanding(self._consumer)[1] - self._before_first
        return judged >= _JUDGED and passed_over > judged // 4

    def _is_due(self) -> bool:
        """Whether at most ``threshold`` announced samples are not yet requested."""
        announced = self._queued + self._next_epoch
        # Until samples are requested here, `_outstanding` is asked at each entry, as it notes when that begins.
        if announced > self._refill_at and self._before_first is not None:
            return False
        return announced + self._outstanding() <= self._refill_at

    def _outstanding(self) -> int:
        """Samples handed out and not requested, as far as this process requests them."""
        outstanding, skipped = self._cache.outstanding(self._consumer)
        if outstanding + skipped == self._handed_out:
            return 0
        if self._before_first is None:
            self._before_first = outstanding + skipped
        return outstanding

    def _limits(self, mean: int | None) -> tuple[int, int]:
        """Return ``fetch_size`` and ``threshold``, for samples of the mean size ``mean``."""
        half = _FIRST_WINDOW if mean is None else self._cache.capacity // (2 * max(mean, 1))
        half = min(max(half, 1), _WINDOW_MAX)
        return (
            half if self._fetch_size is None else self._fetch_size,
            half if self._threshold is None else self._threshold,
        )

    def fill(self) -> None:
        """Take the next entries and announce their samples; at the end of the epoch, announce the first of the next."""
        mean = self._cache.mean_size
        size, self._refill_at = self._limits(mean)
        is_given = self._fetch_size is not None or self._threshold is not None
        self.exceeds_cache = is_given and (size + self._refill_at) * (mean or 0) > self._cache.capacity
        announced = 0
        samples: list[int] = []
        while announced < size and (self._left is None or self._left > 0 or not self._queue):
            entry = next(self._source, _END)
            if entry is _END:
                self._has_ended = True
                break
            if self._left is not None:
                self._left -= 1
            ids = in_range((entry,) if type(entry) is int else _ids(entry), self._cache.count)
            samples += ids
            announced += max(len(ids), 1)
            self._queue.append((entry, len(ids)))
            self._queued += len(ids)
        self._expected.note(samples)
        self._cache.announce(self._consumer, samples)
        if announced < size and (self._has_ended or self._left == 0):
            self._announce_next_epoch(size - announced, size)

    def _announce_next_epoch(self, count: int, limit: int) -> None:
        before, self._next_epoch = self._next_epoch, min(self._next_epoch + count, limit)
        samples = self._expected.next_samples(self._next_epoch)[before:]
        self._cache.announce(self._consumer, in_range(samples.tolist(), self._cache.count))


_END = object()


def _ids(entry: Any) -> Iterable[int]:
    """Return the indices of an entry, which is an index or a batch of them; those of other kinds are left out."""
    ids = []
    for each in entry if isinstance(entry, (list, tuple)) or getattr(entry, "ndim", False) else (entry,):
        try:
            ids.append(operator.index(each))
        except TypeError:
            continue
    return ids
