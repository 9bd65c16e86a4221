# SPDX-License-Identifier: Apache-2.0
"""The placeholder in ``p.grad`` while the gradient is in flight: a tensor without storage that raises on any use.

Only what Python itself does with an object (``is None``, ``id``) works. ``None`` instead would fail silently:
``clip_grad_norm_`` would return 0.0 and clip nothing, and a second ``backward()`` would overwrite what was pushed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch

from foresee.torch.gradients import _errors

__all__ = ["GradPlaceholder", "is_placeholder"]

_GRAD: Any = torch.Tensor.grad  # a descriptor, which its type hides
_SET_GRAD = _GRAD.__set__


class GradPlaceholder(torch.Tensor):
    """Placeholder for the gradient of one parameter, of its shape, strides, dtype and device."""

    _foresee_name: str

    def __new__(cls, like: torch.Tensor, name: str) -> GradPlaceholder:
        """Make the placeholder for the gradient of ``like``, which errors call ``name``."""
        made: GradPlaceholder = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )
        made.__dict__["_foresee_name"] = name
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Refuse all functions but the assignment to ``p.grad``, which a user's function mode may intercept."""
        if func != _SET_GRAD:
            _refuse(args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch declares another signature
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> NoReturn:
        """Refuse calls of autograd and compiled code, such as the addition of a second gradient."""
        _refuse(args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override] # torch types it oddly
        """Name the parameter and its state."""
        return f"GradPlaceholder({self.__dict__['_foresee_name']}: this step's gradient is in flight)"


def is_placeholder(gradient: object) -> bool:
    """Whether ``gradient`` is a placeholder."""
    return type(gradient) is GradPlaceholder


def _refuse(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> NoReturn:
    name = next(_names([*args, *(kwargs or {}).values()]), "a parameter")
    raise _errors.in_flight(name)


def _names(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if is_placeholder(value):
            yield value.__dict__["_foresee_name"]
        elif isinstance(value, (list, tuple)):
            yield from _names(value)
