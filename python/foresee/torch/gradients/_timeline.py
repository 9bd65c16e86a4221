# SPDX-License-Identifier: Apache-2.0
"""The time of a step on one rank, tensor by tensor, as spans between events of the exchange and of updates.

Events are read from the exchange once a round and passed to the sinks, so that memory does not grow with the run.

========== ==================================================================================
track      spans
========== ==================================================================================
backward   from the previous gradient to this one
push       from the push of a gradient until its last packet is sent
sum        from then to the first packet of the average: network, servers, slower ranks
pull       from the first packet of the average to the last
wait       exposed communication: the forward pass waits for a tensor
step       updates of parameters
========== ==================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from foresee._native import TIMELINE_KINDS
from foresee.torch._exchange import TracedExchange
from foresee.torch.gradients._errors import list_names

__all__ = ["EVENTS_PER_ROUND", "Sink", "Span", "Timeline"]

#: Events that the exchange retains; a step of VGG-16 in packets of 37 KB has 30 000.
EVENTS_PER_ROUND = 1 << 18

Track = Literal["backward", "push", "sum", "pull", "wait", "step"]

_PUSHED, _SENT, _RECEIVED, _WAITING, _RESUMED = (
    TIMELINE_KINDS.index(kind) for kind in ("pushed", "sent", "landed", "waiting", "resumed")
)


@dataclass(frozen=True)
class Span:
    """One span; times are of the system's monotonic clock."""

    track: Track
    name: str
    """The tensor, or several that were stepped together."""
    tensor: int
    """Number of the tensor in the plan; 0 for a step."""
    round: int
    """Number of the round since the start, from 0; 0 for a step."""
    nbytes: int
    """Bytes of the tensor on the network, one way; 0 for a step."""
    began_ns: int
    ended_ns: int


class Sink(Protocol):
    """An output of spans."""

    def write(self, span: Span) -> None:
        """Write a span."""

    def flush(self) -> None:
        """Flush the output."""

    def close(self, left_out: int) -> None:
        """End the output, which lacks ``left_out`` events. A second call does nothing."""


@dataclass
class _TensorTimes:
    """Times of a tensor in a round, in nanoseconds; 0: unknown."""

    pushed: int = 0
    sent: int = 0
    first: int = 0
    last: int = 0


class Timeline:
    """Converts the events of one rank's exchange to spans, and writes them to the sinks."""

    def __init__(self, exchange: TracedExchange, sinks: Sequence[Sink]) -> None:
        self._exchange = exchange
        self._sinks = sinks
        self._tensors: list[tuple[str, int]] = []
        self._first_round = 0
        self._times: dict[tuple[int, int], _TensorTimes] = {}
        self._last_gradient = 0
        self._wait_start = 0
        self._left_out = 0

    def begin_plan(self, first_round: int) -> None:
        """Start a plan with the rank's ``first_round``; earlier events are dropped."""
        self._exchange.timeline()
        self._tensors = self._exchange.tensors()
        self._first_round = first_round
        self._times.clear()

    def record_update(self, names: Sequence[str], began_ns: int, ended_ns: int) -> None:
        """Write the span of an update of these parameters."""
        self._write(Span("step", list_names(names, 3), 0, 0, 0, began_ns, ended_ns))

    def end_round(self) -> None:
        """Write the spans of the round before the one that ended, of which everything was received."""
        latest = self._read_events()
        self._write_tensors(before=latest)

    def finish(self) -> None:
        """Write the remaining spans of the present plan."""
        self._read_events()
        self._write_tensors(before=None)
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        """Write the remaining spans and end the outputs. A second call does nothing."""
        self.finish()
        for sink in self._sinks:
            sink.close(self._left_out)

    def _read_events(self) -> int:
        """Read the events of the exchange; returns their latest round."""
        columns, left_out = self._exchange.timeline()
        self._left_out += left_out
        latest = 0
        rows = zip(*(columns[name].tolist() for name in ("at_ns", "kind", "round", "tensor")), strict=True)
        for at, kind, number, tensor in rows:
            latest = max(latest, number)
            if kind == _WAITING:
                self._wait_start = at
            elif kind == _RESUMED:
                self._write_span("wait", number, tensor, self._wait_start, at)
            else:
                self._record_event(kind, at, number, tensor)
        return latest

    def _record_event(self, kind: int, at: int, number: int, tensor: int) -> None:
        times = self._times.setdefault((number, tensor), _TensorTimes())
        if kind == _PUSHED:
            times.pushed = at
            # The first gradient of a pass has no predecessor.
            if self._last_gradient:
                self._write_span("backward", number, tensor, self._last_gradient, at)
            self._last_gradient = at
        elif kind == _SENT:
            times.sent = at
        elif kind == _RECEIVED:
            times.first = times.first or at
            times.last = at

    def _write_tensors(self, *, before: int | None) -> None:
        for number, tensor in [key for key in self._times if before is None or key[0] < before]:
            times = self._times.pop((number, tensor))
            self._write_span("push", number, tensor, times.pushed, times.sent)
            self._write_span("sum", number, tensor, times.sent, times.first)
            self._write_span("pull", number, tensor, times.first, times.last)
        self._last_gradient = 0

    def _write_span(self, track: Track, number: int, tensor: int, began: int, ended: int) -> None:
        if began and ended:
            name, nbytes = self._tensors[tensor] if tensor < len(self._tensors) else (f"#{tensor}", 0)
            self._write(Span(track, name, tensor, self._first_round + number, nbytes, began, ended))

    def _write(self, span: Span) -> None:
        for sink in self._sinks:
            sink.write(span)
