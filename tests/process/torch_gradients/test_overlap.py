# SPDX-License-Identifier: Apache-2.0
"""Waits of modules for their updates: order of first use, wait points, and overlap with compute."""

from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
import torch
from support.exchanges import ThreadServer
from support.ranks import Training, run
from support.small_models import HeadFirst, Tied, batch, check, function_modes, sgd
from support.tensors import assert_same_bits
from torch import nn

import foresee.torch as ft


def classes(model, loss):
    """Return names of parameters in the order of their classes after one step of one rank."""
    (exchange,) = ThreadServer(1).exchanges()
    model, optimizer = ft.synchronize(model, sgd(model), servers=exchange)
    loss(model).backward()
    optimizer.step()
    gradients = [spec for spec in exchange.server.plan if spec.op == "mean"]
    return [spec.name for spec in sorted(gradients, key=lambda spec: spec.priority)]


def test_classes_follow_first_use_not_registration():
    assert classes(HeadFirst(), lambda model: model(batch(0, 0)).sum())[::2] == [
        "first.weight",
        "second.weight",
        "head.weight",
    ]


def test_a_buffer_has_the_class_of_its_layer():
    class Normed(HeadFirst):
        """Registered in the reverse order of use; two buffers are not used in the first step."""

        def __init__(self):
            super().__init__()
            self.late = nn.BatchNorm1d(2)
            self.early = nn.BatchNorm1d(4)
            self.bare = nn.BatchNorm1d(4, affine=False)
            self.second.register_buffer("unseen", torch.zeros(2))
            self.register_buffer("unused", torch.zeros(2))

        def forward(self, x):
            return self.late(super().forward(self.bare(self.early(x))))

    (exchange,) = ThreadServer(1).exchanges()
    model = Normed()
    model, optimizer = ft.synchronize(model, sgd(model), servers=exchange)
    model(batch(0, 0)).sum().backward()
    optimizer.step()
    classes = {spec.name: spec.priority for spec in exchange.server.plan}
    layers = ("early", "bare", "first", "second", "head", "late")
    of_layer = [{classes.pop(name) for name in list(classes) if name.startswith(layer)} for layer in layers]
    # The tensors of a layer come after those of earlier layers and before those of later ones.
    assert all(max(one) < min(other) for one, other in pairwise(of_layer))
    assert [len(one) for one in of_layer] == [5, 3, 2, 2, 2, 5], "unseen has the class of second.weight"
    assert classes == {"unused": max(of_layer[-1]) + 1}


def test_a_shape_query_is_not_a_use():
    class ReadsMetadata(HeadFirst):
        def forward(self, x):
            x = x.to(self.head.weight.dtype).view(-1, self.second.weight.shape[1])
            assert self.head.weight.is_contiguous()
            assert self.head.weight.size(0) == 2
            return super().forward(x)

    assert classes(ReadsMetadata(), lambda model: model(batch(0, 0)).sum())[-1] == "head.bias"


def test_a_parameter_that_the_first_step_did_not_use_comes_last():
    class Branches(HeadFirst):
        def forward(self, x):
            return self.head(x)

    order = classes(Branches(), lambda model: model(batch(0, 0)).sum())
    assert order[:2] == ["head.weight", "head.bias"]


def test_the_first_layers_run_before_the_last_are_received():
    """The first layer does not wait for the slow update of the last layer."""
    holding = set()
    server = ThreadServer(2, held=lambda rank, name: rank in holding and name.startswith("head"))
    reached = [[], []]

    def body(exchange):
        rank = exchange.rank
        model = HeadFirst()
        model, optimizer = ft.synchronize(model, sgd(model), servers=exchange)

        def ran(name):
            if step == 2:
                reached[rank].append((name, server.rounds_of(rank, "head.weight")))
                if name == "second":
                    holding.remove(rank)
                    server.release()

        for name in ("first", "second", "head"):
            getattr(model, name).register_forward_hook(lambda *_, name=name: ran(name))
        for step in range(3):
            optimizer.zero_grad()
            loss = model(batch(step, rank)).sum()
            if step == 1:
                holding.add(rank)
            loss.backward()
            optimizer.step()
        optimizer.flush()

    run(server.exchanges(), body)
    # Rounds count from 0. In the third forward pass the head of the second round is received only after "second" ran.
    assert reached == [[("first", 0), ("second", 0), ("head", 1)]] * 2


@pytest.mark.usefixtures("slow_network")
def test_an_update_is_received_before_its_module_and_not_before_step():
    server = ThreadServer(1)
    (exchange,) = server.exchanges()
    model = HeadFirst()
    model, optimizer = ft.synchronize(model, sgd(model), servers=exchange)
    for step in range(2):
        optimizer.zero_grad()
        model(batch(step, 0)).sum().backward()
        optimizer.step()
    del exchange.log[:]
    seen = []
    model.head.register_forward_hook(lambda *_: seen.append(list(exchange.log)))
    model(batch(2, 0))
    assert [names for kind, names in seen[0] if kind == "wait"] == [
        ["first.weight", "first.bias"],
        ["second.weight", "second.bias"],
        ["head.weight", "head.bias"],
    ]


def test_received_updates_are_stepped_together_except_in_checked_steps():
    def waits(debug):
        (exchange,) = ThreadServer(1).exchanges()
        model = HeadFirst()
        model, optimizer = ft.synchronize(model, sgd(model), servers=exchange, debug=debug)
        for step in range(6):
            optimizer.zero_grad()
            model(batch(step, 0)).sum().backward()
            optimizer.step()
        ends = [i for i, (kind, _) in enumerate(exchange.log) if kind == "end_round"]
        parts = [exchange.log[first:last] for first, last in pairwise(ends)]
        # The first step waits in the order of registration.
        return [[names[0] for kind, names in part if kind == "wait"] for part in parts[1:]]

    together, one_by_one = ["first.weight"], ["first.weight", "second.weight", "head.weight"]
    # Of steps 3 to 6, step 4 is watched.
    assert waits(debug=False) == [together, one_by_one, together, together]
    assert waits(debug=True) == [one_by_one] * 4


def test_a_parameter_outside_of_all_modules_is_waited_for_in_step(network):
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.temperature = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.body(x)

    def loss(model, x):
        return ((x * model.temperature).sum(0) + model(x)).square().mean()

    training = Training(WithLoss, sgd, batch, loss=loss)
    expected = training.reference(2)
    with pytest.warns(
        UserWarning, match=r"1 of 3 parameters \(temperature\) were used outside of all modules"
    ):
        states = training.ranks(network(2, late=0.01))
    for state in states:
        assert_same_bits(state, expected)


def test_a_use_outside_of_a_module_after_its_forward_needs_no_wait(network):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(
            network, Tied, loss=lambda model, x: model(x).square().mean() + model.encode.weight.square().sum()
        )


def test_a_model_whose_submodules_are_called_directly_overlaps(network):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(
            network, HeadFirst, loss=lambda model, x: model.head(model.second(model.first(x))).square().mean()
        )


@pytest.mark.usefixtures("slow_network")
def test_a_model_that_reads_the_dtype_of_its_parameters_still_overlaps():
    class ReadsMetadata(HeadFirst):
        def forward(self, x):
            return super().forward(x.to(next(self.parameters()).dtype))

    (exchange,) = ThreadServer(1).exchanges()
    model = ReadsMetadata()
    model, optimizer = ft.synchronize(model, sgd(model), servers=exchange)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step, 0)).sum().backward()
        optimizer.step()
    waits = [names for kind, names in exchange.log[exchange.log.index(("end_round", 1)) :] if kind == "wait"]
    assert [len(names) for names in waits] == [2, 2, 2]
    assert "head.weight" in waits[2]


def test_profiling_and_watching_restore_torch():
    before = function_modes()
    models = [HeadFirst(), HeadFirst()]
    pairs = [ft.synchronize(model, sgd(model), servers=ThreadServer(1).exchange(0)) for model in models]
    with torch.device("cpu"):
        for step in range(2):
            for model, optimizer in pairs:
                optimizer.zero_grad()
                model(batch(step, 0)).sum().backward()
                optimizer.step()
        assert torch._C._len_torch_function_stack() == before + 1
    assert torch._C._len_torch_function_stack() == before
    assert not any(model.first._forward_hooks for model in models)
