# SPDX-License-Identifier: Apache-2.0
"""The pushing half of a round: gradients as backward computes them, and what is left of the round at its end.

``p.grad`` holds a placeholder from the push on, since a gradient that was pushed must not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foresee.torch.gradients import _errors
from foresee.torch.gradients._placeholder import is_placeholder

if TYPE_CHECKING:
    import torch

    from foresee.torch.gradients._agreement import SettingsCheck
    from foresee.torch.gradients._buffers import Buffers
    from foresee.torch.gradients._plan import Entry, Plan
    from foresee.torch.gradients._round_state import RoundState
    from foresee.torch.gradients._timeline import Timeline
    from foresee.torch.gradients._transfer import Transfer

__all__ = ["Pushes"]


class Pushes:
    """Of one model.

    Args:
        plan: its tensors.
        rounds: their state.
        transfer: to the exchange.
        buffers: pushed at the end of a round.
        check: likewise.
        timeline: has to know of the end of a round; None: there is none.
    """

    def __init__(
        self,
        plan: Plan,
        rounds: RoundState[Entry],
        transfer: Transfer,
        buffers: Buffers,
        check: SettingsCheck,
        timeline: Timeline | None,
    ) -> None:
        self._plan = plan
        self._rounds = rounds
        self._transfer = transfer
        self._buffers = buffers
        self._check = check
        self._timeline = timeline

    def push(self, entry: Entry, gradient: torch.Tensor) -> None:
        """Push the gradient of ``entry``, and put the placeholder in its place. Never blocks."""
        sent = entry.as_planned(gradient)
        self._rounds.record_push(entry)
        self._transfer.push(entry.spec, sent)
        entry.tensor.grad = entry.placeholder

    def end_round(self, stepped: int | None) -> None:
        """Push what no hook pushed, and end the round. ``stepped``: the optimizer whose step ends it, if one's does."""
        self._buffers.choose_sender()
        for entry in self._rounds.unpushed():
            if entry.is_buffer:
                self._buffers.push(entry)
            elif not self._push_late(entry):
                has_gradient = entry.tensor.grad is not None
                self._rounds.record_absent(entry, stepped, has_gradient=has_gradient)
        self._check.push()
        self._transfer.end_round()
        self._rounds.end_round(stepped)
        for entry in self._plan.entries:
            entry.record_version()
        if self._timeline is not None:
            self._timeline.end_round()

    def _push_late(self, entry: Entry) -> bool:
        """Push a gradient that no hook pushed: of ``no_sync()`` alone, just unfrozen, or set by hand."""
        gradient = entry.tensor.grad
        # After a backward that did not reach it, its average of an earlier one is still right and needs no exchange.
        if gradient is None or entry.is_untouched(gradient):
            return False
        if is_placeholder(gradient):
            raise _errors.in_flight(entry.name)
        self.push(entry, gradient)
        return True
