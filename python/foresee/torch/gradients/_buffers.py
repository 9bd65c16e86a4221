# SPDX-License-Identifier: Apache-2.0
"""The buffers of a synchronized model, which the first rank that is left sends to all others after every step.

Separate from the rounds because buffers have an owner among the ranks and no optimizer. A buffer that did not change
does not travel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foresee.torch.gradients import _errors
from foresee.torch.gradients._plan import form

if TYPE_CHECKING:
    from foresee.torch._exchange import Exchange
    from foresee.torch.gradients._courier import Courier
    from foresee.torch.gradients._plan import Entry

__all__ = ["Buffers"]


class Buffers:
    """Who sends them, and what each rank does with what it receives."""

    def __init__(self, exchange: Exchange, courier: Courier) -> None:
        self._exchange = exchange
        self._courier = courier
        self._sender = 0
        """In the last round that ended."""

    def adopt(self, entry: Entry) -> None:
        """All ranks have the values that ``entry`` has now."""
        self._courier.remember(entry.spec, entry.tensor)
        if self._exchange.rank != self._sender:
            self._courier.keep(entry.spec, entry.tensor)

    def choose_sender(self) -> None:
        """The first rank that is left sends; a new one does not know what the last one's ranks have."""
        first = self._exchange.first
        if first != self._sender:
            self._sender = first
            self._courier.forget()

    def push(self, entry: Entry, round_: int) -> bool:
        """The first rank sends a buffer that changed since it was last sent; constants never travel."""
        if not entry.refresh():
            raise _errors.buffer_form(entry.name, form(entry.spec.dtype, entry.spec.shape))
        # The version counter would not tell: batch_norm writes its statistics without a trace.
        if self._exchange.rank != self._sender:
            return False
        # The next forward pass writes to the buffer while a copy travels.
        if not self._courier.push_changed(entry.spec, entry.tensor):
            return False
        entry.pushed = round_
        return True

    def take(self, entry: Entry) -> None:
        """Copy what was received; not if its sender was lost and may have sent a part only: the next one sends.

        A buffer that was not sent is as it was received before, whatever this rank's forward pass made of it: where the
        sender did not come by, as in a branch, others may have. What was written to it since the round's end stays.
        """
        if self._exchange.rank == self._sender or self._exchange.first != self._sender:
            return
        if not entry.refresh():
            return
        if self._exchange.used(entry.spec.id):
            entry.tensor.copy_(self._courier.average(entry.spec, entry.tensor.device))
            self._courier.keep(entry.spec, entry.tensor)
        elif not entry.pending or entry.tensor._version == entry.version:  # noqa: SLF001
            self._courier.restore(entry.spec, entry.tensor)
