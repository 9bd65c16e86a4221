# SPDX-License-Identifier: Apache-2.0
"""``foresee which``: the samples of a step computed from a state are those of the loaders."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.properties import properties
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

import foresee
import foresee.torch as ft
from foresee._loading.state_steps import StateSteps
from foresee.cli import main
from foresee.errors import ConfigError, StateMismatch


def make(folder, **changes):
    arguments = {"batch_size": 4, "shuffle": True, "seed": 5, "rank": 0, "world_size": 1} | changes
    return foresee.Loader(folder, **arguments)


def ids_of(step, rank):
    return step.ranks[rank].ids.tolist()


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    "order",
    [{"shuffle": False, "seed": None}, {}, {"order": "keyed"}],
    ids=["sequential", "shuffled", "keyed"],
)
def test_every_step_of_every_epoch_has_the_samples_of_the_loaders(folder, world, drop_last, order):
    loaders = [make(folder, rank=r, world_size=world, drop_last=drop_last, **order) for r in range(world)]
    states, seen = [loaders[0].state_dict()], []
    for epoch in range(2):
        for batches in zip(*loaders, strict=True):
            seen.append((epoch, [(b.ids.tolist(), b.positions.tolist()) for b in batches]))
            states.append(loaders[0].state_dict())
    per_epoch = len(seen) // 2
    for at, state in enumerate(states):
        steps = StateSteps(state)
        for number, (epoch, ranks) in enumerate(seen):
            by_step = steps.at_step(number % per_epoch, epoch)
            assert [(r.ids.tolist(), r.positions.tolist()) for r in by_step.ranks] == ranks
            if number >= at or epoch == state["epoch"]:
                ahead = steps.ahead(number - at)
                assert (ahead.epoch, ahead.step) == (epoch, number % per_epoch)
                assert [r.ids.tolist() for r in ahead.ranks] == [r.ids.tolist() for r in by_step.ranks]


@properties(ordinary=60)
@given(
    n=st.integers(1, 200),
    world=st.integers(1, 5),
    batch=st.integers(1, 20),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 5),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_steps_are_the_batches_of_torchs_distributed_sampler(n, world, batch, seed, epoch, flags):
    shuffle, cut, drop_last = flags
    batches = []
    for rank in range(world):
        sampler = DistributedSampler(
            range(n), num_replicas=world, rank=rank, shuffle=shuffle, seed=seed, drop_last=cut and n >= world
        )
        sampler.set_epoch(epoch)
        batches.append(list(BatchSampler(sampler, batch, drop_last)))
    order = {
        "name": "torch.distributed",
        "n": n,
        "seed": seed,
        "shuffle": shuffle,
        "drop_last": cut and n >= world,
    }
    steps = StateSteps(state_of(order, epoch=epoch, batch_size=batch, world_size=world, drop_last=drop_last))
    for number, ranks in enumerate(zip(*batches, strict=True)):
        assert [r.ids.tolist() for r in steps.at_step(number).ranks] == list(ranks)
    with pytest.raises(ConfigError, match=f"has {len(batches[0])} steps"):
        steps.at_step(len(batches[0]))


def state_of(order, **changes):
    state = {"foresee": 1, "epoch": 0, "position": 0, "finished": False, "order": order, "batch_size": 4}
    return state | {"world_size": 1, "drop_last": False, "fingerprint": "f"} | changes


def test_a_run_resumed_at_another_world_size_is_counted_from_its_state(folder):
    first = make(folder)
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    loaders = [make(folder, rank=r, world_size=2, batch_size=3) for r in range(2)]
    for loader in loaders:
        loader.load_state_dict(state)
    iterators = [iter(loader) for loader in loaders]
    before = [next(iterator).ids.tolist() for iterator in iterators]
    resumed = loaders[0].state_dict()
    assert resumed["position"] == 10
    steps = StateSteps(resumed)
    with pytest.raises(ConfigError, match=r"position 10 of epoch 0.*no multiple.*3 x 2 ranks.*--ahead"):
        steps.at_step(1)
    assert [ids_of(steps.ahead(-1), rank) for rank in range(2)] == before
    for ahead in range(3):
        expected = [next(iterator).ids.tolist() for iterator in iterators]
        assert [ids_of(steps.ahead(ahead), rank) for rank in range(2)] == expected
        assert steps.ahead(ahead).step is None
    with pytest.raises(ConfigError, match="1 whole steps before the state"):
        steps.ahead(-2)
    assert steps.at_step(0, 1).epoch == steps.ahead(3).epoch == 1


@pytest.mark.parametrize("generator", ["none", "shared", "of the sampler"])
@pytest.mark.parametrize("taken", [1, 3, 6])
def test_a_drawn_order_of_torch_is_known_for_the_epoch_of_its_state(folder, generator, taken):
    dataset = ft.FolderDataset(folder)
    own = torch.Generator().manual_seed(11)
    arguments = {
        "none": {"shuffle": True},
        "shared": {"shuffle": True, "generator": own},
        "of the sampler": {"sampler": RandomSampler(dataset, generator=own)},
    }[generator]
    loader = ft.DataLoader(dataset, 4, **arguments)
    list(loader)
    batches = iter(loader)
    seen = [labels_of(batch) for batch in islice(batches, taken)]
    steps = StateSteps(json.loads(json.dumps(loader.state_dict())))
    assert [ids_of(steps.at_step(number), 0) for number in range(taken)] == seen
    assert steps.name == "torch.random"
    with pytest.raises(ConfigError, match=r"drawn when its epoch begins.*seed="):
        steps.at_step(0, 7)


def labels_of(batch):
    return batch[0][:, 0].tolist()


def test_orders_that_only_the_script_knows_are_refused_with_the_reason(folder):
    dataset = ft.FolderDataset(folder)
    loader = ft.DataLoader(dataset, 4, sampler=list(range(23)))
    with pytest.raises(ConfigError, match=r"sampler= of the training script.*seed="):
        StateSteps(loader.state_dict())
    loader = ft.DataLoader(dataset, 4, shuffle=True)
    with pytest.raises(ConfigError, match="after the epoch's first batch"):
        StateSteps(loader.state_dict())
    with pytest.raises(StateMismatch, match="version 9"):
        StateSteps(state_of({"name": "keyed-1"}, foresee=9))
    with pytest.raises(ConfigError, match="'other' of this state is unknown"):
        StateSteps(state_of({"name": "other", "n": 3}))


@pytest.fixture
def saved(folder, tmp_path):
    """A state in the middle of epoch 1 of two ranks, and the index of its data."""
    loader = make(folder, rank=1, world_size=2)
    list(loader)
    batches = iter(loader)
    next(batches)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    index = tmp_path / "data.fidx"
    loader.index.save(index)
    return path, index


def test_the_command_names_ids_positions_and_uris(saved, capsys, folder):
    path, index = saved
    assert main(["which", str(path), "--step", "2", "--index", str(index), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["epoch"], facts["step"], facts["position"], facts["world_size"]) == (1, 2, 16, 2)
    loader = make(folder, rank=1, world_size=2)
    loader.set_epoch(1)
    batch = list(loader)[2]
    rank = facts["ranks"][1]
    assert (rank["ids"], rank["positions"]) == (batch.ids.tolist(), batch.positions.tolist())
    assert rank["padding"] == 1
    assert rank["uris"][0].endswith(f"{rank['ids'][0]:04d}.jpg")
    assert main(["which", str(path), "--ahead", "-1", "--rank", "0"]) == 0
    out = capsys.readouterr().out
    assert "epoch 1, step 0: positions from 0, 4 samples on each of 2 ranks, order torch.distributed" in out
    assert "rank 1" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of --step N, --ahead K, or --avoid IDS"),
        (["--step", "0", "--ahead", "0"], "give one of"),
        (["--step", "3"], "step 3; epoch 1 has 3 steps of 4 x 2 samples"),
        (["--step", "0", "--rank", "2"], "--rank 2; the state has 2 ranks"),
        (["--step", "0", "--epoch", "-1"], "epoch -1; epochs go from 0"),
        (["--ahead", "0", "--epoch", "1"], "--epoch without --step"),
        (["--ahead", "-2"], "1 whole steps before the state"),
        (["--avoid", "1"], "--avoid without --output"),
        (["--avoid", "1", "--step", "0"], "it only writes a state"),
        (["--step", "0", "--output", "x"], "--output without --avoid"),
        (["--avoid", "1,x", "--output", "x"], "'x' is no sample id"),
        (["--avoid", "23", "--output", "x"], "sample 23 is not in the data set; ids go from 0 to 22"),
        (["--avoid", "3,3", "--output", "x"], "sample 3 is given twice"),
        (["--avoid", "", "--output", "x"], "no samples to avoid"),
        (["--avoid", ",".join(map(str, range(23))), "--output", "x"], "all 23 samples are to be avoided"),
    ],
)
def test_wrong_arguments_are_named_with_their_remedy(saved, capsys, arguments, message):
    assert main(["which", str(saved[0]), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_invalid_state_and_a_foreign_index_are_refused(saved, tmp_path, capsys, array):
    path = tmp_path / "no.json"
    for text, message in [("{", "not JSON"), ("[]", "not a state"), ("{}", "not a state of Foresee")]:
        path.write_text(text)
        assert main(["which", str(path), "--step", "0"]) == 2
        assert message in capsys.readouterr().err
    other = tmp_path / "other.fidx"
    make(array).index.save(other)
    assert main(["which", str(saved[0]), "--step", "0", "--index", str(other)]) == 2
    assert "it lists other data" in capsys.readouterr().err


def test_the_stock_loader_is_not_needed_to_know_its_distributed_batches():
    sampler = DistributedSampler(range(50), num_replicas=2, rank=1, seed=3)
    sampler.set_epoch(4)
    stock = [batch.tolist() for batch in DataLoader(torch.arange(50), 8, sampler=sampler)]
    order = {"name": "torch.distributed", "n": 50, "seed": 3, "shuffle": True, "drop_last": False}
    steps = StateSteps(state_of(order, epoch=4, batch_size=8, world_size=2))
    assert [ids_of(steps.at_step(number), 1) for number in range(len(stock))] == stock
