# SPDX-License-Identifier: Apache-2.0
"""Missing ranks at the start: the others give up after `start_timeout=`, with an error that names them."""

from __future__ import annotations

import datetime as dt
import re
import threading

import pytest
import torch
from support.exchanges import ThreadServer
from support.small_models import HeadFirst, sgd
from support.waiting import WATCHDOG

import foresee.torch as ft
from foresee._native import GradientServer
from foresee._runtime import rendezvous
from foresee._runtime.ranks import World
from foresee.errors import ConfigError, RankLost
from foresee.torch import _network
from foresee.torch._exchange import ExchangeSettings, TensorSpec
from foresee.torch._network import NetworkGroup
from foresee.torch._rank_group import RankGroup

TOKEN = "a secret of 24 characters"
PLAN = [TensorSpec(0, "w", "gradient", torch.float32, (4,), (1,), 16, 0)]


@pytest.mark.parametrize(
    ("here", "missing"),
    [([0], r"ranks 1, 2, 3 to connect"), ([0, 2, 3], r"rank 1 to connect")],
    ids=["one", "three"],
)
def test_missing_ranks_are_named_by_those_that_wait(monkeypatch, here, missing):
    monkeypatch.setenv("FORESEE_TOKEN", TOKEN)
    monkeypatch.setenv("FORESEE_JOB", "threads")
    server = GradientServer.start("127.0.0.1:0", timeout_s=WATCHDOG, early_buffer_bytes=1 << 20, secret=TOKEN)
    # The first gives up; the others have a limit above the watchdog's, and are closed.
    settings = {
        rank: ExchangeSettings(
            (server.address,),
            None,
            "raise",
            WATCHDOG,
            "job",
            start_timeout_s=4.0 if rank == 0 else 2 * WATCHDOG,
        )
        for rank in here
    }
    groups = {}
    for rank in here:
        monkeypatch.setattr(_network, "detect", lambda rank=rank: World(rank, 4))
        groups[rank] = NetworkGroup(settings[rank])
    failed = {}

    def start(rank):
        try:
            groups[rank].agree(PLAN)
        except Exception as error:
            failed[rank] = error

    threads = [threading.Thread(target=start, args=(rank,), daemon=True) for rank in here]
    for thread in threads:
        thread.start()
    threads[0].join(WATCHDOG)
    assert isinstance(failed[0], RankLost)
    assert failed[0].rank == 1
    assert re.search(rf"no start within 4 s: .*{missing}.*start_timeout=", str(failed[0]))
    for group in groups.values():
        group.close()
    for thread in threads:
        thread.join(WATCHDOG)
    server.close()


def test_a_rank_that_is_missing_in_the_store_is_named():
    store = torch.distributed.HashStore()
    bounded = rendezvous._StoreView(store, limit_s=0.3)
    with pytest.raises(RankLost, match=r"rank 1 did not come .* within 0 s.*start_timeout=") as raised:
        rendezvous.begin_attempt(bounded, "job", World(0, 2))
    assert raised.value.rank == 1
    with pytest.raises(RankLost, match="rank 0 did not come") as raised:
        rendezvous.begin_attempt(bounded, "job", World(1, 2))
    assert raised.value.rank == 0
    assert rendezvous.store_timeout_s(bounded) == dt.timedelta(seconds=0.3).total_seconds()


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), "10", None, True])
def test_a_wrong_start_timeout_is_refused(value):
    model = HeadFirst()
    with pytest.raises(ConfigError, match=r"start_timeout=.*seconds, above 0 and finite"):
        ft.synchronize(model, sgd(model), servers="host:1", start_timeout=value)
    with pytest.raises(ConfigError, match=r"start_timeout=.*seconds, above 0 and finite"):
        ft.DdpState(servers="host:1", start_timeout=value)


def test_start_timeout_limits_only_the_first_agreement():
    (exchange,) = ThreadServer(1).exchanges()
    limits = []
    agree = exchange.agree
    exchange.agree = lambda plan, *, limit_s=None: (limits.append(limit_s), agree(plan))
    group = RankGroup(exchange, start_timeout_s=5.0)
    group.agree(PLAN)
    group.agree(PLAN)
    assert limits == [5.0, None]
