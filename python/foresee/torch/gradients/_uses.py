# SPDX-License-Identifier: Apache-2.0
"""Where a model uses its tensors: profiled in some steps, turned into wait points, and checked in single steps.

The profile covers the first step, and any later step in which a tensor got a gradient without a known use. The watch
finds uses and edits in other steps that no wait point covers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foresee.torch.gradients import _errors
from foresee.torch.gradients._use_profile import UseProfile
from foresee.torch.gradients._wait_points import WaitPoints
from foresee.torch.gradients._watch import UseWatch

if TYPE_CHECKING:
    import torch

    from foresee.torch.gradients._plan import Entry, Plan
    from foresee.torch.gradients._synchronizer import Synchronizer

__all__ = ["Uses"]


class Uses:
    """The uses of one model's tensors.

    Args:
        synchronizer: to which wait points report.
        model: whose modules run.
        plan: of its tensors.
        debug: check every use of every tensor.
    """

    def __init__(
        self, synchronizer: Synchronizer, model: torch.nn.Module, plan: Plan, *, debug: bool
    ) -> None:
        self.points = WaitPoints(synchronizer, model)
        self.watch = UseWatch(model, plan.entries, self._check_use)
        self._model = model
        self._plan = plan
        self._profile = UseProfile(model, plan.entries)
        self._check = UseProfile(model, plan.entries, self._check_use) if debug else None
        self._all: list[UseProfile] = [self._profile, self.watch, *([self._check] if self._check else [])]

    def start(self) -> None:
        """Profile the next step."""
        self._profile.start()
        if self._check is not None:
            self._check.start()

    def extend(self) -> None:
        """Add the plan's new tensors, and profile the next step."""
        for one in self._all:
            one.set_entries(self._plan.entries)
        if not self._profile.is_running:
            self._profile.start()

    def stop(self) -> None:
        """Restore the model and torch. May be called twice."""
        for one in self._all:
            one.stop()
        self.points.remove()

    def end_step(self, round_: int) -> bool:
        """Place wait points by the uses in the step that ended ``round_``, or profile the next step.

        Returns whether the classes of the plan were set, which happens after the first profile.
        """
        if self._profile.is_running:
            is_first = not self.points.is_placed
            self._profile.stop()
            self.points.place(self._plan, self._profile, round_)
            if is_first:
                self._plan.set_classes(self._profile, self._model)
            return is_first
        if self.watch.merge_into(self._profile.modules):
            self.points.place(self._plan, self._profile, round_)
        elif self.points.has_new_uses:
            self._profile.start()
        return False

    def begin_step(self, step: int) -> None:
        """Watch the step after the ``step``-th (from 1), if it is one of those that are watched."""
        if self._check is None:
            gradients = self._plan.gradients
            self.watch.end_step(step, [entry for entry in gradients if entry.has_deferred_update])

    @property
    def is_checking(self) -> bool:
        """Whether the uses of this step are checked: then each update has to wait for its own wait point."""
        return self.watch.is_running or self._check is not None

    def _check_use(self, entry: Entry, module: torch.nn.Module | None) -> None:
        """Refuse a use, by ``module``, of a parameter whose update is pending."""
        if entry.has_deferred_update:
            names = {one: name for name, one in self._model.named_modules()}
            inside = None if module is None else f"in {names.get(module) or 'the model itself'}"
            raise _errors.checked_use(entry.name, inside or "outside of all modules")
