# SPDX-License-Identifier: Apache-2.0
"""One rank's timeline as a Chrome trace, for Perfetto and its like: where the time of a step goes, tensor by tensor.

Apart from the rounds, which only say what they did and when: here it becomes spans of a file. What the exchange
noted is taken over once a round and written, so that memory does not grow with the run. Refuses to interpret: a span is
from one thing that happened to another. Refuses to stop a training run: a file that can be written no longer ends with
a warning.

========== ==================================================================================
track      spans
========== ==================================================================================
backward   from the gradient before to this one's
push       from a gradient's hand-over to its last packet's leaving; one line per tensor in flight
sum        from there to the first packet of the average: network, servers, slower ranks
pull       from the first packet of the average to the last
wait       communication that nothing hid: the forward pass stands still for a tensor
step       updates of parameters
========== ==================================================================================
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from foresee._native import TIMELINE_KINDS
from foresee.torch._exchange import Traced

__all__ = ["EVENTS_PER_ROUND", "TimelineFile", "file_of"]

#: What the exchange keeps between two looks; a step of VGG-16 in packets of 37 KB has 30 000 events.
EVENTS_PER_ROUND = 1 << 18

_PUSHED, _SENT, _LANDED, _WAITING, _RESUMED = (
    TIMELINE_KINDS.index(kind) for kind in ("pushed", "sent", "landed", "waiting", "resumed")
)
_log = logging.getLogger("foresee")
_BACKWARD, _WAIT, _STEP = 1, 2, 3
_TRACKS = {_BACKWARD: "backward", _WAIT: "wait", _STEP: "step"}
_NAMES_SHOWN = 3


def file_of(path: str, rank: int) -> Path:
    """The file of a rank: ``step.json`` is ``step.rank3.json`` for rank 3."""
    whole = Path(path)
    return whole.with_name(f"{whole.stem}.rank{rank}{whole.suffix or '.json'}")


@dataclass
class _Trip:
    """A tensor's way through a round, in nanoseconds; 0: not known."""

    pushed: int = 0
    sent: int = 0
    first: int = 0
    last: int = 0


class TimelineFile:
    """The file, open until it is closed.

    Args:
        path: of the file; overwritten.
        rank: whose events these are.
        exchange: notes what packets do.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, rank: int, exchange: Traced) -> None:
        self._rank = rank
        self._exchange = exchange
        #: None: it was closed, or could be written no longer.
        self._file: IO[str] | None = path.open("w", encoding="utf-8")
        # An array that is not closed is allowed: what a run that died has written can be looked at.
        self._put("[\n")
        self._names: list[str] = []
        self._first_round = 0
        self._trips: dict[tuple[int, int], _Trip] = {}
        self._before = 0
        self._waiting = 0
        self._left_out = 0
        self._write([{"ph": "M", "name": "process_name", "args": {"name": f"rank {rank}"}}])
        self._write(
            {"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": name}}
            for tid, name in _TRACKS.items()
        )

    def planned(self, first_round: int) -> None:
        """A plan was agreed on, whose first round is the rank's ``first_round``; what came before it is forgotten."""
        self._exchange.timeline()
        self._names = self._exchange.tensor_names()
        self._first_round = first_round
        self._trips.clear()

    def stepped(self, names: Sequence[str], began_ns: int, ended_ns: int) -> None:
        """These parameters were updated."""
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
        self._span(_STEP, shown, began_ns, ended_ns)

    def round_ended(self) -> None:
        """This rank ended a round, so everything of the one before has landed: it is written."""
        latest = self._take()
        self._write_trips(before=latest)

    def finish(self) -> None:
        """Write what is left of the present plan."""
        self._take()
        self._write_trips(before=None)
        self._put("", flush=True)

    def close(self) -> None:
        """Write what is left, and that nothing follows. A second call does nothing."""
        if self._file is None:
            return
        self.finish()
        left_out = self._event({"ph": "M", "name": "left_out", "args": {"events": self._left_out}})
        self._put(json.dumps(left_out) + "\n]\n", flush=True)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take(self) -> int:
        """Take over what the exchange noted; the latest round of it."""
        columns, left_out = self._exchange.timeline()
        self._left_out += left_out
        latest = 0
        rows = zip(*(columns[name].tolist() for name in ("at_ns", "kind", "round", "tensor")), strict=True)
        for at, kind, number, tensor in rows:
            latest = max(latest, number)
            if kind == _WAITING:
                self._waiting = at
            elif kind == _RESUMED:
                self._span(_WAIT, self._name(tensor), self._waiting, at)
            else:
                self._note(self._trips.setdefault((number, tensor), _Trip()), kind, at, tensor)
        return latest

    def _note(self, trip: _Trip, kind: int, at: int, tensor: int) -> None:
        if kind == _PUSHED:
            trip.pushed = at
            # The first gradient of a pass has nothing before it to measure from.
            if self._before:
                self._span(_BACKWARD, self._name(tensor), self._before, at)
            self._before = at
        elif kind == _SENT:
            trip.sent = at
        elif kind == _LANDED:
            trip.first = trip.first or at
            trip.last = at

    def _write_trips(self, *, before: int | None) -> None:
        done = [key for key in self._trips if before is None or key[0] < before]
        for number, tensor in done:
            trip = self._trips.pop((number, tensor))
            name = f"{self._name(tensor)}, round {self._first_round + number}"
            for track, began, ended in (
                ("push", trip.pushed, trip.sent),
                ("sum", trip.sent, trip.first),
                ("pull", trip.first, trip.last),
            ):
                if began and ended:
                    common = {"cat": track, "name": name, "id": f"{track}-{number}-{tensor}"}
                    self._write(
                        [{**common, "ph": "b", "ts": began / 1e3}, {**common, "ph": "e", "ts": ended / 1e3}]
                    )
        self._before = 0

    def _name(self, tensor: int) -> str:
        return self._names[tensor] if tensor < len(self._names) else f"#{tensor}"

    def _span(self, track: int, name: str, began_ns: int, ended_ns: int) -> None:
        took = (ended_ns - began_ns) / 1e3
        self._write([{"ph": "X", "tid": track, "name": name, "ts": began_ns / 1e3, "dur": took}])

    def _event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        return {"pid": self._rank, "tid": 0, **event}

    def _write(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            self._put(json.dumps(self._event(event)) + ",\n")

    def _put(self, text: str, *, flush: bool = False) -> None:
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
