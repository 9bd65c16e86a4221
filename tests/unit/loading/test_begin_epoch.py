# SPDX-License-Identifier: Apache-2.0
"""Position and samples of an epoch's begin: ``begin_epoch`` of a session, on the native engine and in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foresee.torch as ft
from foresee._loading.orders import EpochSamples
from foresee._loading.progress import Place
from foresee._loading.session import Session
from foresee._runtime.ranks import World
from foresee.errors import ConfigError

N = 23

Open = Callable[..., Session]


@pytest.fixture(params=["native", "plain", "map"])
def session_of(request, folder, monkeypatch):
    """Opens the session of a loader with batches of four."""
    if request.param == "plain":
        monkeypatch.setenv("FORESEE_OFF", "1")
    loaders = []

    def opened(**order: Any) -> Session:
        dataset = list(range(N)) if request.param == "map" else ft.FolderDataset(folder)
        loaders.append(ft.DataLoader(dataset, 4, **order))
        return loaders[-1]._session

    yield opened
    for loader in loaders:
        loader.close()


def samples(ids, lengths=None) -> EpochSamples:
    return EpochSamples(np.array(ids, np.int64), None if lengths is None else np.array(lengths, np.int64))


def batches(session, count=-1):
    """The next ``count`` batches; else all of the epoch's rest."""
    seen = []
    while len(seen) != count and (raw := session.next_batch(None)) is not None:
        seen.append((raw.epoch, raw.step, raw.start, raw.last, raw.ids.tolist()))
    return seen


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (None, [(3, 0, 0, False, [19, 4, 4, 0]), (3, 1, 4, True, [7, 1])]),
        ([1, 5], [(3, 0, 0, False, [19]), (3, 1, 1, True, [4, 4, 0, 7, 1])]),
    ],
)
def test_an_epoch_begins_at_a_position_with_its_remaining_samples(
    session_of: Open, lengths, expected
) -> None:
    session = session_of(sampler=list(range(N)))
    session.begin_epoch(Place(3, 8), samples([19, 4, 4, 0, 7, 1], lengths))
    assert batches(session) == expected


@pytest.mark.parametrize("batches_read", range(4))
def test_no_batch_of_an_epoch_is_returned_after_it_has_begun_again_with_other_samples(
    session_of: Open, batches_read
) -> None:
    session = session_of(sampler=list(range(N)))
    session.begin_epoch(Place(1, 4), samples(range(12)))
    assert [batch[-1] for batch in batches(session, batches_read)] == [
        list(range(first, first + 4)) for first in range(0, 4 * batches_read, 4)
    ]
    session.begin_epoch(Place(1, 4), samples([22, 21, 20, 19, 18]))
    assert batches(session) == [(1, 0, 0, False, [22, 21, 20, 19]), (1, 1, 4, True, [18])]


def test_an_order_of_the_run_begins_at_a_position_and_continues_with_the_next_epoch(session_of: Open) -> None:
    session = session_of(shuffle=True, seed=5)
    order = session.order
    assert order is not None
    session.begin_epoch(Place(2, 9))
    for epoch, position in [(2, 9), (3, 0)]:
        seen = batches(session)
        assert {batch[0] for batch in seen} == {epoch}
        assert [i for batch in seen for i in batch[-1]] == order.ids(epoch, position, World(0, 1)).tolist()


def test_an_epoch_has_the_order_of_the_run_or_its_own_samples_and_never_both(session_of: Open) -> None:
    with pytest.raises(ConfigError, match="the run has an order; leave out one"):
        session_of(shuffle=True, seed=5).begin_epoch(Place(0, 0), samples([0, 1]))
    with pytest.raises(ConfigError, match="the run has no order; give one"):
        session_of(sampler=list(range(N))).begin_epoch(Place(0, 0))
