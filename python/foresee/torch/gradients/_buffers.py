# SPDX-License-Identifier: Apache-2.0
"""The buffers of a synchronized model, which the first rank that is left sends to all others after every step.

Buffers have a sender among the ranks and no optimizer. A buffer that did not change is not sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foresee.torch.gradients import _errors
from foresee.torch.gradients._plan import form

if TYPE_CHECKING:
    from foresee.torch._exchange import GradientExchange
    from foresee.torch.gradients._plan import Entry
    from foresee.torch.gradients._transfer import Transfer

__all__ = ["Buffers"]


class Buffers:
    """Their sender, and what each rank does with what it receives."""

    def __init__(self, exchange: GradientExchange, transfer: Transfer) -> None:
        self._exchange = exchange
        self._transfer = transfer
        self._sender = 0
        """In the last round that ended."""

    def adopt(self, entry: Entry) -> None:
        """All ranks have the values that ``entry`` has now."""
        self._transfer.record_shared(entry.spec, entry.tensor)
        if self._exchange.rank != self._sender:
            self._transfer.record_received(entry.spec, entry.tensor)

    def choose_sender(self) -> None:
        """The first rank that is left sends; a new one does not know what the last one's ranks have."""
        first = self._exchange.first
        if first != self._sender:
            self._sender = first
            self._transfer.forget_shared()

    def push(self, entry: Entry) -> None:
        """On the first rank, push a buffer that changed since it was last pushed; constants are never sent."""
        if not entry.refresh():
            raise _errors.buffer_form(entry.name, form(entry.spec.dtype, entry.spec.shape))
        # By content: batch_norm writes its statistics without raising the version counter. And a copy: the next forward
        # pass writes to the buffer while it is sent.
        if self._exchange.rank == self._sender:
            self._transfer.push_changed(entry.spec, entry.tensor)

    def receive(self, entry: Entry) -> None:
        """Copy what was received, unless its sender was lost and may have sent a part only: the next one sends.

        A buffer that was not sent is as it was received before, whatever this rank's forward pass made of it: where the
        sender did not come by, as in a branch, others may have. What was written to it since the round's end stays.
        """
        if self._exchange.rank == self._sender or self._exchange.first != self._sender:
            return
        if not entry.refresh():
            return
        if self._exchange.used(entry.spec.id):
            entry.tensor.copy_(self._transfer.average(entry.spec, entry.tensor.device))
            self._transfer.record_received(entry.spec, entry.tensor)
        elif not entry.pending or entry.tensor._version == entry.version:  # noqa: SLF001
            self._transfer.restore(entry.spec, entry.tensor)
