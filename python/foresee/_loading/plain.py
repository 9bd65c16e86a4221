# SPDX-License-Identifier: Apache-2.0
"""``FORESEE_OFF=1``: the same batches by plain reads, one after another.

For debugging: there is no engine thread, no cache and no plan between the origin and the batch. The class has the
methods of the native engine that the loaders use.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from foresee._loading.data_source import Source, local_path
from foresee._loading.epoch_steps import EpochSteps
from foresee.errors import Closed, OriginChanged, OriginDenied, OriginError, OriginMissing

if TYPE_CHECKING:
    from foresee import _native
    from foresee._loading.epoch_steps import StepBatch
    from foresee._loading.orders import RunOrder
    from foresee._runtime.ranks import World
    from foresee._runtime.waits import Turn


class PlainEngine:
    """Reads each batch on request, in the caller's thread."""

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
        folder, listed = local_path(source.uri), local_path(source.index.uri)
        is_in_place = (
            folder is not None and listed is not None and os.path.realpath(folder) == os.path.realpath(listed)
        )
        self._folder = folder if is_in_place else None
        self._closed = False
        self._samples = 0
        self._bytes = 0
        self._requested = 0
        self._steps = EpochSteps(order, world, batch_size, drop_last=drop_last)
        self.begin_epoch = self._steps.begin_epoch
        self.record_wait = native.record_wait
        self.steps = native.steps

    def start(self) -> None:
        pass

    # A plain read has no timeout.
    def next_batch(self, *, timeout_ms: int | None = None) -> StepBatch | None:  # noqa: ARG002
        """Read the next batch and return it; None at the epoch's end."""
        if self._closed:
            raise Closed("the loader is closed")
        step = self._steps.next()
        if step is None:
            return None
        self._requested = self.now()
        parts: list[bytes] = []
        faults: list[tuple[int, str, str, bool]] = []
        for place, sample in enumerate(step.ids.tolist()):
            try:
                parts.append(self.read(sample))
            except OriginError as error:
                parts.append(b"")
                faults.append((place, *_kind(error)))
        self._samples += len(step)
        self._bytes += sum(map(len, parts))
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        return replace(
            step,
            data=np.frombuffer(bytearray().join(parts), dtype=np.uint8),
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]),
            labels=self._labels[step.ids],
            faults=faults,
            turns=self.turns(),
        )

    def now(self) -> int:
        return self._native.now()

    def turns(self) -> list[Turn]:
        return [("origin_read", self._requested)]

    def read(self, sample: int) -> bytes:
        """Read one sample: directly where it is a local file, else through the native loader."""
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

    def stats(self) -> dict[str, Any]:
        waits = self._native.stats()["waits"]
        return {"off": True, "samples": self._samples, "bytes": self._bytes, "waits": waits}

    def close(self) -> None:
        self._closed = True


def _kind(error: OriginError) -> tuple[str, str, bool]:
    for type_, kind in ((OriginMissing, "missing"), (OriginChanged, "changed"), (OriginDenied, "denied")):
        if isinstance(error, type_):
            return kind, str(error), True
    return "failed", str(error), False
