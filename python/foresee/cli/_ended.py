# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and a hang-up as Ctrl-C, for commands that have started processes: those have sessions of their own and would
live on.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["like_interrupt"]


@contextlib.contextmanager
def like_interrupt() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP raise KeyboardInterrupt, so that cleanup after Ctrl-C happens after each.

    Only the first of these signals and Ctrl-C does: later ones do nothing, since they could end the cleanup before it
    has begun.
    """
    before: dict[signal.Signals, Any] = {}

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, _nothing)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Under nohup a hang-up is to do nothing, and in the background Ctrl-C.
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Not ignored, which programs that are started would inherit."""
