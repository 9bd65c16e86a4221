# SPDX-License-Identifier: Apache-2.0
"""Parameters and buffers whose pending updates are received when they are read from their module, wherever that is.

Wait points cover what a module uses while it runs. ``F.linear(x, model.head.weight)`` before the head runs, an edit
of ``model.head.weight.data`` after ``step()`` or a look at ``model.norm.running_mean`` pass no wait point, but all of
them read the tensor from its module, which has it in a dict. The dicts of synchronized modules are of a class that
receives a pending update before it returns the tensor. Copies and files hold plain dicts.
"""

from __future__ import annotations

import weakref
from collections.abc import ItemsView, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from foresee.torch.gradients._plan import Entry
    from foresee.torch.gradients._synchronizer import Synchronizer

__all__ = ["Reads", "own", "place", "remove"]

_DICTS = ("_parameters", "_buffers")


class Reads(dict[str, Any]):
    """The parameters or the buffers of one module."""

    __slots__ = ("_buffers", "_synchronizer")

    def __init__(
        self, tensors: Mapping[str, Any], synchronizer: Synchronizer, buffers: Mapping[str, Entry]
    ) -> None:
        super().__init__(tensors)
        self._synchronizer = weakref.ref(synchronizer)
        # By name: code like ``self.mean = 0.9 * self.mean`` replaces the tensor.
        self._buffers = buffers

    def __getitem__(self, name: str) -> Any:
        """The tensor, updated."""
        value = super().__getitem__(name)
        synchronizer = self._synchronizer()
        if synchronizer is not None and synchronizer.watches_reads:
            self._read(synchronizer, [(name, value)])
        return value

    def values(self) -> Any:
        """All tensors of the module, updated."""
        self._read_all()
        return super().values()

    def items(self) -> Any:
        """All names and tensors of the module, updated.

        Not in the root's forward pass, where models ask their first parameter for its dtype: wait points see to uses.
        """
        self._read_all()
        return super().items()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a file holds a plain dict."""
        return dict, (), None, None, iter(self.items())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Likewise."""
        return self.__reduce__()

    def _read_all(self) -> None:
        synchronizer = self._synchronizer()
        if synchronizer is not None and synchronizer.watches_reads and not synchronizer.in_forward:
            self._read(synchronizer, super().items())

    def _read(self, synchronizer: Synchronizer, tensors: Iterable[tuple[str, Any]]) -> None:
        known = synchronizer.plan.by_parameter
        found = [self._buffers.get(name) or known.get(id(value)) for name, value in tensors]
        synchronizer.read([entry for entry in found if entry is not None])


def place(model: torch.nn.Module, synchronizer: Synchronizer, buffers: list[Entry]) -> None:
    """Put them in place of the dicts of all modules; those of scripted modules are no dicts and stay."""
    named: dict[int, dict[str, Entry]] = {}
    for entry in buffers:
        assert entry.owner is not None
        module, name = entry.owner
        named.setdefault(id(module), {})[name] = entry
    for module in model.modules():
        for key in _DICTS:
            tensors = module.__dict__.get(key)
            if type(tensors) is dict and tensors:
                owned = named.get(id(module), {}) if key == "_buffers" else {}
                module.__dict__[key] = Reads(tensors, synchronizer, owned)


def remove(model: torch.nn.Module) -> None:
    """Give the modules plain dicts again."""
    for module in model.modules():
        for key in _DICTS:
            if type(module.__dict__.get(key)) is Reads:
                module.__dict__[key] = dict(own(module.__dict__[key]))


def own(tensors: dict[str, Any]) -> ItemsView[str, Any]:
    """What the dict of a module holds, without receiving anything."""
    return dict.items(tensors)
