# SPDX-License-Identifier: Apache-2.0
"""A device that is not there: its copies are done late, and until then their memory holds rubbish.

A fake, for machines without CUDA: tensors stay in CPU memory. What it shows is that nobody reads a copy before it is
whole, nor what landed after the exchange may write to it again; streams and pinned memory are for tests with a GPU.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import torch

from foresee.torch._exchange import Exchange
from foresee.torch.gradients import _courier
from support.waiting import pause

#: Seconds, the most that a copy takes.
LATE_S = 0.004


class LateLeaving:
    """A copy that is made when somebody waits for it, of what was there when it was asked for."""

    def __init__(self, tensor: torch.Tensor, late_s: float) -> None:
        self.host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        if self.host.is_floating_point():
            self.host.fill_(float("nan"))
        self._values, self._late_s = tensor.clone(), late_s

    def wait(self) -> None:
        pause(self._late_s)
        self.host.copy_(self._values)


class LateCopies:
    """Of a device whose copies take a drawn time."""

    def __init__(self, seed: int = 0) -> None:
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self.left = self.arrived = 0
        self.closed = False

    def leave(self, tensor: torch.Tensor) -> LateLeaving:
        with self._lock:
            self.left += 1
            return LateLeaving(tensor, self._dice.uniform(0, LATE_S))

    def arrive(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        assert device.type == "cpu"
        self.arrived += 1
        return host.clone()

    def arrivals(self) -> Callable[[], None]:
        return lambda: pause(0)

    def close(self) -> None:
        self.closed = True


def staged(made: list[LateCopies]) -> Callable[..., _courier.Courier]:
    """In place of ``courier_for``: everything goes through a device that is not there; those that were made."""

    def courier_for(exchange: Exchange, tensors: object) -> _courier.Courier:
        made.append(LateCopies(exchange.rank))
        return _courier.StagedCourier(exchange, made[-1])

    return courier_for
