# SPDX-License-Identifier: Apache-2.0
"""Checks of single steps for uses and edits of parameters that no wait point, hook or version counter reports.

A script may use or edit a tensor that it holds itself (``w = model.head.weight`` before the loop). To detect that,
every torch function is watched and contents are compared, which is too slow for every step. Steps 2, 4, 8, ... are
watched, and the step after one with a new autograd graph: the number of autograd nodes between wait points identifies a
graph at no cost. In a watched step, a use of an old value or an edit that would be lost raises; any other new use
becomes a wait point. Compiled code is not watched: it would run eagerly, with other bits, or be compiled again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from foresee.torch.gradients._use_profile import UseProfile

if TYPE_CHECKING:
    from foresee.torch.gradients._plan import Entry

__all__ = ["UseWatch"]

#: Graphs that are remembered.
_MAX_GRAPHS = 64
#: New graphs may cause the watch of one step in so many.
_STEPS_PER_WATCH = 16
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD_BYTES = 8
_next_node: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined] # noqa: SLF001


class UseWatch(UseProfile):
    """The profile of single steps of one model.

    Args:
        model: whose modules run.
        entries: the tensors of the plan.
        report: called at every use in a watched step that may produce a gradient.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        entries: Sequence[Entry],
        report: Callable[[Entry, torch.nn.Module | None], None],
    ) -> None:
        super().__init__(model, entries, self._use, of_results=False)
        self._report = report
        self._wait_point_nodes = [0]
        self._graphs: set[int] = set()
        self._watched = 0
        self._sums: dict[int, torch.Tensor] = {}
        self._read: set[int] = set()
        self._outside: set[int] = set()
        """Ids of tensors used outside of modules without a read from their module."""

    def mark_wait_point(self) -> None:
        """Note a wait point in a forward pass with gradients."""
        self._wait_point_nodes.append(_next_node())

    def merge_into(self, known: dict[int, list[torch.nn.Module | None]]) -> bool:
        """Stop, and add the uses that were seen to ``known``; returns whether some are new."""
        self.stop()
        added = False
        for id_, modules in self.modules.items():
            uses = known.setdefault(id_, [])
            if modules[0] is None and uses[:1] != [None] and id_ in self._outside:
                uses.insert(0, None)
                added = True
            for module in modules:
                if module is not None and not any(module is one for one in uses):
                    uses.append(module)
                    added = True
        self.modules.clear()
        self._read.clear()
        self._outside.clear()
        return added

    def record_read(self, entry: Entry) -> None:
        """Note a read from the module, which receives the update: later uses outside of modules are safe."""
        if self.is_running:
            self._read.add(entry.spec.id)

    def end_step(self, step: int, pending: Sequence[Entry]) -> None:
        """End the ``step``-th step (from 1), and watch the next one if it is due."""
        self._wait_point_nodes.append(_next_node())
        graph = hash(
            tuple(
                later - first
                for first, later in zip(self._wait_point_nodes, self._wait_point_nodes[1:], strict=False)
            )
        )
        # The first step has no wait points, and the second is watched in any case.
        is_new = step > 2 and graph not in self._graphs and len(self._graphs) < _MAX_GRAPHS
        self._graphs.add(graph)
        self._wait_point_nodes = [_next_node()]
        is_power_of_two = (step + 1) & step == 0
        is_due = is_power_of_two or (
            is_new and self._watched * _STEPS_PER_WATCH <= step + 8 * _STEPS_PER_WATCH
        )
        if is_due and not _has_compiled_code():
            self._watched += 1
            self.start(eager=False)
            self._sums = {entry.spec.id: _sums(entry.tensor) for entry in pending}

    def is_edited(self, entry: Entry) -> bool:
        """Whether the contents of ``entry`` changed since ``step()``; False where they were not recorded."""
        before = self._sums.pop(entry.spec.id, None)
        return before is not None and not torch.equal(before, _sums(entry.tensor))

    def stop(self) -> None:
        """End the watch. May be called twice."""
        super().stop()
        self._sums.clear()

    def _use(self, entry: Entry, module: torch.nn.Module | None) -> None:
        if module is None and entry.spec.id not in self._read:
            self._outside.add(entry.spec.id)
        self._report(entry, module)


def _has_compiled_code() -> bool:
    """Whether ``torch.compile`` has compiled anything in this process."""
    # Compilation has imported the module; an import here would take a second.
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


def _sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return sums of the bits of a dense tensor: of all elements, and of every third to detect swaps."""
    flat: Any = tensor.detach().as_strided((tensor.numel(),), (1,))
    size = tensor.element_size()
    # Whole words are four times as fast as elements of their own size.
    is_in_words = size < _WORD_BYTES and not (
        flat.nbytes % _WORD_BYTES or flat.storage_offset() * size % _WORD_BYTES
    )
    flat = flat.view(_INTEGERS[_WORD_BYTES if is_in_words else size])
    return torch.stack([flat.sum(dtype=torch.int64), flat[::3].sum(dtype=torch.int64)])
