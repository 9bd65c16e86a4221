# SPDX-License-Identifier: Apache-2.0
"""The end of jobs that this program started: all of them are stopped, in bounded time, whatever interrupts it.

Each job is in a session of its own, so a job that is left behind would be noticed by no one. That is why further
signals do not interrupt it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence

from foresee.stagger.job_monitor import Watched

__all__ = ["at_once", "stop_all", "undisturbed"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def undisturbed() -> Iterator[list[int]]:
    """Within, signals that end a program do nothing: what goes on here ends by itself. Gives those that came."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came  # they go to the main thread anyway
        return
    # Not ignored, which programs that are started meanwhile would inherit.
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _SIGNALS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Start a job within this block: a signal waits until the job is registered for its end."""
    with undisturbed() as came:
        yield
    if came:
        signal.raise_signal(came[0])


def stop_all(jobs: Sequence[Watched]) -> None:
    """End jobs, all at once: it takes as long as the one that takes longest."""
    threads = [threading.Thread(target=each.stop, name="foresee-stop") for each in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
