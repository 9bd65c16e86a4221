# SPDX-License-Identifier: Apache-2.0
"""Termination of the jobs that this program started: all of them are stopped, in bounded time.

Signals do not interrupt it, since a job that is left behind runs unnoticed in a session of its own.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence

from foresee.stagger.job_monitor import JobMonitor

__all__ = ["defer_signals", "ignore_signals", "stop_all"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ignore_signals() -> Iterator[list[int]]:
    """Ignore signals that end a program within this block; yields those that arrive."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # signals go to the main thread
        return
    # Handlers, since child processes would inherit SIG_IGN.
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Defer signals to the end of this block, in which a job is started and registered."""
    with ignore_signals() as received:
        yield
    if received:
        signal.raise_signal(received[0])


def stop_all(jobs: Sequence[JobMonitor]) -> None:
    """Stop jobs, all at once."""
    threads = [threading.Thread(target=each.stop, name="foresee-stop") for each in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
