# SPDX-License-Identifier: Apache-2.0
"""``synchronize``: errors for all wrong arguments at once and for unsupported classes, and the check on toy parameters."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from support.exchanges import ThreadServer
from support.ranks import Training
from support.tensors import assert_same_bits, noise
from torch import nn

import foresee.torch as ft
from foresee.errors import ConfigError
from foresee.torch._rank_group import RankGroup
from foresee.torch.gradients._separable import is_separable


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def faults(model=None, optimizer=None, **arguments):
    model = model if model is not None else nn.Linear(2, 2)
    arguments.setdefault("servers", ThreadServer(1).exchange(0))
    with pytest.raises(ConfigError) as raised:
        ft.synchronize(model, optimizer if optimizer is not None else sgd(model), **arguments)
    return "\n".join(raised.value.faults)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"overlap": "both"}, "overlap='both'; one of"),
        ({"clip": "norm", "max_norm": 1.0}, "clip='norm'; one of"),
        ({"clip": "exact"}, "max_norm=None; a number above 0"),
        ({"clip": "exact", "max_norm": 0}, "max_norm=0; a number above 0"),
        ({"clip": "exact", "max_norm": math.inf}, "max_norm=inf; a number above 0"),
        ({"max_norm": 1.0}, 'pass clip="exact"'),
        ({"clip": "exact", "max_norm": 1.0, "overlap": "backward"}, "call clip_grad_norm_ after backward()"),
        ({"comm_dtype": "f8", "servers": "a:1"}, "comm_dtype='f8'; one of"),
        ({"on_rank_loss": "wait", "servers": "a:1"}, "on_rank_loss='wait'; one of"),
        ({"recover": 1, "servers": "a:1"}, "recover=1; True or False"),
        ({"timeout": 0, "servers": "a:1"}, "timeout=0; seconds"),
        ({"timeout": math.nan, "servers": "a:1"}, "timeout=nan; seconds"),
        ({"timeout": True, "servers": "a:1"}, "timeout=True; seconds"),
        ({"comm_dtype": "bf16"}, "comm_dtype='bf16' is a matter of the GradientExchange"),
        ({"secret_file": 7, "servers": "a:1"}, "secret_file=7; the path"),
        ({"timeout": 5.0}, "timeout=5.0 is a matter of the GradientExchange"),
        ({"servers": ""}, "'' is no address"),
        ({"servers": []}, "servers=[] names none"),
        ({"servers": "host"}, "'host' is no address"),
        ({"servers": "colocated,host:1,colocated"}, '"colocated" stands there twice'),
        ({"servers": "colocated,tls://host:1"}, "have no certificate"),
        ({"servers": "tls://host:1,host:2"}, "write it before all or none"),
        ({"servers": "host:0,other:70000"}, "'other:70000' is no address"),
        ({"servers": ["host:7000", 3]}, "servers=['host:7000', 3]; servers=\"host:port"),
        ({"servers": None}, "servers=None"),
    ],
)
def test_each_wrong_argument_is_shown_with_its_remedy(arguments, text):
    assert text in faults(**arguments)


def test_all_faults_are_reported_at_once():
    text = faults(nn.Embedding(3, 2, sparse=True), overlap="no", timeout=-1, servers="x", max_norm=3)
    for part in ("overlap='no'", "timeout=-1", "'x' is no address", "max_norm=3 without clip", "sparse=True"):
        assert part in text


class Closure(torch.optim.SGD):
    def step(self, closure):
        return super().step(closure)


class SAM(torch.optim.SGD):
    def first_step(self):
        pass

    def second_step(self):
        pass


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (torch.optim.LBFGS, "LBFGS evaluates the model several times"),
        (lambda p: SAM(p, lr=0.1), "SAM takes two gradients"),
        (lambda p: Closure(p, lr=0.1), "Closure requires a closure"),
        (torch.optim.SparseAdam, "SparseAdam is for sparse gradients"),
        (lambda p: torch.optim.Adam(p, differentiable=True), "differentiable=True"),
    ],
)
def test_unsupported_optimizers_are_refused_with_the_remedy(make, text):
    model = nn.Linear(2, 2)
    shown = faults(model, make(list(model.parameters())))
    assert text in shown
    assert "use" in shown or "leave it out" in shown


def _with(model, name, value):
    setattr(model, name, value)
    return model


def _inference():
    with torch.inference_mode():
        return nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.Sequential(nn.Embedding(3, 2, sparse=True)), "0 is an Embedding with sparse=True"),
        (lambda: nn.EmbeddingBag(3, 2, sparse=True), "the model is an EmbeddingBag with sparse=True"),
        (lambda: torch.compile(nn.Linear(2, 2), backend="eager"), "compile its blocks"),
        (lambda: nn.DataParallel(nn.Linear(2, 2)), "DataParallel, which averages gradients itself"),
        (lambda: _with(nn.Linear(2, 2), "no_sync", lambda: None), "method no_sync()"),
        (
            lambda: _with(nn.Linear(2, 2), "weight", nn.Parameter(torch.ones(2, 1).expand(2, 2))),
            "leave gaps or overlap",
        ),
        (
            lambda: _with(nn.Linear(2, 2), "weight", nn.Parameter(torch.ones(2, 4)[:, :2])),
            "leave gaps or overlap",
        ),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), "weight is torch.complex64"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight is on meta"),
        (_inference, "made under inference_mode"),
    ],
)
def test_unsupported_models_are_refused_by_name(make, text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make()
    assert text in faults(model)


def test_a_lazy_model_without_shapes_is_refused():
    model = nn.Sequential(nn.LazyLinear(2))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    assert "0.weight has no shape yet" in faults(model, optimizer)


def test_an_unsupported_buffer_is_refused_unless_buffers_are_not_sent():
    model = nn.Linear(2, 2)
    model.register_buffer("wide", torch.ones(2, 1).expand(2, 2))
    assert "buffer wide" in faults(model)
    assert "buffers=False" in faults(model)
    ft.synchronize(model, sgd(model), servers=ThreadServer(1).exchange(0), buffers=False)


def test_other_objects_are_refused():
    assert "model is a str" in faults("model", sgd(nn.Linear(1, 1)))
    assert "optimizer is a str" in faults(optimizer="sgd")


def test_a_model_and_its_optimizer_are_synchronized_once():
    model = nn.Linear(2, 2)
    model, optimizer = ft.synchronize(model, sgd(model), servers=ThreadServer(1).exchange(0))
    text = faults(model, optimizer)
    assert "model is synchronized already" in text
    assert "optimizer is synchronized already" in text


def test_addresses_and_settings_reach_the_network(monkeypatch):
    settings_seen = []

    def open_group(settings):
        settings_seen.append(settings)
        return RankGroup(ThreadServer(1).exchange(0))

    monkeypatch.setattr("foresee.torch.gradients._servers.NetworkGroup", open_group)
    for servers in ("a:7000, [::1]:7001", ["a:7000", "[::1]:7001"]):
        model = nn.Linear(2, 2)
        ft.synchronize(
            model,
            sgd(model),
            servers=servers,
            comm_dtype="bf16",
            timeout=3,
            on_rank_loss="continue",
            recover=False,
            secret_file="/run/secret",
        )
    first, second = settings_seen
    assert first.servers == second.servers == ("a:7000", "[::1]:7001")
    assert (first.comm_dtype, first.on_rank_loss, first.timeout_s) == ("bf16", "continue", 3)
    assert (first.secret_file, first.recover) == ("/run/secret", False)
    assert first.job != second.job


class Mine(torch.optim.Optimizer):
    """A user's class that updates parameters independently."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    seen = self.state[parameter].setdefault("seen", torch.zeros_like(parameter))
                    seen.add_(parameter.grad.abs())
                    parameter.add_(parameter.grad / (1 + seen), alpha=-group["lr"])


class Normed(Mine):
    """Uses the norm over all parameters."""

    @torch.no_grad()
    def step(self, closure=None):
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in every]).norm()
        for parameter in every:
            parameter.sub_(parameter.grad / (1 + norm))


class Counting(Mine):
    """Has a counter, which a step over some parameters would lose or count twice."""

    steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad / self.steps)


class Keeping(Mine):
    """Retains the gradient itself, whose memory is reused."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    before = self.state[parameter].get("before", torch.zeros_like(parameter))
                    parameter.sub_(parameter.grad + 0.5 * before)
                    self.state[parameter]["before"] = parameter.grad


class Indexed(Mine):
    """Has state by position, like 8-bit optimizers."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    seen = self.state.setdefault(index, torch.zeros(()))
                    seen += 1
                    parameter.sub_(parameter.grad / seen)


class Grouped(Mine):
    """Has a counter in the group."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad / group["k"])


class Lookahead(torch.optim.SGD):
    """Moves halfway back in every fifth step, by its own counter."""

    steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        super().step()
        if self.steps % 5 == 0:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.5)


class ScheduleFree(torch.optim.SGD):
    """Has weights of an average in the group, from the seventh step on."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            group["total"] = group.get("total", 0.0) + 1.0
            for parameter in group["params"] if group["total"] > 7 else ():
                parameter.mul_(1 - 1 / group["total"])


class Wrapping(torch.optim.Optimizer):
    """Steps another optimizer."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=lr)

    def step(self, closure=None):
        self.inner.step()


class Failing(Mine):
    """Requires parameters that a toy does not have."""

    def step(self, closure=None):
        raise KeyError("special")


class Subclass(torch.optim.AdamW):
    """An unchanged subclass, which the toy finds separable."""


@pytest.mark.parametrize(
    ("cls", "right"),
    [
        (Mine, True),
        (Subclass, True),
        (Normed, False),
        (Counting, False),
        (Keeping, False),
        (Indexed, False),
        (Grouped, False),
        (Lookahead, False),
        (ScheduleFree, False),
        (Wrapping, False),
    ],
)
def test_the_toy_check_finds_classes_that_can_be_stepped_in_parts(cls, right):
    model = nn.Sequential(nn.Linear(4, 4), nn.Conv2d(1, 1, 2), nn.BatchNorm1d(3))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = cls(model.parameters(), lr=0.1)
    assert is_separable(optimizer) is right
    assert not optimizer.state
    assert_same_bits([parameter.detach() for parameter in model.parameters()], before)
    assert is_separable(cls(nn.Linear(2, 2, bias=False).parameters(), lr=0.1)) is right


def test_a_class_that_cannot_be_tested_is_not_separable():
    optimizer = Failing(nn.Linear(2, 2).parameters())
    with pytest.warns(UserWarning, match="could not be tested"):
        assert not is_separable(optimizer)


@pytest.mark.parametrize(
    "cls", [Mine, Subclass, Normed, Counting, Keeping, Indexed, Grouped, Lookahead, ScheduleFree, Wrapping]
)
def test_unlisted_optimizers_keep_their_bits(network, cls):
    training = Training(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)),
        lambda model: cls(model.parameters(), lr=0.1),
        lambda step, rank: noise(3, 4, seed=10 * step + rank),
        steps=12,
    )
    expected = training.reference(2)
    right = cls in (Mine, Subclass)
    with (
        warnings.catch_warnings() if right else pytest.warns(UserWarning, match='overlap="backward" is used')
    ):
        for state in training.ranks(network(2, late=0.01)):
            assert_same_bits(state["model"], expected["model"])
            assert_same_bits(state["state"], expected["state"])


def test_clip_with_an_optimizer_that_falls_back_is_refused():
    model = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="Normed gives other bits"):
        text = faults(model, Normed(model.parameters()), clip="exact", max_norm=1.0)
    assert "call clip_grad_norm_ after backward()" in text
