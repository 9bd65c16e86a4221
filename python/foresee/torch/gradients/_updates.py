# SPDX-License-Identifier: Apache-2.0
"""The receiving half of a round: averages are waited for, clipped, and used by the optimizers or left in ``p.grad``.

An average is in ``p.grad`` only while its optimizer steps, except where several optimizers, or none, use it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from foresee.torch.gradients import _errors
from foresee.torch.gradients._first_use import unwatched
from foresee.torch.gradients._optimizers import quiet
from foresee.torch.gradients._placeholder import is_placeholder

if TYPE_CHECKING:
    from foresee.torch._exchange import GradientExchange
    from foresee.torch.gradients._buffers import Buffers
    from foresee.torch.gradients._clip import Clip
    from foresee.torch.gradients._optimizers import Stepper
    from foresee.torch.gradients._plan import Entry, Plan
    from foresee.torch.gradients._round_state import RoundState
    from foresee.torch.gradients._timeline import Timeline
    from foresee.torch.gradients._transfer import Transfer
    from foresee.torch.gradients._uses import Uses

__all__ = ["Updates", "isolated"]


class Updates:
    """Of one model.

    Args:
        plan: its tensors.
        rounds: their state.
        exchange: receives the averages.
        transfer: from the exchange.
        buffers: received with the averages.
        clip: how averages are clipped.
        steppers: the optimizers.
        uses: say whether a parameter was edited.
        timeline: has to know of updates; None: there is none.
    """

    def __init__(
        self,
        plan: Plan,
        rounds: RoundState[Entry],
        exchange: GradientExchange,
        transfer: Transfer,
        buffers: Buffers,
        clip: Clip,
        steppers: Sequence[Stepper],
        uses: Uses,
        timeline: Timeline | None,
    ) -> None:
        self.exposed_s = 0.0
        """Seconds that this rank has waited for averages."""
        self.exposed_before_s = 0.0
        """The same, up to the end of the last round."""
        self._plan = plan
        self._rounds = rounds
        self._exchange = exchange
        self._transfer = transfer
        self._buffers = buffers
        self._clip = clip
        self._steppers = steppers
        # A later backward may add to the gradients that one of several optimizers steps on: averages stay in ``grad``.
        self._several = len(steppers) > 1
        self._uses = uses
        self._timeline = timeline

    def receive(self, entries: Sequence[Entry], *, at_once: bool = False, ahead: bool = False) -> None:
        """Wait for those of ``entries`` that are pending, and update them with the settings of their optimizers' step.

        Averages of parameters whose optimizer was not stepped are left in ``grad``.

        Args:
            entries: of the plan.
            at_once: the round ended just now, and the loop has not run since.
            ahead: update others that were received, too.
        """
        pending = self._rounds.select_pending(entries, all_at_once=self._clip.needs_all)
        if not pending:
            return
        self._wait(pending)
        if ahead:
            pending = self._add_received(pending)
        pending.sort(key=lambda entry: entry.spec.id)
        with isolated():
            self._update(pending, at_once=at_once)
        self._rounds.record_updated(pending)

    def end_round(self) -> None:
        """A round has ended: what is waited for from here on is its own."""
        self.exposed_before_s = self.exposed_s

    def _wait(self, entries: Sequence[Entry]) -> None:
        began = time.perf_counter()
        try:
            self._transfer.wait([entry.spec.id for entry in entries], self._rounds.check_open)
        finally:
            self.exposed_s += time.perf_counter() - began

    def _add_received(self, needed: list[Entry]) -> list[Entry]:
        """``needed``, and what is used later and was received too: one step for all takes less time than several.

        Where uses are checked each update has its own wait point: what is found does not depend on the network.
        """
        if len(needed) == self._rounds.pending or self._uses.are_checked:
            return needed
        chosen = {entry.spec.id for entry in needed}
        later = [entry for entry in self._plan.by_use if entry.armed and entry.spec.id not in chosen]
        return needed + later[: self._exchange.count_received([entry.spec.id for entry in later])]

    def _update(self, entries: Sequence[Entry], *, at_once: bool) -> None:
        used = []
        for entry in entries:
            if entry.is_buffer:
                self._buffers.receive(entry)
            elif self._exchange.used(entry.spec.id):
                used.append(entry)
            elif is_placeholder(entry.tensor.grad):
                entry.put(None)
        for entry in used:
            if entry.armed and (entry.is_edited or self._uses.watch.is_edited(entry)):
                raise _errors.modified(entry.name)
        before = [entry.tensor.grad for entry in used]
        averages = [self._transfer.average(entry.spec, entry.tensor.device) for entry in used]
        try:
            for entry, average in zip(used, averages, strict=True):
                entry.tensor.grad = average
            self._clip.apply(used)
            self._rounds.record_received(entries)
            for stepper in self._steppers:
                self._step(stepper, [one for one in used if one.armed and one.is_owned_by(stepper.number)])
        finally:
            for entry, gradient in zip(used, before, strict=True):
                entry.tensor.grad = gradient
        for entry, average in zip(used, averages, strict=True):
            if self._several or not entry.armed:
                entry.receive(average, at_once=at_once)

    def _step(self, stepper: Stepper, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        began = time.monotonic_ns()
        stepper.step_some({id(entry.tensor) for entry in entries})
        if self._timeline is not None:
            self._timeline.record_update([entry.name for entry in entries], began, time.monotonic_ns())


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Run as a stock step would, and be seen by no profile."""
    with unwatched(), quiet():
        yield
