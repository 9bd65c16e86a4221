# SPDX-License-Identifier: Apache-2.0
"""One epoch of a loader, batch by batch: what ``iter()`` returns.

A batch that could not be made is raised in its turn, and the next call gives the batch behind it, as in torch; after
``StallTimeout`` it gives the batch that was late. What is counted and saved follows the batches that the training loop
received.
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
    from foresee._runtime.step_times import Lap

T = TypeVar("T")


class EpochIterator(ABC, Generic[T]):
    """See the module. Subclasses say where batches come from.

    Args:
        owner: the loader, which lives as long as its iterator.
        session: whose epoch it is.
        lap: the clock of its steps.
        token: of the epoch, from ``Session.begin``.
        place: where it begins.
    """

    def __init__(self, owner: object, session: Session, lap: Lap, *, token: int, place: Place) -> None:
        self._owner = owner
        self._session = session
        self._lap = lap
        self._token = token
        self._place = place
        self._waits = session.waits
        self._is_begun = False
        self._is_over = place.finished
        self._is_closed = False
        self._value: Any = None
        self._before: Any = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._is_closed:
            raise StopIteration
        if self._is_begun and self._is_over:
            self._finish()
        self._waits.ask()
        try:
            receipt = self._advance()
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StallTimeout | Closed):
                self._on_requested()
            self._session.end_wait(self._waits)
            raise
        if receipt is None:
            self._finish()
        self._session.delivered(self._waits, receipt)
        value: T = self._value
        return value

    def close(self) -> None:
        """Give up the rest of the epoch. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._value = self._before = None
        session = self._session
        session.end_wait(self._waits)
        self._lap.end()
        if session.progress.is_current(self._token) and not self._is_over and not session.is_forked:
            self._on_abandoned()
            session.abandon(self._token)

    def __del__(self) -> None:
        if hasattr(self, "_before"):
            self.close()

    @abstractmethod
    def _begin_epoch(self, start: Place) -> None:
        """Begin at ``start``, which is not ``self._place`` if another epoch was named since ``iter()``."""

    @abstractmethod
    def _take(self) -> tuple[Receipt, T] | None:
        """Wait for the next batch; None at the epoch's end."""

    def _on_start(self) -> None:
        """The first batch is requested, by the iterator that was begun last."""

    def _on_requested(self) -> None:
        """A batch was received, or the error of one."""

    def _on_last(self) -> None:
        """The epoch's last batch was received; its wait still lasts."""

    def _on_end(self) -> None:
        """A batch behind the last one was requested."""

    def _on_abandoned(self) -> None:
        """The rest of the epoch is given up."""

    def _advance(self) -> Receipt | None:
        """Take the next batch as ``self._value``; None at the epoch's end."""
        session = self._session
        if self._is_begun:
            # The loop lets go of a batch when it has the next one. A small one is let go of here, inside the wait.
            # Tensors let other threads run first when they are let go of.
            self._before, self._value = self._value if session.is_small else None, None
        else:
            self._begin()
        if self._is_over:
            return None
        session.progress.check(self._token)
        if self._lap.ask():
            self._waits.ask()
        delivery = self._take()
        if delivery is None:
            return None
        self._lap.got()
        receipt, self._value = delivery
        session.hand_over(self._token, receipt)
        self._on_requested()
        if session.progress.place.finished:
            self._is_over = True
            self._on_last()
        return receipt

    def _begin(self) -> None:
        """Go to where the epoch starts. One that was named since ``iter()`` counts."""
        session = self._session
        if session.progress.is_current(self._token):
            self._on_start()
        start = session.start(self._token, self._place, turns=session.order is not None)
        if session.waits is not self._waits:
            self._waits = session.waits
            self._waits.ask()
        self._is_over = start.finished
        if not self._is_over:
            session.progress.check(self._token)
            self._begin_epoch(start)
        self._is_begun = True

    def _finish(self) -> NoReturn:
        """The epoch has no more batches."""
        self._is_over = True
        self._on_end()
        self.close()
        raise StopIteration
