# SPDX-License-Identifier: Apache-2.0
"""The receiving half of a round: waits for averages, clips them, and steps the optimizers or leaves them in ``p.grad``.

An average is in ``p.grad`` only while its optimizer steps, unless several optimizers or none use it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

from foresee.torch.gradients import _errors
from foresee.torch.gradients._placeholder import is_placeholder
from foresee.torch.gradients._plan import DEVICES
from foresee.torch.gradients._use_profile import pause_profiles

if TYPE_CHECKING:
    from foresee.torch._exchange import GradientExchange
    from foresee.torch.gradients._buffers import Buffers
    from foresee.torch.gradients._clip import Clip
    from foresee.torch.gradients._plan import Entry, Plan
    from foresee.torch.gradients._round_state import RoundState
    from foresee.torch.gradients._steps import Stepper
    from foresee.torch.gradients._timeline import Timeline
    from foresee.torch.gradients._transfer import Transfer
    from foresee.torch.gradients._uses import Uses

__all__ = ["Updates", "isolated"]


@dataclass(eq=False)
class Updates:
    """Receives the averages of one model."""

    plan: Plan
    rounds: RoundState[Entry]
    exchange: GradientExchange
    transfer: Transfer
    buffers: Buffers
    clip: Clip
    steppers: Sequence[Stepper]
    uses: Uses
    timeline: Timeline | None
    exposed_s: float = 0.0
    """Seconds that this rank has waited for averages."""
    exposed_before_s: float = 0.0
    """``exposed_s`` at the end of the last round."""

    def receive(self, entries: Sequence[Entry], *, at_once: bool = False, ahead: bool = False) -> None:
        """Wait for the pending ``entries``, and update them with the settings of their optimizers' step.

        Averages of parameters whose optimizer was not stepped are left in ``grad``.

        Args:
            entries: of the plan.
            at_once: the round just ended, and the loop has not run since.
            ahead: also update other tensors that were received.
        """
        pending = self.rounds.select_pending(entries, all_at_once=self.clip.needs_all)
        if not pending:
            return
        self._wait(pending)
        if ahead:
            pending = self._add_received(pending)
        pending.sort(key=lambda entry: entry.spec.id)
        with isolated():
            self._update(pending, at_once=at_once)
        self.rounds.record_updated(pending)

    def _wait(self, entries: Sequence[Entry]) -> None:
        began = time.perf_counter()
        try:
            self.transfer.wait([entry.spec.id for entry in entries], self.rounds.check_open)
        finally:
            self.exposed_s += time.perf_counter() - began

    def _add_received(self, needed: list[Entry]) -> list[Entry]:
        """Add received tensors with a later use to ``needed``: one step for all is faster than several.

        Where uses are checked, each update has its own wait point, so that the result does not depend on the network.
        """
        if len(needed) == self.rounds.pending_count or self.uses.is_checking:
            return needed
        chosen = {entry.spec.id for entry in needed}
        later = [
            entry for entry in self.plan.by_use if entry.has_deferred_update and entry.spec.id not in chosen
        ]
        return needed + later[: self.exchange.count_received([entry.spec.id for entry in later])]

    def _update(self, entries: Sequence[Entry], *, at_once: bool) -> None:
        used = []
        for entry in entries:
            if entry.is_buffer:
                self.buffers.receive(entry)
            elif self.exchange.used(entry.spec.id):
                used.append(entry)
            elif is_placeholder(entry.tensor.grad):
                entry.set_average(None)
        for entry in used:
            if entry.has_deferred_update and (entry.is_edited or self.uses.watch.is_edited(entry)):
                raise _errors.modified(entry.name)
        before = [entry.tensor.grad for entry in used]
        averages = [self.transfer.average(entry.spec, entry.tensor.device) for entry in used]
        try:
            for entry, average in zip(used, averages, strict=True):
                entry.tensor.grad = average
            self.clip.apply(used)
            self.rounds.record_received(entries)
            for stepper in self.steppers:
                self._step(
                    stepper,
                    [one for one in used if one.has_deferred_update and one.is_owned_by(stepper.number)],
                )
        finally:
            for entry, gradient in zip(used, before, strict=True):
                entry.tensor.grad = gradient
        for entry, average in zip(used, averages, strict=True):
            # With several optimizers a later backward may add to the gradients that one of them steps on.
            if len(self.steppers) > 1 or not entry.has_deferred_update:
                entry.receive(average, at_once=at_once)

    def _step(self, stepper: Stepper, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        began = time.monotonic_ns()
        stepper.step_subset({id(entry.tensor) for entry in entries})
        if self.timeline is not None:
            self.timeline.record_update([entry.name for entry in entries], began, time.monotonic_ns())


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Run as a stock step would, also within a forward pass, and note no uses.

    State created in inference mode could never be updated, autocast would round inside of Muon, and a dispatch mode
    such as that of selective checkpointing would expect the step again when it recomputes.
    """
    with pause_profiles(), contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for kind in filter(torch.is_autocast_enabled, DEVICES):
            stack.enter_context(torch.autocast(kind, enabled=False))
        if torch._C._len_torch_dispatch_stack():  # noqa: SLF001
            stack.enter_context(_disable_current_modes())
        yield
