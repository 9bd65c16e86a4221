# SPDX-License-Identifier: Apache-2.0
"""Wrappers that average or shard are refused by name, around a synchronized model or inside one."""

from __future__ import annotations

import pytest
import torch
from support.exchanges import ThreadServer
from support.tensors import noise
from torch import distributed, nn
from torch.distributed import fsdp

import foresee.torch as ft
from foresee.errors import ConfigError

Ddp = nn.parallel.DistributedDataParallel


@pytest.fixture
def group():
    """A process group of one process, for the wrappers."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def pair(model=None):
    model = model or nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return ft.synchronize(model, optimizer, servers=ThreadServer(1).exchange(0))


def train(model, optimizer, through=None, steps=2):
    for step in range(steps):
        optimizer.zero_grad()
        (through or model)(noise(3, 4, seed=step)).square().mean().backward()
        optimizer.step()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (Ddp, "DistributedDataParallel"),
        (fsdp.FullyShardedDataParallel, "FullyShardedDataParallel"),
        (fsdp.fully_shard, "fully_shard"),
    ],
    ids=["ddp", "fsdp", "fsdp2"],
)
def test_a_wrapper_around_a_synchronized_model_is_named_when_it_is_made(wrap, name, steps):
    model, optimizer = pair()
    train(model, optimizer, steps=steps)
    with pytest.raises(ConfigError, match=f"{name} around a synchronized model.*Drop {name}.*ft.ddp_hook"):
        wrap(model)


@pytest.mark.usefixtures("group")
def test_ddp_around_a_parent_of_a_synchronized_model_is_named_in_its_forward_pass():
    model, optimizer = pair()
    train(model, optimizer)
    with pytest.raises(ConfigError, match="DistributedDataParallel around a synchronized model"):
        train(model, optimizer, Ddp(nn.Sequential(model)))


def test_data_parallel_is_named_when_it_makes_replicas():
    model, optimizer = pair()
    with pytest.raises(ConfigError, match="DataParallel around a synchronized model"):
        model._replicate_for_data_parallel()
    optimizer.close()
    model._replicate_for_data_parallel()


@pytest.mark.usefixtures("group")
def test_a_wrapped_part_of_a_model_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"1 is wrapped in DistributedDataParallel.*ft\.ddp_hook"):
        pair(nn.Sequential(nn.Linear(4, 4), Ddp(nn.Linear(4, 2))))
