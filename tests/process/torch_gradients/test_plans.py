# SPDX-License-Identifier: Apache-2.0
"""Tensors in the plan: new parameter groups, buffers, several models."""

from __future__ import annotations

import pytest
import torch
from support.exchanges import ThreadServer
from support.ranks import run
from support.reference import mean_in_rank_order, seeded
from support.small_models import HeadFirst, batch, sgd
from support.tensors import assert_same_bits
from torch import nn

import foresee.torch as ft


@pytest.mark.filterwarnings("ignore:4 parameters .* are in no optimizer")
def test_new_parameter_groups_join_on_every_rank(network):
    def pair():
        model = seeded(HeadFirst)
        return model, torch.optim.SGD(model.first.parameters(), lr=0.1, momentum=0.9)

    def train(model, optimizer, average):
        for step in range(6):
            if step == 3:
                optimizer.add_param_group({"params": list(model.head.parameters()), "lr": 0.01})
            optimizer.zero_grad()
            average(model, optimizer, step)
            optimizer.step()
        return {name: value.clone() for name, value in model.state_dict().items()}

    def sequential(model, optimizer, step):
        gradients = []
        for rank in range(2):
            model.zero_grad()
            model(batch(step, rank)).square().mean().backward()
            gradients.append([p.grad for p in model.parameters()])
        for parameter, of_ranks in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = mean_in_rank_order(list(of_ranks), 2)

    expected = train(*pair(), sequential)
    pairs = [pair(), pair()]

    def body(exchange):
        model, optimizer = ft.synchronize(*pairs[exchange.rank], servers=exchange)
        return train(
            model,
            optimizer,
            lambda model, _, step: model(batch(step, exchange.rank)).square().mean().backward(),
        )

    for state in run(network(2, late=0.01), body):
        assert_same_bits(state, expected)


def test_buffers_follow_rank_0_and_constants_are_not_sent():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("table", torch.arange(4.0))
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("mask", torch.ones(4, dtype=torch.bool))

        def forward(self, x):
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return self.norm(x * self.table * self.mask) + self.mean

    server = ThreadServer(2, late=0.01)
    nets = [Net(), Net()]

    def body(exchange):
        model, optimizer = ft.synchronize(nets[exchange.rank], sgd(nets[exchange.rank]), servers=exchange)
        for step in range(4):
            optimizer.zero_grad()
            model(batch(step, exchange.rank)).square().sum().backward()
            optimizer.step()
        return {name: value.clone() for name, value in model.state_dict().items()}, exchange.log

    (first, log), (second, other) = run(server.exchanges(), body)
    assert_same_bits(first, second)
    assert first["norm.num_batches_tracked"] == 4
    pushed = [name for kind, name in log if kind == "push"]
    assert pushed.count("mean") == 4
    assert pushed.count("norm.running_mean") == 4
    assert "table" not in pushed
    assert not any(
        name.startswith("norm.running") or name == "mean" for kind, name in other if kind == "push"
    )


@pytest.mark.parametrize("overlap", ["forward", "backward"])
def test_a_buffer_changed_only_by_another_rank_follows_rank_0_too(network, overlap):
    """A branch of some ranks only: rank 0 sends nothing, and the others return to its values."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x, branch):
            y = self.linear(x)
            if branch:
                self.norm(y)
                self.seen += 1
            return y

    def body(exchange):
        net = Net()
        model, optimizer = ft.synchronize(net, sgd(net), servers=exchange, overlap=overlap)
        for step in range(5):
            optimizer.zero_grad()
            model(
                batch(step, exchange.rank), branch=exchange.rank == 1 or step == 2
            ).square().sum().backward()
            optimizer.step()
        return {name: value.clone() for name, value in model.state_dict().items()}

    first, second = run(network(2), body)
    assert_same_bits(first, second)
    assert first["seen"] == 1


def test_a_write_to_a_buffer_between_steps_is_kept(network):
    def body(exchange):
        net = nn.Linear(4, 4)
        net.register_buffer("scale", torch.ones(()))
        model, optimizer = ft.synchronize(net, sgd(net), servers=exchange)
        for step in range(4):
            optimizer.zero_grad()
            (model(batch(step, exchange.rank)) * model.scale).square().sum().backward()
            optimizer.step()
            model.scale.fill_(2.0 + step)
            model(batch(step, exchange.rank))
            assert model.scale == 2.0 + step

    run(network(2), body)


def test_two_models_with_two_optimizers(network):
    """A GAN: each pair has its own exchange; requires_grad_(False) excludes the other network."""

    def nets():
        return seeded(lambda: (nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))))

    def step_of(generator, critic, g, c, x):
        critic.requires_grad_(True)
        c.zero_grad()
        (critic(x).mean() - critic(generator(x).detach()).mean()).backward()
        c.step()
        critic.requires_grad_(False)
        g.zero_grad()
        critic(generator(x)).mean().backward()
        g.step()

    networks = [network(1, late=0.01), network(1, late=0.01)]
    generator, critic = nets()
    g, c = sgd(generator), torch.optim.Adam(critic.parameters())
    for step in range(4):
        step_of(generator, critic, g, c, batch(step, 0))
    mine, theirs = nets()
    mine, my_g = ft.synchronize(mine, sgd(mine), servers=networks[0][0])
    theirs, my_c = ft.synchronize(theirs, torch.optim.Adam(theirs.parameters()), servers=networks[1][0])
    for step in range(4):
        step_of(mine, theirs, my_g, my_c, batch(step, 0))
    assert_same_bits(dict(mine.state_dict()), dict(generator.state_dict()))
    assert_same_bits(dict(theirs.state_dict()), dict(critic.state_dict()))
