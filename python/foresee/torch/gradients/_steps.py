# SPDX-License-Identifier: Apache-2.0
"""Steps of the user's unmodified optimizers over some of their parameters, with the settings of an earlier ``step()``.

An object of the user's class, with the user's state dict and reduced parameter groups, runs the class's own step. For a
class that updates parameters independently, which ``_separable`` tests, this gives the bits of one whole step.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as torch_optimizer

if TYPE_CHECKING:
    from foresee.torch.gradients._plan import Entry

__all__ = ["Stepper", "copy_settings", "original_step", "step_subset"]

#: Per parameter group, the settings that a step reads.
_GroupSettings = list[dict[str, Any]]


@dataclass(eq=False)
class Stepper:
    """One optimizer; made before its class is changed."""

    optimizer: torch.optim.Optimizer
    number: int
    """Position in the list that was passed to ``synchronize``."""
    generators: list[str]
    """Random generators that its step draws from."""
    base: type[torch.optim.Optimizer] = field(init=False)
    """The user's class."""
    entries: list[Entry] = field(default_factory=list)
    """Its parameters."""
    settings: _GroupSettings = field(default_factory=list)
    """Settings of the last ``step()`` whose updates are deferred."""

    def __post_init__(self) -> None:
        self.base = type(self.optimizer)

    def copy_settings(self) -> None:
        """Copy the present settings, with which each parameter is stepped when its average is received."""
        self.settings = copy_settings(self.optimizer)
        for entry in self.entries:
            # Another optimizer's step may have ended the round, and the loop edited parameters since.
            entry.record_version()

    def step_subset(self, chosen: Collection[int]) -> None:
        """Step the parameters whose ``id()`` is in ``chosen``, with the copied settings."""
        step_subset(self.optimizer, self.base, self.settings, chosen)

    def step_whole(self) -> None:
        """Run the user's own step, including hooks, on the gradients in ``grad``."""
        self.base.step(self.optimizer)

    @property
    def has_step_hooks(self) -> bool:
        """Whether a user's hook expects to see a whole step."""
        own = self.optimizer
        return bool(
            own._optimizer_step_pre_hooks  # noqa: SLF001
            or own._optimizer_step_post_hooks  # noqa: SLF001
            or torch_optimizer._global_optimizer_pre_hooks  # noqa: SLF001
            or torch_optimizer._global_optimizer_post_hooks  # noqa: SLF001
        )


def copy_settings(optimizer: torch.optim.Optimizer) -> _GroupSettings:
    """Return a copy of the settings of all groups.

    Tensors are cloned: the next step of a schedule changes a tensor ``lr`` in place, and updates of this step must not
    use it.
    """
    return [
        {key: _copied(value) for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]


def step_subset(
    optimizer: torch.optim.Optimizer,
    base: type[torch.optim.Optimizer],
    settings: _GroupSettings,
    chosen: Collection[int],
) -> None:
    """Step the parameters whose ``id()`` is in ``chosen``, with their present ``grad``, as the class ``base`` does.

    Step hooks and a schedule's wrapper of ``step`` do not run: they belong to the whole step.
    """
    part = object.__new__(base)
    part.__dict__.update(optimizer.__dict__)
    part.param_groups = [
        {**values, "params": params}
        for values, group in zip(settings, optimizer.param_groups, strict=True)
        if (params := [parameter for parameter in group["params"] if id(parameter) in chosen])
    ]
    # All subsets share one state dict.
    assert part.state is optimizer.state
    original_step(base)(part)


def original_step(base: type[torch.optim.Optimizer]) -> Any:
    """Return the step of ``base`` without the wrapper that runs step hooks, which is marked ``hooked``.

    An unwrapped step has a ``__wrapped__`` too, its gradient guard, which must stay.
    """
    step: Any = base.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_copied, value)) if type(value) in (list, tuple) else copy.copy(value)
    return copy.copy(value) if isinstance(value, dict) else value
