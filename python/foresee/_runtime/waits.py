# SPDX-License-Identifier: Apache-2.0
"""Waits of one training loop: the time inside ``next()``, divided by cause.

A wait ends with a batch, and each instant of it counts for the stage in which that batch was. The engine names the
stages until the bytes are in memory; the code that makes the batch names the others. ``foresee_ledger::divide`` adds
them up. The wait for a finished batch counts as ``copy``. ``docs/formats/ledger.md`` has the rule and all causes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Turn = tuple[str, int]
"""A cause, and the nanosecond since which it has lasted."""

PREPARING = ("transform", "collate", "workers")
"""Causes that are work on samples in memory."""


class Turns:
    """Stages of one batch, in order. Threads pass it on; two never use it at the same time."""

    __slots__ = ("list", "now")

    def __init__(self, now: Callable[[], int], turns: Iterable[Turn] = ()) -> None:
        self.now = now
        self.list: list[Turn] = list(turns)

    def enter(self, cause: str) -> None:
        """Let the batch enter the stage ``cause`` now."""
        self.list.append((cause, self.now()))

    def extend(self, turns: Iterable[Turn]) -> None:
        """Append stages from another list."""
        self.list.extend(turns)


class Recorder(Protocol):
    """The clock and the ledger of an engine, in nanoseconds."""

    def now(self) -> int: ...
    def record_wait(
        self, epoch: int, step: int, samples: int, begin: int, end: int, turns: list[Turn], /
    ) -> None: ...


class Waits(Turns):
    """The waits of one loop: ``begin`` when ``next()`` begins, ``end`` before it returns.

    In between it has the stages of the expected batch. A wait is written in the next one, or by ``flush``,
    so the measured time includes the writing.
    """

    __slots__ = ("_began", "_due", "_record")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder.now)
        self._record = recorder.record_wait
        self._began: int | None = None
        self._due: deque[tuple[int, int, int, int, int, list[Turn]]] = deque()

    def begin(self) -> None:
        """Begin a wait."""
        self._began = self.now()
        self.list = []
        if self._due:
            self.flush()

    def end(self, epoch: int, step: int, samples: int) -> None:
        """End the wait with ``samples`` of a step; 0: without a batch."""
        if self._began is not None:
            self._due.append((epoch, step, samples, self._began, self.now(), self.list))
            self._began = None

    def flush(self) -> None:
        """Write the ended waits to the ledger, each once, from any thread."""
        while self._due:
            try:
                wait = self._due.popleft()
            except IndexError:
                return
            self._record(*wait)
