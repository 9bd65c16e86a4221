# SPDX-License-Identifier: Apache-2.0
"""``FORESEE_OFF=1``: the same batches by plain reads, one after another.

The first thing to try when a batch looks wrong: no engine thread, no cache, no plan stands between the origin
and the batch. It has the calls of the engine that the faces use, and nothing else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foresee._loading.data_source import Source, local_path
from foresee._loading.epoch_steps import EpochSteps
from foresee.errors import Closed, OriginChanged, OriginDenied, OriginError, OriginMissing

if TYPE_CHECKING:
    from foresee import _native
    from foresee._loading.batch import Bytes, Ints
    from foresee._loading.orders import RunOrder
    from foresee._runtime.ranks import World
    from foresee._runtime.waits import Turn


@dataclass(frozen=True, eq=False)
class PlainBatch:
    """The engine's batch, read plainly."""

    data: Bytes
    offsets: Ints
    ids: Ints
    labels: Ints
    epoch: int
    step: int
    start: int
    last: bool
    faults: list[tuple[int, str, str, bool]]
    turns: list[Turn]

    def __len__(self) -> int:
        return len(self.ids)


class PlainEngine:
    """Reads each batch when it is asked for, in the caller's thread."""

    def __init__(
        self,
        native: _native.Loader,
        source: Source,
        order: RunOrder | None,
        world: World,
        batch_size: int,
        *,
        drop_last: bool,
    ) -> None:
        self._native = native
        self._source = source
        self._labels = source.index.labels()
        here, listed = local_path(source.uri), local_path(source.index.uri)
        is_in_place = (
            here is not None and listed is not None and os.path.realpath(here) == os.path.realpath(listed)
        )
        self._folder = here if is_in_place else None
        self._closed = False
        self._samples = 0
        self._bytes = 0
        self._asked = 0
        self._steps = EpochSteps(order, world, batch_size, drop_last=drop_last)
        self.begin_epoch = self._steps.begin_epoch

    def start(self) -> None:
        """Nothing to start."""

    # A plain read has no timeout.
    def next_batch(self, *, timeout_ms: int | None = None) -> PlainBatch | None:  # noqa: ARG002
        """Read the next batch; None at the epoch's end."""
        if self._closed:
            raise Closed("the loader is closed")
        step = self._steps.next()
        if step is None:
            return None
        self._asked = self.now()
        ids = step.ids
        parts: list[bytes] = []
        faults: list[tuple[int, str, str, bool]] = []
        for place, sample in enumerate(ids.tolist()):
            try:
                parts.append(self.read(sample))
            except OriginError as error:
                parts.append(b"")
                faults.append((place, *_kind(error)))
        self._samples += len(ids)
        self._bytes += sum(map(len, parts))
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        return PlainBatch(
            data=np.frombuffer(bytearray().join(parts), dtype=np.uint8),
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]),
            ids=ids,
            labels=self._labels[ids],
            epoch=step.epoch,
            step=step.step,
            start=step.start,
            last=step.last,
            faults=faults,
            turns=self.turns(),
        )

    def now(self) -> int:
        """Nanoseconds of the loader's clock."""
        return self._native.now()

    def turns(self) -> list[Turn]:
        """What the last call of ``next_batch`` waits for, or waited for."""
        return [("origin_read", self._asked)]

    def record_wait(
        self, epoch: int, step: int, samples: int, asked: int, got: int, turns: list[Turn]
    ) -> None:
        """Book a wait of the training loop."""
        self._native.record_wait(epoch, step, samples, asked, got, turns)

    def read(self, sample: int) -> bytes:
        """One sample, from the file itself where it is one."""
        index = self._source.index
        if self._folder is None or index.layout not in ("folder", "flat"):
            return self._native.read(sample)
        path = os.path.join(self._folder, os.fsdecode(index.key(sample)))
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError as error:
            raise OriginMissing(f"{path}: {error.strerror}") from error
        except PermissionError as error:
            raise OriginDenied(f"{path}: {error.strerror}") from error
        except OSError as error:
            raise OriginError(f"{path}: {error.strerror}") from error
        if len(data) != index.size(sample):
            raise OriginChanged(f"{path} has {len(data)} bytes, the index lists {index.size(sample)}")
        return data

    def steps(self, position: int) -> int:
        """Steps from ``position`` on."""
        return self._native.steps(position)

    def stats(self) -> dict[str, Any]:
        """What plain reads can know."""
        waits = self._native.stats()["waits"]
        return {"off": True, "samples": self._samples, "bytes": self._bytes, "waits": waits}

    def close(self) -> None:
        """Refuse further batches."""
        self._closed = True


def _kind(error: OriginError) -> tuple[str, str, bool]:
    for type_, kind in ((OriginMissing, "missing"), (OriginChanged, "changed"), (OriginDenied, "denied")):
        if isinstance(error, type_):
            return kind, str(error), True
    return "failed", str(error), False
