# SPDX-License-Identifier: Apache-2.0
"""Output of one rank's spans as a Chrome trace, for Perfetto and similar viewers.

Pushes, sums and pulls have a line per tensor in flight; the other tracks have one line each. A file that can no longer
be written ends with a warning and does not stop the training run.
"""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import IO, Any

from foresee.torch.gradients._timeline import Span

__all__ = ["ChromeFile", "rank_path"]

_log = logging.getLogger("foresee")
#: Line numbers of the tracks with one line each.
_TRACK_LINES = {"backward": 1, "wait": 2, "step": 3}


def rank_path(path: str, rank: int) -> Path:
    """Return the path of a rank's file: ``step.rank3.json`` for ``step.json`` and rank 3."""
    base = Path(path)
    return base.with_name(f"{base.stem}.rank{rank}{base.suffix or '.json'}")


class ChromeFile:
    """A trace file, which is overwritten.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._rank = rank
        #: None after ``close`` or a failed write.
        self._file: IO[str] | None = path.open("w", encoding="utf-8")
        # Viewers accept an array without its end, as of a run that was killed.
        self._write("[\n")
        self._write_event(ph="M", name="process_name", args={"name": f"rank {rank}"})
        for track, tid in _TRACK_LINES.items():
            self._write_event(ph="M", name="thread_name", tid=tid, args={"name": track})

    def write(self, span: Span) -> None:
        """Write a span."""
        began, ended = span.began_ns / 1e3, span.ended_ns / 1e3
        tid = _TRACK_LINES.get(span.track)
        if tid is not None:
            self._write_event(ph="X", tid=tid, name=span.name, ts=began, dur=ended - began)
            return
        common = {
            "cat": span.track,
            "name": f"{span.name}, round {span.round}",
            "id": f"{span.track}-{span.round}-{span.tensor}",
        }
        self._write_event(**common, ph="b", ts=began)
        self._write_event(**common, ph="e", ts=ended)

    def flush(self) -> None:
        """Flush the file."""
        self._write("", flush=True)

    def close(self, left_out: int) -> None:
        """Write the number of dropped events and the end of the array."""
        if self._file is None:
            return
        self._write_event("\n]\n", ph="M", name="left_out", args={"events": left_out})
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_event(self, end: str = ",\n", /, **event: Any) -> None:
        self._write(json.dumps({"pid": self._rank, "tid": 0, **event}) + end)

    def _write(self, text: str, *, flush: bool = False) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
            if flush:
                self._file.flush()
        except OSError as error:
            _log.warning("the timeline %s ends here: %s", self._file.name, error.strerror)
            # ``close`` retries the failed write.
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
