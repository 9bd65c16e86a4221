# SPDX-License-Identifier: Apache-2.0
"""Order compared with torch's loader: the same indices, and the same state of torch's generators afterwards."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch
from support.stock_loader import N, ours_of, stock, stock_of
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import foresee.torch as ft
from foresee.errors import Closed, ConfigError, StateMismatch


@pytest.fixture
def dataset(folder):
    return ft.FolderDataset(folder)


def run(loader, of, epochs, stop=None):
    """Indices of every batch, and the state of the global generator after each epoch."""
    seen = []
    for epoch in range(epochs):
        batches = [of(batch) for batch in (loader if stop is None else islice(loader, stop[epoch]))]
        seen.append((batches, torch.get_rng_state().tolist()))
    return seen


@pytest.mark.parametrize("stop", [None, (2, 6, 0), (5, 6, 6)])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 23, 30])
def test_unseeded_shuffle_draws_what_the_stock_loader_draws(dataset, batch_size, drop_last, stop):
    arguments = {"batch_size": batch_size, "shuffle": True, "drop_last": drop_last}
    torch.manual_seed(3)
    expected = run(stock(**arguments), stock_of, 3, stop)
    torch.manual_seed(3)
    assert run(ft.DataLoader(dataset, **arguments), ours_of, 3, stop) == expected


@pytest.mark.parametrize("stop", [None, (2, 6, 1), (5, 6, 6), (6, 3, 6)])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [4, 23])
def test_a_generator_ends_in_the_state_that_the_stock_loader_leaves(dataset, batch_size, drop_last, stop):
    def states(make, of):
        generator = torch.Generator().manual_seed(7)
        loader = make(batch_size=batch_size, shuffle=True, drop_last=drop_last, generator=generator)
        seen = []
        for epoch in range(3):
            iterator = iter(loader)
            # `next` a fixed number of times, as some loops do, never sees the end and draws no tail.
            steps = len(loader) if stop is None else min(stop[epoch], len(loader))
            seen.append([of(next(iterator)) for _ in range(steps)])
            seen.append(generator.get_state().tolist())
            if stop is None:
                assert next(iterator, None) is None
                seen.append(generator.get_state().tolist())
            del iterator
        return seen

    assert states(lambda **a: ft.DataLoader(dataset, **a), ours_of) == states(stock, stock_of)


@pytest.mark.parametrize(
    "kind", ["sequential", "random", "random own", "replacement", "subset", "weighted", "list"]
)
def test_any_finite_sampler_gives_its_own_order(dataset, kind):
    def sampler():
        return {
            "sequential": lambda: SequentialSampler(range(N)),
            "random": lambda: RandomSampler(range(N)),
            "random own": lambda: RandomSampler(range(N), generator=torch.Generator().manual_seed(5)),
            "replacement": lambda: RandomSampler(range(N), replacement=True, num_samples=50),
            "subset": lambda: SubsetRandomSampler(list(range(0, N, 2))),
            "weighted": lambda: WeightedRandomSampler(torch.ones(N), 40),
            "list": lambda: [3, 1, 2, 2, 22],
        }[kind]()

    torch.manual_seed(11)
    expected = run(stock(batch_size=4, sampler=sampler()), stock_of, 3)
    torch.manual_seed(11)
    loader = ft.DataLoader(dataset, batch_size=4, sampler=sampler())
    assert run(loader, ours_of, 3) == expected
    assert len(loader) == len(stock(batch_size=4, sampler=sampler()))
    assert loader.audit()["ok"]


def test_a_batch_sampler_gives_its_own_batches(dataset):
    torch.manual_seed(11)
    batches = BatchSampler(RandomSampler(range(N)), 5, drop_last=False)
    expected = run(stock(batch_sampler=batches), stock_of, 2)
    torch.manual_seed(11)
    loader = ft.DataLoader(dataset, batch_sampler=BatchSampler(RandomSampler(range(N)), 5, drop_last=False))
    assert run(loader, ours_of, 2) == expected
    unequal = ft.DataLoader(dataset, batch_sampler=[[1], [2, 3, 4], [5, 5]])
    assert [ours_of(batch) for batch in unequal] == [[1], [2, 3, 4], [5, 5]]


@pytest.mark.parametrize("world", [1, 2, 5])
@pytest.mark.parametrize("global_drop", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_distributed_sampler_is_followed_for_the_whole_run(dataset, world, global_drop, shuffle):
    for rank in range(world):

        def sampler(rank=rank):
            return DistributedSampler(range(N), world, rank, shuffle=shuffle, seed=4, drop_last=global_drop)

        theirs, mine = sampler(), sampler()
        loader = ft.DataLoader(dataset, batch_size=3, sampler=mine)
        reference = stock(batch_size=3, sampler=theirs)
        assert len(loader) == len(reference)
        for epoch in (0, 1, 1, 4, None, None):
            if epoch is not None:
                theirs.set_epoch(epoch)
                mine.set_epoch(epoch)
            assert [ours_of(b) for b in loader] == [stock_of(b) for b in reference]
            assert loader.audit()["ok"]


def test_seeded_shuffle_is_distributed_sampler_with_set_epoch_and_draws_the_base_seed(dataset):
    sampler = DistributedSampler(range(N), 1, 0, seed=4)
    reference = stock(batch_size=4, sampler=sampler)
    torch.manual_seed(1)
    expected = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        expected += run(reference, stock_of, 1)
    torch.manual_seed(1)
    assert run(ft.DataLoader(dataset, batch_size=4, shuffle=True, seed=4), ours_of, 3) == expected


@pytest.mark.parametrize("kind", ["seed", "sampler"])
@pytest.mark.parametrize("start", ["fresh", "resumed"])
def test_an_epoch_set_between_iter_and_the_first_batch_applies_as_in_torch(dataset, kind, start):
    def make():
        if kind == "seed":
            return ft.DataLoader(dataset, batch_size=4, shuffle=True, seed=4)
        return ft.DataLoader(dataset, batch_size=4, sampler=DistributedSampler(range(N), 1, 0, seed=4))

    sampler = DistributedSampler(range(N), 1, 0, seed=4)
    theirs = DataLoader(range(N), batch_size=4, sampler=sampler, collate_fn=list)
    loader = make()
    if start == "resumed":
        list(islice(loader, 2))
        state, loader = loader.state_dict(), make()
        loader.load_state_dict(state)
    for epoch, expected_head in ((0, 2 if start == "resumed" else 0), (3, 0)):
        batches, reference = iter(loader), iter(theirs)
        loader.sampler.set_epoch(epoch)
        sampler.set_epoch(epoch)
        first = ours_of(next(batches))
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (
            epoch,
            4 * expected_head + 4,
        )
        assert [first, *map(ours_of, batches)] == list(reference)[expected_head:]
        assert loader.audit()["ok"]
    assert loader.state_dict()["finished"]


def test_an_epoch_set_for_a_random_order_becomes_the_number_of_the_drawn_epoch(dataset):
    def make():
        return ft.DataLoader(dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))

    expected = [ours_of(batch) for batch in make()]
    loader = make()
    batches = iter(loader)
    loader.set_epoch(2)
    head = [ours_of(batch) for batch in islice(batches, 2)]
    state, resumed = loader.state_dict(), make()
    assert (state["epoch"], state["position"]) == (2, 8)
    resumed.load_state_dict(state)
    assert head + [ours_of(batch) for batch in resumed] == expected


def test_the_sampler_of_a_seeded_loader_is_a_distributed_sampler_with_its_values(dataset):
    loader = ft.DataLoader(dataset, batch_size=4, shuffle=True, seed=4, rank=1, world_size=2)
    sampler = loader.sampler
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.rank, sampler.num_replicas, sampler.seed, sampler.shuffle) == (1, 2, 4, True)
    assert len(sampler) == sampler.num_samples == 12
    loader.set_epoch(2)
    assert sampler.epoch == 2
    sampler.epoch = 3
    reference = DistributedSampler(range(N), 2, 1, seed=4)
    reference.set_epoch(3)
    assert list(sampler) == list(reference)
    assert [i for batch in loader for i in ours_of(batch)] == list(reference)
    assert sampler.epoch == 4


def test_the_loader_has_the_public_attributes_of_torchs(dataset):
    loader = ft.DataLoader(dataset, batch_size=4, shuffle=True, seed=4, drop_last=True, rank=1, world_size=2)
    assert not isinstance(loader, DataLoader)
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.pin_memory) == (4, True, 0, False)
    assert loader.dataset is dataset
    assert loader.generator is None
    assert list(loader.batch_sampler) == [ours_of(batch) for batch in loader]
    assert len(loader.sampler) == 12
    loader.sampler.set_epoch(0)
    assert [ours_of(batch) for batch in loader] != [ours_of(batch) for batch in loader]
    image, label = loader.dataset[22]
    assert image.tolist() == [22] * 8
    assert label == 2


def test_frameworks_do_not_rebuild_the_loader_but_torchs_can_be_built_from_its_attributes(dataset):
    loader = ft.DataLoader(dataset, batch_size=4, shuffle=True, seed=4)
    rebuilt = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)
    assert [ours_of(batch) for batch in rebuilt] == [ours_of(batch) for batch in loader]


@pytest.mark.parametrize("generator", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 3, 5, 6])
def test_an_unseeded_epoch_resumes_from_its_state(dataset, generator, cut):
    def make():
        own = torch.Generator().manual_seed(2) if generator else None
        return ft.DataLoader(dataset, batch_size=4, shuffle=True, generator=own)

    torch.manual_seed(9)
    first = make()
    iterator = iter(first)
    head = [ours_of(next(iterator)) for _ in range(cut)]
    state, numbers = json.loads(json.dumps(first.state_dict())), torch.get_rng_state()
    rest = [ours_of(batch) for batch in iterator]
    following = [ours_of(batch) for batch in first]
    second = make()
    torch.set_rng_state(numbers)
    second.load_state_dict(state)
    assert second.state_dict() == state
    if cut < 6:
        assert [ours_of(batch) for batch in second] == rest
    assert [ours_of(batch) for batch in second] == following
    assert sorted(i for batch in head + rest for i in batch) == list(range(N))


def test_a_state_between_epochs_has_the_generators_state(dataset):
    first = ft.DataLoader(dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(2))
    list(first)
    first.set_epoch(1)
    second = ft.DataLoader(dataset, batch_size=4, shuffle=True, generator=torch.Generator())
    second.load_state_dict(first.state_dict())
    assert [ours_of(batch) for batch in second] == [ours_of(batch) for batch in first]


def test_a_users_sampler_resumes_if_it_repeats_its_order(dataset):
    order = list(range(22, -1, -1))
    first = ft.DataLoader(dataset, batch_size=4, sampler=order)
    head = [ours_of(batch) for batch in islice(first, 2)]
    second = ft.DataLoader(dataset, batch_size=4, sampler=order)
    second.load_state_dict(first.state_dict())
    assert [i for batch in head for i in batch] + [i for b in second for i in ours_of(b)] == order


def test_a_batch_samplers_state_counts_batches(dataset):
    batches = [[1], [2, 3, 4], [5, 5], [6]]
    first = ft.DataLoader(dataset, batch_sampler=batches)
    list(islice(first, 2))
    assert first.state_dict()["position"] == 2
    second = ft.DataLoader(dataset, batch_sampler=batches)
    second.load_state_dict(first.state_dict())
    assert [ours_of(batch) for batch in second] == [[5, 5], [6]]


def test_a_distributed_samplers_state_resumes_at_another_world_size(dataset):
    def make(rank, world, size):
        return ft.DataLoader(
            dataset, batch_size=size, sampler=DistributedSampler(range(N), world, rank, seed=1)
        )

    head, states = [], []
    for rank in range(2):
        loader = make(rank, 2, 3)
        loader.sampler.set_epoch(2)
        head += [i for batch in islice(loader, 2) for i in ours_of(batch)]
        states.append(loader.state_dict())
    assert states[0] == states[1]
    rest = []
    for rank in range(3):
        loader = make(rank, 3, 2)
        loader.load_state_dict(states[0])
        assert loader.sampler.epoch == 2
        rest += [i for batch in loader for i in ours_of(batch)]
    assert set(head) | set(rest) == set(range(N))
    assert len(head) + len(rest) == 24


def test_a_state_of_another_kind_of_order_is_refused(dataset):
    state = ft.DataLoader(dataset, shuffle=True, seed=1).state_dict()
    with pytest.raises(StateMismatch, match=r"torch.distributed.*torch.random"):
        ft.DataLoader(dataset, shuffle=True).load_state_dict(state)
    damaged = ft.DataLoader(dataset, shuffle=True)
    next(iter(damaged))
    state = damaged.state_dict()
    del state["draw"]["sampler_seed"]
    with pytest.raises(StateMismatch, match="draw"):
        damaged.load_state_dict(state)


@pytest.mark.parametrize("sampler", [None, list(range(23))], ids=["random", "sampler"])
def test_a_state_within_an_epoch_that_lost_its_draw_is_refused(dataset, sampler):
    def make():
        return ft.DataLoader(dataset, batch_size=4, shuffle=sampler is None, sampler=sampler)

    batches = iter(loader := make())
    next(batches)
    state = loader.state_dict()
    del state["draw"]
    with pytest.raises(StateMismatch, match="all fields of state_dict"):
        make().load_state_dict(state)


def test_unseeded_shuffle_on_several_ranks_is_refused_with_the_remedy(dataset):
    with pytest.raises(ConfigError, match="give seed="):
        ft.DataLoader(dataset, shuffle=True, rank=0, world_size=2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "drop_last": True},
        {"seed": 1, "sampler": [1]},
        {"shuffle": True, "seed": 1, "generator": torch.Generator()},
        {"order": "keyed"},
        {"order": "sorted", "shuffle": True, "seed": 1},
        {"sampler": iter([1])},
        {"num_workers": -1},
        {"persistent_workers": True},
        {"prefetch_factor": 0},
        {"prefetch_factor": 2},
        {"batch_size": None, "drop_last": True},
    ],
)
def test_contradictions_are_refused(dataset, arguments):
    with pytest.raises(ConfigError):
        ft.DataLoader(dataset, **arguments)


def test_an_index_outside_the_data_is_refused(dataset):
    with pytest.raises(ConfigError, match="gave index 23"):
        next(iter(ft.DataLoader(dataset, sampler=[1, 23])))


def test_an_iterator_ends_when_a_newer_one_or_a_state_replaces_it(dataset):
    loader = ft.DataLoader(dataset, batch_size=4, shuffle=True, seed=1)
    old = iter(loader)
    next(old)
    iter(loader)
    with pytest.raises(Closed):
        next(old)


def _seeded():
    return torch.Generator().manual_seed(3)


KINDS = {
    "generator": lambda: {"shuffle": True, "generator": _seeded()},
    "distributed": lambda: {"sampler": DistributedSampler(range(N), 1, 0, seed=2)},
    "list": lambda: {"sampler": list(range(N))},
    "unseeded": lambda: {"shuffle": True},
    "in order": dict,
    "seed": lambda: {"shuffle": True, "seed": 1},
    "batches": lambda: {"batch_sampler": [[0, 1], [2, 3], [4]]},
}


@pytest.mark.parametrize("says", [False, True], ids=["plain", "set_epoch"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ended", [1, 2])
def test_resuming_at_an_epochs_end_equals_an_uninterrupted_run(dataset, kind, says, ended):
    def epoch(loader, number):
        if says:
            loader.set_epoch(number)
        return [ours_of(batch) for batch in loader]

    def make():
        return ft.DataLoader(dataset, **({} if kind == "batches" else {"batch_size": 5}), **KINDS[kind]())

    torch.manual_seed(0)
    loader = make()
    whole = [epoch(loader, number) for number in range(4)]
    torch.manual_seed(0)
    loader = make()
    parts = [epoch(loader, number) for number in range(ended)]
    state = json.loads(json.dumps(loader.state_dict()))
    loader = make()
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    parts += [epoch(loader, number) for number in range(ended, 4)]
    assert parts == whole


def test_requesting_a_batch_after_the_last_one_leaves_the_next_epoch_unchanged(dataset):
    whole = ft.DataLoader(dataset, batch_size=5, **KINDS["generator"]())
    epochs = [[ours_of(batch) for batch in whole] for _ in range(2)]
    first = ft.DataLoader(dataset, batch_size=5, **KINDS["generator"]())
    list(first)
    second = ft.DataLoader(dataset, batch_size=5, **KINDS["generator"]())
    second.load_state_dict(first.state_dict())
    second.set_epoch(0)
    assert list(second) == []
    assert [ours_of(batch) for batch in second] == epochs[1]


@pytest.mark.parametrize(
    "open_iterator", [iter, lambda loader: next(iter(loader))], ids=["opened", "one batch"]
)
@pytest.mark.parametrize(
    "arguments", [{}, {"transform_threads": 2, "collate_fn": list}], ids=["direct", "ahead"]
)
def test_an_iterator_with_one_batch_does_not_count_for_a_seeded_order(dataset, open_iterator, arguments):
    def make():
        return ft.DataLoader(dataset, batch_size=5, shuffle=True, seed=1, epochs=2, **arguments)

    plain, peeked = make(), make()
    for _ in range(2):
        open_iterator(peeked)
        a, b = ([str(batch) for batch in loader] for loader in (plain, peeked))
        assert a == b
    assert peeked.audit()["ok"]


def test_epochs_beyond_the_number_given_are_read(dataset):
    def make(**arguments):
        loader = ft.DataLoader(dataset, batch_size=5, shuffle=True, seed=1, **arguments)
        return [[str(batch) for batch in loader] for _ in range(4)]

    assert make(epochs=2) == make(epochs=1) == make()
    assert make(epochs=2, collate_fn=list) == make(epochs=1, transform_threads=2, collate_fn=list)
