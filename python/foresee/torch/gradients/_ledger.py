# SPDX-License-Identifier: Apache-2.0
"""Output of one rank's pushes, pulls and waits to the run's ledger.

The loader's ledger is another file. A ledger that can no longer be written ends with a warning and does not stop the
training run.
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
    """A ledger in the folder of a run; its clock starts now.

    Raises:
        ConfigError: the folder is not writable.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self._began_ns = time.monotonic_ns()
        self._file = LedgerFile.create(folder, rank)
        self._is_open = True

    def write(self, span: Span) -> None:
        """Add a span of a kind that the ledger has."""
        if span.track in _LEDGER_TRACKS:
            start = max(span.began_ns - self._began_ns, 0)
            nbytes = 0 if span.track == "wait" else span.nbytes
            self._file.add(span.track, start, span.ended_ns - span.began_ns, span.round, span.tensor, nbytes)

    def flush(self) -> None:
        """Do nothing: the file writes entries in batches."""

    def close(self, left_out: int) -> None:
        """Write the end, and log what is missing."""
        if not self._is_open:
            return
        self._is_open = False
        self._file.close()
        if left_out:
            _log.warning("the ledger lacks %d events of gradients: the buffer was full", left_out)
        if self._file.lost is not None:
            _log.warning("the ledger of gradients was given up: %s", self._file.lost)
