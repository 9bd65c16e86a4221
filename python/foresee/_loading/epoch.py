# SPDX-License-Identifier: Apache-2.0
"""Iterator over the batches of one epoch of a loader.

The error of a batch is raised in its place, and the next call returns the batch after it, as in torch; after
``StallTimeout`` the next call returns the late batch. Only batches that the training loop received are counted and
saved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from foresee.errors import Closed, StallTimeout

if TYPE_CHECKING:
    from typing_extensions import Self

    from foresee._loading.batch import Receipt
    from foresee._loading.progress import Place
    from foresee._loading.session import Session
    from foresee._runtime.step_times import StepTimer

T = TypeVar("T")


class EpochIterator(ABC, Generic[T]):
    """Base of the iterators; subclasses have the source of the batches.

    Args:
        owner: the loader, which lives as long as its iterator.
        session: session of the loader.
        timer: measures the steps.
        token: of the epoch, from ``Session.begin``.
        place: start of the epoch.
    """

    def __init__(
        self, owner: object, session: Session, timer: StepTimer, *, token: int, place: Place
    ) -> None:
        self._owner = owner
        self._session = session
        self._timer = timer
        self._token = token
        self._place = place
        self._waits = session.waits
        self._is_begun = False
        self._is_over = place.finished
        self._is_closed = False
        self._value: Any = None
        self._previous: Any = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._is_closed:
            raise StopIteration
        if self._is_begun and self._is_over:
            self._finish()
        self._waits.begin()
        try:
            receipt = self._advance()
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StallTimeout | Closed):
                self._on_requested()
            self._session.end_wait(self._waits)
            raise
        if receipt is None:
            self._finish()
        self._session.finish_wait(self._waits, receipt)
        value: T = self._value
        return value

    def close(self) -> None:
        """Abandon the rest of the epoch. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._value = self._previous = None
        session = self._session
        session.end_wait(self._waits)
        self._timer.end_step()
        if session.progress.is_current(self._token) and not self._is_over and not session.is_forked:
            self._on_abandoned()
            session.abandon(self._token)

    def __del__(self) -> None:
        if hasattr(self, "_previous"):
            self.close()

    @abstractmethod
    def _begin_epoch(self, start: Place) -> None:
        """Begin at ``start``, which differs from ``self._place`` if another epoch was set since ``iter()``."""

    @abstractmethod
    def _take(self) -> tuple[Receipt, T] | None:
        """Wait for the next batch; None at the epoch's end."""

    def _on_start(self) -> None:
        """Called when the current iterator requests its first batch."""

    def _on_requested(self) -> None:
        """Called after each batch, or the error of one."""

    def _on_last(self) -> None:
        """Called with the last batch, within its wait."""

    def _on_end(self) -> None:
        """Called when a batch after the last one is requested."""

    def _on_abandoned(self) -> None:
        """Called when the rest of the epoch is abandoned."""

    def _advance(self) -> Receipt | None:
        """Take the next batch as ``self._value``; None at the epoch's end."""
        session = self._session
        if self._is_begun:
            # The loop releases a batch when it has the next one. A small one is released here, inside the wait: a
            # tensor lets other threads run before it is freed.
            self._previous, self._value = self._value if session.is_small else None, None
        else:
            self._begin()
        if self._is_over:
            return None
        session.progress.check(self._token)
        if self._timer.begin_wait():
            self._waits.begin()
        delivery = self._take()
        if delivery is None:
            return None
        self._timer.end_wait()
        receipt, self._value = delivery
        session.record_batch(self._token, receipt)
        self._on_requested()
        if session.progress.place.finished:
            self._is_over = True
            self._on_last()
        return receipt

    def _begin(self) -> None:
        """Begin the epoch, or another one that was set since ``iter()``."""
        session = self._session
        if session.progress.is_current(self._token):
            self._on_start()
        start = session.start(self._token, self._place, can_switch=session.order is not None)
        if session.waits is not self._waits:
            self._waits = session.waits
            self._waits.begin()
        self._is_over = start.finished
        if not self._is_over:
            session.progress.check(self._token)
            self._begin_epoch(start)
        self._is_begun = True

    def _finish(self) -> NoReturn:
        self._is_over = True
        self._on_end()
        self.close()
        raise StopIteration
