# SPDX-License-Identifier: Apache-2.0
"""A simulated device, for machines without CUDA: its copies are late, and until then their memory holds rubbish.

Tensors stay in CPU memory. It shows that no copy is read before it is complete, and no average after the exchange may
write to its memory again; streams and pinned memory are for tests with a GPU.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import torch

from foresee.torch._exchange import GradientExchange
from foresee.torch.gradients._transfer import DeviceStaging, Transfer
from support.waiting import pause

#: Seconds, the most that a copy takes.
LATE_S = 0.004


class LateCopy:
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

    def to_host(self, tensor: torch.Tensor) -> LateCopy:
        with self._lock:
            self.left += 1
            return LateCopy(tensor, self._dice.uniform(0, LATE_S))

    def to_device(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        assert device.type == "cpu"
        self.arrived += 1
        return host.clone()

    def record_reads(self) -> Callable[[], None]:
        return lambda: pause(0)

    def close(self) -> None:
        self.closed = True


def staged(made: list[LateCopies]) -> Callable[..., Transfer]:
    """In place of ``transfer_for``: everything goes through a device that is not there; those that were made."""

    def transfer_for(exchange: GradientExchange, tensors: object) -> Transfer:
        made.append(LateCopies(exchange.rank))
        return DeviceStaging(exchange, made[-1])

    return transfer_for
