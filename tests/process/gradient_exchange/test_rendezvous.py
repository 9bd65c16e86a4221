# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for one another in the job's store, and the network address of this node."""

from __future__ import annotations

import datetime as dt
import threading

import pytest
import torch
from support.waiting import WATCHDOG, pause

from foresee._runtime import rendezvous
from foresee._runtime.ranks import World
from foresee.errors import RankLost


def test_restarted_ranks_see_no_values_of_an_earlier_attempt() -> None:
    store, secrets = torch.distributed.HashStore(), set()
    for attempt, order in enumerate(([0, 1, 2], [2, 1, 0], [1, 0, 2])):
        found: list[tuple[str | None, list[str]] | None] = [None] * 3

        def join(rank: int, attempt: int = attempt, found: list = found) -> None:
            world = World(rank, 3)
            view = rendezvous.begin_attempt(store, "job", world)
            secret = rendezvous.find_secret(rank, None, view, {})
            found[rank] = secret, rendezvous.share_address(world, f"10.0.{attempt}.{rank}:7", view)

        threads = [threading.Thread(target=join, args=(rank,)) for rank in order]
        for thread in threads:
            thread.start()
            # One by one, so that each could read values of an earlier attempt.
            pause(0.1)
        for thread in threads:
            thread.join(WATCHDOG)
        assert found[0] is not None
        assert found == [found[0]] * 3
        assert found[0][1] == [f"10.0.{attempt}.{rank}:7" for rank in range(3)]
        secrets.add(found[0][0])
    assert len(secrets) == 3


def test_a_missing_rank_is_named_after_the_timeout_of_the_store() -> None:
    store = torch.distributed.HashStore()
    store.set_timeout(dt.timedelta(seconds=0.3))
    named = []

    def join() -> None:
        with pytest.raises(RankLost, match="ranks 1, 3 did not come") as lost:
            rendezvous.begin_attempt(store, "job", World(2, 4))
        named.append(lost.value.rank)

    waiting = threading.Thread(target=join)
    waiting.start()
    with pytest.raises(
        RankLost, match="ranks 1, 3 did not come to the exchange of gradients within 0 s"
    ) as lost:
        rendezvous.begin_attempt(store, "job", World(0, 4))
    assert lost.value.rank == 1
    waiting.join(WATCHDOG)
    assert named == [1], "a waiting rank names the missing ones too, whichever rank gives up first"
    for wait in (
        lambda: rendezvous.begin_attempt(store, "other", World(1, 2)),
        lambda: rendezvous.find_secret(1, None, store, {}),
    ):
        with pytest.raises(RankLost, match="rank 0 did not come"):
            wait()
    with pytest.raises(RankLost, match="rank 1 did not come"):
        rendezvous.share_address(World(0, 2), "a:1", store)


def test_the_source_address_of_a_route_belongs_to_this_host() -> None:
    assert rendezvous._find_source_address("127.0.0.1") == "127.0.0.1"
    assert rendezvous._find_source_address("no such host.invalid") is None
