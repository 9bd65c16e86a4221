# SPDX-License-Identifier: Apache-2.0
"""One rank's spans as a Chrome trace, for Perfetto and similar viewers.

Pushes, sums and pulls have a line per tensor in flight; the other tracks have one line each. A file that can no longer
be written ends with a warning and does not stop the training run.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from foresee.torch.gradients._timeline import Span

__all__ = ["ChromeFile", "file_of"]

_log = logging.getLogger("foresee")
#: Tracks with one line each, by its number; of the others each tensor has one.
_LINES = {"backward": 1, "wait": 2, "step": 3}


def file_of(path: str, rank: int) -> Path:
    """The file of a rank: ``step.json`` is ``step.rank3.json`` for rank 3."""
    whole = Path(path)
    return whole.with_name(f"{whole.stem}.rank{rank}{whole.suffix or '.json'}")


class ChromeFile:
    """The file, open until it is closed.

    Args:
        path: of the file; overwritten.
        rank: whose spans these are.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._rank = rank
        #: None: it was closed, or could be written no longer.
        self._file: IO[str] | None = path.open("w", encoding="utf-8")
        # An array that is not closed is allowed: what a run that died has written can be looked at.
        self._write("[\n")
        self._events([{"ph": "M", "name": "process_name", "args": {"name": f"rank {rank}"}}])
        self._events(
            {"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": track}}
            for track, tid in _LINES.items()
        )

    def put(self, span: Span) -> None:
        """Write one."""
        began, ended = span.began_ns / 1e3, span.ended_ns / 1e3
        tid = _LINES.get(span.track)
        if tid is not None:
            self._events([{"ph": "X", "tid": tid, "name": span.name, "ts": began, "dur": ended - began}])
            return
        common = {
            "cat": span.track,
            "name": f"{span.name}, round {span.round}",
            "id": f"{span.track}-{span.round}-{span.tensor}",
        }
        self._events([{**common, "ph": "b", "ts": began}, {**common, "ph": "e", "ts": ended}])

    def flush(self) -> None:
        """Nothing may follow for a while."""
        self._write("", flush=True)

    def close(self, left_out: int) -> None:
        """Write that nothing follows."""
        if self._file is None:
            return
        event = self._event({"ph": "M", "name": "left_out", "args": {"events": left_out}})
        self._write(json.dumps(event) + "\n]\n", flush=True)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        return {"pid": self._rank, "tid": 0, **event}

    def _events(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            self._write(json.dumps(self._event(event)) + ",\n")

    def _write(self, text: str, *, flush: bool = False) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
            if flush:
                self._file.flush()
        except OSError as why:
            _log.warning("the timeline %s ends here: %s", self._file.name, why.strerror)
            # Closing tries once more to write what is left.
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
