# SPDX-License-Identifier: Apache-2.0
"""Detection of torch's wrappers that average gradients or shard weights themselves.

They cannot wrap a synchronized model, nor a part of one. A wrapper does not notify what it wraps, but its constructor
calls ``parameters()``, and ``DistributedDataParallel`` notes that its forward pass runs.
"""

from __future__ import annotations

import sys

import torch

from foresee.errors import ConfigError

__all__ = ["check_caller", "check_forward", "find_wrapper", "wrapper_error"]

_PARALLEL = "torch.nn.parallel."
_SHARDED = "torch.distributed.fsdp."
_NAMES = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DataParallel")
#: Maximal number of calls between a wrapper's constructor and a method of the model.
_MAX_DEPTH = 12


def find_wrapper(module: torch.nn.Module) -> str | None:
    """Return the name of the wrapper class of ``module``, if any; imports of the classes would be slow."""
    return next((kind.__name__ for kind in type(module).__mro__ if kind.__name__ in _NAMES), None)


def check_caller() -> None:
    """Refuse parameters to a wrapper's constructor.

    Raises:
        ConfigError: the caller is one.
    """
    frame = sys._getframe(1)  # noqa: SLF001
    for _ in range(_MAX_DEPTH):
        name, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if name.startswith((_PARALLEL, _SHARDED)) and function in ("__init__", "fully_shard"):
            made = frame.f_locals.get("self")
            raise wrapper_error(
                find_wrapper(made) or function if isinstance(made, torch.nn.Module) else function
            )
        if frame.f_back is None:
            return
        frame = frame.f_back


def check_forward(model: torch.nn.Module) -> None:
    """Refuse a forward pass of ``model`` within that of a ``DistributedDataParallel`` around it.

    Raises:
        ConfigError: it runs in one.
    """
    running = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if running is not None and any(module is model for module in running.modules()):
        raise wrapper_error("DistributedDataParallel")


def wrapper_error(name: str) -> ConfigError:
    """Return the error for a wrapper around a synchronized model."""
    return ConfigError(
        f"{name} around a synchronized model: both would average its gradients. Drop {name} and train the model that "
        "synchronize() returned; or drop synchronize(), keep DistributedDataParallel around the plain model, and "
        "average through foresee by ddp.register_comm_hook(ft.DdpState(servers=...), ft.ddp_hook)"
    )
