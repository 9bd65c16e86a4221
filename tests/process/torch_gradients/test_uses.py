# SPDX-License-Identifier: Apache-2.0
"""Every kind of use of parameters keeps the bits of the reference."""

from __future__ import annotations

import pytest
import torch
from support.ranks import Training
from support.small_models import HeadFirst, Tied, batch, check, sgd
from support.tensors import assert_same_bits, noise
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import foresee.torch as ft


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        x = x.unsqueeze(0)
        return self.out(self.attend(x, x, x)[0])


class Bare(nn.Module):
    """Parameters of the root module, with a bias whose use autograd does not save."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(4))
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x + self.bias)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        return F.linear(self.b(x), self.a.weight.t()) + self.a.bias


class Views(nn.Module):
    """One flat parameter, used through views that exist before the step."""

    def __init__(self):
        super().__init__()
        self.flat = nn.Parameter(noise(20, seed=1))
        self.rest = nn.Linear(4, 4)

    def forward(self, x):
        flat = self.flat
        return self.rest(x @ flat[:16].view(4, 4) + flat[16:])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(4, 4)

    def forward(self, x):
        return self.cell(x)[0]


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant=False):
        super().__init__()
        self.reentrant = reentrant
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = x.requires_grad_()
        return self.head(checkpoint(self.inner, x, use_reentrant=self.reentrant))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.tanh(checkpoint(self.layer, self.layer(x), use_reentrant=False)))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return Scaled.apply(self.linear(x), self.weight)


def normed():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "model",
    [HeadFirst, Attention, Bare, Tied, Functional, Views, Recurrent, Checkpointed, Twice, Custom, normed],
    ids=lambda model: model.__name__,
)
def test_every_kind_of_use_of_a_parameter_keeps_the_bits(network, model):
    check(network, model)


def test_reentrant_checkpoints_of_modules_that_run_once_keep_the_bits(network):
    check(network, lambda: Checkpointed(reentrant=True))


def test_selective_checkpointing_does_not_see_the_step(network):
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE

    class Selective(Checkpointed):
        def forward(self, x):
            def contexts():
                return create_selective_checkpoint_contexts(policy)

            return self.head(checkpoint(self.inner, x, use_reentrant=False, context_fn=contexts))

    check(network, Selective, optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01))


def test_autocast_around_the_forward_pass_does_not_touch_the_step(network):
    def loss(model, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        return out.float().square().mean()

    check(network, HeadFirst, loss=loss)
    muon = getattr(torch.optim, "Muon", None)
    if muon is not None:
        wide = lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 3, bias=False))  # noqa: E731
        check(network, wide, loss=loss, optimizer=lambda model: muon(model.parameters(), lr=0.1))


def test_one_autocast_region_over_a_whole_run_uses_no_stale_cast(network):
    """Stock torch does: its cache of casts is valid until the region ends."""
    model = nn.Linear(4, 4)
    model, optimizer = ft.synchronize(model, sgd(model), servers=network(1)[0])
    x = batch(0, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            optimizer.zero_grad()
            out = model(x)
            with torch.autocast("cpu", enabled=False):
                now = F.linear(x.bfloat16(), model.weight.bfloat16(), model.bias.bfloat16())
            assert_same_bits(out, now)
            (out.float().square().sum() * 10).backward()
            optimizer.step()


def test_branches_that_the_first_step_did_not_take_keep_the_bits(network):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 0
            self.a = nn.Linear(4, 4)
            self.b = Attention()
            self.c = nn.Linear(4, 4)

        def forward(self, x):
            branch = self.count // self.per_step % 3
            self.count += 1
            return self.c(x) + (self.b(self.a(x)).sum() if branch else 0.0)

    def model(per_step):
        made = Branches()
        made.per_step = per_step
        return made

    training = Training(lambda: model(2), sgd, batch, steps=7)
    expected = training.reference(2)
    ranks = Training(lambda: model(1), sgd, batch, steps=7)
    for state in ranks.ranks(network(2, late=0.01)):
        assert_same_bits(state, expected)


def test_unused_parameters_that_differ_by_rank(network):
    """Used by one rank: all ranks step. Used by none: no gradient, no step, no decay."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            return self.experts[int(x[0, 0])](x)

    def routed(step, rank):
        x = noise(3, 4, seed=10 * step + rank)
        x[0, 0] = (step * 2 + rank) % 3  # the fourth is never used
        return x

    decayed = lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)  # noqa: E731
    check(network, Experts, world=3, batch=routed, optimizer=decayed, steps=6)


def test_a_frozen_part_that_is_unfrozen_later(network):
    def loss(model, x):
        model.calls = getattr(model, "calls", 0) + 1
        frozen = model.calls <= model.until
        model.first.requires_grad_(not frozen)
        return model(x).square().mean()

    def model(until):
        made = HeadFirst()
        made.until = until
        made.first.requires_grad_(False)
        return made

    expected = Training(lambda: model(4), sgd, batch, loss=loss, steps=6).reference(2)
    for state in Training(lambda: model(2), sgd, batch, loss=loss, steps=6).ranks(network(2, late=0.01)):
        assert_same_bits(state, expected)


def test_accumulation_under_no_sync(network):
    def accumulate(model, x, context):
        with context():
            (model(x[:1]).square().mean() / 3).backward()
            (model(x[1:2]).square().mean() / 3).backward()
        return model(x[2:]).square().mean() / 3

    from contextlib import nullcontext

    training = Training(HeadFirst, sgd, batch, loss=lambda model, x: accumulate(model, x, nullcontext))
    expected = training.reference(2)
    training.loss = lambda model, x: accumulate(model, x, model.no_sync)
    for state in training.ranks(network(2, late=0.01)):
        assert_same_bits(state, expected)


def test_a_gradient_of_no_sync_alone_is_sent(network):
    """The last backward does not reach it."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x):
            return self.b(x)

    def loss(model, x):
        from contextlib import nullcontext

        with getattr(model, "no_sync", nullcontext)():
            model.a(x).square().mean().backward()
        return model(x).square().mean()

    check(network, Two, loss=loss)
