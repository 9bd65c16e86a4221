# SPDX-License-Identifier: Apache-2.0
"""Samples that a dataset of the user's makes itself: an engine that knows their order and reads nothing.

``MapSource`` stands where an index stands otherwise, ``MapEngine`` where the native engine does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from foresee import _native
from foresee._loading.epoch_steps import EpochSteps
from foresee.errors import Closed

if TYPE_CHECKING:
    from foresee._loading.batch import Bytes, Ints
    from foresee._loading.orders import RunOrder
    from foresee._runtime.ranks import World
    from foresee._runtime.waits import Turn

_NO_BYTES: Bytes = np.zeros(0, np.uint8)


@dataclass(eq=False)
class MapSource:
    """What is known of such a dataset: its name for messages, and how many samples it has."""

    name: str
    count: int | None
    """None: the dataset has no length, and a sampler names its samples."""
    keys: dict[int, Any] = field(default_factory=dict)
    """What the dataset is asked for, by id, where that is no whole number from 0 to ``count - 1``."""

    row_dtype = None
    row_shape = None

    def __len__(self) -> int:
        return 0 if self.count is None else self.count

    @property
    def fingerprint(self) -> str:
        """What a state keeps of the data: their number."""
        return "samples" if self.count is None else f"samples-{self.count}"

    def ids(self, keys: list[Any]) -> Ints:
        """A number for each of ``keys``, which replace those of the epoch before: itself, or a hash of its text.

        The dataset is asked for the keys as they are, as torch's loader does.
        """
        count = 2**63 if self.count is None else self.count
        ids = [int(key) if _is_number(key) and 0 <= key < count else _hash(key) for key in keys]
        self.keys = {sample: key for sample, key in zip(ids, keys, strict=True) if sample is not key}
        return np.array(ids, dtype=np.int64)

    def key(self, sample: int) -> Any:
        """What ``__getitem__`` is asked for."""
        return self.keys.get(sample, sample)

    def label(self, sample: int) -> int | None:  # noqa: ARG002 - as of an index
        """Not known."""
        return None

    def sample_uri(self, sample: int) -> str:
        """How messages name the sample."""
        return f"{self.name}[{self.key(sample)!r}]"


@dataclass(frozen=True, eq=False)
class MapBatch:
    """The samples of a batch, as an engine hands it over."""

    epoch: int
    step: int
    start: int
    last: bool
    ids: Ints
    offsets: Ints
    labels: Ints
    data: Bytes = field(default_factory=lambda: _NO_BYTES)
    faults: list[tuple[int, str, str, bool]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


class MapEngine:
    """The order alone, with the clock and the ledger of a native engine."""

    def __init__(
        self, order: RunOrder | None, world: World, batch_size: int, *, drop_last: bool, run_dir: str | None
    ) -> None:
        self._recorder = _native.Recorder(world.rank)
        self._run_dir = run_dir
        self._steps = EpochSteps(order, world, batch_size, drop_last=drop_last)
        self._closed = False
        self._samples = 0
        self.now = self._recorder.now
        self.record_wait = self._recorder.record_wait
        self.begin_epoch = self._steps.begin_epoch
        self.steps = self._steps.count

    def start(self) -> None:
        """Open the ledger, if there is to be one. Idempotent."""
        if self._run_dir is not None:
            run_dir, self._run_dir = self._run_dir, None
            self._recorder.write_to(run_dir)

    # The order is known at once.
    def next_batch(self, *, timeout_ms: int | None = None) -> MapBatch | None:  # noqa: ARG002
        """The ids of the next batch; None at the epoch's end."""
        if self._closed:
            raise Closed("the loader is closed")
        self.start()
        step = self._steps.next()
        if step is None:
            return None
        count = len(step.ids)
        self._samples += count
        return MapBatch(
            step.epoch,
            step.step,
            step.start,
            step.last,
            step.ids,
            offsets=np.zeros(count + 1, np.int64),
            labels=np.full(count, -1, np.int64),
        )

    def turns(self) -> list[Turn]:
        """Nothing is waited for here."""
        return []

    def read(self, sample: int) -> bytes:  # noqa: ARG002 - as of an engine
        """No bytes: the dataset makes the sample."""
        return b""

    def stats(self) -> dict[str, Any]:
        """Samples that were planned, and waits."""
        return {"samples": self._samples, **self._recorder.stats()}

    def close(self) -> None:
        """Refuse further batches."""
        self._closed = True
        self._recorder.close()


def _hash(key: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little") >> 1


def _is_number(key: object) -> bool:
    return isinstance(key, int | np.integer) and not isinstance(key, bool)
