# SPDX-License-Identifier: Apache-2.0
"""Three modes of clipping, step hooks, and ``overlap="backward"``, which need complete gradients."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from support.ranks import Training, run
from support.reference import mean_in_rank_order, seeded
from support.tensors import assert_same_bits, noise, state_of
from torch import nn
from torch.nn.utils import clip_grad_norm_

import foresee.torch as ft

WORLD = 2


def model():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def batch(step, rank):
    return noise(3, 4, seed=10 * step + rank)


def loss(model, x):
    return (3 * model(x) - 1).square().mean()


def test_exact_clipping_has_the_bits_of_torchs_own(network):
    training = Training(
        model, sgd, batch, loss, clip=lambda model: clip_grad_norm_(model.parameters(), 0.7),
        arguments={"clip": "exact", "max_norm": 0.7},
    )  # fmt: skip
    expected = training.reference(WORLD)
    for state in training.ranks(network(WORLD, late=0.01)):
        assert_same_bits(state, expected)
    loose = Training(model, sgd, batch, loss).reference(WORLD)
    assert not torch.equal(loose["model"]["0.weight"], expected["model"]["0.weight"]), "nothing was clipped"


def test_clipping_each_tensor_by_its_own_norm(network):
    def each(model):
        for parameter in model.parameters():
            clip_grad_norm_([parameter], 0.2)

    training = Training(model, sgd, batch, loss, clip=each, arguments={"clip": "per_param", "max_norm": 0.2})
    expected = training.reference(WORLD)
    for state in training.ranks(network(WORLD, late=0.01)):
        assert_same_bits(state, expected)


def test_clipping_by_the_norm_of_the_step_before(network):
    previous = []

    def last(model):
        gradients = [parameter.grad for parameter in model.parameters()]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in gradients]))
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.7, previous[-1] if previous else norm)
        previous.append(norm)

    training = Training(
        model, sgd, batch, loss, clip=last, arguments={"clip": "previous_norm", "max_norm": 0.7}
    )
    expected = training.reference(WORLD)
    for state in training.ranks(network(WORLD, late=0.01)):
        assert_same_bits(state, expected)


class Own(torch.optim.AdamW):
    """An unlisted class, which is checked on toy parameters."""


@pytest.mark.parametrize("overlap", ["forward", "backward"])
@pytest.mark.parametrize("make", [torch.optim.AdamW, Own], ids=["listed", "tried"])
@pytest.mark.parametrize("by_name", [True, False], ids=["closure=", "positional"])
def test_a_closure_that_is_evaluated_once_gives_stock_bits(network, overlap, make, by_name):
    """As in Lightning: forward pass, zero_grad() and backward() in the closure, whose loss step() returns."""
    expected = Training(model, lambda net: make(net.parameters(), lr=0.01), batch, loss=loss).reference(WORLD)

    def body(exchange):
        net = seeded(model)
        net, optimizer = ft.synchronize(
            net, make(net.parameters(), lr=0.01), servers=exchange, overlap=overlap
        )
        for step in range(5):

            def closure(step=step):
                value = loss(net, batch(step, exchange.rank))
                optimizer.zero_grad()
                value.backward()
                return value

            with torch.no_grad():
                returned = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
            assert returned.requires_grad
        return state_of(net, optimizer)

    for state in run(network(WORLD, late=0.01), body):
        assert_same_bits(state, expected)


@pytest.mark.usefixtures("slow_network")
def test_only_exact_clipping_waits_for_all_tensors(network):
    for clip, whole in (("exact", True), ("per_param", False), ("previous_norm", False)):
        (exchange,) = network(1)
        net = model()
        net, optimizer = ft.synchronize(net, sgd(net), servers=exchange, clip=clip, max_norm=1.0)
        last = net[4].weight
        for step in range(3):
            optimizer.zero_grad()
            loss(net, batch(step, 0)).backward()
            optimizer.step()
        net[0](batch(0, 0))
        assert last.grad is not None
        pending = [
            entry.name for entry in net.__dict__["_foresee_synchronizer"].plan.entries if entry.is_pending
        ]
        assert pending == ([] if whole else ["2.weight", "2.bias", "4.weight", "4.bias"])


def test_step_hooks_run_once_with_all_averages_in_place(network):
    def hooked(optimizer, calls):
        def before(optimizer, args, kwargs):
            calls.append([parameter.grad.clone() for parameter in optimizer.param_groups[0]["params"]])

        def after(optimizer, args, kwargs):
            calls.append([parameter.detach().clone() for parameter in optimizer.param_groups[0]["params"]])

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)

    calls = [[], [], []]

    def optimizer_of(number):
        def make(model):
            optimizer = adam(model)
            hooked(optimizer, calls[number])
            return optimizer

        return make

    expected = Training(model, optimizer_of(2), batch, loss).reference(WORLD)
    numbers = iter((0, 1))

    def next_optimizer(model):
        return optimizer_of(next(numbers))(model)

    made = Training(model, next_optimizer, batch, loss)
    for state in made.ranks(network(WORLD, late=0.01)):
        assert_same_bits(state, expected)
    assert len(calls[2]) == 2 * made.steps
    assert_same_bits(calls[0], calls[2])
    assert_same_bits(calls[1], calls[2])


ARGUMENTS = {"overlap": "backward"}


class TestBackward:
    """``overlap="backward"``: all averages are in ``p.grad`` when ``backward()`` returns."""

    def test_bits(self, network):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = model()
                self.norm = nn.BatchNorm1d(2)
                self.unused = nn.Linear(2, 2)

            def forward(self, x):
                return self.norm(self.body(x))

        halved = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)  # noqa: E731
        training = Training(Net, adam, batch, loss, schedule=halved, arguments=ARGUMENTS)
        expected = training.reference(WORLD)
        for state in training.ranks(network(WORLD, late=0.01)):
            assert_same_bits(state, expected)

    def test_stock_clipping_and_zero_grad_in_place(self, network):
        def body(exchange):
            net, optimizer = Training(model, sgd, batch, loss).fresh()
            net, optimizer = ft.synchronize(net, optimizer, servers=exchange, **ARGUMENTS)
            for step in range(5):
                optimizer.zero_grad(set_to_none=False)
                loss(net, batch(step, exchange.rank)).backward()
                norm = clip_grad_norm_(net.parameters(), 0.7)
                assert norm > 0
                optimizer.step()
            return {name: value.clone() for name, value in net.state_dict().items()}

        expected = Training(
            model, sgd, batch, loss, clip=lambda model: clip_grad_norm_(model.parameters(), 0.7)
        ).reference(WORLD)  # fmt: skip
        for state in run(network(WORLD, late=0.01), body):
            assert_same_bits(state, expected["model"])

    def test_grad_scaler_skips_a_step_on_every_rank(self, network):
        def train(net, optimizer, average):
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
            scales = []
            for step in range(6):
                optimizer.zero_grad()

                # One rank overflows in one step: the average does on all.
                def scaled(value, rank, step=step):
                    return scaler.scale(value * (float("inf") if (step, rank) == (2, 1) else 1))

                average(net, step, scaled)
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
            return {name: value.clone() for name, value in net.state_dict().items()}, scales

        def sequential(net, step, scaled):
            gradients = []
            for rank in range(WORLD):
                net.zero_grad()
                scaled(loss(net, batch(step, rank)), rank).backward()
                gradients.append([parameter.grad for parameter in net.parameters()])
            for parameter, of_ranks in zip(net.parameters(), zip(*gradients, strict=True), strict=True):
                parameter.grad = mean_in_rank_order(list(of_ranks), WORLD)

        fresh = Training(model, sgd, batch, loss).fresh
        expected = train(*fresh(), sequential)
        pairs = [fresh() for _ in range(WORLD)]

        def body(exchange):
            net, optimizer = ft.synchronize(*pairs[exchange.rank], servers=exchange, **ARGUMENTS)

            def average(net, step, scaled):
                scaled(loss(net, batch(step, exchange.rank)), exchange.rank).backward()

            return train(net, optimizer, average)

        for state in run(network(WORLD, late=0.01), body):
            assert_same_bits(state, expected)
        assert expected[1][2] == expected[1][1] / 2

    def test_accumulation_and_two_losses(self, network):
        def two(net, x, context):
            with context():
                loss(net, x[:2]).backward()
            return loss(net, x[2:])

        training = Training(model, sgd, batch, lambda net, x: two(net, x, nullcontext), arguments=ARGUMENTS)
        expected = training.reference(WORLD)
        training.loss = lambda net, x: two(net, x, net.no_sync)
        for state in training.ranks(network(WORLD, late=0.01)):
            assert_same_bits(state, expected)

    def test_two_synchronized_backwards_add_their_averages(self, network):
        def body(exchange):
            net, optimizer = Training(model, sgd, batch, loss).fresh()
            net, optimizer = ft.synchronize(net, optimizer, servers=exchange, **ARGUMENTS)
            net[4](torch.tanh(noise(1, 6, seed=exchange.rank))).sum().backward()
            first = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
            loss(net, batch(0, exchange.rank)).backward()
            both = [p.grad.clone() for p in net.parameters()]
            net.zero_grad()
            loss(net, batch(0, exchange.rank)).backward()
            second = [p.grad.clone() for p in net.parameters()]
            optimizer.step()
            for one, two, added in zip(first, second, both, strict=True):
                torch.testing.assert_close(added, two if one is None else one + two)
            return both

        one, other = run(network(WORLD, late=0.01), body)
        assert_same_bits(one, other)

    def test_a_rank_whose_backward_reaches_nothing_still_ends_the_round(self, network):
        def body(exchange):
            net, optimizer = Training(model, sgd, batch, loss).fresh()
            net, optimizer = ft.synchronize(net, optimizer, servers=exchange, **ARGUMENTS)
            if exchange.rank == 0:
                loss(net, batch(0, 0)).backward()
            optimizer.step()
            return {name: value.clone() for name, value in net.state_dict().items()}

        one, other = run(network(WORLD, late=0.01), body)
        assert_same_bits(one, other)

    def test_logging_reads_averages(self, network):
        def body(exchange):
            net, optimizer = Training(model, sgd, batch, loss).fresh()
            net, optimizer = ft.synchronize(net, optimizer, servers=exchange, **ARGUMENTS)
            loss(net, batch(0, exchange.rank)).backward()
            return [parameter.grad.norm() for parameter in net.parameters()]

        one, other = run(network(WORLD, late=0.01), body)
        assert_same_bits(one, other)
