# SPDX-License-Identifier: Apache-2.0
"""An origin that is slower than its folder: a token bucket that the processes of a run share.

It models a second storage by a rate of bytes and a rate of opens. It delays only this reader. If a real slow storage
exists (a striping of one target, a mount that the kernel throttles), measure that instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Throttle", "TokenBucket", "sleep_until"]


@dataclass(frozen=True)
class Throttle:
    """Upper limits of the origin's rates, for all processes together; None: as fast as its folder."""

    bytes_per_s: float | None = None
    """Above 0."""
    opens_per_s: float | None = None
    """Above 0."""


class TokenBucket:
    """A queue of operations with a cost each, without bursts: an idle origin is no faster afterwards.

    Args:
        value: nanoseconds shared by the processes, with a lock: a ``multiprocessing.Value("q")`` of 0.
        clock: nanoseconds, one clock for all processes.
    """

    def __init__(self, value: Any, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._free = value
        self._clock = clock

    def take(self, cost_ns: int) -> int:
        """Queue an operation; return the time of its end, by the clock."""
        with self._free.get_lock():
            done: int = max(self._clock(), self._free.value) + cost_ns
            self._free.value = done
        return done


def sleep_until(moment_ns: int) -> None:
    """Sleep until a moment of ``time.monotonic_ns``."""
    while (left := moment_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)
