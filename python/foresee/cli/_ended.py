# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and a hang-up as Ctrl-C, for commands that have started processes: those have sessions of their own and would
live on.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

__all__ = ["like_interrupt"]


@contextlib.contextmanager
def like_interrupt() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP raise KeyboardInterrupt, so that whoever cleans up after Ctrl-C does after each."""
    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup a hang-up is to do nothing.
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
