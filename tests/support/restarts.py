# SPDX-License-Identifier: Apache-2.0
"""A rank that resumes from the last checkpoint, as a user's script does, and fails once during training."""

from __future__ import annotations

import os
import pathlib
import signal
import sys

import torch

import foresee.torch as ft
from support.gradients import digest, training
from support.processes import print_json
from support.reference import Net
from support.tensors import state_of

#: The step in which rank 1 fails, after it pushed its gradients and before it ends the round.
FAILING_STEP = 3


def main() -> None:
    """Run a rank under torchrun."""
    how, folder, servers = sys.argv[1:]
    checkpoint = pathlib.Path(folder) / "checkpoint.pt"
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.distributed.init_process_group("gloo")
    plan = training(servers=servers, timeout=20.0)
    torch.manual_seed(attempt)
    model: torch.nn.Module = Net()
    optimizer = plan.optimizer(model)
    first = 0
    if attempt:
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    model, optimizer = ft.synchronize(model, optimizer, **plan.arguments)
    for step in range(first, plan.steps):
        optimizer.zero_grad()
        plan.loss(model, plan.batch(step, rank)).backward()
        if (rank, attempt, step) == (1, 0, FAILING_STEP):
            if how == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("a fault in the user's script")
        optimizer.step()
        if rank == 0 and step % 2:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
    print_json(attempt=attempt, first=first, digest=digest(state_of(model, optimizer)))


if __name__ == "__main__":
    main()
