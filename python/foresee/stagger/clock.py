# SPDX-License-Identifier: Apache-2.0
"""The clock of the code that starts and follows jobs.

It is an argument, so that a test can run minutes in milliseconds. Deciders have no clock: they get the time with each
fact.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SYSTEM", "Clock"]


class Clock(Protocol):
    """Time, and the only way to wait for it."""

    def now(self) -> float:
        """Return seconds of a monotonic clock."""

    def wall(self) -> float:
        """Return seconds since 1970, of a clock that may be set."""

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""


class _SystemClock:
    """The clock of this host."""

    def now(self) -> float:
        """Return ``time.monotonic()``, which is also the clock of the files of steps."""
        return time.monotonic()

    def wall(self) -> float:
        """Return ``time.time()``."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        time.sleep(seconds)


SYSTEM: Clock = _SystemClock()
"""The clock of this host."""
