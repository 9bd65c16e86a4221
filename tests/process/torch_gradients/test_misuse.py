# SPDX-License-Identifier: Apache-2.0
"""Loops that would train on wrong numbers raise an error with the parameter and the remedy."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from support.exchanges import ThreadServer
from support.small_models import function_modes
from support.tensors import assert_same_bits, noise
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import foresee.torch as ft
from foresee.torch import GradientMisuse
from foresee.torch.gradients._use_profile import UseProfile


@pytest.fixture(autouse=True)
def without_compiled_code() -> None:
    """Hide compilations of other tests, after which no step is watched."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def pair(model=None, network=None, **arguments):
    """Return a synchronized model and optimizer of one rank."""
    model = model or nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exchange = network(1)[0] if network else ThreadServer(1).exchange(0)
    return ft.synchronize(model, optimizer, servers=exchange, **arguments)


def backward(model, seed=0):
    model(noise(3, 4, seed=seed)).square().mean().backward()


def warm(model, optimizer, steps=2):
    """Return them after the barrier of the first step."""
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()


@pytest.mark.parametrize("warmed", [True, False], ids=["later", "first step"])
class TestPlaceholder:
    """Uses of ``p.grad`` while the gradient is in flight."""

    def ready(self, warmed):
        model, optimizer = pair()
        if warmed:
            warm(model, optimizer)
            optimizer.zero_grad()
        backward(model)
        return model, optimizer

    @pytest.mark.parametrize(
        "touch",
        [
            lambda p: p.grad.norm(),
            lambda p: p.grad + 1,
            lambda p: p.grad.shape,
            lambda p: p.grad.data,
            lambda p: p.grad.zero_(),
            lambda p: float(p.grad.sum()),
            lambda p: torch.stack([p.grad]),
            lambda p: p.grad.clone(),
            lambda p: p.grad.is_sparse,
            lambda p: p.grad[0],
            lambda p: torch.nn.utils.clip_grad_value_([p], 1.0),
        ],
        ids=range(11),
    )
    def test_reading_or_writing(self, warmed, touch):
        model, _ = self.ready(warmed)
        with pytest.raises(
            GradientMisuse, match=r'2\.bias: its gradient is in flight(.|\n)*overlap="backward"'
        ) as raised:
            touch(model[2].bias)
        assert raised.value.tensor == "2.bias"

    def test_clipping(self, warmed):
        model, _ = self.ready(warmed)
        with pytest.raises(GradientMisuse, match=r'(?s)0\.weight.*clip="exact" and max_norm='):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def test_zero_grad_in_place(self, warmed):
        _, optimizer = self.ready(warmed)
        with pytest.raises(GradientMisuse, match="not with set_to_none=False"):
            optimizer.zero_grad(set_to_none=False)

    def test_grad_scaler(self, warmed):
        model, optimizer = self.ready(warmed)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        scaler.scale(model(noise(3, 4, seed=0)).sum())
        with pytest.raises(GradientMisuse, match="GradScaler"):
            scaler.unscale_(optimizer)

    def test_a_second_backward(self, warmed):
        model, _ = self.ready(warmed)
        with pytest.raises(GradientMisuse, match=r"with model\.no_sync\(\):"):
            backward(model)

    def test_a_second_backward_under_no_sync_behind_the_first(self, warmed):
        model, _ = self.ready(warmed)
        with model.no_sync(), pytest.raises(GradientMisuse, match="all but the last"):
            backward(model)

    def test_a_cleared_gradient_and_a_second_backward(self, warmed):
        model, optimizer = self.ready(warmed)
        optimizer.zero_grad()
        with pytest.raises(
            GradientMisuse, match=r"(?s)second gradient.*no_sync.*use_reentrant=False.*requires_grad_"
        ):
            backward(model)

    def test_a_step_without_zero_grad_before_the_next_backward(self, warmed):
        model, optimizer = self.ready(warmed)
        optimizer.step()
        if not warmed:
            # The first step is a barrier. It leaves averages in ``grad``, like a stock step, and gradients accumulate.
            backward(model)
            optimizer.step()
        with pytest.raises(GradientMisuse, match=r"call optimizer\.zero_grad\(\) first"):
            backward(model)

    def test_introspection_by_python_is_allowed(self, warmed):
        model, _ = self.ready(warmed)
        assert all(p.grad is not None for p in model.parameters())
        assert "0.weight" in repr(model[0].weight.grad)
        assert "in flight" in f"{model[0].weight.grad!r}"


def test_a_backward_pass_of_another_network_is_refused():
    """A GAN whose generator step passes through the critic without freezing it."""
    critic, optimizer = pair(nn.Linear(4, 1))
    generator = nn.Linear(4, 4)
    critic(generator(noise(3, 4, seed=0))).mean().backward()
    optimizer.zero_grad()
    with pytest.raises(GradientMisuse, match=r"another network's backward\(\)"):
        critic(noise(3, 4, seed=1)).mean().backward()


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        x = checkpoint(self.layer, x.requires_grad_(), use_reentrant=True)
        return self.head(checkpoint(self.layer, x, use_reentrant=True))


def test_reentrant_checkpoints_of_a_module_that_runs_twice_are_refused():
    model, _ = pair(Twice())
    with pytest.raises(GradientMisuse, match=r"(?s)layer\.(weight|bias).*use_reentrant=False"):
        backward(model)


def test_reentrant_checkpoints_are_refused_where_each_would_be_a_barrier():
    model, _ = pair(Twice(), overlap="backward")
    with pytest.raises(GradientMisuse, match=r"(?s)layer\.(weight|bias).*use_reentrant=False"):
        backward(model)


class EvaluatesTwice(torch.optim.SGD):
    """Evaluates its closure before and after the update, like optimizers with two gradients."""

    @torch.no_grad()
    def step(self, closure=None):
        for _ in range(2):
            if closure is not None:
                with torch.enable_grad():
                    closure()
            super().step()


def test_a_closure_is_refused_where_it_is_evaluated_several_times():
    model = nn.Linear(4, 2)
    model, optimizer = ft.synchronize(
        model,
        EvaluatesTwice(model.parameters(), lr=0.1),
        servers=ThreadServer(1).exchange(0),
        overlap="backward",
    )
    with pytest.raises(
        GradientMisuse, match=r"EvaluatesTwice does not evaluate .*call backward\(\) before step\(\)"
    ):
        optimizer.step(lambda: torch.zeros(()))
    with pytest.raises(GradientMisuse, match="exactly once"):
        optimizer.step(closure=lambda: torch.zeros(()))


def test_other_arguments_of_step_are_refused():
    _, optimizer = pair()
    with pytest.raises(GradientMisuse, match=r"takes a closure and nothing else"):
        optimizer.step(grad_scaler=object())


def test_sparse_gradients_are_refused_by_name():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, 2))

        def forward(self, tokens):
            return F.embedding(tokens, self.table, sparse=True)

    model, _ = pair(Sparse())
    with pytest.raises(GradientMisuse, match=r"gradient of table is torch\.sparse_coo.*sparse=False"):
        model(torch.tensor([1, 2])).sum().backward()


@pytest.mark.parametrize(
    "edit",
    [
        lambda weight: weight.detach().clamp_(-1, 1),
        nn.init.zeros_,
        lambda weight: setattr(weight, "data", torch.zeros(4, 4)),
        lambda weight: weight.detach().set_(torch.zeros(4, 4)),
    ],
    ids=["clamp", "reset", "data", "set"],
)
@pytest.mark.parametrize("steps", [2, 4])
def test_an_edit_of_a_held_weight_during_its_update(edit, steps):
    model, optimizer = pair()
    weight = model[0].weight
    warm(model, optimizer, steps)
    edit(weight)
    with pytest.raises(
        GradientMisuse, match=r"0\.weight was modified or assigned to between step\(\) and its update.*flush"
    ):
        model(noise(3, 4, seed=0))


@pytest.mark.parametrize(
    "edit",
    [
        lambda model: setattr(model[0].weight, "data", F.normalize(model[0].weight.data)),
        lambda model: model[0].weight.data.clamp_(-0.1, 0.1),
        lambda model: [p.data.clamp_(-0.1, 0.1) for p in model[0].parameters()],
        lambda model: torch.no_grad()(model[2].weight.copy_)(model[2].weight * 0.5),
        lambda model: nn.utils.vector_to_parameters(
            nn.utils.parameters_to_vector(model[2].parameters()) * 0.5, model[2].parameters()
        ),
        lambda model: model[0].load_state_dict({"weight": torch.ones(4, 4), "bias": torch.ones(4)}),
        lambda model: (model[2].zero_grad(), model[2].half().float()),
        lambda model: setattr(model[2], "bias", model[0].bias) if model[2].bias.numel() == 4 else None,
        lambda model: model[0].weight.detach().set_(torch.ones(4, 4)),
        lambda model: nn.utils.parametrizations.weight_norm(model[0])
        if not hasattr(model[0], "parametrizations")
        else None,
    ],
    ids=[
        "data", "clamp", "child", "copy", "vector", "load", "half", "tie", "set", "parametrize",
    ],
)  # fmt: skip
def test_edits_after_the_step_keep_stock_bits(edit, request):
    def trained(model, optimizer):
        for step in range(9):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            edit(model)
        return {name: value.clone() for name, value in model.state_dict().items()}

    def fresh():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    expected = trained(*fresh())
    model, optimizer = fresh()
    assert_same_bits(
        trained(*ft.synchronize(model, optimizer, servers=ThreadServer(1, late=0.01).exchange(0))), expected
    )


def test_editing_weights_from_parameters_is_allowed():
    model, optimizer = pair()
    warm(model, optimizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.1, 0.1)
    warm(model, optimizer, steps=1)
    assert max(p.abs().max() for p in model.parameters()) < 0.5


class Early(nn.Module):
    """Uses the head's bias, which it holds and autograd does not save, before the head runs; not in the first step."""

    def __init__(self):
        super().__init__()
        self.early = False
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        self.held = list(self.head.parameters())

    def forward(self, x):
        if self.early:
            return self.body(x + self.held[1])
        return self.head(self.body(x))


@pytest.mark.usefixtures("slow_network")
def test_a_use_before_the_update_raises_at_the_gradient():
    model, optimizer = pair(Early())
    warm(model, optimizer)
    model.early = True
    optimizer.zero_grad()
    with pytest.raises(
        GradientMisuse, match=r"head\.bias was used before its update was received.*debug=True"
    ):
        backward(model)


class Saved(Early):
    """Uses the head's weight, which autograd saves, before the head runs and its update; not in the first step."""

    def forward(self, x):
        x = self.body(x)
        return self.head(F.linear(x, self.held[0]) if self.early else x)


@pytest.mark.usefixtures("slow_network")
def test_an_update_after_a_saved_use_raises_in_autograd(network):
    model, optimizer = pair(Saved(), network)
    warm(model, optimizer)
    model.early = True
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(model)
    optimizer.close()


def test_debug_names_the_line_of_an_early_use():
    model, optimizer = pair(Early(), debug=True)
    warm(model, optimizer)
    model.early = True
    with pytest.raises(
        GradientMisuse, match=r"head\.bias was used in the model itself before its update was received"
    ):
        model(noise(3, 4, seed=0))
    optimizer.close()


def unsaved(model, weight, step, first):
    """Return a loss whose early use of a weight, from step ``first`` on, autograd does not save."""
    x = noise(3, 4, seed=step)
    early = F.linear(x, weight()).square().mean() if step >= first else 0.0
    return model(x).square().mean() + early


@pytest.mark.parametrize("first", [3, 4, 5, 6])
def test_an_early_use_of_a_held_weight_is_found_in_the_next_step(first):
    """Watched are steps 2, 4 and 8, counted from 1, and the step after a new graph."""
    model, optimizer = pair()
    weight = model[2].weight
    for step in range(1, 9):
        optimizer.zero_grad()
        if step == first + 1 or (step == first and step in (4, 8)):
            with pytest.raises(GradientMisuse, match=r"2\.weight was used outside of all modules before"):
                unsaved(model, lambda: weight, step, first)
            break
        unsaved(model, lambda: weight, step, first).backward()
        optimizer.step()
    else:
        pytest.fail("it was never found")
    optimizer.close()


@pytest.mark.filterwarnings("ignore:1 of 4 parameters:UserWarning")
@pytest.mark.parametrize(
    ("first", "held"), [(1, True), (2, True), (1, False), (2, False), (3, False), (6, False)]
)
def test_early_uses_with_a_wait_point_or_a_read_keep_stock_bits(first, held):
    """Early uses in the first two steps, or of a weight that is read from its module."""

    def trained(model, optimizer):
        weight = model[2].weight
        for step in range(1, 9):
            optimizer.zero_grad()
            unsaved(model, lambda: weight if held else model[2].weight, step, first).backward()
            optimizer.step()
        return {name: value.clone() for name, value in model.state_dict().items()}

    def fresh():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    expected = trained(*fresh())
    assert_same_bits(
        trained(*ft.synchronize(*fresh(), servers=ThreadServer(1, late=0.01).exchange(0))), expected
    )


@pytest.mark.parametrize("step", [1, 3, 7])
def test_undetected_edits_are_found_before_watched_steps(step):
    model, optimizer = pair()
    weight = model[0].weight
    warm(model, optimizer, step)
    weight.data.mul_(0.5)
    if step == 1:
        backward(model)  # the first step is a barrier: its update was received, so the edit is right
        return
    with pytest.raises(GradientMisuse, match=r"0\.weight was modified"):
        model(noise(3, 4, seed=0))


def test_few_steps_are_watched_if_every_graph_is_new(monkeypatch):
    model, optimizer = pair()
    watched = []
    start = UseProfile.start
    monkeypatch.setattr(UseProfile, "start", lambda self, **how: (watched.append(how), start(self, **how))[1])
    for step in range(200):
        optimizer.zero_grad()
        x = noise(3, 4, seed=step)
        for _ in range(step):
            x = x.requires_grad_() * 1.0
        model(x).square().mean().backward()
        optimizer.step()
    assert len(watched) <= 8 + 7 + 200 // 16
    optimizer.close()


def test_debug_checks_uses_outside_of_modules_and_allows_correct_ones():
    modes = function_modes()
    model, optimizer = pair(debug=True)
    weight = model[0].weight
    warm(model, optimizer, steps=4)
    with pytest.raises(GradientMisuse, match=r"0\.weight was used outside of all modules"):
        weight.norm()
    assert model[0].weight.norm() == weight.norm(), "a read from its module receives the update"
    optimizer.close()
    assert torch._C._len_torch_function_stack() == modes


def test_parameters_appended_by_hand_are_refused():
    model, optimizer = pair()
    warm(model, optimizer)
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.zeros(1)))
    optimizer.zero_grad()
    backward(model)
    with pytest.raises(GradientMisuse, match=r"param_groups\[0\]\.params\[4\] joined.*add_param_group"):
        optimizer.step()


def test_parameters_removed_by_hand_are_refused():
    model, optimizer = pair()
    warm(model, optimizer)
    del optimizer.param_groups[0]["params"][1]
    model.zero_grad()
    backward(model)
    with pytest.raises(GradientMisuse, match=r"0\.bias joined, left or changed"):
        optimizer.step()


def test_a_group_added_between_backward_and_step_is_refused():
    model, optimizer = pair()
    backward(model)
    with pytest.raises(GradientMisuse, match=r"the gradient of 0\.weight is in flight"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def test_a_buffer_that_changes_its_form_is_refused():
    model = nn.Sequential(nn.Linear(4, 4))
    model.register_buffer("seen", torch.zeros(2))
    model, optimizer = pair(model)
    model.seen = torch.zeros(3)
    backward(model)
    with pytest.raises(GradientMisuse, match=r"buffer seen is no longer the float32 \(2,\).*buffers=False"):
        optimizer.step()


def test_a_gradient_of_another_shape_is_refused():
    model, optimizer = pair()
    warm(model, optimizer)
    optimizer.zero_grad()
    optimizer.flush()
    model[0].weight.data = torch.zeros(2, 4)
    model[0].weight.grad = torch.zeros(2, 4)
    with pytest.raises(GradientMisuse, match=r"0\.weight is float32 \(2, 4\), the plan has float32 \(4, 4\)"):
        optimizer.step()


def test_the_error_survives_pickling_and_is_a_runtime_error():
    error = GradientMisuse("a: b", "a")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.tensor) == ("a: b", "a")
    assert isinstance(copy.copy(error), RuntimeError)
