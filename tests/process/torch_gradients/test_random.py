# SPDX-License-Identifier: Apache-2.0
"""Optimizers that draw random numbers in their step: ranks with different generators get an error immediately."""

from __future__ import annotations

import random
import re
import threading

import numpy as np
import pytest
import torch
from support.ranks import run
from support.reference import seeded
from support.tensors import noise
from torch import nn

import foresee.torch as ft
from foresee.errors import ConfigError
from foresee.torch.gradients import _agreement, _separable
from foresee.torch.gradients._random import SEEDS, digest_state

DRAWS = {
    "torch": (torch.manual_seed, torch.randn_like),
    "numpy.random": (np.random.seed, lambda p: torch.full_like(p, np.random.random())),  # noqa: NPY002 - optimizers use it
    "random": (random.seed, lambda p: torch.full_like(p, random.random())),
}


class Noisy(torch.optim.SGD):
    """Adds noise to each parameter, in every third step."""

    drawn_from = "torch"
    steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        self.steps += 1
        if self.steps % 3 == 0:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(DRAWS[self.drawn_from][1](parameter), alpha=0.01)


def pair(kind):
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    optimizer = Noisy(model.parameters(), lr=0.1)
    optimizer.drawn_from = kind
    return model, optimizer


def step(model, optimizer, number, rank=0):
    optimizer.zero_grad()
    model(noise(3, 4, seed=10 * number + rank)).square().mean().backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:optimizer Noisy gives other bits")
@pytest.mark.parametrize("kind", DRAWS)
def test_the_generator_is_found_and_preserved(kind):
    _, optimizer = pair(kind)
    seed, draw = DRAWS[kind]
    like = torch.empty(3)
    seed(5)
    expected = draw(like)
    seed(5)
    assert _separable.find_generators(optimizer) == [kind]
    assert not _separable.is_separable(optimizer)
    assert torch.equal(draw(like), expected)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Muon"])
def test_optimizers_of_torch_draw_nothing(name):
    model = nn.Linear(4, 4, bias=False)
    assert _separable.find_generators(getattr(torch.optim, name)(model.parameters(), lr=0.1)) == []


class Wrapping(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})


def test_the_generator_of_a_wrapped_optimizer_is_found():
    assert _separable.find_generators(Wrapping(pair("random")[1])) == ["random"]


@pytest.mark.filterwarnings("ignore:optimizer Noisy gives other bits")
@pytest.mark.parametrize("kind", DRAWS)
def test_ranks_with_different_generators_raise_before_the_step(network, monkeypatch, kind):
    # The ranks of a test are threads, which share the generators: each reports its own state.
    here = threading.local()
    monkeypatch.setattr(_agreement, "digest_state", lambda name, _: f"{name} {here.state}")

    def body(exchange):
        here.state = 0
        model, optimizer = pair(kind)
        model, optimizer = ft.synchronize(model, optimizer, servers=exchange)
        for number in range(3):
            step(model, optimizer, number, exchange.rank)
        here.state = exchange.rank
        before = [parameter.detach().clone() for parameter in model.parameters()]
        message = (
            rf"random generator of {kind} is .* 0 on rank 0 and .* 1 on rank 1, so Noisy, which draws from it in step\(\)"
            rf".*; seed it alike on every rank with {re.escape(SEEDS[kind])}"
        )
        with pytest.raises(ConfigError, match=message):
            step(model, optimizer, 3, exchange.rank)
        assert all(map(torch.equal, model.parameters(), before))

    run(network(2), body)


@pytest.mark.filterwarnings("ignore:optimizer Noisy gives other bits")
def test_a_digest_covers_only_its_generator():
    for kind, (seed, draw) in DRAWS.items():
        seed(1)
        before = {name: digest_state(name, []) for name in SEEDS}
        draw(torch.empty(2))
        assert [name for name in SEEDS if digest_state(name, []) != before[name]] == [kind]
        seed(1)
        assert digest_state(kind, []) == before[kind]
