# SPDX-License-Identifier: Apache-2.0
"""Waits of one training loop: the time inside ``next()``, divided by cause.

Each instant has one owner: the stage that the batch which ends the wait was in at that instant. The engine names the
stages until the bytes are there, the code that makes a batch of them names the rest; ``foresee_ledger::divide`` adds
them up. A batch that was ready is a wait for ``copy``. ``docs/formats/ledger.md`` has the rule and all causes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
__all__ = ["PREPARING", "Turn", "Turns", "Waits"]

Turn = tuple[str, int]
"""A cause, and the nanosecond since which it has lasted."""

PREPARING = ("transform", "collate", "workers")
"""Causes that are work on samples which have been read."""


class Turns:
    """Stages of one batch on its way, in order. Handed from thread to thread, never used by two at once."""

    __slots__ = ("list", "now")

    def __init__(self, now: Callable[[], int], turns: Iterable[Turn] = ()) -> None:
        self.now = now
        self.list: list[Turn] = list(turns)

    def enter(self, cause: str) -> None:
        """From now on the batch is in the stage ``cause``."""
        self.list.append((cause, self.now()))

    def follow(self, turns: Iterable[Turn]) -> None:
        """The batch was in these stages."""
        self.list.extend(turns)


class Recorder(Protocol):
    """What books waits: an engine."""

    def now(self) -> int:
        """Nanoseconds of its clock."""

    def record_wait(
        self, epoch: int, step: int, samples: int, asked: int, got: int, turns: list[Turn], /
    ) -> None:
        """Book a wait."""


class Waits(Turns):
    """The clock of one loop: ``ask`` when ``next()`` begins, ``got`` before it returns.

    In between it has the stages of the batch that is waited for. A wait is booked when the next one begins, or when
    ``flush`` is called, so that booking is inside the time that is measured.
    """

    __slots__ = ("_asked", "_due", "_record")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder.now)
        self._record = recorder.record_wait
        self._asked: int | None = None
        self._due: deque[tuple[int, int, int, int, int, list[Turn]]] = deque()

    def ask(self) -> None:
        """A batch is asked for."""
        self._asked = self.now()
        self.list = []
        if self._due:
            self.flush()

    def got(self, epoch: int, step: int, samples: int) -> None:
        """The wait ends with ``samples`` of a step, or with 0 and no batch."""
        if self._asked is not None:
            self._due.append((epoch, step, samples, self._asked, self.now(), self.list))
            self._asked = None

    def flush(self) -> None:
        """Book what has ended. From any thread: each wait is taken out once."""
        while self._due:
            try:
                wait = self._due.popleft()
            except IndexError:
                return
            self._record(*wait)
