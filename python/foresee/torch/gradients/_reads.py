# SPDX-License-Identifier: Apache-2.0
"""Parameters and buffers whose pending updates are received when code reads them from their module.

Wait points cover what a module uses while it runs, but not ``F.linear(x, model.head.weight)`` before the head runs, nor
an edit of ``model.head.weight.data`` after ``step()``. All of these read the tensor from a dict of its module. In
synchronized modules, that dict receives a pending update before it returns the tensor. Copies and files hold plain
dicts.
"""

from __future__ import annotations

import weakref
from collections.abc import ItemsView, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from foresee.torch.gradients._plan import Entry
    from foresee.torch.gradients._synchronizer import Synchronizer

__all__ = ["install", "raw_items", "uninstall"]

_DICTS = ("_parameters", "_buffers")


class _UpdatingDict(dict[str, Any]):
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
        """Return the tensor, updated."""
        value = super().__getitem__(name)
        synchronizer = self._synchronizer()
        if synchronizer is not None and synchronizer.is_watching_reads:
            self._receive(synchronizer, [(name, value)])
        return value

    def values(self) -> Any:
        """Return all tensors of the module, updated."""
        self._receive_all()
        return super().values()

    def items(self) -> Any:
        """Return all names and tensors of the module, updated."""
        self._receive_all()
        return super().items()

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave a plain dict in a copy or a file."""
        return dict, (), None, None, iter(self.items())

    def _receive_all(self) -> None:
        synchronizer = self._synchronizer()
        # Not in the root's forward pass, where models read the dtype of their first parameter and wait points cover
        # uses.
        if synchronizer is not None and synchronizer.is_watching_reads and not synchronizer.is_in_forward:
            self._receive(synchronizer, super().items())

    def _receive(self, synchronizer: Synchronizer, tensors: Iterable[tuple[str, Any]]) -> None:
        known = synchronizer.plan.by_parameter
        found = [self._buffers.get(name) or known.get(id(value)) for name, value in tensors]
        synchronizer.read([entry for entry in found if entry is not None])


def install(model: torch.nn.Module, synchronizer: Synchronizer) -> None:
    """Replace the dicts of all modules; scripted modules have none."""
    named: dict[int, dict[str, Entry]] = {}
    for entry in synchronizer.plan.entries:
        if entry.owner is not None:
            module, name = entry.owner
            named.setdefault(id(module), {})[name] = entry
    for module in model.modules():
        for key in _DICTS:
            tensors = module.__dict__.get(key)
            if type(tensors) is dict and tensors:
                owned = named.get(id(module), {}) if key == "_buffers" else {}
                module.__dict__[key] = _UpdatingDict(tensors, synchronizer, owned)


def uninstall(model: torch.nn.Module) -> None:
    """Give the modules plain dicts again."""
    for module in model.modules():
        for key in _DICTS:
            if type(module.__dict__.get(key)) is _UpdatingDict:
                module.__dict__[key] = dict(raw_items(module.__dict__[key]))


def raw_items(tensors: dict[str, Any]) -> ItemsView[str, Any]:
    """Return the entries of a module's dict without receiving updates."""
    return dict.items(tensors)
