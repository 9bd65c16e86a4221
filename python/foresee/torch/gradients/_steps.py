# SPDX-License-Identifier: Apache-2.0
"""The user's optimizer, unmodified, stepped over some of its parameters as of an earlier ``step()``.

No update rule is written anew here: an object of the user's own class, with the user's own state dict and the parameter
groups cut down, runs the class's own step. For a class whose parameters are independent of each other, which
``_separable`` finds out, this gives the bits of one whole step.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch

__all__ = ["Hyper", "original_step", "snapshot", "step_some"]

#: Per parameter group, what the user's ``step()`` call would have read.
Hyper = list[dict[str, Any]]


def snapshot(optimizer: torch.optim.Optimizer) -> Hyper:
    """The settings of all groups as they are now.

    Tensors are cloned and containers copied: a schedule that steps next changes a tensor ``lr`` in place, and its
    value must not reach an update that belongs to the step before.
    """
    return [
        {key: _copied(value) for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]


def step_some(
    optimizer: torch.optim.Optimizer,
    base: type[torch.optim.Optimizer],
    hyper: Hyper,
    chosen: Collection[int],
) -> None:
    """Step the parameters whose ``id()`` is in ``chosen``, with their present ``grad``, as the class ``base`` does.

    Runs neither the user's step hooks nor what a schedule put around ``step``: those belong to the whole step.
    """
    part = object.__new__(base)
    part.__dict__.update(optimizer.__dict__)
    part.param_groups = [
        {**settings, "params": params}
        for settings, group in zip(hyper, optimizer.param_groups, strict=True)
        if (params := [parameter for parameter in group["params"] if id(parameter) in chosen])
    ]
    # State is one dict for all parts, so what a part adds is the whole's.
    assert part.state is optimizer.state
    original_step(base)(part)


def original_step(base: type[torch.optim.Optimizer]) -> Any:
    """The step of ``base`` below the wrapper that runs step hooks.

    That wrapper marks itself ``hooked``. An unwrapped step has a ``__wrapped__`` too, its own gradient guard, which
    must stay.
    """
    step: Any = base.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_copied, value)) if type(value) in (list, tuple) else copy.copy(value)
    return copy.copy(value) if isinstance(value, dict) else value
