# SPDX-License-Identifier: Apache-2.0
"""Audit hook that fails a unit test that starts a process, uses a socket or sleeps.

`tests/unit/house/test_test_classes.py` checks the source of the tests; this hook checks the code that they call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["alone"]

#: Audit events of Python for these calls.
_REFUSED = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
        "socket.bind",
        "socket.connect",
        "subprocess.Popen",
        "time.sleep",
    }
)


class _Watch:
    """Violations, while the hook is active."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        # A hook cannot be removed.
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.is_on and event in _REFUSED:
            self.seen.append(f"{event}{arguments}")
            raise AssertionError(f"a unit test called {event}; move it to tests/process")


_watch: list[_Watch] = []


@contextmanager
def alone() -> Iterator[None]:
    """Fail if any thread causes such an event within the block, even if the code suppresses the error."""
    if not _watch:
        _watch.append(_Watch())
    watch = _watch[0]
    watch.seen.clear()
    watch.is_on = True
    try:
        yield
    finally:
        watch.is_on = False
    assert not watch.seen, f"a unit test called {watch.seen[0]}; move it to tests/process"
