# SPDX-License-Identifier: Apache-2.0
"""Batches on their way to the training loop: at once, or some of them ahead. Each one knows its stages.

``Direct`` asks the engine and makes the batch in the caller's thread: right where there is nothing to make.
``Ahead`` has a thread that takes batches from the engine and hands them to an executor (threads or
processes), and gives them out in order. Neither knows epochs, states or torch.
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

# While the origin is slow the thread looks up this often whether it is wanted elsewhere.
_TICK_MS = 100


@dataclass(frozen=True)
class Target:
    """Where an epoch begins, and its samples."""

    place: Place
    order: EpochSamples | None
    """None: the run's order has them."""
    seed: int
    """Of random transforms."""


@dataclass(frozen=True, eq=False)
class Job:
    """One batch as the engine gave it."""

    raw: RawBatch
    start: int
    """Position at which its epoch began or was resumed."""
    seed: int
    turns: Turns
    """Stages that it goes through."""


@dataclass(frozen=True, eq=False)
class Receipt:
    """What must be known of a batch when it is handed over; keeps no memory of the engine."""

    epoch: int
    step: int
    start: int
    last: bool
    ids: Ints

    @staticmethod
    def of(raw: RawBatch) -> Receipt:
        """Without the bytes."""
        return Receipt(raw.epoch, raw.step, raw.start, raw.last, raw.ids.copy())

    def __len__(self) -> int:
        return len(self.ids)


class Direct:
    """One batch at a time, when it is asked for."""

    def __init__(self, session: Session, make: Callable[[Job], Any]) -> None:
        self._session = session
        self._make = make
        self._target: Target | None = None

    def begin_epoch(self, target: Target) -> None:
        """Begin at ``target``."""
        self._target = target
        self._session.begin_epoch(target.place, target.order)

    def pause(self) -> None:
        """Nothing is ahead."""

    def next(self, timeout_ms: int | None) -> tuple[Receipt, Any] | None:
        """The next batch; None at the epoch's end."""
        assert self._target is not None, "begin_epoch comes first"
        raw = self._session.next_batch(timeout_ms)
        if raw is None:
            return None
        value = self._make(Job(raw, self._target.place.position, self._target.seed, self._session.waits))
        return Receipt.of(raw), value

    def close(self) -> None:
        """Nothing to close."""


@dataclass(eq=False)
class _Slot:
    """A batch on its way, the end of an epoch (neither field), or the engine's error."""

    receipt: Receipt | None = None
    future: Future[Any] | None = None
    error: BaseException | None = None
    turns: Turns | None = None

    @property
    def ready(self) -> bool:
        return self.future is None or self.future.done()


class Ahead:
    """Up to ``depth`` batches ahead of the training loop, given out in order.

    ``goes_on``: whether an epoch follows the one before it without a new target.
    """

    def __init__(
        self,
        session: Session,
        submit: Callable[[Job], Future[Any]],
        *,
        depth: int,
        goes_on: Callable[[int], bool],
        in_order: bool = True,
    ) -> None:
        self._session = session
        self._submit = submit
        self._depth = depth
        self._goes_on = goes_on
        self._in_order = in_order
        self._changed = threading.Condition()
        self._slots: deque[_Slot] = deque()
        self._next: Target | None = None
        self._course: Target | None = None
        self._at: tuple[int, int] | None = None
        self._given = 0
        """Batches of the epoch that were given out."""
        self._steps: int | None = None
        """Batches that it has, once its last one was given out."""
        self._turn = 0
        self._halted = True
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin_epoch(self, target: Target) -> None:
        """Begin at ``target``; batches that are there already are kept if it is next anyway."""
        where = (target.place.epoch, target.place.position)
        with self._changed:
            if self._closed:
                raise Closed("the loader is closed")
            self._given, self._steps = 0, None
            on_course = self._course is not None and self._course.seed == target.seed
            if target.order is None and self._at == where and on_course:
                return
            self._drop()
            self._next = self._course = target
            self._at = where
            self._halted = False
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="foresee-feed", daemon=True)
                self._thread.start()

    def pause(self) -> None:
        """Forget what is ahead, and take nothing more until ``begin_epoch``."""
        with self._changed:
            self._drop()
            self._next, self._at, self._halted = None, None, True

    def next(self, timeout_ms: int | None) -> tuple[Receipt, Any] | None:
        """The next batch; None at the epoch's end.

        Raises:
            StallTimeout: it did not come in time, but will.
            SampleFault: it cannot be made.
        """
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        waits = self._session.waits
        with self._changed:
            if self._given == self._steps:
                return None
            slot = self._pick()
            if slot is None:
                try:
                    slot = self._wait(deadline, timeout_ms)
                except BaseException:
                    head = self._slots[0].turns if self._slots else None
                    waits.follow(self._session.turns() if head is None else head.list)
                    raise
                # The stages of a batch that was ready were over before the loop asked.
                if slot.turns is not None:
                    waits.follow(slot.turns.list)
            self._at = None
            self._changed.notify_all()
            if slot.error is not None:
                # Nothing comes behind it: whoever asks again gets it again.
                self._slots.appendleft(slot)
                raise slot.error
            if slot.receipt is None or slot.future is None:
                return None
            self._given += 1
            if slot.receipt.last:
                self._steps = slot.receipt.step + 1
            if slot.receipt.last and self._goes_on(slot.receipt.epoch + 1):
                self._at = (slot.receipt.epoch + 1, 0)
        return slot.receipt, slot.future.result()

    def close(self) -> None:
        """End the thread. The engine must be closed first or soon: the thread may be waiting for it."""
        with self._changed:
            self._closed = True
            self._drop()
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _wait(self, deadline: float | None, timeout_ms: int | None) -> _Slot:
        while (slot := self._pick()) is None:
            if self._closed:
                raise Closed("the loader is closed")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise StallTimeout(f"no batch within {timeout_ms} ms; it is still coming, ask again")
            self._changed.wait(left)
        return slot

    def _pick(self) -> _Slot | None:
        slots: Sequence[_Slot] = self._slots
        for slot in slots if not self._in_order else list(slots)[:1]:
            # The end of an epoch, and an error, wait for the batches before them.
            if slot.ready and (slot.future is not None or slot is slots[0]):
                self._slots.remove(slot)
                return slot
        return None

    def _drop(self) -> None:
        self._turn += 1
        for slot in self._slots:
            if slot.future is not None:
                slot.future.cancel()
        self._slots.clear()
        self._changed.notify_all()

    def _run(self) -> None:
        course: Target | None = None
        job: Job | None = None
        ended = False
        while True:
            with self._changed:
                while (
                    not self._closed
                    and self._next is None
                    and (self._halted or len(self._slots) >= self._depth)
                ):
                    self._changed.wait()
                if self._closed:
                    return
                turn, target, self._next = self._turn, self._next, None
            try:
                if target is not None:
                    course, ended = target, False
                    self._session.begin_epoch(course.place, course.order)
                assert course is not None, "begin_epoch comes first"
                raw = self._session.prefetch_batch(_TICK_MS)
                if raw is None and ended:
                    # The mark between two epochs; the batch before it said so already.
                    ended = False
                    continue
                slot = _Slot()
                if raw is not None:
                    start = course.place.position if raw.epoch == course.place.epoch else 0
                    turns = Turns(self._session.now, raw.turns)
                    job = Job(raw, start, course.seed, turns)
                    slot = _Slot(Receipt.of(raw), self._submit(job), turns=turns)
            except StallTimeout:
                continue
            except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits for the batch
                slot = _Slot(error=error)
            raw = job = None
            self._place(turn, slot)
            ended = slot.receipt is not None and slot.receipt.last

    def _place(self, turn: int, slot: _Slot) -> None:
        with self._changed:
            if turn != self._turn:
                if slot.future is not None:
                    slot.future.cancel()
                return
            self._slots.append(slot)
            receipt = slot.receipt
            if receipt is None or (receipt.last and not self._goes_on(receipt.epoch + 1)):
                self._halted = True
            self._changed.notify_all()
        if slot.future is not None:
            slot.future.add_done_callback(self._wake)

    def _wake(self, _: Future[Any]) -> None:
        with self._changed:
            self._changed.notify_all()
