# SPDX-License-Identifier: Apache-2.0
"""Source and engine of a user's dataset that makes its samples: their order is known, and nothing is read.

``MapSource`` takes the place of an index, ``MapEngine`` that of the native engine.
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
    from foresee._loading.batch import Ints
    from foresee._loading.epoch_steps import StepBatch
    from foresee._loading.orders import RunOrder
    from foresee._runtime.ranks import World
    from foresee._runtime.waits import Turn


@dataclass(eq=False)
class MapSource:
    """Name and number of samples of a dataset, and what its ids stand for."""

    name: str
    count: int | None
    """None: the dataset has no length, and a sampler has its samples."""
    keys: dict[int, Any] = field(default_factory=dict)
    """Arguments of ``__getitem__`` by id, where they are no whole numbers from 0 to ``count - 1``."""

    row_dtype = None
    row_shape = None

    def __len__(self) -> int:
        return 0 if self.count is None else self.count

    @property
    def fingerprint(self) -> str:
        """Fingerprint in a state: the number of samples."""
        return "samples" if self.count is None else f"samples-{self.count}"

    def ids(self, keys: list[Any]) -> Ints:
        """Return an id for each of ``keys``: the key itself, or a hash of its text.

        They replace the keys of the epoch before. The dataset gets the keys as they are, as from torch's loader.
        """
        count = 2**63 if self.count is None else self.count
        ids = [int(key) if _is_number(key) and 0 <= key < count else _hash(key) for key in keys]
        self.keys = {sample: key for sample, key in zip(ids, keys, strict=True) if sample is not key}
        return np.array(ids, dtype=np.int64)

    def key(self, sample: int) -> Any:
        """Argument of ``__getitem__``."""
        return self.keys.get(sample, sample)

    def label(self, sample: int) -> int | None:  # noqa: ARG002 - as of an index
        return None

    def sample_uri(self, sample: int) -> str:
        return f"{self.name}[{self.key(sample)!r}]"


class MapEngine:
    """Order without reads, with the clock and the ledger of a native engine."""

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
        """Open the ledger of a run folder. Idempotent."""
        if self._run_dir is not None:
            run_dir, self._run_dir = self._run_dir, None
            self._recorder.write_to(run_dir)

    # The order is known at once.
    def next_batch(self, *, timeout_ms: int | None = None) -> StepBatch | None:  # noqa: ARG002
        """Return the ids of the next batch; None at the epoch's end."""
        if self._closed:
            raise Closed("the loader is closed")
        self.start()
        step = self._steps.next()
        self._samples += 0 if step is None else len(step)
        return step

    def turns(self) -> list[Turn]:
        return []

    def read(self, sample: int) -> bytes:  # noqa: ARG002 - as of an engine
        """Return no bytes: the dataset makes the sample."""
        return b""

    def stats(self) -> dict[str, Any]:
        """Return the number of planned samples, and waits."""
        return {"samples": self._samples, **self._recorder.stats()}

    def close(self) -> None:
        """Refuse further batches."""
        self._closed = True
        self._recorder.close()


def _hash(key: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little") >> 1


def _is_number(key: object) -> bool:
    return isinstance(key, int | np.integer) and not isinstance(key, bool)
