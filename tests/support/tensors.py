# SPDX-License-Identifier: Apache-2.0
"""Tensors of a training: random numbers, the state that training changes, and its comparison bit by bit."""

from __future__ import annotations

import copy
from typing import Any

import torch


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a copy of everything that training changes."""
    own = optimizer.state_dict()
    return copy.deepcopy(
        {"model": dict(model.state_dict()), "state": own["state"], "groups": own["param_groups"]}
    )


def assert_same_bits(mine: Any, theirs: Any, where: str = "") -> None:
    """Assert equal structure, dtype and bits; NaN equals NaN of the same bits, 0.0 is not -0.0."""
    if isinstance(mine, torch.Tensor):
        assert isinstance(theirs, torch.Tensor), where
        assert mine.dtype == theirs.dtype, where
        assert mine.shape == theirs.shape, where
        as_bytes = [
            one.detach().contiguous().view(-1).view(torch.uint8) if one.numel() else one
            for one in (mine, theirs)
        ]
        assert torch.equal(*as_bytes), f"{where}: {mine} is not {theirs}"
    elif isinstance(mine, dict):
        assert set(mine) == set(theirs), where
        for key in mine:
            assert_same_bits(mine[key], theirs[key], f"{where}/{key}")
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs), where
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            assert_same_bits(a, b, f"{where}/{i}")
    else:
        assert mine == theirs, where


def noise(*shape: int, seed: int) -> torch.Tensor:
    """Return random numbers that do not depend on other threads."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
