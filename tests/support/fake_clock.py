# SPDX-License-Identifier: Apache-2.0
"""A fake of ``foresee.stagger.clock``: virtual time, which passes only while a driver sleeps.

A sleep runs the events that it reaches, in order. A test of minutes takes milliseconds, with the same result on any host.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

__all__ = ["FakeClock"]

#: Virtual seconds after which a run counts as hanging: far above any test.
_LONGEST = 100_000.0


class FakeClock:
    """Virtual time."""

    def __init__(self) -> None:
        #: Far from the real clock, to detect code that reads that one.
        self._began = self._now = 7_000_000.0
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def wall(self) -> float:
        """Return a Unix time in 2026."""
        return 1_795_000_000.0 + self.passed()

    def passed(self) -> float:
        """Return the seconds since the clock was made."""
        return self._now - self._began

    def sleep(self, seconds: float) -> None:
        """Let time pass and run due events; their errors are raised here."""
        until = self._now + seconds
        while self._due and self._due[0][0] <= until:
            when, _, happen = heapq.heappop(self._due)
            self._now = max(self._now, when)
            happen()
        self._now = max(self._now, until)
        assert self.passed() < _LONGEST, "nothing ends in virtual time"

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Run ``happen`` after ``seconds``."""
        heapq.heappush(self._due, (self._now + seconds, next(self._numbers), happen))
