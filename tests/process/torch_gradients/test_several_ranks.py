# SPDX-License-Identifier: Apache-2.0
"""Errors of several ranks: different plans, a lost rank, and an exchange closed during a wait."""

from __future__ import annotations

import threading

import pytest
import torch
from support.exchanges import Lost, ThreadServer
from support.ranks import run
from support.tensors import noise
from torch import nn

import foresee.torch as ft
from foresee.errors import Closed, ConfigError


def test_ranks_with_different_shapes_get_an_error_that_names_the_tensor(network):
    def body(exchange):
        wide = 5 if exchange.rank else 4
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, wide))
        ft.synchronize(model, torch.optim.SGD(model.parameters(), lr=0.1), servers=exchange)

    with pytest.raises(ConfigError, match=r"1\.weight"):
        run(network(2), body)


def test_ranks_with_different_strides_get_an_error_that_names_the_tensor(network):
    def body(exchange):
        model = nn.Conv2d(2, 3, 3)
        if exchange.rank:
            model = model.to(memory_format=torch.channels_last)
        ft.synchronize(model, torch.optim.SGD(model.parameters(), lr=0.1), servers=exchange)

    with pytest.raises(ConfigError, match=r"weight.*strides"):
        run(network(2), body)


def test_a_lost_rank_ends_the_forward_pass_with_its_name():
    server = ThreadServer(2, late=0.0)

    def body(exchange):
        model = nn.Linear(4, 4)
        model, optimizer = ft.synchronize(
            model, torch.optim.SGD(model.parameters(), lr=0.1), servers=exchange
        )
        for step in range(3):
            if exchange.rank == 1 and step == 2:
                server.lose("rank 1 is lost")
                return
            optimizer.zero_grad()
            model(noise(3, 4, seed=step)).square().mean().backward()
            optimizer.step()
        with pytest.raises(Lost, match="rank 1 is lost"):
            model(noise(3, 4, seed=0))
        with pytest.raises(Lost, match="rank 1 is lost"):
            model.state_dict()

    run(server.exchanges(), body)


def test_closing_ends_a_wait_of_another_thread():
    server = ThreadServer(2)
    first, second = server.exchanges()
    failed = []

    def body(exchange):
        model = nn.Linear(4, 4)
        model, optimizer = ft.synchronize(
            model, torch.optim.SGD(model.parameters(), lr=0.1), servers=exchange
        )
        model(noise(3, 4, seed=0)).square().mean().backward()
        if exchange.rank:
            return
        threading.Timer(0.2, exchange.close).start()
        with pytest.raises(Closed):
            optimizer.step()
        failed.append(exchange.rank)

    run([first, second], body)
    assert failed == [0]
