# SPDX-License-Identifier: Apache-2.0
"""A watch over some steps: uses and edits of parameters that no wait point, hook or version counter tells of.

A tensor that the script has kept by itself (``w = model.head.weight`` before the loop) is used and edited without
a word to anybody. To see that, every function of torch has to be watched and contents have to be compared, which is
too much for every step. So steps 2, 4, 8, ... are watched, and the step after one whose graph was new: autograd
numbers its nodes, and how many a step made between two wait points tells one graph from another for nothing.
A use of an old value, or an edit that would be lost, raises in the watched step; any other use that is new becomes a
wait point.

Compiled code must not be watched: it would run eagerly, with other bits, or be compiled again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from foresee.torch.gradients._first_use import FirstUse

if TYPE_CHECKING:
    from foresee.torch.gradients._plan import Entry

__all__ = ["Watch"]

#: Graphs that are remembered, and the share of steps that new ones may have watched: one in so many.
_GRAPHS = 64
_SHARE = 16
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Of the widest of these, in bytes.
_WORD = 8
_peek: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined] # noqa: SLF001


class Watch:
    """Of one model.

    Args:
        model: whose modules run.
        entries: the tensors of the plan.
        on_use: called at every use that may carry a gradient, in a watched step.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        entries: Sequence[Entry],
        on_use: Callable[[Entry, torch.nn.Module | None], None],
    ) -> None:
        self._model = model
        self._on_use = on_use
        self._uses = FirstUse(model, entries, self._use, of_results=False)
        self._marks = [0]
        self._graphs: set[int] = set()
        self._watched = 0
        self._sums: dict[int, torch.Tensor] = {}
        self._read: set[int] = set()
        self._outside: set[int] = set()
        """Used outside of modules, and not read from one before."""

    def mark_wait_point(self) -> None:
        """A wait point in a forward pass with gradients."""
        self._marks.append(_peek())

    def watch(self, entries: Iterable[Entry]) -> None:
        """Know new tensors too."""
        self._uses.watch(entries)

    def merge_into(self, known: dict[int, list[torch.nn.Module | None]]) -> bool:
        """End the watch of a step, and add the uses that it saw to ``known``; whether there were others."""
        self.stop()
        added = False
        for id_, modules in self._uses.modules.items():
            uses = known.setdefault(id_, [])
            if modules[0] is None and uses[:1] != [None] and id_ in self._outside:
                uses.insert(0, None)
                added = True
            for module in modules:
                if module is not None and not any(module is one for one in uses):
                    uses.append(module)
                    added = True
        self._uses.modules.clear()
        self._read.clear()
        self._outside.clear()
        return added

    @property
    def running(self) -> bool:
        """Whether this step is watched."""
        return self._uses.running

    def record_read(self, entry: Entry) -> None:
        """It was read from its module, which receives its update: its uses outside of modules are safe."""
        if self._uses.running:
            self._read.add(entry.spec.id)

    def end_step(self, step: int, pending: Sequence[Entry]) -> None:
        """``step()`` has ended the ``step``-th step, from 1: begin the watch if the next one is watched."""
        self._marks.append(_peek())
        graph = hash(tuple(later - first for first, later in zip(self._marks, self._marks[1:], strict=False)))
        # The first step has no wait points, and the second is watched anyway.
        new = step > 2 and graph not in self._graphs and len(self._graphs) < _GRAPHS
        self._graphs.add(graph)
        self._marks = [_peek()]
        following = step + 1
        due = following & step == 0 or (new and self._watched * _SHARE <= step + 8 * _SHARE)
        if due and not _has_compiled_code():
            self._watched += 1
            self._uses.start(eager=False)
            self._sums = {entry.spec.id: _sums(entry.tensor) for entry in pending}

    def is_edited(self, entry: Entry) -> bool:
        """Whether the contents of ``entry`` are others than at ``step()``; False where they were not noted."""
        before = self._sums.pop(entry.spec.id, None)
        return before is not None and not torch.equal(before, _sums(entry.tensor))

    def _use(self, entry: Entry, module: torch.nn.Module | None) -> None:
        if module is None and entry.spec.id not in self._read:
            self._outside.add(entry.spec.id)
        self._on_use(entry, module)

    def stop(self) -> None:
        """Watch no longer. May be called twice."""
        self._uses.stop()
        self._sums.clear()


def _has_compiled_code() -> bool:
    """Whether ``torch.compile`` has compiled anything in this process."""
    # Whoever compiled has imported it; to import it here would take a second.
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


def _sums(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a dense tensor, added up: of all elements, and of each third, so that an exchange shows."""
    flat: Any = tensor.detach().as_strided((tensor.numel(),), (1,))
    size = tensor.element_size()
    # Four times as quick as elements of their own size, where there is a whole number of words.
    words = size < _WORD and not (flat.nbytes % _WORD or flat.storage_offset() * size % _WORD)
    flat = flat.view(_INTEGERS[_WORD if words else size])
    return torch.stack([flat.sum(dtype=torch.int64), flat[::3].sum(dtype=torch.int64)])
