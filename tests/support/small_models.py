# SPDX-License-Identifier: Apache-2.0
"""Small models, optimizers and batches of several test files."""

from __future__ import annotations

import gc

import torch
from torch import nn

from foresee.torch.gradients._use_profile import UseProfile
from support.ranks import Training
from support.tensors import assert_same_bits, noise


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(step, rank):
    return noise(3, 4, seed=10 * step + rank)


def check(network, model, world=2, **arguments):
    """Train and compare with the reference."""
    training = Training(model, arguments.pop("optimizer", sgd), arguments.pop("batch", batch), **arguments)
    expected = training.reference(world)
    for state in training.ranks(network(world, late=0.01)):
        assert_same_bits(state, expected)


def function_modes():
    """Return the number of torch's function modes on this thread, without the idle one of dropped models."""
    gc.collect()
    profile = UseProfile(nn.Linear(1, 1), [])
    profile.start(eager=False)
    torch.ones(1).add(1)
    profile.stop()
    return torch._C._len_torch_function_stack()


class HeadFirst(nn.Module):
    """Registered in the reverse order of use."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.second = nn.Linear(4, 4)
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(torch.tanh(self.encode(x)))
