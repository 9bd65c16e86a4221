# SPDX-License-Identifier: Apache-2.0
"""A fake of ``foresee.stagger.clock``: virtual time, which passes only while a driver sleeps.

Events of a moment happen when a sleep reaches it, in order, so a test of minutes takes milliseconds and has the same
result on any machine.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

__all__ = ["FakeClock"]

#: Virtual seconds after which a run hangs: far more than any test needs.
_LONGEST = 100_000.0


class FakeClock:
    """Virtual time."""

    def __init__(self) -> None:
        #: Far from the real clock, so that code which reads that one is found out.
        self._began = self._now = 7_000_000.0
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        """Seconds."""
        return self._now

    def wall(self) -> float:
        """Seconds since 1970, of a day in 2026."""
        return 1_795_000_000.0 + self.passed()

    def passed(self) -> float:
        """Seconds since it was made."""
        return self._now - self._began

    def sleep(self, seconds: float) -> None:
        """Let time pass; what raises meanwhile raises here."""
        until = self._now + seconds
        while self._due and self._due[0][0] <= until:
            when, _, happen = heapq.heappop(self._due)
            self._now = max(self._now, when)
            happen()
        self._now = max(self._now, until)
        assert self.passed() < _LONGEST, "nothing ends in virtual time"

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Have something happen in so many seconds."""
        heapq.heappush(self._due, (self._now + seconds, next(self._numbers), happen))
