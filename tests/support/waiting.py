# SPDX-License-Identifier: Apache-2.0
"""The only module of the tests that sleeps or reads a clock.

A test has no upper bound on elapsed time, which a loaded host would exceed. It waits here for an event, and fails only
after the watchdog bound. A house test refuses ``time`` in all other test files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["WATCHDOG", "moment", "pause", "takes_at_least", "wait_until"]

#: Seconds after which a wait fails. It only turns a hang into a failure with a name, so it is far above any expected
#: delay, and below the 120 s after which pytest ends a test.
WATCHDOG = 90.0


def wait_until(condition: Callable[[], object], *, what: str) -> None:
    """Wait until ``condition()`` is true. Use it for state that sends no notification.

    Raises:
        AssertionError: it was not true within the watchdog bound; the message names ``what``.
    """
    deadline = time.monotonic() + WATCHDOG
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {WATCHDOG:.0f} s"
        time.sleep(0.005)


def pause(seconds: float) -> None:
    """Sleep, in place of the work or the silence of another process."""
    time.sleep(seconds)


def moment() -> float:
    """Return the machine's clock, which all of its processes share. Use it to order events, or for a lower bound."""
    return time.monotonic()


@contextmanager
def takes_at_least(seconds: float) -> Iterator[None]:
    """Assert that the block takes at least ``seconds``. A lower bound holds on a loaded machine too."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took >= seconds, f"ended after {took:.3f} s, before {seconds} s"
