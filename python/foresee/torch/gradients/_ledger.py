# SPDX-License-Identifier: Apache-2.0
"""One rank's pushes, pulls and waits as entries of the run's ledger.

The loader's ledger is a file of its own. A ledger that can no longer be written ends with a warning and does not stop
the training run.
"""

from __future__ import annotations

import logging
import time

from foresee._native import LedgerFile
from foresee.torch.gradients._timeline import Span

__all__ = ["LedgerSink"]

_log = logging.getLogger("foresee")
_LEDGER_TRACKS = ("push", "pull", "wait")


class LedgerSink:
    """A ledger, open until it is closed; its clock begins now.

    Args:
        folder: the run's.
        rank: whose spans these are.

    Raises:
        ConfigError: the folder cannot be written to.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self._began_ns = time.monotonic_ns()
        self._file = LedgerFile.create(folder, rank)
        self._open = True

    def put(self, span: Span) -> None:
        """Add one, if it is of a kind that ledgers know."""
        if span.track in _LEDGER_TRACKS:
            start = max(span.began_ns - self._began_ns, 0)
            nbytes = 0 if span.track == "wait" else span.nbytes
            self._file.add(span.track, start, span.ended_ns - span.began_ns, span.round, span.tensor, nbytes)

    def flush(self) -> None:
        """Entries are written when there are enough of them."""

    def close(self, left_out: int) -> None:
        """Write the end, and say what is not there."""
        if not self._open:
            return
        self._open = False
        self._file.close()
        if left_out:
            _log.warning("the ledger lacks %d events of gradients: there was no room for them", left_out)
        if self._file.lost is not None:
            _log.warning("the ledger of gradients was given up: %s", self._file.lost)
