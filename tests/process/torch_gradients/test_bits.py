# SPDX-License-Identifier: Apache-2.0
"""Training of several ranks has the bits of one process that averages in rank order and takes stock steps."""

from __future__ import annotations

import copy
import random
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from support.exchanges import over_servers
from support.ranks import Training, run
from support.reference import mean_in_rank_order
from support.tensors import assert_same_bits, noise, state_of
from support.waiting import pause
from torch import nn
from torch.nn import functional as F  # noqa: N812

import foresee.torch as ft

WORLD = 3


class Net(nn.Module):
    """A small net whose order of use differs from its order of registration."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 12, bias=False)
        self.embed = nn.Embedding(12, 8)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.block(self.embed(tokens) * self.scale)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return self.head(x)


def tokens(step: int, rank: int) -> torch.Tensor:
    return torch.randint(12, (2, 4), generator=torch.Generator().manual_seed(100 * step + rank))


def two_groups(model, cls, **arguments):
    """Weights and other parameters in two groups with different settings."""
    plain = [p for p in model.parameters() if p.dim() < 2]
    wide = [p for p in model.parameters() if p.dim() >= 2]
    return cls([{"params": wide}, {"params": plain, "lr": 0.003}], **arguments)


def halved(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "SGD nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True}),
    "SGD fused": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "SGD maximize": (torch.optim.SGD, {"lr": 0.01, "maximize": True, "dampening": 0.1, "momentum": 0.5}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "Adam amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "maximize": True}),
    "Adam tensor lr": (torch.optim.Adam, {"lr": torch.tensor(0.01)}),
    "AdamW loop": (torch.optim.AdamW, {"lr": 0.01, "foreach": False}),
    "AdamW foreach": (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
    "AdamW fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.01, "lr_decay": 0.1}),
    "Adagrad fused": (torch.optim.Adagrad, {"lr": 0.01, "fused": True}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.01}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.01}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.01}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.01}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 0.5}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.01, "t0": 2.0}),
    "Rprop": (torch.optim.Rprop, {"lr": 0.01}),
}
#: Newer than the oldest supported torch, and for matrices only.
MATRICES = {"Muon": getattr(torch.optim, "Muon", None)}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_separable_optimizer_keeps_its_bits(network, name):
    cls, arguments = OPTIMIZERS[name]

    def optimizer(model):
        # A tensor lr is changed in place by schedules: every pair needs its own.
        own = {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in arguments.items()
        }
        return two_groups(model, cls, **own)

    training = Training(Net, optimizer, tokens, schedule=halved)
    expected = training.reference(WORLD)
    for state in training.ranks(network(WORLD, late=0.005)):
        assert_same_bits(state, expected)


@pytest.mark.parametrize("name", [name for name, cls in MATRICES.items() if cls] or ["none in this torch"])
def test_optimizers_of_matrices_keep_their_bits(network, name):
    cls = MATRICES.get(name, torch.optim.SGD)
    training = Training(
        lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False)),
        lambda model: cls(model.parameters(), lr=0.01),
        lambda step, rank: noise(3, 4, seed=10 * step + rank),
        schedule=halved,
    )
    expected = training.reference(2)
    for state in training.ranks(network(2, late=0.005)):
        assert_same_bits(state, expected)


@pytest.mark.parametrize("world", [1, 2, 4, 5])
def test_any_number_of_ranks_agrees_with_one_process(network, world):
    training = Training(
        Net, lambda model: two_groups(model, torch.optim.AdamW, lr=0.01), tokens, schedule=halved
    )
    expected = training.reference(world)
    for state in training.ranks(network(world, late=0.01, seed=world)):
        assert_same_bits(state, expected)


@pytest.mark.parametrize("schedule_first", [True, False])
@pytest.mark.parametrize("zero_last", [True, False])
def test_schedules_made_before_or_after_and_any_position_of_zero_grad(network, schedule_first, zero_last):
    training = Training(
        Net, lambda model: two_groups(model, torch.optim.AdamW, lr=0.01), tokens, schedule=halved
    )
    expected = training.reference(2)
    states = training.ranks(network(2, late=0.005), schedule_first=schedule_first, zero_last=zero_last)
    for state in states:
        assert_same_bits(state, expected)


def cycled(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.05, 0.01], total_steps=8)


def test_a_schedule_that_also_changes_momentum(network):
    training = Training(
        Net, lambda model: two_groups(model, torch.optim.Adam, lr=torch.tensor(0.01)), tokens, schedule=cycled
    )
    expected = training.reference(2)
    for state in training.ranks(network(2, late=0.005)):
        assert_same_bits(state, expected)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("switch", [True, False])
def test_an_evaluation_midway_uses_all_updates_and_changes_nothing(network, request, mode, switch):
    training = Training(
        Net, lambda model: two_groups(model, torch.optim.AdamW, lr=0.01), tokens, schedule=halved
    )
    # Torch's fused path of the layer has other bits, and torch does not use it for modules with hooks.
    torch.backends.mha.set_fastpath_enabled(False)
    request.addfinalizer(lambda: torch.backends.mha.set_fastpath_enabled(True))
    seen = []

    def evaluate(model, step):
        if switch:
            model.eval()
        else:
            model.norm.eval()
        with mode():
            seen.append((step, model(tokens(9, 9)).clone()))
        model.train()

    states = training.ranks(network(2, late=0.01), midway=evaluate)
    expected = training.reference(2)
    for state in states:
        assert_same_bits(state, expected)
    for step in range(training.steps):
        # The evaluation of step k equals that of a run that ended there.
        model, _ = training.fresh()
        training_until = Training(training.model, training.optimizer, tokens, schedule=halved, steps=step + 1)
        model.load_state_dict(training_until.reference(2)["model"])
        model.eval() if switch else model.norm.eval()
        with mode():
            alone = model(tokens(9, 9))
        both = [output for at, output in seen if at == step]
        assert len(both) == 2
        for output in both:
            assert_same_bits(output, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_float_dtype(network, dtype):
    training = Training(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to(dtype),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda step, rank: noise(3, 4, seed=10 * step + rank).to(dtype),
    )
    expected = training.reference(WORLD)
    for state in training.ranks(network(WORLD, late=0.005)):
        assert_same_bits(state, expected)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["Adam amsgrad", "SGD nesterov"])
def test_any_number_of_servers_gives_the_same_bits(name, dtype, servers):
    cls, arguments = OPTIMIZERS[name]
    training = Training(
        # Several packets, so that several servers have shares of the larger tensors.
        lambda: nn.Sequential(nn.Linear(8, 192), nn.Tanh(), nn.Linear(192, 192), nn.Linear(192, 2)).to(dtype),
        lambda model: two_groups(model, cls, **arguments),
        lambda step, rank: noise(3, 8, seed=10 * step + rank).to(dtype),
        schedule=halved,
    )
    expected = training.reference(WORLD)
    with over_servers(servers) as connect:
        for state in training.ranks(connect(WORLD)):
            assert_same_bits(state, expected)


@pytest.mark.parametrize("late", range(WORLD))
def test_sums_are_in_rank_order_with_any_late_rank(network, late):
    values = [1e8, -1e8, 1.0]

    def batch(step, rank):
        # The pushes of the other ranks arrive earlier and wait.
        pause(0.05 if rank == late else 0.0)
        return torch.full((1, 1), values[(rank + step) % 3])

    training = Training(
        lambda: nn.Linear(1, 1, bias=False),
        lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        batch,
        loss=lambda model, batch: model(batch).sum(),
        steps=3,
    )
    expected = training.reference(WORLD)
    for state in training.ranks(network(WORLD, late=0.02, seed=3)):
        assert_same_bits(state, expected)


def test_nan_and_infinity_pass_through(network):
    values = [[float("nan"), 1.0], [float("inf"), float("-inf")], [1.0, float("inf")]]
    training = Training(
        lambda: nn.Linear(2, 1, bias=False),
        lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        lambda step, rank: torch.tensor([values[rank]]) if step == 1 else torch.ones(1, 2),
        loss=lambda model, batch: model(batch).sum(),
        steps=3,
    )
    states = training.ranks(network(WORLD))
    expected = training.reference(WORLD)
    for state in states:
        assert_same_bits(state, expected)
    assert not torch.isfinite(states[0]["model"]["weight"]).any()


def test_channels_last_and_other_strides(network):
    def model():
        made = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.Flatten(), nn.Linear(2 * 4, 2)
        )
        made = made.to(memory_format=torch.channels_last)
        made[4].weight = nn.Parameter(made[4].weight.detach().t().contiguous().t())
        return made

    training = Training(
        model,
        lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        lambda step, rank: noise(2, 3, 4, 4, seed=10 * step + rank),
    )
    expected = training.reference(2)
    for state in training.ranks(network(2, late=0.005)):
        assert_same_bits(state, expected)
        assert state["model"]["0.weight"].is_contiguous(memory_format=torch.channels_last)


def test_zero_size_parameters_are_stepped_with_the_others(network):
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.none = nn.Parameter(torch.empty(0, 4))
            self.some = nn.Linear(4, 2)

        def forward(self, x):
            return self.some(torch.cat([x, x @ self.none.t() @ self.none], 0))

    training = Training(
        Odd,
        lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        lambda step, rank: noise(3, 4, seed=10 * step + rank),
    )
    expected = training.reference(2)
    states = training.ranks(network(2, late=0.005))
    for state in states:
        assert_same_bits(state, expected)
    assert states[0]["state"][0]["step"] == training.steps


@pytest.mark.parametrize("seed", range(12))
def test_averages_in_any_order_give_the_same_bits(network, seed):
    draw = torch.Generator().manual_seed(seed)
    world = int(torch.randint(2, 5, (), generator=draw))
    sizes = [int(torch.randint(1, 9, (), generator=draw)) for _ in range(5)]

    def model():
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        shared = nn.Linear(sizes[-1], sizes[-1])
        return nn.Sequential(*layers, shared, nn.Tanh(), shared)

    training = Training(
        model,
        lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        lambda step, rank: noise(3, sizes[0], seed=10 * step + rank),
        schedule=halved,
    )
    expected = training.reference(world)
    for state in training.ranks(network(world, late=0.02, seed=seed)):
        assert_same_bits(state, expected)


def test_a_functional_call_keeps_the_bits(network):
    """Weights that only a parent uses: no hook of their module runs."""

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.Linear(4, 4)
            self.other = nn.Linear(4, 4)

        def forward(self, x):
            return F.linear(self.other(x), self.child.weight, self.child.bias)

    training = Training(
        Parent,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        lambda step, rank: noise(3, 4, seed=10 * step + rank),
    )
    expected = training.reference(2)
    for state in training.ranks(network(2, late=0.01)):
        assert_same_bits(state, expected)


@pytest.mark.parametrize("seed", range(16))
def test_random_training_loops_keep_the_bits(network, seed):
    """Loops of random actions: accumulation, reads of weights, changes of settings, reloads."""
    draw = random.Random(seed)
    world = 2
    plan = [
        {
            "micro": draw.randint(1, 3),
            "between": draw.sample(sorted(LOOKS), draw.randint(0, 1)),
            "lr": draw.choice([None, None, 0.5, 1.3]),
            "after": draw.sample(sorted(LOOKS), draw.randint(0, 2)),
        }
        for _ in range(7)
    ]
    cls = draw.choice([torch.optim.AdamW, torch.optim.SGD, torch.optim.NAdam])
    training = Training(Net, lambda model: two_groups(model, cls, lr=0.01), tokens)

    def loop(model, optimizer, gradients):
        for step, todo in enumerate(plan):
            gradients(model, step, todo["micro"])
            for look in todo["between"]:
                LOOKS[look](model, optimizer)
            optimizer.step()
            if todo["lr"]:
                optimizer.param_groups[1]["lr"] *= todo["lr"]
            for look in todo["after"]:
                LOOKS[look](model, optimizer)
            optimizer.zero_grad()
        return state_of(model, optimizer)

    def micro_batches(model, step, micro, rank, silent):
        for number in range(micro):
            with silent() if number < micro - 1 else nullcontext():
                training.loss(model, tokens(10 * step + number, rank)).backward()

    def sequential(model, step, micro):
        before = {name: value.clone() for name, value in model.named_buffers()}
        gradients, buffers = [], []
        for rank in range(world):
            model.zero_grad()
            for name, value in model.named_buffers():
                value.copy_(before[name])
            micro_batches(model, step, micro, rank, nullcontext)
            gradients.append([parameter.grad for parameter in model.parameters()])
            buffers.append({name: value.clone() for name, value in model.named_buffers()})
        for name, value in model.named_buffers():
            value.copy_(buffers[0][name])
        for parameter, of_ranks in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = mean_in_rank_order(list(of_ranks), world)

    expected = loop(*training.fresh(), sequential)
    pairs = [training.fresh() for _ in range(world)]

    def body(exchange):
        def shared(model, step, micro):
            micro_batches(model, step, micro, exchange.rank, model.no_sync)

        return loop(*ft.synchronize(*pairs[exchange.rank], servers=exchange), shared)

    for mine in run(network(world, late=0.01, seed=seed), body):
        assert_same_bits(mine, expected)


def _evaluate(model, optimizer):
    model.eval()
    with torch.no_grad():
        model(tokens(9, 9))
    model.train()


def _reload(model, optimizer):
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


LOOKS = {
    "evaluate": _evaluate,
    "state": lambda model, optimizer: model.state_dict(),
    "optimizer": lambda model, optimizer: optimizer.state_dict(),
    "parameters": lambda model, optimizer: list(model.parameters()),
    "copy": lambda model, optimizer: copy.deepcopy(model),
    "train": lambda model, optimizer: model.train(),
    "reload": _reload,
}
