# SPDX-License-Identifier: Apache-2.0
"""Before which modules an update has to be received: hooks placed by what the profile saw.

One forward pass does not decide alone: besides the modules that used a tensor, the module that registered it waits,
which covers branches that the profiled step did not take. What was not seen at all waits at the root, or, if it has a
gradient all the same, in ``step()``.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from foresee.torch.gradients._hooks import EndHook, FlushHook, WaitHook
from foresee.torch.gradients._reads import own, place, remove

if TYPE_CHECKING:
    from foresee.torch.gradients._first_use import FirstUse
    from foresee.torch.gradients._plan import Entry, Plan
    from foresee.torch.gradients._synchronizer import Synchronizer

__all__ = ["WaitPoints"]

# So many names of parameters are spelt out in a warning.
_NAMES_SHOWN = 5


class WaitPoints:
    """The hooks of one model."""

    def __init__(self, synchronizer: Synchronizer, model: torch.nn.Module) -> None:
        self.placed = False
        self.has_new_uses = False
        """A tensor that was never seen in use got a gradient: the next step is worth profiling."""
        self.at_step: list[Entry] = []
        """What is used where no hook can be placed: ``step()`` itself waits for it."""
        self._synchronizer = weakref.ref(synchronizer)
        self._model = model
        self._hooks: dict[torch.nn.Module, WaitHook] = {}
        self._handles: list[Any] = []
        self._unseen: set[int] = set()
        self._warned: set[str] = set()

    def record_gradient(self, entry: Entry) -> None:
        """``entry`` has a gradient."""
        if entry.spec.id in self._unseen:
            self._unseen.discard(entry.spec.id)
            self.has_new_uses = True

    def place(self, plan: Plan, profile: FirstUse, round_: int) -> None:
        """Hook the modules by what was seen in ``round_``, the round that ended just now."""
        synchronizer = self._synchronizer()
        assert synchronizer is not None
        waiting = self._waiting_modules()
        root = self._model
        points: dict[torch.nn.Module, dict[int, Entry]] = {root: {}}
        self.at_step, self._unseen = [], set()
        for entry in plan.entries:
            seen = profile.modules.get(entry.spec.id, [])
            modules = [module for module in seen if module is not None]
            if seen and seen[0] is None:
                self.at_step.append(entry)
            elif not seen:
                if not entry.is_buffer and entry.pushed == round_:
                    self.at_step.append(entry)
                else:
                    self._unseen.add(entry.spec.id)
                    modules.append(root)
            for module in (*modules, *self._registering(entry)):
                # A module outside of the model's tree, such as a loss, cannot come before the model.
                if module in waiting:
                    points.setdefault(waiting[module], {})[entry.spec.id] = entry
        for module, entries in points.items():
            self._hook(module, synchronizer, entries.values())
        for module, hook in self._hooks.items():
            if module not in points:
                hook.entries = ()
        if not self.placed:
            self._handles.append(root.register_forward_hook(EndHook(synchronizer), always_call=True))
            self._place_flushes(synchronizer)
            place(root, synchronizer, plan.buffers)
        self.placed = True
        self.has_new_uses = False
        self._warn_of_uses(plan)

    def remove(self) -> None:
        """Leave the modules as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooks.clear()
        remove(self._model)

    def _hook(self, module: torch.nn.Module, synchronizer: Synchronizer, entries: Iterable[Entry]) -> None:
        ordered = sorted(entries, key=lambda entry: entry.spec.priority)
        if module in self._hooks:
            self._hooks[module].entries = tuple(ordered)
            return
        hook = self._hooks[module] = WaitHook(synchronizer, ordered, root=module is self._model)
        # First of all hooks: the user's may look at the weights.
        self._handles.append(module.register_forward_pre_hook(hook, prepend=True))

    def _place_flushes(self, synchronizer: Synchronizer) -> None:
        """Children are saved and loaded on their own, too."""
        hook = FlushHook(synchronizer)
        for module in self._model.modules():
            if module._parameters or module._buffers:  # noqa: SLF001
                self._handles.append(module.register_state_dict_pre_hook(hook))
                self._handles.append(module.register_load_state_dict_pre_hook(hook))

    def _registering(self, entry: Entry) -> list[torch.nn.Module]:
        tensor = entry.tensor
        return [
            module
            for module in self._model.modules()
            if any(one is tensor for _, one in (*own(module._parameters), *own(module._buffers)))  # noqa: SLF001
        ]

    def _waiting_modules(self) -> dict[torch.nn.Module, torch.nn.Module]:
        """Each module's wait point: itself, or the outermost compiled module around it.

        Inside of compiled code every wait would break the graph, so a compiled block waits once, before it runs.
        """
        waiting: dict[torch.nn.Module, torch.nn.Module] = {}

        def walk(module: torch.nn.Module, outermost: torch.nn.Module | None) -> None:
            if module in waiting:
                return
            if outermost is None and _compiled(module):
                outermost = module
            waiting[module] = (
                module if outermost is None else outermost
            )  # a module may have a length, and be false
            for child in module.children():
                walk(child, outermost)

        walk(self._model, None)
        return waiting

    def _warn_of_uses(self, plan: Plan) -> None:
        gradients = [entry.name for entry in self.at_step if not entry.is_buffer]
        if gradients:
            shown = ", ".join(gradients[:_NAMES_SHOWN]) + (", ..." if len(gradients) > _NAMES_SHOWN else "")
            self._warn(
                f"{len(gradients)} of {len(plan.gradients)} parameters ({shown}) were used outside of all modules, or "
                "where torch could not be watched (raw pointers, another thread than that of synchronize()): step() "
                "waits for their updates, without overlap. Use them inside of a module's forward"
            )
        if _compiled(self._model):
            self._warn(
                "the whole model is compiled, so all gradients come after the whole backward pass, and all updates are "
                "waited for before the forward pass; to overlap, compile per block: `for block in model.blocks: "
                "block.compile()`"
            )

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, stacklevel=2)


def _compiled(module: torch.nn.Module) -> bool:
    # By name: importing the class would import all of Dynamo.
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"  # noqa: SLF001
