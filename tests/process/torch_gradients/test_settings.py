# SPDX-License-Identifier: Apache-2.0
"""Errors for ranks with different settings, states or weights: the first difference, both values and both ranks."""

from __future__ import annotations

import re

import pytest
import torch
from support.ranks import run
from support.reference import seeded
from support.tensors import noise
from torch import nn

import foresee.torch as ft
from foresee.errors import ConfigError

WORLD = 2


def model():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def step(net, optimizer, number, rank):
    optimizer.zero_grad()
    net(noise(3, 4, seed=10 * number + rank)).square().mean().backward()
    optimizer.step()


def trained(net):
    """An optimizer with a state."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for number in range(2):
        step(net, optimizer, number, 0)
    return optimizer


def sgd(lr=0.1, **settings):
    return lambda net, odd: torch.optim.SGD(net.parameters(), lr=lr, **settings)


# For each case: the optimizer and arguments of a rank, by whether it differs, and the text of the error.
STARTS = {
    "rate": (
        lambda net, odd: (torch.optim.SGD(net.parameters(), lr=0.01 if odd else 0.1), {}),
        r"param_groups[0]['lr'] is 0.1 on rank 0 and 0.01 on rank 1",
    ),
    "rate in a tensor": (
        lambda net, odd: (torch.optim.Adam(net.parameters(), lr=torch.tensor(0.25 if odd else 0.5)), {}),
        "param_groups[0]['lr'] is torch.float32 0.5 on rank 0 and torch.float32 0.25 on rank 1",
    ),
    "second group": (
        lambda net, odd: (
            torch.optim.AdamW([{"params": net[0].parameters()}, {"params": net[2].parameters(), "betas": (0.8 if odd else 0.9, 0.99)}]),
            {},
        ),
        "param_groups[1]['betas'] is (0.9, 0.99) on rank 0 and (0.8, 0.99) on rank 1",
    ),
    "split of groups": (
        lambda net, odd: (
            torch.optim.SGD(net.parameters(), lr=0.1)
            if odd
            else torch.optim.SGD([{"params": net[0].parameters()}, {"params": net[2].parameters()}], lr=0.1),
            {},
        ),
        "parameters in param_groups[0] is 2 on rank 0 and 4 on rank 1",
    ),
    "class": (
        lambda net, odd: ((torch.optim.Adam if odd else torch.optim.AdamW)(net.parameters(), lr=0.1), {}),
        "class is AdamW on rank 0 and Adam on rank 1",
    ),
    "loaded state": (
        lambda net, odd: (torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) if odd else trained(net), {}),
        "state 'momentum_buffer' of 0.weight is torch.float32 [[",
    ),
    "other state": (
        lambda net, odd: (trained(model() if odd else net) if not odd else _scaled(trained(net)), {}),
        "state 'momentum_buffer' of 0.weight is torch.float32 [[",
    ),
    "clip": (
        lambda net, odd: (
            torch.optim.SGD(net.parameters(), lr=0.1),
            {"clip": "per_param" if odd else "exact", "max_norm": 1.0},
        ),
        "clip= is 'exact' on rank 0 and 'per_param' on rank 1",
    ),
    "max_norm": (
        lambda net, odd: (torch.optim.SGD(net.parameters(), lr=0.1), {"clip": "exact", "max_norm": 2.0 if odd else 1.0}),
        "max_norm= is 1.0 on rank 0 and 2.0 on rank 1",
    ),
    "overlap": (
        lambda net, odd: (torch.optim.SGD(net.parameters(), lr=0.1), {"overlap": "backward" if odd else "forward"}),
        "overlap= is 'forward' on rank 0 and 'backward' on rank 1",
    ),
}  # fmt: skip


def _scaled(optimizer):
    for state in optimizer.state.values():
        state["momentum_buffer"].mul_(2.0)
    return optimizer


@pytest.mark.parametrize("case", STARTS)
def test_ranks_with_different_initial_settings_get_an_error_that_names_them(network, case):
    make, message = STARTS[case]

    def body(exchange):
        net = seeded(model)
        optimizer, arguments = make(net, exchange.rank == 1)
        with pytest.raises(ConfigError, match=re.escape(message)):
            ft.synchronize(net, optimizer, servers=exchange, **arguments)

    run(network(WORLD), body)


def test_the_rank_that_differs_is_named_among_several(network):
    def body(exchange):
        net = seeded(model)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1 + (exchange.rank == 2))
        with pytest.raises(ConfigError, match=r"\['lr'\] is 0\.1 on rank 0 and 1\.1 on rank 2"):
            ft.synchronize(net, optimizer, servers=exchange)

    run(network(4), body)


def change_the_rate(net, optimizer):
    optimizer.param_groups[0]["lr"] = 0.05


def load_another_state(net, optimizer):
    state = optimizer.state_dict()
    state["state"][0]["momentum_buffer"] = torch.ones(4, 4)
    optimizer.load_state_dict(state)


def load_other_weights(net, optimizer):
    net.load_state_dict({name: value + 1 for name, value in net.state_dict().items()})


def edit_a_weight(net, optimizer):
    optimizer.flush()
    net[2].bias.data.add_(1.0)


CHANGES = [
    (change_the_rate, r"param_groups\[0\]\['lr'\] is 0\.1 on rank 0 and 0\.05 on rank 1"),
    (load_another_state, r"state 'momentum_buffer' of 0\.weight is .* on rank 0 and .* on rank 1"),
    (load_other_weights, r"weight 0\.weight is .* on rank 0 and .* on rank 1"),
    (edit_a_weight, r"weight 2\.bias is .* on rank 0 and .* on rank 1"),
]


@pytest.mark.parametrize("overlap", ["forward", "backward"])
@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_a_change_on_one_rank_is_found_while_training_and_rank_0_alone_saves(
    network, change, message, overlap
):
    def body(exchange):
        net = seeded(model)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        net, optimizer = ft.synchronize(net, optimizer, servers=exchange, overlap=overlap)
        for number in range(3):
            step(net, optimizer, number, exchange.rank)
        if exchange.rank == 1:
            change(net, optimizer)

        def continue_training():
            for number in range(3, 9):
                step(net, optimizer, number, exchange.rank)
                if exchange.rank == 0:
                    optimizer.state_dict()

        with pytest.raises(ConfigError, match=message):
            continue_training()

    run(network(WORLD), body)


@pytest.mark.parametrize("overlap", ["forward", "backward"])
def test_the_same_change_on_every_rank_is_no_difference(network, overlap):
    def body(exchange):
        net = seeded(model)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        net, optimizer = ft.synchronize(net, optimizer, servers=exchange, overlap=overlap)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        saved = None
        for number in range(12):
            step(net, optimizer, number, exchange.rank)
            schedule.step()
            if number == exchange.rank + 2:
                optimizer.state_dict()
            if number == 5:
                saved = (
                    optimizer.state_dict(),
                    {key: value.clone() for key, value in net.state_dict().items()},
                )
            if number == 8:
                optimizer.load_state_dict(saved[0])
                net.load_state_dict(saved[1])
        return [value.clone() for value in net.state_dict().values()]

    first, second = run(network(WORLD, late=0.002), body)
    assert all(map(torch.equal, first, second))


def test_a_load_without_a_change_on_one_rank_alone_is_accepted(network):
    def body(exchange):
        net = seeded(model)
        net, optimizer = ft.synchronize(net, torch.optim.SGD(net.parameters(), lr=0.1), servers=exchange)
        for number in range(8):
            step(net, optimizer, number, exchange.rank)
            if number == 3 and exchange.rank == 0:
                net.load_state_dict({key: value.clone() for key, value in net.state_dict().items()})
        return [value.clone() for value in net.state_dict().values()]

    first, second = run(network(WORLD, late=0.002), body)
    assert all(map(torch.equal, first, second))


def test_optimizers_that_are_stepped_on_one_rank_alone_are_found(network):
    def body(exchange):
        net = seeded(model)
        optimizers = [
            torch.optim.SGD(net[0].parameters(), lr=0.1),
            torch.optim.SGD(net[2].parameters(), lr=0.1),
        ]
        net, (first, second) = ft.synchronize(net, optimizers, servers=exchange)

        def train():
            for number in range(9):
                net.zero_grad()
                net(noise(3, 4, seed=number)).square().mean().backward()
                first.step()
                if exchange.rank == 0 or number != 2:
                    second.step()

        with pytest.raises(ConfigError, match=r"steps of optimizers\[1\] is 4 on rank 0 and 3 on rank 1"):
            train()

    run(network(WORLD), body)


def test_digests_depend_on_every_bit_and_its_position():
    from foresee.torch.gradients._settings import _tensor_digest

    for dtype, count in ((torch.float32, 7), (torch.bfloat16, 33), (torch.float64, 5), (torch.uint8, 3)):
        one = torch.arange(1, count + 1).to(dtype)
        assert _tensor_digest(one) == _tensor_digest(one.clone())
        swapped = one.clone()
        swapped[0], swapped[1] = one[1].clone(), one[0].clone()
        other = one.clone()
        other[-1] += 1
        assert len({_tensor_digest(tensor) for tensor in (one, swapped, other)}) == 3
