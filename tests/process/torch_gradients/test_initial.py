# SPDX-License-Identifier: Apache-2.0
"""All ranks start with rank 0's parameters and buffers, as in DistributedDataParallel, including tensors of no round."""

from __future__ import annotations

import copy

import pytest
import torch
from support.ranks import run
from support.reference import seeded
from support.tensors import assert_same_bits, noise
from torch import nn

import foresee.torch as ft
from foresee.errors import ConfigError
from foresee.torch._rank_group import RankGroup

WORLD = 3


class Body(nn.Module):
    """A frozen body under a trained head, with buffers of all kinds."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.body.requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)
        self.scale = nn.Parameter(noise(4, 6, seed=3).t(), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0), requires_grad=False)
        self.register_buffer("mask", noise(4, seed=4) > 0)
        self.register_buffer("places", torch.arange(4, dtype=torch.int16).expand(2, 4), persistent=False)
        self.register_buffer("phase", torch.complex(noise(3, seed=5), noise(3, seed=6)))
        self.register_buffer("flag", torch.tensor(3, dtype=torch.uint8))
        with torch.inference_mode():
            self.register_buffer("fixed", noise(2, seed=7) > 0)

    def forward(self, x):
        return self.head(self.norm(self.body(x)))


def tensors(model):
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def with_other_values(model):
    """Return a model with other values in every tensor."""
    for tensor in [*model.parameters(), *model.buffers()]:
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            memory = tensor[0] if 0 in tensor.stride() else tensor
            memory.copy_(memory.logical_not() if tensor.dtype == torch.bool else memory + 1)
    return model


@pytest.mark.parametrize("buffers", [True, False], ids=["buffers", "no buffers"])
def test_all_ranks_start_with_rank_0s_tensors_as_in_ddp(network, buffers):
    first = tensors(seeded(Body))

    def body(exchange):
        model = seeded(Body)
        if exchange.rank:
            with_other_values(model)
            assert not any(
                torch.equal(one, first[name]) for name, one in tensors(model).items() if one.numel()
            )
        strides = {name: one.stride() for name, one in model.named_parameters()}
        trained = [*model.norm.parameters(), *model.head.parameters()]
        ft.synchronize(model, torch.optim.SGD(trained, lr=0.1), servers=exchange, buffers=buffers)
        assert strides == {name: one.stride() for name, one in model.named_parameters()}
        return tensors(model)

    for found in run(network(WORLD), body):
        assert_same_bits(list(found.values()), list(first.values()))


def test_frozen_tensors_that_are_equal_on_all_ranks_are_not_sent(network, monkeypatch):
    sent = []
    broadcast = RankGroup.broadcast
    monkeypatch.setattr(
        RankGroup,
        "broadcast",
        lambda group, tensors: (sent.append([spec.id for spec, _ in tensors]), broadcast(group, tensors)),
    )

    def body(exchange):
        model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))
        seeds = iter(range(9))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(noise(*parameter.shape, seed=next(seeds)))
        ft.synchronize(model, torch.optim.SGD(model[1].parameters(), lr=0.1), servers=exchange)

    run(network(2), body)
    assert sent == [[0, 1], [0, 1]], "the parameters of the optimizer"


def test_a_frozen_tensor_of_another_shape_is_refused_by_name(network):
    def body(exchange):
        model = nn.Sequential(nn.Linear(4 + exchange.rank, 4).requires_grad_(False), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        with pytest.raises(ConfigError, match=r"0\.weight"):
            ft.synchronize(model, optimizer, servers=exchange)

    run(network(2), body)


@pytest.mark.filterwarnings("ignore:.* require gradients and are in no optimizer")
def test_a_parameter_that_is_frozen_on_one_rank_alone_is_refused_by_name(network):
    def body(exchange):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        model[0].requires_grad_(exchange.rank == 0)
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        with pytest.raises(
            ConfigError, match=r"'0\.weight' is given on rank 0 and missing on rank 1|has 3 tensors"
        ):
            ft.synchronize(model, [optimizer], servers=exchange)

    run(network(2), body)


def test_a_frozen_tensor_without_plain_memory_is_named_in_a_warning(network):
    def body(exchange):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        model.register_buffer("graph", torch.eye(3).to_sparse())
        model.register_buffer("later", torch.empty(3, dtype=torch.int16, device="meta"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ft.synchronize(model, optimizer, servers=exchange, buffers=False)
        assert copy.deepcopy(model[0].weight).shape == (4, 4)

    with pytest.warns(
        UserWarning, match="graph is of torch.float32, torch.sparse_coo, .* load the same on every rank"
    ):
        run(network(2), body)
