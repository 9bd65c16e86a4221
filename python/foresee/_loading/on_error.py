# SPDX-License-Identifier: Apache-2.0
"""``on_error``: a sample that cannot be delivered is raised, replaced or skipped.

It applies to permanent faults only (missing, changed, denied, corrupt, undecodable); a timeout was retried and is
raised. The number of steps never changes, so ranks need no communication. Substitutes are a function of (seed, epoch,
sample), so a resumed run has the same ones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from foresee._loading.hashing import substitute
from foresee.errors import ConfigError, OriginChanged, OriginDenied, OriginError, OriginMissing, SampleFault

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foresee._loading.batch import Batch, RawBatch
    from foresee._loading.data_source import Source
    from foresee._loading.map_source import MapSource

OnError = Literal["raise", "replace", "skip"] | Callable[[SampleFault], int]
"""``raise``; ``replace`` by another sample; ``skip`` (a shorter batch, never an empty one); or a callable that gets the
error and returns the id of a substitute."""

_log = logging.getLogger("foresee")
# After so many unreadable substitutes in a row, the origin is broken, not the samples.
_TRIES_MAX = 100
_CHANGES_MAX = 1000

_CAUSES: dict[str, tuple[type[OriginError] | None, str]] = {
    "missing": (OriginMissing, "restore the object, or list the data anew with `foresee index --update`"),
    "changed": (OriginChanged, "list the data anew with `foresee index --update`"),
    "denied": (OriginDenied, "grant read access to the prefix, or repair what the answer names, then resume"),
    "corrupt": (OriginError, "restore the object; its checksum is wrong at the origin"),
    "throttled": (
        OriginError,
        "start fewer ranks at a time, give the store more capacity, or keep more samples in cache=, then resume",
    ),
    "timeout": (OriginError, "check the origin and the network, then resume"),
    "failed": (OriginError, "check the origin and the network, then resume"),
    "decode": (None, 'repair the object, or pass on_error="replace" or "skip"'),
    "transform": (None, 'repair the transform, or pass on_error="replace" or "skip"'),
    "dataset": (None, 'repair the dataset, or pass on_error="replace" or "skip"'),
}


def checked(on_error: OnError) -> list[str]:
    """Return the faults of the argument."""
    if callable(on_error) or on_error in ("raise", "replace", "skip"):
        return []
    return [f'on_error={on_error!r}; use "raise", "replace", "skip" or a callable(error) -> sample']


class FaultHandler:
    """Applies ``on_error`` and counts the changes. Thread-safe."""

    def __init__(
        self,
        on_error: OnError,
        source: Source | MapSource,
        rank: int,
        seed: int,
        read: Callable[[int], bytes],
        *,
        avoid: frozenset[int] = frozenset(),
    ) -> None:
        if faults := checked(on_error):
            raise ConfigError(faults)
        self._on_error = on_error
        self._source = source
        self._rank = rank
        self._seed = seed
        self._read = read
        self._avoid = avoid
        self._lock = threading.Lock()
        self._changes: list[tuple[int, dict[str, Any]]] = []
        self._counts = {"replaced": 0, "skipped": 0}

    @property
    def raises(self) -> bool:
        """Whether every fault is raised."""
        return self._on_error == "raise"

    def error(self, sample: int, kind: str, cause: str, *, permanent: bool) -> SampleFault:
        """Return the error for a fault of ``kind``, with the builtin exception of that kind as its cause."""
        origin, remedy = _CAUSES.get(kind, (OriginError, "see the cause"))
        error = SampleFault(
            sample, self._source.sample_uri(sample), self._rank, kind, cause, remedy, permanent=permanent
        )
        if origin is not None:
            error.__cause__ = origin(cause)
        return error

    def repair_unreadable(self, raw: RawBatch, batch: Batch) -> Batch:
        """Replace or skip the unreadable samples of ``batch``, which was made of ``raw``.

        Raises:
            SampleFault: ``on_error`` is ``raise``, or the fault is not permanent.
        """
        if not raw.faults:
            return batch
        return self.repair(
            batch,
            {
                place: self.error(int(raw.ids[place]), kind, message, permanent=permanent)
                for place, kind, message, permanent in raw.faults
            },
        )

    def repair(self, batch: Batch, faults: dict[int, SampleFault]) -> Batch:
        """Replace or skip the places of ``faults``; errors as in ``repair_unreadable``."""
        for error in faults.values():
            if self._on_error == "raise" or not error.permanent:
                raise error
        skip = self._on_error == "skip"
        # A batch is never empty: if every place is at fault, the first one is replaced.
        replaced = min(faults) if skip and len(faults) == len(batch) else None
        chosen: list[tuple[int, int, NDArray[np.uint8], int, int]] = []
        for place in range(len(batch)):
            tries = int(batch.tries[place])
            if place not in faults:
                chosen.append(
                    (place, int(batch.ids[place]), batch.sample(place), int(batch.labels[place]), tries)
                )
            elif skip and place != replaced:
                self._record_change(batch, place, None, faults[place])
            else:
                sample, data, tries = self._substitute(batch, place, faults[place])
                label = self._source.label(sample)
                chosen.append((place, sample, data, -1 if label is None else label, tries))
                self._record_change(batch, place, sample, faults[place])
        return batch.with_samples(chosen)

    def _substitute(self, batch: Batch, place: int, error: SampleFault) -> tuple[int, NDArray[np.uint8], int]:
        planned, first = int(batch.planned[place]), int(batch.tries[place])
        for tries in range(first, _TRIES_MAX):
            if callable(self._on_error):
                sample = int(self._on_error(error))
                if not 0 <= sample < len(self._source):
                    raise ValueError(
                        f"on_error returned {sample}; the data set has {len(self._source)} samples"
                    ) from error
                if sample in self._avoid:
                    raise ValueError(
                        f"on_error returned {sample}, which the loaded state avoids; return another sample"
                    ) from error
            else:
                sample = substitute(self._seed, batch.epoch, planned, tries, len(self._source))
            if sample == planned or sample in self._avoid:
                continue
            try:
                return sample, np.frombuffer(self._read(sample), dtype=np.uint8), tries + 1
            except (OriginMissing, OriginChanged, OriginDenied) as failed:
                error = self.error(sample, _kind(failed), str(failed), permanent=True)
            except OriginError as failed:
                # Another substitute would make a resumed run differ from this one.
                raise self.error(sample, "failed", str(failed), permanent=False) from failed
        raise error

    def _record_change(self, batch: Batch, place: int, sample: int | None, error: SampleFault) -> None:
        change = {
            "position": int(batch.positions[place]),
            "sample": int(batch.planned[place]),
            **({} if sample is None else {"substitute": sample}),
            "cause": error.cause,
        }
        _log.warning("%s; %s", error, "skipped" if sample is None else f"replaced by sample {sample}")
        with self._lock:
            self._counts["skipped" if sample is None else "replaced"] += 1
            if len(self._changes) < _CHANGES_MAX:
                self._changes.append((batch.epoch, change))

    def counts(self) -> dict[str, int]:
        """Return the numbers of samples ``replaced`` and ``skipped`` since the loader started."""
        with self._lock:
            return dict(self._counts)

    def changes(self, epoch: int) -> list[dict[str, Any]]:
        """Return the changes of ``epoch`` for the audit, among the first thousand of the run."""
        with self._lock:
            return [change for of_epoch, change in self._changes if of_epoch == epoch]


def _kind(error: OriginError) -> str:
    return next(kind for kind, (origin, _) in _CAUSES.items() if origin is type(error))
