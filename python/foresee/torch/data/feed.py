# SPDX-License-Identifier: Apache-2.0
"""Feeds, which return batches to the training loop: on request, or prefetched.

``DirectFeed`` makes a batch in the caller's thread. ``PrefetchFeed`` has a thread that passes batches of the engine to
an executor (threads or processes), and returns the results in order. Neither depends on epochs, states or torch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foresee._runtime.waits import Turns
from foresee.errors import Closed, StallTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from foresee._loading.batch import Ints, RawBatch
    from foresee._loading.orders import EpochSamples
    from foresee._loading.progress import Place
    from foresee._loading.session import Session

# Timeout of a request to the engine, after which the thread checks for a new epoch or the end.
_TICK_MS = 100


@dataclass(frozen=True)
class EpochStart:
    """Start of an epoch, with its samples."""

    place: Place
    order: EpochSamples | None
    """None: those of the run's order."""
    seed: int
    """Seed of random transforms."""


@dataclass(frozen=True, eq=False)
class BatchTask:
    """One batch of the engine, to be made."""

    raw: RawBatch
    start: int
    """Position at which its epoch began or was resumed."""
    seed: int
    turns: Turns
    """Stages of the batch."""


@dataclass(frozen=True, eq=False)
class BatchReceipt:
    """The fields by which a returned batch is counted; without the engine's memory."""

    epoch: int
    step: int
    start: int
    last: bool
    ids: Ints

    @staticmethod
    def of(raw: RawBatch) -> BatchReceipt:
        """Copy the fields of ``raw``."""
        return BatchReceipt(raw.epoch, raw.step, raw.start, raw.last, raw.ids.copy())

    def __len__(self) -> int:
        return len(self.ids)


class DirectFeed:
    """Makes each batch on request."""

    def __init__(self, session: Session, make: Callable[[BatchTask], Any]) -> None:
        self._session = session
        self._make = make
        self._epoch: EpochStart | None = None

    def begin_epoch(self, start: EpochStart) -> None:
        """Begin an epoch."""
        self._epoch = start
        self._session.begin_epoch(start.place, start.order)

    def pause(self) -> None:
        """Do nothing: no batch is prefetched."""

    def next(self, timeout_ms: int | None) -> tuple[BatchReceipt, Any] | None:
        """Make the next batch; None at the epoch's end."""
        assert self._epoch is not None, "begin_epoch comes first"
        raw = self._session.next_batch(timeout_ms)
        if raw is None:
            return None
        value = self._make(BatchTask(raw, self._epoch.place.position, self._epoch.seed, self._session.waits))
        return BatchReceipt.of(raw), value

    def close(self) -> None:
        """Do nothing."""


@dataclass(eq=False)
class _Entry:
    """A batch in flight (``receipt`` and ``future``), an error of the engine, or the end of an epoch (no field)."""

    receipt: BatchReceipt | None = None
    future: Future[Any] | None = None
    error: BaseException | None = None
    turns: Turns | None = None

    @property
    def is_ready(self) -> bool:
        return self.future is None or self.future.done()


class PrefetchFeed:
    """Prefetches up to ``depth`` batches, and returns them in order.

    ``is_followed_by``: whether an epoch may begin before its ``begin_epoch``.
    """

    def __init__(
        self,
        session: Session,
        submit: Callable[[BatchTask], Future[Any]],
        *,
        depth: int,
        is_followed_by: Callable[[int], bool],
        in_order: bool = True,
    ) -> None:
        self._session = session
        self._submit = submit
        self._depth = depth
        self._is_followed_by = is_followed_by
        self._in_order = in_order
        self._changed = threading.Condition()
        self._entries: deque[_Entry] = deque()
        self._next: EpochStart | None = None
        """Epoch for the thread to begin."""
        self._current: EpochStart | None = None
        self._prefetched: tuple[int, int] | None = None
        """Epoch and position of the first prefetched batch, if it is the first one of an epoch."""
        self._returned = 0
        """Returned batches of the epoch."""
        self._steps: int | None = None
        """Batches of the epoch, once its last one was returned."""
        self._generation = 0
        self._is_paused = True
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin_epoch(self, start: EpochStart) -> None:
        """Begin an epoch; use the prefetched batches if they are its first ones."""
        position = (start.place.epoch, start.place.position)
        with self._changed:
            if self._closed:
                raise Closed("the loader is closed")
            self._returned, self._steps = 0, None
            has_seed = self._current is not None and self._current.seed == start.seed
            if start.order is None and self._prefetched == position and has_seed:
                return
            self._clear()
            self._next = self._current = start
            self._prefetched = position
            self._is_paused = False
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="foresee-feed", daemon=True)
                self._thread.start()

    def pause(self) -> None:
        """Drop the prefetched batches, and prefetch none until ``begin_epoch``."""
        with self._changed:
            self._clear()
            self._next, self._prefetched, self._is_paused = None, None, True

    def next(self, timeout_ms: int | None) -> tuple[BatchReceipt, Any] | None:
        """Wait for the next batch; None at the epoch's end.

        Raises:
            StallTimeout: the batch is late; the next call waits for it again.
            SampleFault: the batch cannot be made.
        """
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        waits = self._session.waits
        with self._changed:
            if self._returned == self._steps:
                return None
            entry = self._pick()
            if entry is None:
                try:
                    entry = self._wait(deadline, timeout_ms)
                except BaseException:
                    head = self._entries[0].turns if self._entries else None
                    waits.extend(self._session.turns() if head is None else head.list)
                    raise
                # The stages of a finished batch ended before this call.
                if entry.turns is not None:
                    waits.extend(entry.turns.list)
            self._prefetched = None
            self._changed.notify_all()
            if entry.error is not None:
                # No batch follows: the next call raises it again.
                self._entries.appendleft(entry)
                raise entry.error
            if entry.receipt is None or entry.future is None:
                return None
            self._returned += 1
            if entry.receipt.last:
                self._steps = entry.receipt.step + 1
            if entry.receipt.last and self._is_followed_by(entry.receipt.epoch + 1):
                self._prefetched = (entry.receipt.epoch + 1, 0)
        return entry.receipt, entry.future.result()

    def close(self) -> None:
        """End the thread. Close the engine before or soon after, because the thread may wait for it."""
        with self._changed:
            self._closed = True
            self._clear()
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _wait(self, deadline: float | None, timeout_ms: int | None) -> _Entry:
        while (entry := self._pick()) is None:
            if self._closed:
                raise Closed("the loader is closed")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise StallTimeout(f"no batch within {timeout_ms} ms; it is still in flight, call again")
            self._changed.wait(left)
        return entry

    def _pick(self) -> _Entry | None:
        entries: Sequence[_Entry] = self._entries
        for entry in entries if not self._in_order else list(entries)[:1]:
            # The end of an epoch, and an error, come after the batches before them.
            if entry.is_ready and (entry.future is not None or entry is entries[0]):
                self._entries.remove(entry)
                return entry
        return None

    def _clear(self) -> None:
        self._generation += 1
        for entry in self._entries:
            if entry.future is not None:
                entry.future.cancel()
        self._entries.clear()
        self._changed.notify_all()

    def _run(self) -> None:
        current: EpochStart | None = None
        task: BatchTask | None = None
        ended = False
        while True:
            with self._changed:
                while (
                    not self._closed
                    and self._next is None
                    and (self._is_paused or len(self._entries) >= self._depth)
                ):
                    self._changed.wait()
                if self._closed:
                    return
                generation, start, self._next = self._generation, self._next, None
            try:
                if start is not None:
                    current, ended = start, False
                    self._session.begin_epoch(current.place, current.order)
                assert current is not None, "begin_epoch comes first"
                raw = self._session.prefetch_batch(_TICK_MS)
                if raw is None and ended:
                    # The end of an epoch whose last batch is in the queue.
                    ended = False
                    continue
                entry = _Entry()
                if raw is not None:
                    position = current.place.position if raw.epoch == current.place.epoch else 0
                    turns = Turns(self._session.now, raw.turns)
                    task = BatchTask(raw, position, current.seed, turns)
                    entry = _Entry(BatchReceipt.of(raw), self._submit(task), turns=turns)
            except StallTimeout:
                continue
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the batch
                entry = _Entry(error=error)
            raw = task = None
            self._enqueue(generation, entry)
            ended = entry.receipt is not None and entry.receipt.last

    def _enqueue(self, generation: int, entry: _Entry) -> None:
        with self._changed:
            if generation != self._generation:
                if entry.future is not None:
                    entry.future.cancel()
                return
            self._entries.append(entry)
            receipt = entry.receipt
            if receipt is None or (receipt.last and not self._is_followed_by(receipt.epoch + 1)):
                self._is_paused = True
            self._changed.notify_all()
        if entry.future is not None:
            entry.future.add_done_callback(self._wake)

    def _wake(self, _: Future[Any]) -> None:
        with self._changed:
            self._changed.notify_all()
