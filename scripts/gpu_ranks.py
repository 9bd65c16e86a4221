# SPDX-License-Identifier: Apache-2.0
"""Trainings of ``gpu_check.py``: by two ranks on one device, and by one process as the reference.

Each rank is a separate process: ``python scripts/gpu_ranks.py FOLDER DEVICE``. It writes its final states to files in
the folder, which are compared bit by bit with the reference.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
# With a workspace of fixed size, cuBLAS always sums in the same order.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
from support.reference import Net, ReferenceTraining, mean_in_rank_order, seeded
from support.tensors import noise, state_of
from torch import nn

import foresee.torch as ft

WORLD = 2
#: Values of ``hierarchical`` for the training in 32 bits.
EXCHANGES = {"as_one_node": True, "each_by_itself": False}
_AMP_STEPS = 6
#: Step and rank whose loss is infinite: no rank may step.
_OVERFLOW = (2, 1)


def prepare(device: str) -> None:
    """Make results on ``device`` equal in every process."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False


def training(device: str) -> ReferenceTraining:
    """Return the training in 32 bits."""
    return ReferenceTraining(
        lambda: Net().to(device),
        lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        lambda step, rank: noise(4, 8, seed=100 * step + rank).to(device),
    )


class Amp:
    """The training under autocast, with a scaler of gradients, clipping, and one step that overflows."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.model: nn.Module = seeded(
            lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
        ).to(device)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)

    def backward(self, step: int, rank: int) -> None:
        """Compute the scaled gradients of a rank's batch."""
        x = noise(4, 8, seed=100 * step + rank).to(self._device)
        half = torch.float16 if self._device == "cuda" else torch.bfloat16
        with torch.autocast(self._device, dtype=half):
            loss = self.model(x).float().square().mean()
        factor = float("inf") if (step, rank) == _OVERFLOW else 1.0
        self.scaler.scale(loss * factor).backward()

    def step(self) -> None:
        """Unscale, clip and step, unless a gradient is infinite."""
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state(self) -> dict[str, Any]:
        """Return the state of the training."""
        return {**state_of(self.model, self.optimizer), "scaler": copy.deepcopy(self.scaler.state_dict())}


def references(device: str) -> dict[str, dict[str, Any]]:
    """Return the final state of each training in one process."""
    plain = training(device).reference(WORLD)
    amp = Amp(device)
    for step in range(_AMP_STEPS):
        gradients = []
        for rank in range(WORLD):
            amp.optimizer.zero_grad()
            amp.backward(step, rank)
            gradients.append([parameter.grad for parameter in amp.model.parameters()])
        for parameter, each in zip(amp.model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = mean_in_rank_order([one for one in each if one is not None], WORLD)
        amp.step()
    return {
        name: on_cpu(state) for name, state in {**dict.fromkeys(EXCHANGES, plain), "amp": amp.state()}.items()
    }


def on_cpu(state: Any) -> Any:
    """Copy all tensors of a state to the CPU, where an optimizer has some in any case."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {name: on_cpu(value) for name, value in state.items()}
    return [on_cpu(value) for value in state] if isinstance(state, list) else state


def main() -> None:
    """Run one rank."""
    folder, device = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=WORLD)
    prepare(device)
    trainings: dict[str, Callable[[], dict[str, Any]]] = {
        name: partial(_plain, device, rank, hierarchical=hierarchical)
        for name, hierarchical in EXCHANGES.items()
    }
    trainings["amp"] = partial(_amp, device, rank)
    for name, train in trainings.items():
        torch.save(on_cpu(train()), folder / f"{name}.{rank}.pt")
    dist.destroy_process_group()


def _plain(device: str, rank: int, *, hierarchical: bool) -> dict[str, Any]:
    plan = training(device)
    model, optimizer = plan.fresh()
    model, optimizer = ft.synchronize(model, optimizer, servers="colocated", hierarchical=hierarchical)
    for step in range(plan.steps):
        optimizer.zero_grad()
        plan.loss(model, plan.batch(step, rank)).backward()
        optimizer.step()
    state = state_of(model, optimizer)
    _close(optimizer)
    return state


def _amp(device: str, rank: int) -> dict[str, Any]:
    amp = Amp(device)
    amp.model, amp.optimizer = ft.synchronize(
        amp.model, amp.optimizer, servers="colocated", overlap="backward"
    )
    for step in range(_AMP_STEPS):
        amp.optimizer.zero_grad()
        amp.backward(step, rank)
        amp.step()
    state = amp.state()
    _close(amp.optimizer)
    return state


def _close(optimizer: Any) -> None:
    # A rank's own server serves the other rank too.
    dist.barrier()
    optimizer.close()


if __name__ == "__main__":
    main()
