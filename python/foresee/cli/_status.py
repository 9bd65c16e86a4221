# SPDX-License-Identifier: Apache-2.0
"""Progress of a command: one line of the terminal on stderr, overwritten in place.

Nothing is written if stderr is not a terminal, so logs and pipes have results only.
"""

from __future__ import annotations

import sys

_BAR_CHARACTERS = 30


class Status:
    """The line."""

    def __init__(self) -> None:
        self.shown = sys.stderr is not None and sys.stderr.isatty()
        self._written = False

    def show(self, text: str) -> None:
        """Show the current activity."""
        if self.shown:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._written = True

    def bar(self, share: float, text: str) -> None:
        """Show a share of the whole, 0 to 1, and ``text`` behind it."""
        self.show(f"[{'#' * round(share * _BAR_CHARACTERS):<{_BAR_CHARACTERS}}] {share:4.0%}  {text}")

    def end(self) -> None:
        """Leave the line empty."""
        if self._written:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._written = False
