# SPDX-License-Identifier: Apache-2.0
"""Whether an optimizer may be stepped one parameter at a time, and which optimizers are refused.

Classes that were tested bit by bit are listed. Every other class is tested on a toy, as are subclasses of listed ones,
which may have another step.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
import weakref
from collections import defaultdict
from typing import Any

import torch
from torch import optim

from foresee.torch.gradients._random import preserve_generators, read_states
from foresee.torch.gradients._steps import copy_settings, original_step, step_subset

__all__ = ["evaluates_once", "find_generators", "find_refusal", "is_separable"]

#: Classes with the bits of the whole step when stepped parameter by parameter, in reverse order, with a schedule.
_LISTED = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adafactor", "Adamax", "Adadelta", "ASGD",
    "Rprop", "Muon",
)  # fmt: skip

# Enough for what an optimizer does only in every fifth or tenth step.
_TOY_STEPS = 20
_evaluates_once: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
# Toy parameters per group, of distinct numbers of dimensions if possible.
_TOY_PARAMETERS = 3
# Attributes of an optimizer that are not its class's own.
_EXCLUDED = ("state", "param_groups", "_foresee_synchronizer")


def find_refusal(optimizer: torch.optim.Optimizer) -> str | None:
    """Return why this optimizer cannot be synchronized, with the remedy; None if it can."""
    name = type(optimizer).__name__
    remedy = "use one whose step() needs no closure, or torch's DistributedDataParallel"
    if isinstance(optimizer, optim.LBFGS):
        return f"optimizer {name} evaluates the model several times inside of one step(closure); {remedy}"
    if hasattr(optimizer, "first_step") and hasattr(optimizer, "second_step"):
        return f"optimizer {name} takes two gradients for one step, as SAM does; {remedy}"
    if isinstance(optimizer, optim.SparseAdam):
        return f"optimizer {name} is for sparse gradients, which are not sent; use Adam and sparse=False"
    closure = inspect.signature(original_step(type(optimizer))).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        return f"optimizer {name} requires a closure; {remedy}"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"optimizer {name} has differentiable=True: a deferred step is in no graph; leave it out"
    return None


def is_separable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether steps parameter by parameter give the bits of one whole step: known, or tested on a toy."""
    base = type(optimizer)
    if _is_listed(base):
        return True
    if any(isinstance(value, optim.Optimizer) for value in vars(optimizer).values()):
        # It steps another optimizer, over the parameters of that one.
        return False
    try:
        with preserve_generators():
            return _is_separable_on_toy(optimizer, base)
    except Exception as error:  # noqa: BLE001 - a user's class with parameters that it was not made for
        warnings.warn(
            f"optimizer {base.__name__} could not be tested on toy parameters ({type(error).__name__}: {error})",
            stacklevel=2,
        )
        return False


def find_generators(optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the random generators from which its step draws on a toy: names of ``_random.SEEDS``."""
    base = type(optimizer)
    if _is_listed(base):
        return []
    inner = [one for one in vars(optimizer).values() if isinstance(one, optim.Optimizer)]
    if inner:
        return sorted({name for one in inner for name in find_generators(one)})
    found: set[str] = set()
    with preserve_generators(), contextlib.suppress(Exception):
        toy = _build_toy(optimizer, base)
        for seed in range(_TOY_STEPS):
            _fill_gradients(toy, seed)
            before = read_states()
            original_step(base)(toy)
            after = read_states()
            found |= {name for name in after if after[name] != before.get(name)}
    return sorted(found)


def evaluates_once(optimizer: torch.optim.Optimizer, base: type[torch.optim.Optimizer]) -> bool:
    """Whether ``step(closure)`` of ``base`` evaluates the closure once, before it changes a parameter."""
    if _is_listed(base):
        return True
    known = _evaluates_once.get(base)
    if known is None:
        try:
            with preserve_generators():
                known = _record_evaluations(optimizer, base) == [True]
        except Exception:  # noqa: BLE001 - a user's class may expect anything of its closure
            known = False
        _evaluates_once[base] = known
    return known


def _record_evaluations(optimizer: torch.optim.Optimizer, base: type[torch.optim.Optimizer]) -> list[bool]:
    """Return, per evaluation of a closure by a toy's step, whether all parameters were unchanged."""
    toy = _build_toy(optimizer, base)
    before = [parameter.detach().clone() for parameter in _parameters(toy)]
    found = []

    def closure() -> torch.Tensor:
        found.append(all(map(_same_bits, _parameters(toy), before)))
        _fill_gradients(toy, len(found))
        return torch.ones((), requires_grad=True)

    _fill_gradients(toy, 0)
    original_step(base)(toy, closure)
    return found


def _is_listed(base: type[torch.optim.Optimizer]) -> bool:
    return any(base is getattr(optim, name, None) for name in _LISTED)


def _is_separable_on_toy(optimizer: torch.optim.Optimizer, base: type[torch.optim.Optimizer]) -> bool:
    """Step two equal toys, one whole and one in reverse parts with reused gradient memory, and compare them."""
    whole, parts = _build_toy(optimizer, base), _build_toy(optimizer, base)
    for seed in range(_TOY_STEPS):
        _fill_gradients(whole, seed)
        _fill_gradients(parts, seed)
        original_step(base)(whole)
        settings = copy_settings(parts)
        for parameter in reversed(_parameters(parts)):
            others = [one for one in _parameters(parts) if one is not parameter]
            gradients = [one.grad for one in others]
            for one in others:
                one.grad = None
            step_subset(parts, base, settings, {id(parameter)})
            # The memory of a gradient is reused after its step; an optimizer with a reference reads this.
            if parameter.grad is not None:
                parameter.grad.fill_(float("nan"))
            for one, gradient in zip(others, gradients, strict=True):
                one.grad = gradient
        if not _equal(whole, parts):
            return False
    return True


def _build_toy(optimizer: torch.optim.Optimizer, base: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Return an optimizer with the same settings over a few small parameters, and no state."""
    toy = object.__new__(base)
    toy.__dict__.update(
        {key: _copied(key, value) for key, value in optimizer.__dict__.items() if key not in _EXCLUDED}
    )
    toy.state = defaultdict(dict)
    toy.param_groups = []
    draw = torch.Generator().manual_seed(1)
    for settings, group in zip(copy_settings(optimizer), optimizer.param_groups, strict=True):
        like = list({parameter.dim(): parameter for parameter in group["params"]}.values())[:_TOY_PARAMETERS]
        like += like[: 2 - len(like)]
        shapes = [
            tuple(3 + axis + 2 * number for axis in range(one.dim())) for number, one in enumerate(like)
        ]
        toy.param_groups.append(
            {
                **settings,
                "params": [
                    torch.nn.Parameter(torch.randn(shape, generator=draw).to(one.dtype))
                    for shape, one in zip(shapes, like, strict=True)
                ],
            }
        )
    return toy


def _copied(key: str, value: Any) -> Any:
    """Copy what the toy may change; hooks do not run on it."""
    return type(value)() if "hooks" in key and isinstance(value, dict) else copy.deepcopy(value)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _fill_gradients(optimizer: torch.optim.Optimizer, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for number, parameter in enumerate(_parameters(optimizer)):
        # Of different sizes, to detect a norm over all of them.
        gradient = torch.randn(parameter.shape, generator=draw) * 4.0**number
        parameter.grad = gradient.to(parameter.dtype)


def _equal(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> bool:
    """Compare parameters, state, settings, and own attributes of the class, such as a counter of steps."""
    mine, theirs = _parameters(one), _parameters(other)
    same_parameters = all(
        _same_bits(a, b) and _same_value(dict(one.state[a]), dict(other.state[b]))
        for a, b in zip(mine, theirs, strict=True)
    )
    return (
        same_parameters
        and _same_value(_own(one), _own(other))
        and _same_value(copy_settings(one), copy_settings(other))
    )


def _own(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        key: value for key, value in vars(optimizer).items() if key not in _EXCLUDED and "hooks" not in key
    }


def _same_value(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return _same_bits(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same_value(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same_value, a, b))
    if type(a) is type(b) and getattr(type(a), "__eq__", None) is object.__eq__ and hasattr(a, "__dict__"):
        return _same_value(vars(a), vars(b))
    return bool(a == b) or (a != a and b != b)  # noqa: PLR0124 - both are NaN


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())
