# SPDX-License-Identifier: Apache-2.0
"""Wrappers of torch that average gradients, or shard weights, by themselves: found, and named with the remedies.

They cannot stand around a synchronized model, nor inside of one. A wrapper gives no notice to what it wraps, but asks
for its parameters when it is made, and ``DistributedDataParallel`` notes that its forward pass runs.
"""

from __future__ import annotations

import sys

import torch

from foresee.errors import ConfigError

__all__ = ["around", "check_forward", "check_maker", "name_of"]

_PARALLEL = "torch.nn.parallel."
_SHARDED = "torch.distributed.fsdp."
_NAMES = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DataParallel")
#: Calls between a wrapper's constructor and a method of the model.
_DEPTH = 12


def name_of(module: torch.nn.Module) -> str | None:
    """The wrapper that ``module`` is, by name: importing the classes would import much else."""
    return next((kind.__name__ for kind in type(module).__mro__ if kind.__name__ in _NAMES), None)


def check_maker() -> None:
    """Refuse to show parameters to a wrapper that is being made.

    Raises:
        ConfigError: one is.
    """
    frame = sys._getframe(1)  # noqa: SLF001
    for _ in range(_DEPTH):
        name, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if name.startswith((_PARALLEL, _SHARDED)) and function in ("__init__", "fully_shard"):
            made = frame.f_locals.get("self")
            raise around(name_of(made) or function if isinstance(made, torch.nn.Module) else function)
        if frame.f_back is None:
            return
        frame = frame.f_back


def check_forward(model: torch.nn.Module) -> None:
    """Refuse a forward pass of ``model`` inside of that of a ``DistributedDataParallel`` that contains it.

    Raises:
        ConfigError: it runs in one.
    """
    running = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if running is not None and any(module is model for module in running.modules()):
        raise around("DistributedDataParallel")


def around(name: str) -> ConfigError:
    """A wrapper around a synchronized model."""
    return ConfigError(
        f"{name} around a synchronized model: both would average its gradients. Drop {name} and train the model that "
        "synchronize() gave back; or drop synchronize(), keep DistributedDataParallel around the plain model, and "
        "average through foresee by ddp.register_comm_hook(ft.DdpState(servers=...), ft.ddp_hook)"
    )
