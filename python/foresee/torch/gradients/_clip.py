# SPDX-License-Identifier: Apache-2.0
"""Clipping of averaged gradients in the three modes that deferred updates allow.

All ranks have the same averages, so all compute the same norms without communication. ``exact`` is torch's
``clip_grad_norm_`` over all gradients: the next forward pass waits for the last tensor. ``per_param`` bounds each
tensor's own norm. ``previous_norm`` scales by the total norm of the round before, and in the first round by its own.
The last two keep the overlap and differ from stock clipping.
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
    """One mode of clipping, and its state between rounds."""

    def __init__(self, mode: ClipMode | None, max_norm: float) -> None:
        self._mode = mode
        self._max_norm = max_norm
        self._norms: dict[int, torch.Tensor] = {}
        self._previous: torch.Tensor | None = None

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments of ``synchronize``."""
        return {"clip": self._mode, "max_norm": self._max_norm if self._mode else None}

    @property
    def needs_all(self) -> bool:
        """Whether a step has to wait until every tensor was received."""
        return self._mode == "exact" or (self._mode == "previous_norm" and self._previous is None)

    def apply(self, entries: Sequence[Entry]) -> None:
        """Clip the averages of ``entries``, which are in ``grad``, in place."""
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

    def end_round(self) -> None:
        """End a round whose tensors were all stepped: the next one uses its norm."""
        if self._norms:
            self._previous = self._total()
            self._norms.clear()

    def _total(self) -> torch.Tensor:
        """Add norms by id, so that the result does not depend on the order of arrival."""
        norms = [self._norms[id_] for id_ in sorted(self._norms)]
        total: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.float() for norm in norms]))
        return total
