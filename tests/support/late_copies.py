# SPDX-License-Identifier: Apache-2.0
"""A simulated device for hosts without CUDA: its copies are late, and their memory is invalid until then.

Tensors stay in CPU memory. It shows that the product reads no copy before it is complete, and no average after the
exchange may overwrite it. Streams and pinned memory are for tests with a GPU.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import torch

from foresee.torch._exchange import GradientExchange
from foresee.torch.gradients._transfer import DeviceStaging, Transfer
from support.waiting import pause

#: Maximal seconds of a copy.
LATE_S = 0.004


class LateCopy:
    """A copy of the tensor at its creation, which is written by ``wait``."""

    def __init__(self, tensor: torch.Tensor, late_s: float) -> None:
        self.host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        if self.host.is_floating_point():
            self.host.fill_(float("nan"))
        self._values, self._late_s = tensor.clone(), late_s

    def wait(self) -> None:
        pause(self._late_s)
        self.host.copy_(self._values)


class LateCopies:
    """Copies of a device that take a random time."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.left = self.arrived = 0
        self.closed = False

    def to_host(self, tensor: torch.Tensor) -> LateCopy:
        with self._lock:
            self.left += 1
            return LateCopy(tensor, self._random.uniform(0, LATE_S))

    def to_device(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        assert device.type == "cpu"
        self.arrived += 1
        return host.clone()

    def record_reads(self) -> Callable[[], None]:
        return lambda: pause(0)

    def close(self) -> None:
        self.closed = True


def staged(made: list[LateCopies]) -> Callable[..., Transfer]:
    """Replace ``transfer_for`` by one that uses the simulated device; ``made`` gets its copies."""

    def transfer_for(exchange: GradientExchange, tensors: object) -> Transfer:
        made.append(LateCopies(exchange.rank))
        return DeviceStaging(exchange, made[-1])

    return transfer_for
