# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step goes on one rank, tensor by tensor, as spans between events of the exchange and updates.

Events are read from the exchange once a round and passed to the sinks, so that memory does not grow with the run.

========== ==================================================================================
track      spans
========== ==================================================================================
backward   from the gradient before to this one's
push       from a gradient's hand-over to its last packet's leaving
sum        from there to the first packet of the average: network, servers, slower ranks
pull       from the first packet of the average to the last
wait       communication that nothing hid: the forward pass stands still for a tensor
step       updates of parameters
========== ==================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from foresee._native import TIMELINE_KINDS
from foresee.torch._exchange import Traced

__all__ = ["EVENTS_PER_ROUND", "Sink", "Span", "Timeline"]

#: What the exchange keeps between two looks; a step of VGG-16 in packets of 37 KB has 30 000 events.
EVENTS_PER_ROUND = 1 << 18

Track = Literal["backward", "push", "sum", "pull", "wait", "step"]

_PUSHED, _SENT, _RECEIVED, _WAITING, _RESUMED = (
    TIMELINE_KINDS.index(kind) for kind in ("pushed", "sent", "landed", "waiting", "resumed")
)
_NAMES_SHOWN = 3


@dataclass(frozen=True)
class Span:
    """Times are of the system's monotonic clock."""

    track: Track
    name: str
    """Of the tensor, or of several that were stepped together."""
    tensor: int
    """Its number in the plan; of a step 0."""
    round: int
    """Since the rank began, from 0; of a step 0."""
    nbytes: int
    """What travels of the tensor, one way; of a step 0."""
    began_ns: int
    ended_ns: int


class Sink(Protocol):
    """Where spans go."""

    def put(self, span: Span) -> None:
        """Take one."""

    def flush(self) -> None:
        """Nothing may follow for a while."""

    def close(self, left_out: int) -> None:
        """Nothing follows; for so many events there was no room. A second call does nothing."""


@dataclass
class _Trip:
    """A tensor's way through a round, in nanoseconds; 0: not known."""

    pushed: int = 0
    sent: int = 0
    first: int = 0
    last: int = 0


class Timeline:
    """Spans of one rank, from what an exchange notes.

    Args:
        exchange: notes what packets do.
        sinks: where they go.
    """

    def __init__(self, exchange: Traced, sinks: Sequence[Sink]) -> None:
        self._exchange = exchange
        self._sinks = sinks
        self._tensors: list[tuple[str, int]] = []
        self._first_round = 0
        self._trips: dict[tuple[int, int], _Trip] = {}
        self._before = 0
        self._waiting = 0
        self._left_out = 0

    def begin_plan(self, first_round: int) -> None:
        """A plan was agreed on, whose first round is the rank's ``first_round``; what came before it is forgotten."""
        self._exchange.timeline()
        self._tensors = self._exchange.tensors()
        self._first_round = first_round
        self._trips.clear()

    def record_update(self, names: Sequence[str], began_ns: int, ended_ns: int) -> None:
        """These parameters were updated."""
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
        self._put(Span("step", shown, 0, 0, 0, began_ns, ended_ns))

    def end_round(self) -> None:
        """This rank ended a round, so everything of the one before was received: it is handed on."""
        latest = self._take()
        self._end_trips(before=latest)

    def finish(self) -> None:
        """Hand on what is left of the present plan."""
        self._take()
        self._end_trips(before=None)
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        """Hand on what is left, and that nothing follows. A second call does nothing."""
        self.finish()
        for sink in self._sinks:
            sink.close(self._left_out)

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
                self._span("wait", number, tensor, self._waiting, at)
            else:
                self._note(self._trips.setdefault((number, tensor), _Trip()), kind, at, (number, tensor))
        return latest

    def _note(self, trip: _Trip, kind: int, at: int, key: tuple[int, int]) -> None:
        if kind == _PUSHED:
            trip.pushed = at
            # The first gradient of a pass has nothing before it to measure from.
            if self._before:
                self._span("backward", *key, self._before, at)
            self._before = at
        elif kind == _SENT:
            trip.sent = at
        elif kind == _RECEIVED:
            trip.first = trip.first or at
            trip.last = at

    def _end_trips(self, *, before: int | None) -> None:
        done = [key for key in self._trips if before is None or key[0] < before]
        for number, tensor in done:
            trip = self._trips.pop((number, tensor))
            self._trip("push", number, tensor, trip.pushed, trip.sent)
            self._trip("sum", number, tensor, trip.sent, trip.first)
            self._trip("pull", number, tensor, trip.first, trip.last)
        self._before = 0

    def _trip(self, track: Track, number: int, tensor: int, began: int, ended: int) -> None:
        if began and ended:
            self._span(track, number, tensor, began, ended)

    def _span(self, track: Track, number: int, tensor: int, began: int, ended: int) -> None:
        name, nbytes = self._tensors[tensor] if tensor < len(self._tensors) else (f"#{tensor}", 0)
        self._put(Span(track, name, tensor, self._first_round + number, nbytes, began, ended))

    def _put(self, span: Span) -> None:
        for sink in self._sinks:
            sink.put(span)
