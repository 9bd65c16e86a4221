# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of one process, and the sequential reference that they are held against, bit by bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

import foresee.torch as ft
from support.exchanges import Exchange, mean_in_rank_order
from support.tensors import state_of
from support.waiting import WATCHDOG

T = TypeVar("T")

#: torch draws first weights from one source for all threads.
_DRAWING = threading.Lock()


def seeded(make: Callable[[], T]) -> T:
    """What ``make`` draws by torch's own generator, the same for every rank, whichever thread it runs in."""
    with _DRAWING:
        torch.manual_seed(0)
        return make()


def run(exchanges: Sequence[Exchange], body: Callable[[Exchange], Any]) -> list[Any]:
    """``body`` of every rank, each in its thread; what they returned. The first error ends all, and is raised."""
    results: list[Any] = [None] * len(exchanges)
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            results[rank] = body(exchanges[rank])
        except BaseException as error:
            errors.append(error)
            for exchange in exchanges:
                exchange.close()

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(len(exchanges))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return results


@dataclass
class Training:
    """What is trained, and how; the same for the ranks and for their reference."""

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
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of ``synchronize``."""

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

    def ranks(
        self,
        exchanges: Sequence[Exchange],
        *,
        schedule_first: bool = False,
        zero_last: bool = False,
        midway: Callable[[torch.nn.Module, int], None] | None = None,
    ) -> list[dict[str, Any]]:
        """All ranks train; the state of each at the end. Rank 0's weights are the reference's, the others' are not."""
        pairs = [self.fresh() for _ in exchanges]
        for model, _ in pairs[1:]:
            with torch.no_grad():
                for tensor in model.parameters():
                    tensor.mul_(0.5)

        def body(exchange: Exchange) -> dict[str, Any]:
            model, optimizer = pairs[exchange.rank]
            schedule = self.schedule(optimizer) if self.schedule and schedule_first else None
            model, optimizer = ft.synchronize(model, optimizer, servers=exchange, **self.arguments)
            if self.schedule and not schedule_first:
                schedule = self.schedule(optimizer)
            for step in range(self.steps):
                if not zero_last:
                    optimizer.zero_grad()
                self.loss(model, self.batch(step, exchange.rank)).backward()
                optimizer.step()
                if schedule:
                    schedule.step()
                if zero_last:
                    optimizer.zero_grad()
                if midway:
                    midway(model, step)
            return state_of(model, optimizer)

        return run(exchanges, body)

    def fresh(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = seeded(self.model)
        return model, self.optimizer(model)
