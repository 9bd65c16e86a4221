# SPDX-License-Identifier: Apache-2.0
"""Tensors of a device: a simulated device with late copies, and a GPU if the host has one."""

from __future__ import annotations

import functools
import importlib

import pytest
import torch
from support.exchanges import ThreadServer, in_process, over_servers
from support.gradients import training
from support.late_copies import LateCopies, staged
from support.ranks import run
from support.reference import Net, seeded
from support.tensors import assert_same_bits, noise, state_of
from test_ddp import backward, expected
from torch import nn

import foresee.torch as ft
from foresee.errors import ConfigError
from foresee.torch.gradients._transfer import DeviceStaging, transfer_for


@pytest.fixture
def copies(monkeypatch) -> list[LateCopies]:
    made: list[LateCopies] = []
    # The names in the package are the functions of these modules.
    for name in ("synchronize", "ddp_hook"):
        module = importlib.import_module(f"foresee.torch.gradients.{name}")
        monkeypatch.setattr(module, "transfer_for", staged(made))
    return made


def train(exchange, plan, steps):
    model = seeded(plan.model)
    optimizer = plan.optimizer(model)
    model, optimizer = ft.synchronize(model, optimizer, servers=exchange)
    for step in range(steps):
        optimizer.zero_grad()
        plan.loss(model, plan.batch(step, exchange.rank)).backward()
        optimizer.step()
    state = state_of(model, optimizer)
    stats = optimizer.stats()
    optimizer.close()
    return state, stats


@pytest.mark.parametrize("world", [1, 3])
def test_a_model_on_a_device_trains_to_the_bits_of_one_process(copies, world) -> None:
    plan = training()
    reference = plan.reference(world)
    for state, _ in run(
        ThreadServer(world, late=0.003).exchanges(), functools.partial(train, plan=plan, steps=plan.steps)
    ):
        assert_same_bits(state, reference)
    with over_servers(2) as connect:
        for state, stats in run(connect(world), functools.partial(train, plan=plan, steps=plan.steps)):
            assert_same_bits(state, reference)
            assert stats["rounds"] == plan.steps
    assert len(copies) == 2 * world
    assert all(one.closed and one.left and one.arrived for one in copies)


class Counting(nn.Module):
    """Buffers that change, do not change, and are replaced by one with other strides."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("fixed", torch.ones(3, 2))
        self.register_buffer("turned", torch.zeros(2, 3))

    def forward(self, x):
        self.count += 1
        self.turned = (self.turned.t().contiguous() + 1).t()
        return self.linear(x)


def test_only_changed_buffers_are_sent(copies) -> None:
    def body(exchange):
        model = Counting()
        with torch.no_grad():
            model.count.fill_(100.0 * exchange.rank)
        model, optimizer = ft.synchronize(
            model, torch.optim.SGD(model.parameters(), lr=0.1), servers=exchange
        )
        pushed = []
        push = exchange.push
        exchange.push = lambda id_, *rest: (pushed.append(id_), push(id_, *rest))
        for step in range(4):
            optimizer.zero_grad()
            model(noise(2, 4, seed=step)).sum().backward()
            optimizer.step()
        model.eval()
        values = model.count.clone(), model.fixed.clone(), model.turned.clone()
        optimizer.close()
        return values, pushed

    (first, sent), (second, none) = run(in_process(2), body)
    assert_same_bits(first, second)
    assert first[0].tolist() == [4.0] * 3
    assert first[2].tolist() == [[4.0] * 3] * 2
    names = ["linear.weight", "linear.bias", "count", "fixed", "turned"]
    assert [sent.count(id_) for id_ in range(5)] == [4, 4, 4, 0, 4], names
    assert [none.count(id_) for id_ in range(5)] == [4, 4, 0, 0, 0], names


def test_an_error_on_the_thread_is_raised_where_the_loop_waits(copies) -> None:
    def body(exchange):
        # One gradient: a second one would raise the error of the first in backward if the thread was fast.
        model = nn.Linear(3, 3, bias=False)
        model, optimizer = ft.synchronize(
            model, torch.optim.SGD(model.parameters(), lr=0.1), servers=exchange
        )

        def broken(*_):
            raise ConfigError("no room for this gradient")

        exchange.push = broken
        model(noise(2, 3, seed=0)).sum().backward()
        # The first step waits for everything.
        with pytest.raises(ConfigError, match="no room for this gradient"):
            optimizer.step()
        with pytest.raises(ConfigError, match="no room for this gradient"):
            optimizer.step()

    run(in_process(1), body)


def test_buckets_of_a_device_are_averaged(copies) -> None:
    layouts = [[6, 3, 2], [4, 4, 3], [4, 4, 3]]

    def body(exchange):
        state = ft.DdpState(servers=exchange)
        results = [backward(state, sizes, exchange.rank, step) for step, sizes in enumerate(layouts)]
        state.close()
        return results

    for results in run(ThreadServer(3, late=0.003).exchanges(), body):
        for step, sizes in enumerate(layouts):
            assert_same_bits(results[step], expected(sizes, 3, step))
    assert all(one.closed for one in copies)


def test_a_model_on_two_devices_is_refused_by_name() -> None:
    (exchange,) = in_process(1)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(
        ConfigError, match=r"parameter 1\.weight is on meta; gradients are sent from memory of the CPU or"
    ):
        ft.synchronize(model, torch.optim.SGD(model.parameters(), lr=0.1), servers=exchange)


@pytest.mark.gpu
def test_a_model_on_a_gpu_trains_to_the_bits_of_one_process() -> None:
    plan = training()
    plan.model = lambda: Net().cuda()
    batch = plan.batch
    plan.batch = lambda step, rank: batch(step, rank).cuda()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        reference = plan.reference(2)
        with over_servers(2) as connect:
            for state, _ in run(connect(2), functools.partial(train, plan=plan, steps=plan.steps)):
                assert_same_bits(state, reference)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
def test_copies_of_a_gpu_are_complete_after_the_wait_and_in_stream_order() -> None:
    from foresee.torch.gradients._cuda import CudaCopies

    copies, device = CudaCopies(), torch.device("cuda")
    for size in (1, 1000, 1 << 22):
        tensor = torch.randn(size, device=device)
        copy = copies.to_host(tensor * 2)
        copy.wait()
        assert copy.host.is_pinned()
        assert torch.equal(copy.host, tensor.cpu() * 2)
        host = torch.randn(size)
        there = copies.to_device(host, device) + 1
        copies.record_reads()()
        assert torch.equal(there.cpu(), host + 1)
    copies.close()


@pytest.mark.gpu
def test_a_gradient_in_a_cuda_graph_is_refused() -> None:
    (exchange,) = in_process(1)
    model = nn.Linear(3, 3).cuda()
    model, optimizer = ft.synchronize(model, torch.optim.SGD(model.parameters(), lr=0.1), servers=exchange)
    x = noise(2, 3, seed=0).cuda()
    with (
        pytest.raises(ConfigError, match="captured into a CUDA graph"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        model(x).sum().backward()
    assert isinstance(transfer_for(exchange, model.parameters()), DeviceStaging)
    optimizer.close()
