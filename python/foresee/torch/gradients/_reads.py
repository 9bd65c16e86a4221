# SPDX-License-Identifier: Apache-2.0
"""Parameters and buffers that land when they are read from their module, wherever that is.

Wait points cover what a module uses while it runs. ``F.linear(x, model.head.weight)`` before the head runs, an edit
of ``model.head.weight.data`` after ``step()`` or a look at ``model.norm.running_mean`` go by no wait point, but they
all read the tensor from its module, which keeps it in a dict. The dicts of synchronized modules are of a class that
lands an update that is pending before it hands the tensor out. Copies and files hold plain dicts.
"""

from __future__ import annotations

import weakref
from collections.abc import ItemsView, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from foresee.torch.gradients._plan import Entry
    from foresee.torch.gradients._rounds import Rounds

__all__ = ["Reads", "own", "place", "remove"]

_DICTS = ("_parameters", "_buffers")


class Reads(dict[str, Any]):
    """The parameters or the buffers of one module."""

    __slots__ = ("_buffers", "_rounds")

    def __init__(self, tensors: Mapping[str, Any], rounds: Rounds, buffers: Mapping[str, Entry]) -> None:
        super().__init__(tensors)
        self._rounds = weakref.ref(rounds)
        # By name: code like ``self.mean = 0.9 * self.mean`` replaces the tensor.
        self._buffers = buffers

    def __getitem__(self, name: str) -> Any:
        """The tensor, updated."""
        value = super().__getitem__(name)
        rounds = self._rounds()
        if rounds is not None and rounds.pending:
            rounds.read([self._buffers.get(name) or rounds.entry_of(value)])
        return value

    def values(self) -> Any:
        """All tensors of the module, updated."""
        self._land()
        return super().values()

    def items(self) -> Any:
        """All names and tensors of the module, updated.

        Not in the root's forward pass, where models ask their first parameter for its dtype: wait points see to uses.
        """
        self._land()
        return super().items()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a file holds a plain dict."""
        return dict, (), None, None, iter(self.items())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Likewise."""
        return self.__reduce__()

    def _land(self) -> None:
        rounds = self._rounds()
        if rounds is not None and rounds.pending and not rounds.in_forward:
            rounds.read(
                [self._buffers.get(name) or rounds.entry_of(value) for name, value in super().items()]
            )


def place(model: torch.nn.Module, rounds: Rounds, buffers: list[Entry]) -> None:
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
                module.__dict__[key] = Reads(tensors, rounds, owned)


def remove(model: torch.nn.Module) -> None:
    """Give the modules plain dicts again."""
    for module in model.modules():
        for key in _DICTS:
            if type(module.__dict__.get(key)) is Reads:
                module.__dict__[key] = dict(own(module.__dict__[key]))


def own(tensors: dict[str, Any]) -> ItemsView[str, Any]:
    """What the dict of a module holds, without landing anything."""
    return dict.items(tensors)
