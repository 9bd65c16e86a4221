# SPDX-License-Identifier: Apache-2.0
"""States that avoid samples: equal substitutes on every rank, no reads of avoided samples, and later states."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

import foresee
import foresee.torch as ft
from foresee import _native
from foresee._loading.hashing import substitute
from foresee._loading.state_steps import StateSteps, avoiding
from foresee._runtime.ranks import World
from foresee.cli import main
from foresee.errors import ConfigError, StateMismatch

AVOID = (17, 4)
ORDERS = [{"shuffle": False, "seed": None}, {}, {"order": "keyed"}]


def make(folder, **changes):
    arguments = {"batch_size": 4, "shuffle": True, "seed": 5, "rank": 0, "world_size": 1} | changes
    return foresee.Loader(folder, **arguments)


def ids(loader):
    return [i for batch in loader for i in batch.ids.tolist()]


def replaced(plain, *, seed, epoch, avoid=AVOID, samples=23):
    """``plain`` with each avoided sample replaced by the first substitute that is not avoided."""

    def other(sample):
        attempts = (substitute(seed, epoch, sample, attempt, samples) for attempt in range(100))
        return next(chosen for chosen in attempts if chosen not in avoid)

    return [other(sample) if sample in avoid else sample for sample in plain]


@pytest.fixture
def without(folder):
    """The data set, in which the files of the avoided samples are gone."""
    index = make(folder).index
    for sample in AVOID:
        (folder / index.key(sample).decode()).unlink()
    return index


@pytest.mark.parametrize("off", ["0", "1"])
@pytest.mark.parametrize("order", ORDERS, ids=["sequential", "shuffled", "keyed"])
def test_avoided_samples_are_never_read_and_all_other_positions_stay(without, monkeypatch, order, off):
    monkeypatch.setenv("FORESEE_OFF", off)
    world, seed = 3, order.get("seed", 5) or 0
    for rank in range(world):
        arguments = {"rank": rank, "world_size": world} | order
        plain = [make(without, **arguments)._order.ids(epoch, 0, World(rank, world)) for epoch in range(2)]
        loader = make(without, **arguments)
        loader.load_state_dict(avoiding(loader.state_dict(), AVOID))
        for epoch in range(2):
            assert ids(loader) == replaced(plain[epoch].tolist(), seed=seed, epoch=epoch)
            report = loader.audit()
            assert (report["ok"], report["avoided"], report["replaced"]) == (True, 2, [])
        assert loader.stats()["avoided"] == 2
        loader.close()


def test_the_audit_of_all_ranks_expects_the_substitutes(folder):
    loaders = [make(folder, rank=rank, world_size=2, batch_size=4) for rank in range(2)]
    state = avoiding(loaders[0].state_dict(), AVOID)
    reports = []
    for loader in loaders:
        loader.load_state_dict(state)
        ids(loader)
        reports.append(loader.audit())
    assert sum(int(report["sum"], 16) for report in reports) % 2**128 == int(reports[0]["expected"], 16)


def test_later_states_keep_the_avoided_samples_and_resume_at_another_world_size(folder):
    loader = make(folder)
    batches = iter(loader)
    head = next(batches).ids.tolist()
    loader.load_state_dict(json.loads(json.dumps(avoiding(loader.state_dict(), AVOID))))
    batches = iter(loader)
    head += next(batches).ids.tolist()
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["foresee"] == 2
    assert state["avoid"] == [{"epoch": 0, "position": 4, "ids": [4, 17]}]
    rest = []
    for rank in range(2):
        resumed = make(folder, rank=rank, world_size=2, batch_size=3)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        rest.append(ids(resumed))
        assert resumed.state_dict()["avoid"] == state["avoid"]
    # 15 samples are left for two ranks, so the last place is padding.
    interleaved = [sample for pair in zip(*rest, strict=True) for sample in pair][:15]
    assert head + interleaved == head[:4] + replaced(ids(make(folder))[4:], seed=5, epoch=0)


def test_steps_of_a_state_avoid_samples_from_their_position_on(folder):
    loader = make(folder)
    plain = [batch.ids.tolist() for batch in loader]
    state = avoiding(loader.state_dict(), AVOID)
    assert state["avoid"][0] | {"ids": None} == {"epoch": 1, "position": 0, "ids": None}
    twice = avoiding(state, [9])
    assert [entry["ids"] for entry in twice["avoid"]] == [[4, 17], [9]]
    steps = StateSteps(twice)
    assert [steps.at_step(number).ranks[0].ids.tolist() for number in range(6)] == plain
    resumed = make(folder)
    resumed.load_state_dict(twice)
    assert [steps.ahead(n).ranks[0].ids.tolist() for n in range(6)] == [b.ids.tolist() for b in resumed]


def test_a_state_without_avoided_samples_is_still_of_version_1(folder):
    loader = make(folder)
    state = loader.state_dict()
    assert (state["foresee"], "avoid" in state) == (1, False)
    loader.load_state_dict(avoiding(state, [3]))
    assert loader.state_dict()["foresee"] == 2
    loader.load_state_dict(state)
    assert ids(loader) == ids(make(folder))


@pytest.mark.parametrize("kind", ["torch.random", "sampler", "batch_sampler"])
def test_orders_known_for_one_epoch_have_substitutes_too(folder, kind):
    dataset = ft.FolderDataset(folder)

    def loader():
        if kind == "torch.random":
            return ft.DataLoader(dataset, 4, shuffle=True, generator=torch.Generator().manual_seed(2))
        sampler = SequentialSampler(range(23))
        if kind == "sampler":
            return ft.DataLoader(dataset, 4, sampler=list(sampler))
        return ft.DataLoader(dataset, batch_sampler=BatchSampler(sampler, 4, drop_last=False))

    plain, avoids = loader(), loader()
    avoids.load_state_dict(avoiding(avoids.state_dict(), AVOID))
    for epoch in range(2):
        expected = replaced([int(i) for batch in plain for i in batch[0][:, 0]], seed=0, epoch=epoch)
        assert [int(i) for batch in avoids for i in batch[0][:, 0]] == expected
        assert avoids.audit()["ok"]
    assert avoids.state_dict()["avoid"][0]["ids"] == [4, 17]


def test_substitutes_of_on_error_are_no_avoided_samples(folder):
    index = make(folder).index
    for sample in (0, 1, 2, *AVOID):
        (folder / index.key(sample).decode()).unlink()
    loader = make(index, on_error="replace")
    loader.load_state_dict(avoiding(loader.state_dict(), AVOID))
    seen = ids(loader)
    assert len(seen) == 23
    assert not set(seen) & {0, 1, 2, *AVOID}
    chooses = make(index, on_error=lambda error: 17)
    chooses.load_state_dict(avoiding(chooses.state_dict(), AVOID))
    with pytest.raises(ValueError, match="17, which the loaded state avoids"):
        ids(chooses)


def test_substitutes_are_those_of_the_hash_that_on_error_uses():
    for seed, epoch in [(0, 0), (5, 3), (2**63 + 1, 9)]:
        avoid = np.array([1, 4, 6, 11], np.uint64)
        got = _native.order_substitutes(12, seed, epoch, avoid)
        expected = replaced([1, 4, 6, 11], seed=seed, epoch=epoch, avoid=(1, 4, 6, 11), samples=12)
        assert got.tolist() == expected
    with pytest.raises(ValueError, match="all 2 samples"):
        _native.order_substitutes(2, 0, 0, np.array([0, 1], np.uint64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"avoid": [{"epoch": 0, "position": 0, "ids": [23]}]}, "avoid: 1 samples up to 23"),
        ({"avoid": [{"epoch": 0, "position": 0, "ids": list(range(23))}]}, "avoid: 23 samples"),
        ({"avoid": []}, "a list of entries expected"),
        ({"avoid": [{"epoch": 0, "position": 0, "ids": [1, 1]}]}, "listed twice"),
        ({"avoid": [{"epoch": 0, "position": 0, "ids": [-1]}]}, "entry"),
        ({"avoid": [{"epoch": 0, "ids": [1]}]}, "entry"),
        ({"avoid": [3]}, "entry 3"),
        ({"foresee": 1}, "version 1 with avoid"),
        ({"foresee": 3}, "reads versions 1 and 2"),
    ],
)
def test_damaged_entries_and_unknown_samples_are_refused(folder, change, message):
    loader = make(folder)
    state = avoiding(loader.state_dict(), AVOID) | change
    with pytest.raises(StateMismatch, match=message):
        loader.load_state_dict(state)
    state.pop("avoid")
    state["foresee"] = 2
    with pytest.raises(StateMismatch, match="version 2 without avoid"):
        loader.load_state_dict(state)


def test_the_command_writes_a_state_that_loaders_load(folder, tmp_path, capsys):
    loader = make(folder)
    state, new = tmp_path / "state.json", tmp_path / "new.json"
    state.write_text(json.dumps(loader.state_dict()))
    more = tmp_path / "bad.txt"
    more.write_text("4\n5, 6\n")
    arguments = ["which", str(state), "--avoid", "17", "--avoid-file", str(more), "-o", str(new)]
    assert main([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["avoided"], facts["added"], facts["epoch"], facts["position"]) == (4, [4, 5, 6, 17], 0, 0)
    loader.load_state_dict(json.loads(new.read_text()))
    assert not set(ids(loader)) & {4, 5, 6, 17}
    assert main(arguments) == 0
    assert "avoids 4, 5, 6, 17 from position 0 of epoch 0 on" in capsys.readouterr().out
    assert main(["which", str(new), "--avoid", "17,8", "-o", str(new)]) == 2
    assert "sample 17 is avoided by this state already; leave it out" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="give ids"):
        avoiding(loader.state_dict(), [])
