# SPDX-License-Identifier: Apache-2.0
"""SIGTERM as Ctrl-C, for commands that have started processes: those have sessions of their own and would live on."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

__all__ = ["like_interrupt"]


@contextlib.contextmanager
def like_interrupt() -> Iterator[None]:
    """Within, SIGTERM raises KeyboardInterrupt, so that whoever cleans up after Ctrl-C does after both."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
