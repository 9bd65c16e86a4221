# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and SIGHUP as Ctrl-C, for commands that start processes, and a Ctrl-C that waits for a safe moment.

Started processes have sessions of their own, so they would outlive the command.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back within the block, until its end or a call of the function that it yields: that raises it.

    KeyboardInterrupt is otherwise raised anywhere, also in a function of `concurrent.futures` that has just locked a
    future. Its thread would then wait for the lock forever, and the program for the thread.
    """
    has_come = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True

    def check() -> None:
        if has_come:
            raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield check
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
    check()
