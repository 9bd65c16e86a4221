# SPDX-License-Identifier: Apache-2.0
"""The sequential reference of ranks, compared bit by bit: one process computes every rank's gradient in turn.

It needs torch alone, for ``scripts/gpu_check.py``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from support.tensors import state_of

T = TypeVar("T")

#: Larger than a packet, so that several servers have a part.
WIDTH = 192


class Net(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.norm = nn.BatchNorm1d(width)
        self.middle = nn.Linear(width, width)
        self.last = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.relu(self.middle(self.norm(self.first(x)))))
        return result


#: torch draws initial weights from one generator for all threads.
_SEED_LOCK = threading.Lock()


def seeded(make: Callable[[], T]) -> T:
    """Return the result of ``make`` with torch's seeded generator, the same on every rank and thread."""
    with _SEED_LOCK:
        torch.manual_seed(0)
        return make()


@dataclass
class ReferenceTraining:
    """A training that one process runs for all ranks."""

    model: Callable[[], torch.nn.Module]
    optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer]
    batch: Callable[[int, int], torch.Tensor]
    """Batch of a step and a rank."""
    loss: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor] = lambda model, batch: (
        model(batch).square().mean()
    )
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None
    steps: int = 5
    clip: Callable[[torch.nn.Module], None] | None = None
    """Clipping of the averages before the step."""

    def reference(self, world: int, local: int = 1) -> dict[str, Any]:
        """Compute every rank's gradient in turn, average them in rank order, and take whole stock steps.

        ``local``: ranks of each node, which are averaged first.
        """
        model, optimizer = self.fresh()
        schedule = self.schedule(optimizer) if self.schedule else None
        for step in range(self.steps):
            buffers = {name: value.clone() for name, value in model.named_buffers()}
            first_buffers = buffers
            gradients = []
            for rank in range(world):
                for name, value in model.named_buffers():
                    value.copy_(buffers[name])
                optimizer.zero_grad()
                self.loss(model, self.batch(step, rank)).backward()
                gradients.append([parameter.grad for parameter in model.parameters()])
                if rank == 0:
                    first_buffers = {name: value.clone() for name, value in model.named_buffers()}
            for name, value in model.named_buffers():
                value.copy_(first_buffers[name])
            for parameter, of_ranks in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
                nodes = [
                    mean_in_rank_order(
                        [one for one in of_ranks[first : first + local] if one is not None], local
                    )
                    for first in range(0, world, local)
                ]
                present = [one for one in nodes if one is not None]
                parameter.grad = mean_in_rank_order(present, world // local)
            if self.clip:
                self.clip(model)
            optimizer.step()
            if schedule:
                schedule.step()
        return state_of(model, optimizer)

    def fresh(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = seeded(self.model)
        return model, self.optimizer(model)


def mean_in_rank_order(tensors: Sequence[torch.Tensor], divisor: int) -> torch.Tensor | None:
    """``((g0 + g1) + g2 ...) / divisor``, 16-bit floats in f32, rounded once; None of nothing."""
    if not tensors:
        return None
    dtype = tensors[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = tensors[0].to(wide, copy=True)
    for one in tensors[1:]:
        total += one.to(wide)
    if divisor == 1:
        return total.to(dtype)
    mean = (total / torch.tensor(divisor, dtype=wide)).to(dtype)
    # CPUs differ in the payload of a NaN, so the product uses one payload.
    return mean.masked_fill_(mean.isnan(), math.nan)
