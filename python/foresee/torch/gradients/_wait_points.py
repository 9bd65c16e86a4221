# SPDX-License-Identifier: Apache-2.0
"""Hooks on the modules before which an update has to be received, placed by the use profile.

Besides the modules that used a tensor, the module that registered it waits, for branches that the profiled step did not
take. A tensor without a known use waits at the root, or in ``step()`` if it has a gradient.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from foresee.torch.gradients._errors import list_names
from foresee.torch.gradients._hooks import Hook
from foresee.torch.gradients._reads import install, raw_items, uninstall

if TYPE_CHECKING:
    from foresee.torch.gradients._plan import Entry, Plan
    from foresee.torch.gradients._synchronizer import Synchronizer
    from foresee.torch.gradients._use_profile import UseProfile

__all__ = ["WaitPoints"]


class WaitPoints:
    """The wait points of one model."""

    def __init__(self, synchronizer: Synchronizer, model: torch.nn.Module) -> None:
        self.is_placed = False
        self.has_new_uses = False
        """Whether a tensor without a known use got a gradient, so that the next step is worth profiling."""
        self.step_waits: list[Entry] = []
        """Tensors used where no hook can be placed: ``step()`` waits for them."""
        self._synchronizer = weakref.ref(synchronizer)
        self._model = model
        self._hooks: dict[torch.nn.Module, Hook] = {}
        self._handles: list[Any] = []
        self._unseen: set[int] = set()
        self._warned: set[str] = set()

    def record_gradient(self, entry: Entry) -> None:
        """Note that ``entry`` got a gradient."""
        if entry.spec.id in self._unseen:
            self._unseen.discard(entry.spec.id)
            self.has_new_uses = True

    def place(self, plan: Plan, profile: UseProfile, round_: int) -> None:
        """Hook the modules by the uses in ``round_``, the round that just ended."""
        synchronizer = self._synchronizer()
        assert synchronizer is not None
        wait_points = self._map_to_wait_points()
        root = self._model
        points: dict[torch.nn.Module, dict[int, Entry]] = {root: {}}
        self.step_waits, self._unseen = [], set()
        for entry in plan.entries:
            seen = profile.modules.get(entry.spec.id, [])
            modules = [module for module in seen if module is not None]
            if seen and seen[0] is None:
                self.step_waits.append(entry)
            elif not seen:
                if not entry.is_buffer and entry.pushed_round == round_:
                    self.step_waits.append(entry)
                else:
                    self._unseen.add(entry.spec.id)
                    modules.append(root)
            for module in (*modules, *self._find_registering(entry)):
                # A module outside of the model's tree, such as a loss, cannot come before the model.
                if module in wait_points:
                    points.setdefault(wait_points[module], {})[entry.spec.id] = entry
        for module, entries in points.items():
            self._hook(module, synchronizer, entries.values())
        for module, hook in self._hooks.items():
            if module not in points:
                hook.arguments = ((),)
        if not self.is_placed:
            end = Hook(synchronizer.leave_forward, compiled=False)
            self._handles.append(root.register_forward_hook(end, always_call=True))
            self._place_flushes(synchronizer)
            install(root, synchronizer)
        self.is_placed = True
        self.has_new_uses = False
        self._warn_of_uses(plan)

    def remove(self) -> None:
        """Restore the modules."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooks.clear()
        uninstall(self._model)

    def _hook(self, module: torch.nn.Module, synchronizer: Synchronizer, entries: Iterable[Entry]) -> None:
        ordered = tuple(sorted(entries, key=lambda entry: entry.spec.priority))
        if module not in self._hooks:
            wait = synchronizer.enter_forward if module is self._model else synchronizer.wait_point
            hook = self._hooks[module] = Hook(wait, ordered, compiled=False)
            # Before the user's hooks, which may read the weights.
            self._handles.append(module.register_forward_pre_hook(hook, prepend=True))
        self._hooks[module].arguments = (ordered,)

    def _place_flushes(self, synchronizer: Synchronizer) -> None:
        """Receive every update before a module, also a child, is saved or loaded."""
        hook = Hook(synchronizer.flush)
        for module in self._model.modules():
            if module._parameters or module._buffers:  # noqa: SLF001
                self._handles.append(module.register_state_dict_pre_hook(hook))
                self._handles.append(module.register_load_state_dict_pre_hook(hook))

    def _find_registering(self, entry: Entry) -> list[torch.nn.Module]:
        tensor = entry.tensor
        return [
            module
            for module in self._model.modules()
            if any(one is tensor for _, one in (*raw_items(module._parameters), *raw_items(module._buffers)))  # noqa: SLF001
        ]

    def _map_to_wait_points(self) -> dict[torch.nn.Module, torch.nn.Module]:
        """Map each module to its wait point: itself, or the outermost compiled module around it.

        A wait inside of compiled code would break the graph, so a compiled block waits once, before it runs.
        """
        wait_points: dict[torch.nn.Module, torch.nn.Module] = {}

        def visit(module: torch.nn.Module, outermost: torch.nn.Module | None) -> None:
            if module in wait_points:
                return
            if outermost is None and _is_compiled(module):
                outermost = module
            # No ``or``: a module may have a length, and be false.
            wait_points[module] = module if outermost is None else outermost
            for child in module.children():
                visit(child, outermost)

        visit(self._model, None)
        return wait_points

    def _warn_of_uses(self, plan: Plan) -> None:
        gradients = [entry.name for entry in self.step_waits if not entry.is_buffer]
        if gradients:
            self._warn(
                f"{len(gradients)} of {len(plan.gradients)} parameters ({list_names(gradients)}) were used outside of "
                "all modules, or where torch does not show uses (raw pointers, another thread than that of "
                "synchronize()): step() waits for their updates, without overlap. Use them inside of a module's forward"
            )
        if _is_compiled(self._model):
            self._warn(
                "the whole model is compiled, so all gradients come after the whole backward pass, and the forward "
                "pass waits for all updates; to overlap, compile per block: `for block in model.blocks: "
                "block.compile()`"
            )

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, stacklevel=2)


def _is_compiled(module: torch.nn.Module) -> bool:
    # By name: importing the class would import all of Dynamo.
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"  # noqa: SLF001
