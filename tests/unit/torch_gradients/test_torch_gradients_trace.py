# SPDX-License-Identifier: Apache-2.0
"""``ft.trace_model``: seconds per tensor in the file of the network model, without changes to the model."""

from __future__ import annotations

import copy
import types

import pytest
import torch
from support.tensors import assert_same_bits, noise
from torch import nn

import foresee.torch as ft
from foresee.errors import ConfigError
from foresee.network.trace import read
from foresee.torch.gradients import _trace

# The first optimizer of a process imports torch's compiler, for seconds.
torch.optim.SGD([torch.zeros(1)])


class Clock:
    """A clock that layers advance."""

    now = 0.0


class Slow(torch.autograd.Function):
    """A function that advances the clock in forward and backward."""

    @staticmethod
    def forward(ctx, x, forward_s, backward_s):
        ctx.backward_s = backward_s
        Clock.now += forward_s
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Clock.now += ctx.backward_s
        return gradient, None, None


class Layer(nn.Module):
    def __init__(self, forward_s, backward_s):
        super().__init__()
        self.seconds = forward_s, backward_s
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return Slow.apply(self.linear(x), *self.seconds)


class Net(nn.Module):
    """Registered in the reverse order of use; one tensor has no gradient."""

    def __init__(self):
        super().__init__()
        self.c = Layer(0.01, 0.03)
        self.b = Layer(0.03, 0.01)
        self.a = Layer(0.02, 0.02)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.drop(self.norm(self.c(self.b(self.a(x)))))


def by_name(trace, key):
    return {tensor.name: getattr(tensor, key) for tensor in trace.tensors}


def test_times_are_assigned_to_the_right_tensors(monkeypatch, tmp_path):
    monkeypatch.setattr(_trace, "time", types.SimpleNamespace(perf_counter=lambda: Clock.now))
    model = Net()
    trace = ft.trace_model(model, noise(3, 4, seed=0), steps=3, warmup=1, path=tmp_path / "model.json")
    assert [tensor.name for tensor in trace.tensors] == [
        "a.linear.weight", "a.linear.bias", "b.linear.weight", "b.linear.bias", "c.linear.weight", "c.linear.bias",
        "norm.weight", "norm.bias",
    ]  # fmt: skip
    assert by_name(trace, "bytes")["a.linear.weight"] == 64
    layers = "abc"
    forward, backward = by_name(trace, "forward"), by_name(trace, "backward")
    measured = [forward[f"{name}.linear.weight"] + forward[f"{name}.linear.bias"] for name in layers]
    assert measured == pytest.approx([0.02, 0.03, 0.01])
    measured = [backward[f"{name}.linear.weight"] + backward[f"{name}.linear.bias"] for name in layers]
    assert measured == pytest.approx([0.02, 0.01, 0.03])
    assert all(tensor.update == 0 for tensor in trace.tensors)
    # The time of a module counts for the last tensor that it needs.
    assert forward["a.linear.weight"] == 0
    assert (trace.model, trace.batch, trace.facts["device"]) == ("Net", 3, "cpu")
    assert read(tmp_path / "model.json") == trace
    assert trace.step().oracle == pytest.approx(0.12)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_model_gradients_optimizer_and_generators_are_unchanged(optimizer):
    model = Net()
    optimizer = optimizer(model.parameters(), lr=0.1)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), torch.get_rng_state()))
    trace = ft.trace_model(model, (noise(3, 4, seed=0),), optimizer=optimizer, steps=2, warmup=0)
    assert sum(by_name(trace, "update").values()) > 0
    assert_same_bits((model.state_dict(), optimizer.state_dict(), torch.get_rng_state()), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_each_time_stamp_waits_for_the_device_and_its_generator_is_restored(monkeypatch):
    device = torch.device("cuda:1")
    pending = ["work"]
    marks = []
    monkeypatch.setattr(_trace, "_find_devices", lambda tensors: [device])
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda device: pending.remove("work") or pending.append(device)
    )
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: f"of {device}")
    restored = []
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: restored.append((state, device)))

    def now():
        # Each time stamp waited once for the work since the previous one.
        assert pending == [device]
        pending[:] = ["work"]
        marks.append(len(marks))
        return float(len(marks))

    monkeypatch.setattr(_trace, "time", types.SimpleNamespace(perf_counter=now))
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    ft.trace_model(model, noise(3, 4, seed=0), optimizer=optimizer, steps=1, warmup=0)
    # Start and end of forward, two gradients, start and end of the update.
    assert len(marks) == 6
    assert restored == [("of 1", 1)]


def test_the_synchronized_devices_are_those_of_the_tensors():
    def on(*devices):
        return [types.SimpleNamespace(device=torch.device(device)) for device in devices]

    assert _trace._find_devices(on("cpu", "cuda:1", "cuda:0", "cuda:1", "meta")) == [
        torch.device("cuda:0"),
        torch.device("cuda:1"),
    ]
    assert _trace._find_devices(on("cpu")) == []


class Output(dict):
    @property
    def loss(self):
        return self["loss"]


@pytest.mark.parametrize(
    "output",
    [
        lambda x: x.sum(),
        lambda x: Output(loss=x.sum(), logits=x),
        lambda x: {"a": x, "b": [x, x.long()]},
    ],
)
def test_common_outputs_need_no_loss(output):
    class Any(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return output(self.linear(x))

    trace = ft.trace_model(Any(), {"x": noise(3, 4, seed=0)}, steps=1)
    assert len(trace.tensors) == 2


def test_wrong_arguments_and_models_without_gradients():
    model = nn.Linear(4, 4)
    with pytest.raises(ConfigError, match="steps=0"):
        ft.trace_model(model, noise(3, 4, seed=0), steps=0)
    with pytest.raises(ConfigError, match="pass loss="):
        ft.trace_model(nn.Sequential(model, _Text()), noise(3, 4, seed=0))
    with pytest.raises(ConfigError, match="no parameter got a gradient"):
        ft.trace_model(
            model.requires_grad_(False), noise(3, 4, seed=0), loss=lambda out: out.sum().requires_grad_()
        )  # fmt: skip


class _Text(nn.Module):
    def forward(self, x):
        return "text"


def test_tied_and_recomputed_layers_count_once():
    from torch.utils.checkpoint import checkpoint

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.head = nn.Linear(4, 4, bias=False)
            self.head.weight = self.layer.weight

        def forward(self, x):
            return self.head(checkpoint(self.layer, x, use_reentrant=False))

    trace = ft.trace_model(Tied(), noise(3, 4, seed=0), steps=2)
    assert [tensor.name for tensor in trace.tensors] == ["layer.weight", "layer.bias"]
