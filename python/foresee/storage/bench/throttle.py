# SPDX-License-Identifier: Apache-2.0
"""An origin that is slower than its folder: a token bucket that the processes of a run share.

It models a second storage on a machine that has one. It delays only this reader, and it has a rate of bytes and a rate
of opens. If a real slow place exists (a striping of one target, a mount that the kernel throttles), measure that
instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Bucket", "Throttle", "until"]


@dataclass(frozen=True)
class Throttle:
    """Upper limits of the origin's rates, for all processes together; None: as fast as its folder."""

    bytes_per_s: float | None = None
    """Above 0."""
    opens_per_s: float | None = None
    """Above 0."""


class Bucket:
    """One thing after the other, each at its cost: who takes one is told when it is done.

    Holds nothing back for later: an origin that was idle for a second is no faster after it.

    Args:
        value: nanoseconds shared by the processes, with a lock: a ``multiprocessing.Value("q")`` of 0.
        clock: nanoseconds, one clock for all processes.
    """

    def __init__(self, value: Any, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._free = value
        self._clock = clock

    def take(self, cost_ns: int) -> int:
        """Queue up behind what others have taken; returns when this is done, by the clock."""
        with self._free.get_lock():
            done: int = max(self._clock(), self._free.value) + cost_ns
            self._free.value = done
        return done


def until(moment_ns: int) -> None:
    """Return at a moment of ``time.monotonic_ns``, or at once if it has passed."""
    while (left := moment_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)
