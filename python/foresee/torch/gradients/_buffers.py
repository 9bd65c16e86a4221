# SPDX-License-Identifier: Apache-2.0
"""The buffers of a synchronized model, which the first rank that is left sends to all others after every step.

A buffer has one sender and no optimizer. An unchanged buffer is not sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foresee.torch.gradients import _errors
from foresee.torch.gradients._plan import describe_form

if TYPE_CHECKING:
    from foresee.torch._exchange import GradientExchange
    from foresee.torch.gradients._plan import Entry
    from foresee.torch.gradients._transfer import Transfer

__all__ = ["Buffers"]


@dataclass(eq=False)
class Buffers:
    """Pushes and receives the buffers of one rank."""

    exchange: GradientExchange
    transfer: Transfer
    sender: int = 0
    """The rank that sends, as of the last round that ended."""

    def adopt(self, entry: Entry) -> None:
        """Note that all ranks have the values that ``entry`` has now."""
        self.transfer.record_shared(entry.spec, entry.tensor)
        if self.exchange.rank != self.sender:
            self.transfer.record_received(entry.spec, entry.tensor)

    def choose_sender(self) -> None:
        """Make the first rank that is left the sender; a new one does not know what the other ranks have."""
        first = self.exchange.first
        if first != self.sender:
            self.sender = first
            self.transfer.forget_shared()

    def push(self, entry: Entry) -> None:
        """Push a buffer that changed since its last push, if this rank is the sender."""
        if not entry.refresh():
            raise _errors.buffer_form(entry.name, describe_form(entry.spec.dtype, entry.spec.shape))
        # Compared by content: batch_norm writes its statistics without raising the version counter. Pushed as a copy:
        # the next forward pass writes to the buffer while it is sent.
        if self.exchange.rank == self.sender:
            self.transfer.push_changed(entry.spec, entry.tensor)

    def receive(self, entry: Entry) -> None:
        """Copy the received values, unless the sender was lost and may have sent only some buffers.

        A buffer that was not sent returns to its last received values: the sender's forward pass may have skipped a
        branch that this rank's took. A write after the end of the round stays.
        """
        if self.exchange.rank == self.sender or self.exchange.first != self.sender:
            return
        if not entry.refresh():
            return
        if self.exchange.used(entry.spec.id):
            entry.tensor.copy_(self.transfer.average(entry.spec, entry.tensor.device))
            self.transfer.record_received(entry.spec, entry.tensor)
        elif not entry.is_pending or entry.tensor._version == entry.version:  # noqa: SLF001
            self.transfer.restore(entry.spec, entry.tensor)
