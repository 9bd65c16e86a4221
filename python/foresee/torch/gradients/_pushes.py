# SPDX-License-Identifier: Apache-2.0
"""The pushing half of a round: gradients as backward computes them, and the rest at the end of the round.

``p.grad`` holds a placeholder after the push, since a pushed gradient must not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foresee.torch.gradients import _errors
from foresee.torch.gradients._placeholder import is_placeholder

if TYPE_CHECKING:
    import torch

    from foresee.torch.gradients._agreement import SettingsCheck
    from foresee.torch.gradients._buffers import Buffers
    from foresee.torch.gradients._plan import Entry
    from foresee.torch.gradients._round_state import RoundState
    from foresee.torch.gradients._timeline import Timeline
    from foresee.torch.gradients._transfer import Transfer

__all__ = ["Pushes"]


@dataclass(eq=False)
class Pushes:
    """Pushes the tensors of one model."""

    rounds: RoundState[Entry]
    transfer: Transfer
    buffers: Buffers
    check: SettingsCheck
    timeline: Timeline | None

    def push(self, entry: Entry, gradient: torch.Tensor) -> None:
        """Push the gradient of ``entry``, and replace it by the placeholder. Never blocks."""
        sent = entry.to_planned(gradient)
        self.rounds.record_push(entry)
        self.transfer.push(entry.spec, sent)
        entry.tensor.grad = entry.placeholder

    def end_round(self, stepped: int | None) -> None:
        """Push what no hook pushed, and end the round. ``stepped``: the optimizer whose step ends it, if one's does."""
        self.buffers.choose_sender()
        for entry in self.rounds.find_unpushed():
            if entry.is_buffer:
                self.buffers.push(entry)
            elif not self._push_late(entry):
                has_gradient = entry.tensor.grad is not None
                self.rounds.record_absent(entry, stepped, has_gradient=has_gradient)
        self.check.push()
        self.transfer.end_round()
        self.rounds.end_round(stepped)
        for entry in self.rounds.tensors:
            entry.record_version()
        if self.timeline is not None:
            self.timeline.end_round()

    def _push_late(self, entry: Entry) -> bool:
        """Push a gradient that no hook pushed: of ``no_sync()`` alone, just unfrozen, or set by hand."""
        gradient = entry.tensor.grad
        # After a backward that did not reach it, the average of an earlier one is still right.
        if gradient is None or entry.is_untouched(gradient):
            return False
        if is_placeholder(gradient):
            raise _errors.in_flight(entry.name)
        self.push(entry, gradient)
        return True
