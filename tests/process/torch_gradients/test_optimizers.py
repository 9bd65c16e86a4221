# SPDX-License-Identifier: Apache-2.0
"""Several optimizers over one model, and parameters in none: every gradient is averaged, with the bits of stock steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.exchanges import ThreadServer
from support.ranks import run
from support.reference import mean_in_rank_order, seeded
from support.tensors import assert_same_bits, noise, state_of
from torch import nn

import foresee.torch as ft
from foresee.errors import ConfigError
from foresee.torch import GradientMisuse

# A schedule may step before an optimizer that steps in some steps only.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
WORLD = 2
UNOWNED = pytest.mark.filterwarnings("ignore:.* are in no optimizer")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)
        self.skipped = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, *, skip: bool = False) -> torch.Tensor:
        x = torch.tanh(self.norm(self.body(x)))
        result: torch.Tensor = self.skipped(x) if skip else self.head(x)
        return result


def matrices_and_rest(model: nn.Module) -> list[torch.optim.Optimizer]:
    """The usual pair: Muon for matrices, AdamW for the rest."""
    parts = [[p for p in model.parameters() if (p.dim() == 2) == wanted] for wanted in (True, False)]
    return [torch.optim.Muon(parts[0], lr=0.05), torch.optim.AdamW(parts[1], lr=0.01)]


def body_and_heads(model: Any) -> list[torch.optim.Optimizer]:
    heads = [*model.head.parameters(), *model.skipped.parameters()]
    body = [*model.body.parameters(), *model.norm.parameters()]
    return [torch.optim.SGD(body, lr=0.1, momentum=0.9), torch.optim.Adam(heads, lr=0.01)]


def loss(model: nn.Module, step: int, rank: int, **how: Any) -> torch.Tensor:
    return model(noise(5, 4, seed=10 * step + rank), **how).square().mean()


def test_an_edit_between_two_optimizers_affects_every_step():
    def trained(synchronize: bool) -> list[torch.Tensor]:
        model: Any = seeded(Net)
        optimizers: list[Any] = body_and_heads(model)
        if synchronize:
            model, optimizers = ft.synchronize(model, optimizers, servers=ThreadServer(1).exchange(0))
        weight = model.head.weight
        for step in range(9):
            model.zero_grad()
            loss(model, step, 0).backward()
            optimizers[0].step()
            # The loop holds the weight, without a read from the module: an in-place edit, and new memory.
            weight.data.mul_(0.9)
            weight.data = weight.data.clone()
            optimizers[1].step()
        if synchronize:
            optimizers[0].close()
        return [parameter.detach() for parameter in model.parameters()]

    for plain, ours in zip(trained(False), trained(True), strict=True):
        assert torch.equal(plain, ours)


Loop = Callable[[Any, list[Any], int, Callable[..., None]], None]


# Arguments: the model, the optimizers, the step, and a function that runs `backward()` on this rank or on all in turn.
def every_step(model, optimizers, step, backward):
    for one in optimizers:
        one.zero_grad()
    backward()
    for one in optimizers:
        one.step()


def in_changing_order(model, optimizers, step, backward):
    model.zero_grad()
    backward()
    for one in optimizers if step % 2 else reversed(optimizers):
        one.step()


def the_second_every_other_step(model, optimizers, step, backward):
    model.zero_grad()
    backward()
    optimizers[0].step()
    if step % 2:
        optimizers[1].step()


def the_second_over_sums_of_two_steps(model, optimizers, step, backward):
    optimizers[0].zero_grad()
    backward()
    optimizers[0].step()
    if step % 2:
        optimizers[1].step()
        optimizers[1].zero_grad()


def one_after_the_other(model, optimizers, step, backward):
    """Train two networks in one module: each has its own backward pass and step."""
    for one in optimizers:
        one.zero_grad()
        backward(skip=one is optimizers[1])
        one.step()


def alternately(model, optimizers, step, backward):
    for one in optimizers:
        one.zero_grad()
    backward(skip=step % 3 == 1)
    optimizers[step % 2].step()


def a_flush_between(model, optimizers, step, backward):
    model.zero_grad()
    backward()
    optimizers[0].step()
    model.state_dict()
    optimizers[1].step()


LOOPS = [
    every_step,
    in_changing_order,
    the_second_every_other_step,
    the_second_over_sums_of_two_steps,
    one_after_the_other,
    alternately,
    a_flush_between,
]


def schedules(optimizers: list[Any]) -> list[Any]:
    return [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in optimizers]


def reference(optimizers_of, loop, *, steps=6, clip=None) -> list[dict[str, torch.Tensor]]:
    model = seeded(Net)
    optimizers = optimizers_of(model)
    schedule = schedules(optimizers)
    for step in range(steps):

        def backward(*, step: int = step, **how: Any) -> None:
            before = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
            buffers = [value.clone() for value in model.buffers()]
            first_buffers = buffers
            of_ranks = []
            for rank in range(WORLD):
                for parameter, gradient in zip(model.parameters(), before, strict=True):
                    parameter.grad = None if gradient is None else gradient.clone()
                for value, saved in zip(model.buffers(), buffers, strict=True):
                    value.copy_(saved)
                loss(model, step, rank, **how).backward()
                of_ranks.append([p.grad for p in model.parameters()])
                first_buffers = [value.clone() for value in model.buffers()] if rank == 0 else first_buffers
            for value, saved in zip(model.buffers(), first_buffers, strict=True):
                value.copy_(saved)
            for parameter, gradients, old in zip(
                model.parameters(), zip(*of_ranks, strict=True), before, strict=True
            ):
                # Gradients that no backward pass reached are unchanged.
                reached = old is None or any(not torch.equal(one, old) for one in gradients)
                there = [one for one in gradients if one is not None]
                parameter.grad = mean_in_rank_order(there, WORLD) if reached else old
            if clip:
                clip(model)

        loop(model, optimizers, step, backward)
        for one in schedule:
            one.step()
    return [state_of(model, one) for one in optimizers]


def trained(network, optimizers_of, loop, *, steps=6, **arguments) -> list[list[dict[str, torch.Tensor]]]:
    def body(exchange):
        model = seeded(Net)
        optimizers = optimizers_of(model)
        model, optimizers = ft.synchronize(model, tuple(optimizers), servers=exchange, **arguments)
        assert isinstance(optimizers, list)
        schedule = schedules(optimizers)
        for step in range(steps):

            def backward(*, step: int = step, **how: Any) -> None:
                loss(model, step, exchange.rank, **how).backward()

            loop(model, optimizers, step, backward)
            for one in schedule:
                one.step()
        states = [state_of(model, one) for one in optimizers]
        assert optimizers[0].stats()["rounds"] == optimizers[1].stats()["rounds"]
        optimizers[1].close()
        assert type(model) is Net
        assert [type(one) for one in optimizers] == [type(one) for one in optimizers_of(Net())]
        return states

    return run(network(WORLD, late=0.005), body)


@pytest.mark.parametrize("overlap", ["forward", "backward"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("optimizers_of", [matrices_and_rest, body_and_heads], ids=["Muon", "heads"])
def test_two_optimizers_give_the_bits_of_two_stock_ones(network, optimizers_of, loop, overlap):
    expected = reference(optimizers_of, loop)
    for states in trained(network, optimizers_of, loop, overlap=overlap):
        for state, whole in zip(states, expected, strict=True):
            assert_same_bits(state, whole)


@pytest.mark.parametrize("clip", ["exact", "per_param"])
@pytest.mark.parametrize("loop", [every_step, the_second_every_other_step], ids=["both", "one less often"])
def test_clipping_is_over_the_gradients_of_all_optimizers(network, loop, clip):
    def stock(model):
        tensors = list(model.parameters())
        for some in [tensors] if clip == "exact" else [[one] for one in tensors if one.grad is not None]:
            torch.nn.utils.clip_grad_norm_(some, 0.05)

    expected = reference(body_and_heads, loop, clip=stock)
    for states in trained(network, body_and_heads, loop, clip=clip, max_norm=0.05):
        for state, whole in zip(states, expected, strict=True):
            assert_same_bits(state, whole)


@UNOWNED
@pytest.mark.parametrize("overlap", ["forward", "backward"])
def test_gradients_of_parameters_in_no_optimizer_are_averaged(network, overlap):
    def heads(model):
        return body_and_heads(model)[1]

    def by_hand(model, optimizer, step, backward, flush):
        optimizer.zero_grad()
        backward()
        optimizer.step()
        flush()
        with torch.no_grad():
            for parameter in model.body.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
        # Gradients of the norm accumulate, because no optimizer clears them.

    def one(model, optimizers, step, backward):
        by_hand(model, optimizers[0], step, backward, getattr(optimizers[0], "flush", lambda: None))

    (expected,) = reference(lambda model: [heads(model)], one)

    def body(exchange):
        model = seeded(Net)
        model, optimizer = ft.synchronize(model, heads(model), servers=exchange, overlap=overlap)
        schedule = schedules([optimizer])[0]
        for step in range(6):

            def backward(step: int = step) -> None:
                loss(model, step, exchange.rank).backward()

            by_hand(model, optimizer, step, backward, optimizer.flush)
            schedule.step()
        state = state_of(model, optimizer)
        return state, [parameter.grad.clone() for parameter in model.norm.parameters()]

    states = run(network(WORLD, late=0.005), body)
    for state, _ in states:
        assert_same_bits(state, expected)
    for first, second in zip(states[0][1], states[1][1], strict=True):
        assert torch.equal(first, second)


def test_parameters_in_no_optimizer_are_named_in_a_warning(network):
    model = Net()
    model.skipped.requires_grad_(False)
    (exchange,) = network(1)
    with pytest.warns(
        UserWarning, match=r"4 parameters \(body\.weight, body\.bias, norm\.weight, norm\.bias; .*MB"
    ):
        ft.synchronize(model, torch.optim.SGD(model.head.parameters(), lr=0.1), servers=exchange)


def test_a_parameter_of_no_optimizer_that_is_unfrozen_is_refused_by_name(network):
    model = Net()
    model.body.requires_grad_(False)
    (exchange,) = network(1)
    rest = [p for p in model.parameters() if p.requires_grad]
    model, optimizer = ft.synchronize(model, torch.optim.SGD(rest, lr=0.1), servers=exchange)
    every_step(model, [optimizer], 0, lambda: loss(model, 0, 0).backward())
    model.body.requires_grad_(True)
    with pytest.raises(GradientMisuse, match=r"body\.weight was frozen .*\.add_param_group\(\)"):
        every_step(model, [optimizer], 1, lambda: loss(model, 1, 0).backward())


def test_a_group_joins_the_second_optimizer_on_every_rank(network):
    def optimizers_of(model):
        model.skipped.requires_grad_(False)
        return [
            torch.optim.SGD([*model.body.parameters(), *model.norm.parameters()], lr=0.1),
            torch.optim.Adam(model.head.parameters(), lr=0.01),
        ]

    def loop(model, optimizers, step, backward):
        if step == 3:
            model.skipped.requires_grad_(True)
            optimizers[1].add_param_group({"params": list(model.skipped.parameters()), "lr": 0.05})
        model.zero_grad()
        backward(skip=step > 3)
        for one in optimizers:
            one.step()

    expected = reference(optimizers_of, loop)
    for states in trained(network, optimizers_of, loop):
        for state, whole in zip(states, expected, strict=True):
            assert_same_bits(state, whole)


def test_step_hooks_of_one_optimizer_do_not_make_the_other_wait(network):
    (exchange,) = network(1)
    model = Net()
    model, (first, second) = ft.synchronize(model, body_and_heads(model), servers=exchange)
    seen = []
    first.register_step_pre_hook(
        lambda one, *_: seen.append([p.grad.norm() for p in one.param_groups[0]["params"]])
    )
    for step in range(3):
        every_step(model, [first, second], step, lambda step=step: loss(model, step, 0).backward())
    assert len(seen) == 3
    synchronizer = model.__dict__["_foresee_synchronizer"]
    assert {entry.name for entry in synchronizer.plan.gradients if entry.is_pending} == {
        "head.weight", "head.bias", "skipped.weight", "skipped.bias",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("optimizers_of", "message"),
    [
        (lambda model: [], r"optimizer=\[\] names none"),
        (
            lambda model: [torch.optim.SGD(model.parameters(), 0.1)] * 2,
            r"optimizer\[1\] is in the list twice",
        ),
        (
            lambda model: [
                torch.optim.SGD(model.parameters(), 0.1),
                torch.optim.SGD(model.head.parameters(), 0.1),
            ],
            r"head\.weight is in optimizers 0 and 1; leave it in one place",
        ),
        (lambda model: [torch.optim.SGD(model.parameters(), 0.1), "Adam"], r"optimizer\[1\] is a str"),
        (lambda model: None, r"optimizer is a NoneType; a torch\.optim\.Optimizer, or a list of them"),
        (
            lambda model: [torch.optim.LBFGS(model.parameters())],
            r"optimizer LBFGS evaluates the model several times",
        ),
    ],
)
def test_faults_of_a_list_of_optimizers_are_refused(network, optimizers_of, message):
    (exchange,) = network(1)
    model = Net()
    with pytest.raises(ConfigError, match=message):
        ft.synchronize(model, optimizers_of(model), servers=exchange)


@UNOWNED
def test_the_error_of_a_second_call_recommends_a_list(network):
    model = Net()
    first, second = body_and_heads(model)
    exchange, other = network(1)[0], network(1)[0]
    ft.synchronize(model, [first], servers=exchange, overlap="backward")
    with pytest.raises(ConfigError, match=r"synchronize\(model, \[first, second\], \.\.\.\)") as raised:
        ft.synchronize(model, second, servers=other)
    assert "no_sync" not in str(raised.value)
