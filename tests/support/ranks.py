# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of one process, which train as the sequential reference does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

import foresee.torch as ft
from foresee.torch._exchange import GradientExchange
from support.reference import ReferenceTraining
from support.tensors import state_of
from support.waiting import WATCHDOG

T = TypeVar("T")


def run(exchanges: Sequence[GradientExchange], body: Callable[[GradientExchange], Any]) -> list[Any]:
    """Run ``body`` for every rank in its thread; returns the results. The first error ends all, and is raised."""
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
class Training(ReferenceTraining):
    """A training that is the same for the ranks and their reference."""

    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``synchronize``."""

    def ranks(
        self,
        exchanges: Sequence[GradientExchange],
        *,
        schedule_first: bool = False,
        zero_last: bool = False,
        midway: Callable[[torch.nn.Module, int], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Train all ranks; returns the state of each. Only rank 0 starts with the reference's weights."""
        pairs = [self.fresh() for _ in exchanges]
        for model, _ in pairs[1:]:
            with torch.no_grad():
                for tensor in model.parameters():
                    tensor.mul_(0.5)

        def body(exchange: GradientExchange) -> dict[str, Any]:
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
