# SPDX-License-Identifier: Apache-2.0
"""Hooks on the user's modules and parameters, which stay behind when those are copied or saved.

Hooks are copied with a module (``deepcopy``, ``AveragedModel``) and written with it (``torch.save(model)``). A closure
would fail to pickle and would tie the copy to the original's synchronizer; these hold weak references, and a copy or a
file gets a function of the standard library that does nothing, so that the file opens where Foresee is not installed.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from foresee.torch.gradients._first_use import FirstUse
    from foresee.torch.gradients._plan import Entry
    from foresee.torch.gradients._synchronizer import Synchronizer

__all__ = ["EndHook", "EnterHook", "FlushHook", "GradientHook", "LeaveHook", "WaitHook", "inert"]


def inert() -> Any:
    """A function that takes anything and returns None, as every kind of hook may; it pickles by its public name."""
    return contextlib.nullcontext().__exit__


class _Hook:
    """A hook that does not travel."""

    def __deepcopy__(self, memo: object) -> Any:
        """Leave a function that does nothing in the copy."""
        return inert()

    def __copy__(self) -> Any:
        """Likewise."""
        return inert()

    def __reduce__(self) -> tuple[Any, ...]:
        """Likewise in a file."""
        return getattr, (contextlib.nullcontext(), "__exit__")


class GradientHook(_Hook):
    """On a parameter, after its gradient is complete; runs on autograd's threads."""

    def __init__(self, synchronizer: Synchronizer, entry: Entry) -> None:
        self._synchronizer = weakref.ref(synchronizer)
        self._entry = entry

    def __call__(self, parameter: torch.Tensor) -> None:
        """Push the gradient."""
        synchronizer = self._synchronizer()
        if synchronizer is not None:
            synchronizer.push_gradient(self._entry, parameter)


class WaitHook(_Hook):
    """Before a module that needs updated parameters. ``entries`` may be replaced when uses are profiled again.

    At the root without gradients, everything is received: an evaluation may take other ways through the model than
    training did (the fast path of ``TransformerEncoderLayer`` calls none of its children) and has nothing to overlap.
    """

    def __init__(self, synchronizer: Synchronizer, entries: Sequence[Entry], *, root: bool) -> None:
        self._synchronizer = weakref.ref(synchronizer)
        self._root = root
        self.entries = tuple(entries)
        # Dynamo must not look inside: it would burn the present state of the round into a graph. Imported here,
        # since torch.compiler.disable imports all of Dynamo; so did the optimizer's constructor.
        self._wait = torch.compiler.disable(self._eager)

    def __call__(self, _module: torch.nn.Module, _args: Any) -> None:
        """Receive and update what is pending."""
        self._wait()

    def _eager(self) -> None:
        synchronizer = self._synchronizer()
        if synchronizer is None:
            return
        if self._root:
            synchronizer.enter_forward()
        if self._root and not torch.is_grad_enabled():
            synchronizer.flush()
        else:
            synchronizer.wait_point(self.entries)


class EndHook(_Hook):
    """After the root, even if it raised."""

    def __init__(self, synchronizer: Synchronizer) -> None:
        self._synchronizer = weakref.ref(synchronizer)
        self._end = torch.compiler.disable(self._eager)

    def __call__(self, _module: torch.nn.Module, _args: Any, _output: Any = None) -> None:
        """Note that the forward pass is over."""
        self._end()

    def _eager(self) -> None:
        synchronizer = self._synchronizer()
        if synchronizer is not None:
            synchronizer.leave_forward()


class FlushHook(_Hook):
    """Before a module's state is read or written as a whole."""

    def __init__(self, synchronizer: Synchronizer) -> None:
        self._synchronizer = weakref.ref(synchronizer)

    def __call__(self, *_: Any, **__: Any) -> None:
        """Receive and update everything."""
        synchronizer = self._synchronizer()
        if synchronizer is not None:
            synchronizer.flush()


class EnterHook(_Hook):
    """Before a module, while uses are profiled."""

    def __init__(self, profile: FirstUse) -> None:
        self._profile = weakref.ref(profile)

    def __call__(self, module: torch.nn.Module, _args: Any) -> None:
        """Note that the module runs."""
        profile = self._profile()
        if profile is not None:
            profile.enter(module)


class LeaveHook(EnterHook):
    """After a module, even if it raised."""

    def __call__(self, module: torch.nn.Module, _args: Any, _output: Any = None) -> None:
        """Note that the module has run."""
        profile = self._profile()
        if profile is not None:
            profile.leave(module)
