# SPDX-License-Identifier: Apache-2.0
"""Ranks of a process group with different arguments, or of which one is lost with the server in its process.

Each reports the results of its calls.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed, nn

import foresee.torch as ft
from foresee.errors import ForeseeError
from support.processes import Child, print_json

#: Arguments of the last rank only, by name.
ARGUMENTS: dict[str, object] = {
    "comm_dtype": "bf16",
    "overlap": "backward",
    "buffers": False,
    "recover": False,
    "clip": "exact",
}
_MAX_NORM = {"clip": {"max_norm": 1.0}}
#: Seconds after which a silent process is lost; a killed one is noticed earlier.
_TIMEOUT_S = 20.0
_LOST_STEP = 2


def rank(number: int, world: int, port: int, *what: str) -> Child:
    """Start a rank with a store at ``port``; ``what``: "arguments", or "lost" and the training function."""
    source = "from support.differing_ranks import main; main()"
    env = {"FORESEE_ADDRESS": "127.0.0.1"}
    return Child(source, str(number), str(world), str(port), *what, env=env, warm=True)


def main() -> None:
    """Run a rank process."""
    warnings.simplefilter("ignore")
    number, world, port = map(int, sys.argv[1:4])
    store = distributed.TCPStore("127.0.0.1", port)
    distributed.init_process_group("gloo", store=store, rank=number, world_size=world)
    if sys.argv[4] == "arguments":
        for name, value in ARGUMENTS.items():
            arguments = {name: value, **_MAX_NORM.get(name, {})} if number == world - 1 else {}
            _report(name, lambda arguments=arguments: _synchronized(arguments))
    else:
        train = {"synchronize": _train, "ddp_hook": _train_in_ddp}[sys.argv[5]]
        _report("lost", lambda: train(number))


def _report(case: str, body: Any) -> None:
    try:
        body()
    except ForeseeError as error:
        print_json(case=case, error=type(error).__name__, text=str(error), rank=getattr(error, "rank", None))
    else:
        print_json(case=case, error=None, text="", rank=None)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))


def _synchronized(arguments: Mapping[str, Any]) -> tuple[nn.Module, Any]:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return ft.synchronize(
        model, optimizer, servers="colocated", hierarchical=False, timeout=_TIMEOUT_S, **arguments
    )


def _train(number: int) -> None:
    model, optimizer = _synchronized({})
    for step in range(4):
        _die(number, step)
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
    optimizer.flush()


def _train_in_ddp(number: int) -> None:
    model = nn.parallel.DistributedDataParallel(_model())
    state = ft.DdpState(servers="colocated", hierarchical=False, timeout=_TIMEOUT_S)
    model.register_comm_hook(state, ft.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        # DDP would send buffers over gloo, which has another error for a lost rank.
        model.broadcast_buffers = model.require_forward_param_sync = False
        for step in range(4):
            _die(number, step)
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
    finally:
        state.close()
        state.close()


def _die(number: int, step: int) -> None:
    if number == 1 and step == _LOST_STEP:
        os.kill(os.getpid(), signal.SIGKILL)
