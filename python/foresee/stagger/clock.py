# SPDX-License-Identifier: Apache-2.0
"""The clock of those that start and follow jobs.

It is passed in, so that a test can step through a run of minutes in milliseconds. Deciders have no clock at all: they
get the time with each fact.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SYSTEM", "Clock"]


class Clock(Protocol):
    """Time, and the only way to wait for it."""

    def now(self) -> float:
        """Seconds since some moment; never goes backwards."""

    def wall(self) -> float:
        """Seconds since 1970, which may be set."""

    def sleep(self, seconds: float) -> None:
        """Wait so many seconds."""


class _System:
    """The clock of this machine."""

    def now(self) -> float:
        """Seconds of ``time.monotonic()``, which is also the clock of the files of steps."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait so many seconds."""
        time.sleep(seconds)


SYSTEM: Clock = _System()
"""The clock of this machine."""
