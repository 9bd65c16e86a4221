# SPDX-License-Identifier: Apache-2.0
"""The sequential reference that ranks are held against, bit by bit: one process, every rank's gradient in turn.

Needs torch alone, so that ``scripts/gpu_check.py`` uses it where nothing of the tests is installed.
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

#: Larger than a packet, so that servers share it.
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


#: torch draws first weights from one source for all threads.
_DRAWING = threading.Lock()


def seeded(make: Callable[[], T]) -> T:
    """What ``make`` draws by torch's own generator, the same for every rank, whichever thread it runs in."""
    with _DRAWING:
        torch.manual_seed(0)
        return make()


@dataclass
class ReferenceTraining:
    """What is trained, and how, by one process in the place of all ranks."""

    model: Callable[[], torch.nn.Module]
    optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer]
    batch: Callable[[int, int], torch.Tensor]
    """Of a step and a rank."""
    loss: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor] = lambda model, batch: (
        model(batch).square().mean()
    )
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None
    steps: int = 5
    clip: Callable[[torch.nn.Module], None] | None = None
    """What the reference does with the averages before it steps."""

    def reference(self, world: int, local: int = 1) -> dict[str, Any]:
        """One process: every rank's gradient in turn, averaged in rank order, one whole stock step.

        ``local``: ranks of each machine, which are averaged first.
        """
        model, optimizer = self.fresh()
        schedule = self.schedule(optimizer) if self.schedule else None
        for step in range(self.steps):
            buffers = {name: value.clone() for name, value in model.named_buffers()}
            kept = buffers
            gradients = []
            for rank in range(world):
                for name, value in model.named_buffers():
                    value.copy_(buffers[name])
                optimizer.zero_grad()
                self.loss(model, self.batch(step, rank)).backward()
                gradients.append([parameter.grad for parameter in model.parameters()])
                if rank == 0:
                    kept = {name: value.clone() for name, value in model.named_buffers()}
            for name, value in model.named_buffers():
                value.copy_(kept[name])
            for parameter, given in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
                machines = [
                    mean_in_rank_order(
                        [one for one in given[first : first + local] if one is not None], local
                    )
                    for first in range(0, world, local)
                ]
                present = [one for one in machines if one is not None]
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
    # Machines differ in the payload of a NaN, so that of a sum is always the same one.
    return mean.masked_fill_(mean.isnan(), math.nan)
