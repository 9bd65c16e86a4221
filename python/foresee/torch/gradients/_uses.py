# SPDX-License-Identifier: Apache-2.0
"""Where a model uses its tensors: profiled in some steps, turned into wait points, and watched for early uses.

The first step is profiled, and any later one in which a tensor got a gradient that was never seen in use. Between
those, ``watch`` looks at single steps for uses and edits that no wait point covers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foresee.torch.gradients import _errors
from foresee.torch.gradients._first_use import FirstUse
from foresee.torch.gradients._wait_points import WaitPoints
from foresee.torch.gradients._watch import Watch

if TYPE_CHECKING:
    import torch

    from foresee.torch.gradients._plan import Entry, Plan
    from foresee.torch.gradients._synchronizer import Synchronizer

__all__ = ["Uses"]


class Uses:
    """Of one model.

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
        self.watch = Watch(model, plan.entries, self._check_use)
        self._model = model
        self._plan = plan
        self._profile = FirstUse(model, plan.entries)
        self._check = FirstUse(model, plan.entries, self._check_use) if debug else None

    def start(self) -> None:
        """Profile the step that begins."""
        self._profile.start()
        if self._check is not None:
            self._check.start()

    def extend(self) -> None:
        """The plan has new tensors: profile the step that begins."""
        self._profile.watch(self._plan.entries)
        if self._check is not None:
            self._check.watch(self._plan.entries)
        self.watch.watch(self._plan.entries)
        if not self._profile.running:
            self._profile.start()

    def stop(self) -> None:
        """Leave the model and torch as they were. May be called twice."""
        for profile in filter(None, (self._profile, self._check)):
            profile.stop()
        self.watch.stop()
        self.points.remove()

    def end_step(self, round_: int) -> bool:
        """Place wait points by what the step that ended ``round_`` was seen to use, or profile the next one.

        Returns whether the classes of the plan were set, which happens after the first profile.
        """
        if self._profile.running:
            is_first = not self.points.placed
            self._profile.stop()
            self.points.place(self._plan, self._profile, round_)
            if is_first:
                self._plan.order(self._profile, self._model)
            return is_first
        if self.watch.merge_into(self._profile.modules):
            self.points.place(self._plan, self._profile, round_)
        elif self.points.has_new_uses:
            self._profile.start()
        return False

    def begin_step(self, step: int) -> None:
        """The ``step``-th step is over, from 1: watch the next one if it is one of those."""
        if self._check is None:
            self.watch.end_step(step, [entry for entry in self._plan.gradients if entry.armed])

    @property
    def are_checked(self) -> bool:
        """Whether the uses of this step are checked: then each update has to wait for its own wait point."""
        return self.watch.running or self._check is not None

    def _check_use(self, entry: Entry, module: torch.nn.Module | None) -> None:
        """Refuse a use, by ``module``, of a parameter whose update is pending."""
        if entry.armed:
            names = {one: name for name, one in self._model.named_modules()}
            where = (
                "outside of all modules"
                if module is None
                else f"in {names.get(module) or 'the model itself'}"
            )
            raise _errors.checked_use(entry.name, where)
