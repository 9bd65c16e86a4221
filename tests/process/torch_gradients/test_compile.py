# SPDX-License-Identifier: Apache-2.0
"""Compiled blocks wait once before they run, and never use stale weights."""

from __future__ import annotations

import pytest
import torch
from support.exchanges import ThreadServer
from support.processes import run
from support.tensors import assert_same_bits, noise
from torch import nn

import foresee.torch as ft

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # A warning of Dynamo about the activations of a block.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def wrapped(model, backend):
    """Return a module around the block, as ``torch.compile(block)`` does."""
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, backend=backend)


def in_place(model, backend):
    for block in model.blocks:
        block.compile(backend=backend)


def train(model, optimizer, steps=4):
    for step in range(steps):
        optimizer.zero_grad()
        model(noise(3, 4, seed=step)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def fresh():
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


@pytest.fixture(autouse=True)
def _no_compiled_code_of_others():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("slow_network")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("how", [wrapped, in_place])
def test_compiled_blocks_keep_the_bits_and_wait_once_each(how, backend):
    expected_model, optimizer = fresh()
    how(expected_model, backend)
    expected = train(expected_model, optimizer)
    torch._dynamo.reset()
    model, _ = fresh()
    how(model, backend)
    (exchange,) = ThreadServer(1, late=0.01).exchanges()
    model, optimizer = ft.synchronize(model, torch.optim.AdamW(model.parameters(), lr=0.05), servers=exchange)
    assert_same_bits(train(model, optimizer), expected)
    ends = [i for i, (kind, _) in enumerate(exchange.log) if kind == "end_round"]
    waits = [names for kind, names in exchange.log[ends[2] : ends[3]] if kind == "wait"]
    assert [len(names) for names in waits] == [4, 4, 4, 2]
    assert waits[0][0].startswith("blocks.0.")


def test_blocks_compiled_after_the_first_step_keep_the_bits():
    expected = train(*fresh())
    model, optimizer = fresh()
    model, optimizer = ft.synchronize(model, optimizer, servers=ThreadServer(1, late=0.01).exchange(0))
    train(model, optimizer, 2)
    in_place(model, "eager")
    mine = [train_one(model, optimizer, step) for step in (2, 3)]
    assert len(mine) == 2
    assert_same_bits([parameter.detach() for parameter in model.parameters()], expected)


def train_one(model, optimizer, step):
    optimizer.zero_grad()
    model(noise(3, 4, seed=step)).square().mean().backward()
    optimizer.step()


def test_blocks_compiled_before_synchronize_never_use_stale_weights():
    """Dynamo has no guards on hooks: code that was compiled earlier may skip them, which must be detected."""
    expected_model, optimizer = fresh()
    expected = train(expected_model, optimizer)
    model, optimizer = fresh()
    in_place(model, "eager")
    model(noise(3, 4, seed=9))
    model, optimizer = ft.synchronize(model, optimizer, servers=ThreadServer(1, late=0.01).exchange(0))
    assert_same_bits(train(model, optimizer), expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_whole_compiled_model_keeps_the_bits_and_warns_of_no_overlap(backend):
    expected_model, optimizer = fresh()
    expected_model.compile(backend=backend)
    expected = train(expected_model, optimizer)
    torch._dynamo.reset()
    model, optimizer = fresh()
    model.compile(backend=backend)
    model, optimizer = ft.synchronize(model, optimizer, servers=ThreadServer(1, late=0.01).exchange(0))
    with pytest.warns(UserWarning, match="compile per block"):
        assert_same_bits(train(model, optimizer), expected)


def test_compiling_the_synchronized_model_keeps_the_bits():
    expected_model, optimizer = fresh()
    expected = train(torch.compile(expected_model, backend="eager"), optimizer)
    torch._dynamo.reset()
    model, optimizer = fresh()
    model, optimizer = ft.synchronize(model, optimizer, servers=ThreadServer(1, late=0.01).exchange(0))
    compiled = torch.compile(model, backend="eager")
    train(compiled, optimizer)
    assert_same_bits([parameter.detach() for parameter in model.parameters()], expected)


#: In a separate process: dynamo also counts the compilations of other tests.
REUSED = """
    import torch
    import foresee.torch as ft
    from support.exchanges import ThreadServer
    from support.processes import print_json
    from process.torch_gradients.test_compile import fresh, in_place, train

    model, optimizer = fresh()
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    in_place(model, backend)
    model, optimizer = ft.synchronize(model, optimizer, servers=ThreadServer(1).exchange(0))
    train(model, optimizer, 1)
    profiled = len(calls)
    train(model, optimizer, 3)
    print_json(profiled=profiled, later=len(calls))
"""


def test_compiled_blocks_are_used_again_after_the_profiled_step():
    (calls,) = run(REUSED, warm=True)
    assert calls["profiled"] == 0, "the profiled step runs eagerly"
    assert calls["later"] > 0
