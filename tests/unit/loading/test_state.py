# SPDX-License-Identifier: Apache-2.0
"""Resume: every hard case, with ``foresee.Loader``; both loaders share the code."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest

import foresee
from foresee.errors import Closed, StateMismatch


def make(folder, **changes):
    arguments = {"batch_size": 4, "shuffle": True, "seed": 5, "rank": 0, "world_size": 1} | changes
    return foresee.Loader(folder, **arguments)


def ids(loader, steps=None):
    return [batch.ids.tolist() for batch in islice(loader, steps)]


def flat(batches):
    return [i for batch in batches for i in batch]


def test_a_resumed_epoch_equals_one_that_was_never_interrupted(folder):
    whole = ids(make(folder))
    for cut in range(len(whole)):
        first, second = make(folder), make(folder)
        batches = iter(first)
        head = ids(batches, cut)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert head + ids(second) == whole
        assert ids(second) == ids(make_at(folder, 1))


def make_at(folder, epoch, **changes):
    loader = make(folder, **changes)
    loader.set_epoch(epoch)
    return loader


@pytest.mark.parametrize(("before", "after"), [((2, 4), (3, 2)), ((1, 4), (4, 1)), ((4, 2), (1, 8))])
def test_resuming_at_another_world_and_batch_size_repeats_and_loses_no_sample(folder, before, after):
    world, size = before
    loaders = [make(folder, rank=r, world_size=world, batch_size=size) for r in range(world)]
    iterators = [iter(loader) for loader in loaders]
    head = [batch for iterator in iterators for _ in range(2) for batch in [next(iterator).ids.tolist()]]
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states), "equal on every rank"
    assert states[0]["position"] == 2 * size * world
    world, size = after
    rest = []
    for rank in range(world):
        loader = make(folder, rank=rank, world_size=world, batch_size=size)
        loader.load_state_dict(states[0])
        rest += ids(loader)
    head_ids, rest_ids = flat(head), flat(rest)
    assert set(head_ids) | set(rest_ids) == set(range(23))
    padding = -(23 - len(head_ids)) % world
    assert len(head_ids) + len(rest_ids) == 23 + padding


def test_a_state_counts_returned_batches_not_prefetched_ones(folder):
    loader = make(folder)
    iterator = iter(loader)
    next(iterator)
    assert loader.state_dict()["position"] == 4
    next(iterator)
    assert loader.state_dict()["position"] == 8


def test_before_the_first_iter_the_state_is_that_of_the_start(folder):
    state = make(folder).state_dict()
    assert (state["epoch"], state["position"], state["finished"]) == (0, 0, False)


def test_saving_a_loaded_state_gives_the_same_bytes(folder):
    first, second = make(folder), make(folder, batch_size=2)
    ids(first, 2)
    state = first.state_dict()
    second.load_state_dict(state)
    assert json.dumps(second.state_dict()) == json.dumps(state)
    second.set_epoch(0)
    iter(second)
    assert json.dumps(second.state_dict()) == json.dumps(state)


def test_a_state_at_an_epochs_end_neither_repeats_nor_loses_an_epoch(folder):
    first = make(folder)
    iterator = iter(first)
    for _ in range(len(first)):  # as Lightning does: StopIteration is never seen
        next(iterator)
    state = first.state_dict()
    assert state["finished"]
    plain = make(folder)
    plain.load_state_dict(state)
    assert ids(plain) == ids(make_at(folder, 1))
    same = make(folder)
    same.load_state_dict(state)
    same.set_epoch(0)
    assert ids(same) == []
    assert ids(same) == ids(make_at(folder, 1))
    following = make(folder)
    following.load_state_dict(state)
    following.set_epoch(1)
    assert ids(following) == ids(make_at(folder, 1))


def test_an_epoch_that_drop_last_ended_stays_finished_at_another_batch_size(folder):
    first = make(folder, drop_last=True)
    ids(first)
    state = first.state_dict()
    assert (state["position"], state["finished"]) == (20, True)
    second = make(folder, drop_last=True, batch_size=1)
    second.load_state_dict(state)
    assert ids(second) == ids(make_at(folder, 1, drop_last=True, batch_size=1))


def test_set_epoch_after_load_keeps_the_position_of_the_same_epoch_only(folder, caplog):
    first = make(folder)
    whole = ids(make(folder))
    ids(first, 2)
    state = first.state_dict()
    same, other = make(folder), make(folder)
    same.load_state_dict(state)
    same.set_epoch(0)
    assert not caplog.records
    assert ids(same) == whole[2:]
    other.load_state_dict(state)
    other.set_epoch(3)
    assert "the rest of that epoch is not read; set epoch 0" in caplog.text
    assert ids(other) == ids(make_at(folder, 3))


@pytest.mark.parametrize("cut", [0, 2])
def test_setting_the_current_epoch_again_after_iter_keeps_its_position(folder, cut):
    # Lightning calls iter() first and set_epoch() then.
    whole = ids(make(folder))
    head = make(folder)
    ids(head, cut)
    loader = make(folder)
    loader.load_state_dict(head.state_dict())
    iterator = iter(loader)
    loader.set_epoch(0)
    first = next(iterator).ids.tolist()
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 4 * (cut + 1))
    assert [first, *ids(iterator)] == whole[cut:]
    assert loader.state_dict()["finished"]
    assert loader.audit()["ok"]
    assert ids(loader) == ids(make_at(folder, 1))


def test_an_epoch_set_between_iter_and_the_first_batch_applies_to_that_iterator(folder):
    loader = make(folder)
    iterator = iter(loader)
    loader.set_epoch(2)
    assert ids(iterator) == ids(make_at(folder, 2))
    assert loader.audit()["ok"]
    assert (loader.state_dict()["epoch"], loader.state_dict()["finished"]) == (2, True)
    assert ids(loader) == ids(make_at(folder, 3))


def test_an_epoch_set_after_the_first_batch_is_the_next_one(folder):
    loader = make(folder)
    iterator = iter(loader)
    head = ids(iterator, 2)
    loader.set_epoch(5)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (5, 0)
    head += ids(iterator, 1)
    # The loop went on, so this is where it stands.
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 12)
    assert head + ids(iterator) == ids(make(folder))
    assert ids(loader) == ids(make_at(folder, 5))


def test_loading_while_iterating_ends_the_old_iterator(folder):
    loader = make(folder)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(Closed, match="replaced"):
        next(iterator)
    assert ids(loader) == ids(make(folder))[1:]


def test_a_newer_iterator_ends_the_older_one(folder):
    loader = make(folder)
    old = iter(loader)
    next(old)
    next(old)
    new = iter(loader)
    with pytest.raises(Closed, match="replaced"):
        next(old)
    assert next(new).epoch == 1


def test_an_iterator_of_a_closed_loader_raises_closed(folder):
    loader = make(folder)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(Closed, match="the loader is closed"):
        next(batches)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"seed": 6}, r"order seed: 5 in the state, 6 in this loader"),
        ({"shuffle": False}, r"order shuffle: True in the state, False"),
        ({"order": "keyed"}, r"order name: 'torch.distributed' in the state, 'keyed-1'"),
    ],
)
def test_a_state_of_another_order_is_refused_with_both_values(folder, change, shown):
    with pytest.raises(StateMismatch, match=shown):
        make(folder, **change).load_state_dict(make(folder).state_dict())


def test_a_state_of_other_data_is_refused_unless_they_have_grown(folder):
    loader = make(folder)
    ids(loader, 2)
    state = loader.state_dict()
    (folder / "c" / "9999.jpg").write_bytes(b"\x17" * 8)
    grown = make(folder)
    with pytest.raises(StateMismatch, match="fingerprint") as caught:
        grown.load_state_dict(state)
    assert "order n: 23 in the state, 24 in this loader" in str(caught.value)
    grown.load_state_dict(state, strict=False)
    assert len(flat(ids(grown))) == 24 - 8


@pytest.mark.parametrize(
    ("damage", "shown"),
    [
        ({"foresee": 2}, "version 2"),
        ({"foresee": None}, "not a state"),
        ({"epoch": -1}, "epoch=-1"),
        ({"position": True}, "position=True"),
        ({"position": "8"}, "position='8'"),
        ({"position": 24}, "24 in the state"),
        ({"position": 2**63}, "has 23 samples"),
        ({"order": None}, "order=None"),
    ],
)
def test_a_damaged_or_newer_state_is_refused(folder, damage, shown):
    loader = make(folder)
    with pytest.raises(StateMismatch, match=shown):
        loader.load_state_dict(loader.state_dict() | damage)


def test_other_values_than_states_are_refused(folder):
    with pytest.raises(StateMismatch, match="not a state"):
        make(folder).load_state_dict({})
    state = make(folder).state_dict()
    del state["finished"]
    with pytest.raises(StateMismatch, match="finished is missing"):
        make(folder).load_state_dict(state)


def test_the_audit_of_a_resumed_epoch_covers_its_rest(folder):
    first, second = make(folder), make(folder)
    ids(first, 2)
    second.load_state_dict(first.state_dict())
    ids(second)
    head, rest = first.audit(), second.audit()
    assert (head["start"], head["stop"], rest["start"], rest["stop"]) == (0, 8, 8, 23)
    assert head["ok"]
    assert rest["ok"]
    whole = make(folder)
    ids(whole)
    assert (int(head["sum"], 16) + int(rest["sum"], 16)) % 2**128 == int(whole.audit()["sum"], 16)


def test_the_sums_of_all_ranks_give_the_expected_sum(folder):
    loaders = [make(folder, rank=r, world_size=3) for r in range(3)]
    for loader in loaders:
        ids(loader, 2)
    reports = [loader.audit() for loader in loaders]
    assert all(report["ok"] for report in reports)
    assert sum(int(report["sum"], 16) for report in reports) % 2**128 == int(reports[0]["expected"], 16)


def test_the_audit_detects_a_sample_that_is_not_in_the_order(folder):
    loader = make(folder)
    iterator = iter(loader)
    batch = next(iterator)
    loader._session._audit.record(batch.epoch, len(batch), np.array([0, 0, 0, 0]))
    assert not loader.audit()["ok"]
