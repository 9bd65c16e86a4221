# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and SIGHUP as Ctrl-C, for commands that start processes.

Those processes have sessions of their own, so they would outlive the command.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP within the block, so that the cleanup after Ctrl-C runs.

    Only the first of these signals and Ctrl-C raises: a later one could end the cleanup before it has begun.
    """
    before: dict[signal.Signals, Any] = {}

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in before:
            # Not SIG_IGN, which started programs would inherit.
            signal.signal(number, lambda _number, _frame: None)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # nohup ignores SIGHUP, and a shell ignores SIGINT of a background job: both stay ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
