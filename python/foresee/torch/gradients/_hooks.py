# SPDX-License-Identifier: Apache-2.0
"""Hooks on the user's modules and parameters that are neither copied nor saved with them.

Modules copy their hooks (``deepcopy``, ``AveragedModel``) and pickle them (``torch.save(model)``). A closure would fail
to pickle and would tie the copy to the original's synchronizer. These hooks hold weak references, and a copy or a file
gets a no-op of the standard library, so that the file opens where Foresee is not installed.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Hook", "no_op_hook"]


def no_op_hook() -> Any:
    """Return a function that takes anything and returns None; it pickles by its public name."""
    return contextlib.nullcontext().__exit__


class Hook:
    """Call a bound method with fixed arguments as long as its object exists.

    Args:
        method: the hook does not keep its object alive.
        arguments: passed instead of what torch passes.
        compiled: whether Dynamo may trace the call. Otherwise it would compile the present state of the round into a
            graph.
    """

    def __init__(self, method: Callable[..., None], *arguments: Any, compiled: bool = True) -> None:
        self._method = weakref.WeakMethod(method)
        self.arguments = arguments
        # torch.compiler.disable imports all of Dynamo, as the optimizer's constructor has done by now.
        self._call = self._run if compiled else torch.compiler.disable(self._run)

    def __call__(self, *_: Any, **__: Any) -> None:
        """Call the method."""
        self._call()

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave a no-op in a copy or a file."""
        return getattr, (contextlib.nullcontext(), "__exit__")

    def _run(self) -> None:
        method = self._method()
        if method is not None:
            method(*self.arguments)
