# SPDX-License-Identifier: Apache-2.0
"""Conditions under which the nodes of a job exchange samples, and what a user reads who has asked for it in vain."""

from __future__ import annotations

import logging

import pytest

import foresee
from foresee._loading import peers
from foresee._loading.orders import RunOrder
from foresee._runtime.ranks import World

ORDER = RunOrder("keyed-1", 100)
FIRST = World(2, 4, 0, 2, local_size_known=True)


def test_ranks_of_several_nodes_exchange_samples_if_their_order_is_known() -> None:
    for world in (FIRST, World(1, 2, 0, 1, local_size_known=True)):
        assert peers.can_exchange(world, ORDER, foresee.Cache(), peers=None)
    single_node = World(1, 2, 1, 2, local_size_known=True)
    assert not peers.can_exchange(single_node, ORDER, foresee.Cache(), peers=True)
    assert not peers.can_exchange(FIRST, ORDER, foresee.Cache(), peers=False)
    assert not peers.can_exchange(FIRST, ORDER, foresee.Cache(ram=0), peers=True)


def test_a_job_without_a_shared_cache_exchanges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESEE_NODE", "off")
    assert not peers.can_exchange(FIRST, ORDER, foresee.Cache(), peers=True)


@pytest.mark.parametrize(
    ("world", "order", "why"),
    [
        (World(2, 4), ORDER, "ranks are not numbered node by node"),
        (World(1, 4, 0, 2, local_size_known=True), ORDER, "ranks are not numbered node by node"),
        (FIRST, None, "the order of all ranks is not known"),
    ],
    ids=["unknown local size", "cyclic", "no order"],
)
def test_who_asks_in_vain_is_told_why(
    world: World, order: RunOrder | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    for asked, level in ((None, logging.INFO), (True, logging.WARNING)):
        caplog.clear()
        with caplog.at_level("INFO", "foresee"):
            assert not peers.can_exchange(world, order, foresee.Cache(), peers=asked)
        (record,) = caplog.records
        assert (record.levelno, why in record.getMessage()) == (level, True)
