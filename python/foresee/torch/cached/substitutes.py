# SPDX-License-Identifier: Apache-2.0
"""``on_error`` of a ``CachedDataset``: a sample that cannot be read or transformed is replaced by another one.

Batches keep their length, so all ranks make equally many steps. The substitute is a function of the sample's index, so
that worker processes, ranks and resumed runs have the same one. Only a loader can skip a sample.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from foresee._loading.hashing import substitute
from foresee._runtime.ranks import detect
from foresee.errors import ConfigError, OriginChanged, OriginDenied, OriginError, OriginMissing, SampleFault

if TYPE_CHECKING:
    from collections.abc import Iterator

OnError = Literal["raise", "replace"] | Callable[[SampleFault], int]
"""``raise``; ``replace`` by another sample; or a callable that gets the error and returns the index of a substitute."""

_log = logging.getLogger("foresee")
# After so many unreadable substitutes in a row, the dataset is broken, not the samples.
_TRIES_MAX = 100
_WARNINGS_MAX = 1000
_PERMANENT = (OriginMissing, OriginChanged, OriginDenied)


def checked(on_error: object) -> list[str]:
    """Return the faults of the argument."""
    if callable(on_error) or on_error in ("raise", "replace"):
        return []
    if on_error == "skip":
        remedy = 'use "replace", or foresee.torch.DataLoader with on_error='
        return [f'on_error="skip": a dataset cannot make a batch of torch\'s DataLoader shorter; {remedy}']
    return [f'on_error={on_error!r}; use "raise", "replace" or a callable(error) -> index']


class Substitutes:
    """Samples that are returned for those that cannot be.

    Args:
        on_error: see ``OnError``; not ``raise``.
        name: of the dataset, for messages.
    """

    def __init__(self, on_error: OnError, name: str) -> None:
        self._on_error: Any = on_error
        self._name = name
        self._reset()

    def value(self, sample: int, count: int, get: Callable[[int], Any], error: Exception) -> Any:
        """Return the value of the first substitute that has one.

        Args:
            sample: index of the sample that has none.
            count: number of samples.
            get: returns the value of a sample, or raises.
            error: of the sample.

        Raises:
            Exception: ``error``, if it is no fault of one sample, or the last one, if no substitute has a value either.
            ValueError: the callable returned another index than 0 to ``count - 1``.
        """
        first = error
        if not 0 <= sample < count:
            raise error
        for other in self._candidates(sample, count, first):
            try:
                value = get(other)
            except Exception as failed:  # noqa: BLE001 - raised below unless a substitute has a value
                error = failed
                if not _is_of_sample(error):
                    break
            else:
                self._report(sample, other, first)
                return value
        raise error

    def _candidates(self, sample: int, count: int, error: Exception) -> Iterator[int]:
        if not _is_of_sample(error):
            return
        for attempt in range(_TRIES_MAX):
            if callable(self._on_error):
                other = int(self._on_error(self._fault(sample, error)))
                if not 0 <= other < count:
                    raise ValueError(f"on_error returned {other}; the dataset has {count} samples") from error
            else:
                other = substitute(0, 0, sample, attempt, count)
            if other != sample:
                yield other

    def _fault(self, sample: int, error: Exception) -> SampleFault:
        fault = SampleFault(
            sample,
            f"{self._name}[{sample}]",
            detect(provisional=True).rank,
            "dataset",
            f"the dataset raised {type(error).__name__}: {error}",
            "repair the sample or the transform",
            permanent=True,
        )
        fault.__cause__ = error
        return fault

    def _report(self, sample: int, other: int, error: Exception) -> None:
        with self._lock:
            if sample in self._reported or len(self._reported) >= _WARNINGS_MAX:
                return
            self._reported.add(sample)
        _log.warning("%s; replaced by sample %s", self._fault(sample, error), other)

    def __getstate__(self) -> dict[str, Any]:
        """Omit what belongs to one process."""
        return {"_on_error": self._on_error, "_name": self._name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        # Samples that were reported in this process.
        self._reported: set[int] = set()
        self._lock = threading.Lock()


def _is_of_sample(error: Exception) -> bool:
    """Whether an error concerns one sample. After a failure of the network, a resumed run would differ."""
    if isinstance(error, ConfigError | MemoryError):
        return False
    return isinstance(error, _PERMANENT) or not isinstance(error, OriginError)
