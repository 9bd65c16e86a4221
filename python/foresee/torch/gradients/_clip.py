# SPDX-License-Identifier: Apache-2.0
"""Clipping of averaged gradients, in the three ways that a late step allows.

Each way needs to see different gradients at different times. All ranks have the same averages, so all compute the same
norms without asking each other.

``exact`` is torch's own ``clip_grad_norm_`` over everything, so the next forward pass waits for the last tensor.
``per_param`` bounds each tensor's own norm. ``previous_norm`` scales by the total norm of the round before, and
in the first round by its own. The last two keep the overlap and change what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_

if TYPE_CHECKING:
    from foresee.torch.gradients._plan import Entry

__all__ = ["Clip", "ClipMode"]

ClipMode = Literal["exact", "per_param", "previous_norm"]


class Clip:
    """One way of clipping, and what it remembers between rounds."""

    def __init__(self, mode: ClipMode | None, max_norm: float) -> None:
        self._mode = mode
        self._max_norm = max_norm
        self._norms: dict[int, torch.Tensor] = {}
        self._previous: torch.Tensor | None = None

    @property
    def arguments(self) -> dict[str, object]:
        """As ``synchronize`` got them."""
        return {"clip": self._mode, "max_norm": self._max_norm if self._mode else None}

    @property
    def needs_all(self) -> bool:
        """Whether no tensor may be stepped before every tensor was received."""
        return self._mode == "exact" or (self._mode == "previous_norm" and self._previous is None)

    def apply(self, entries: Sequence[Entry]) -> None:
        """Clip the gradients of ``entries``, which were received and are in ``grad``, in place."""
        tensors = [entry.tensor for entry in entries if entry.tensor.grad is not None]
        if self._mode is None or not tensors:
            return
        if self._mode == "exact":
            clip_grad_norm_(tensors, self._max_norm)
        elif self._mode == "per_param":
            for tensor in tensors:
                clip_grad_norm_([tensor], self._max_norm)
        else:
            for entry in entries:
                if entry.tensor.grad is not None:
                    self._norms[entry.spec.id] = torch.linalg.vector_norm(entry.tensor.grad)
            norm = self._total() if self._previous is None else self._previous
            clip_grads_with_norm_(tensors, self._max_norm, norm)

    def round_done(self) -> None:
        """Everything of a round has been stepped: its norm is the next one's."""
        if self._norms:
            self._previous = self._total()
            self._norms.clear()

    def _total(self) -> torch.Tensor:
        """By id, so that the order in which tensors were received leaves no trace."""
        norms = [self._norms[id_] for id_ in sorted(self._norms)]
        total: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.float() for norm in norms]))
        return total
