# SPDX-License-Identifier: Apache-2.0
"""Users' map-style datasets: order, resume, audit and ``on_error`` without an index."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

import foresee.torch as ft
from foresee._loading import orders
from foresee._loading.epoch_steps import EpochSteps
from foresee._runtime.ranks import World
from foresee.errors import ConfigError, SampleFault, StateMismatch

N = 23


class Squares:
    """Sample i is (i, i * i); some fail."""

    def __init__(self, n: int = N, bad: tuple[int, ...] = ()) -> None:
        self.n = n
        self.bad = bad
        self.made: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[int, int]:
        self.made.append(i)
        if i in self.bad:
            raise ValueError(f"row {i} is damaged")
        return i, i * i


class AtOnce(Squares):
    """Makes several samples in one call."""

    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        return [Squares.__getitem__(self, i) for i in indices]


def numbers(loader) -> list[int]:
    return [i for ids, _ in loader for i in ids.tolist()]


def test_a_seeded_order_is_that_of_distributed_sampler_in_every_epoch() -> None:
    sampler = DistributedSampler(range(N), num_replicas=3, rank=2, seed=9)
    loader = ft.DataLoader(Squares(), batch_size=4, shuffle=True, seed=9, rank=2, world_size=3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert numbers(loader) == list(sampler)
        assert loader.audit()["ok"]


def test_resume_at_another_world_size_loses_and_repeats_no_sample() -> None:
    whole = numbers(ft.DataLoader(Squares(), shuffle=True, seed=9))
    loaders = [
        ft.DataLoader(Squares(), batch_size=2, shuffle=True, seed=9, rank=rank, world_size=2)
        for rank in (0, 1)
    ]
    before = [numbers(itertools.islice(loader, 2)) for loader in loaders]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1]
    after = []
    for rank in range(3):
        loader = ft.DataLoader(Squares(), batch_size=2, shuffle=True, seed=9, rank=rank, world_size=3)
        loader.load_state_dict(states[0])
        after.append(numbers(loader))
    assert sorted(itertools.chain(*before, *after)) == sorted(whole)


def test_a_state_of_other_data_is_refused() -> None:
    state = ft.DataLoader(Squares(), shuffle=True, seed=1).state_dict()
    with pytest.raises(StateMismatch, match="order n: 23 in the state, 24 in this loader"):
        ft.DataLoader(Squares(24), shuffle=True, seed=1).load_state_dict(state)


@pytest.mark.parametrize("kind", [Squares, AtOnce])
def test_a_failed_sample_is_replaced_by_the_same_one_on_every_run(kind: type[Squares]) -> None:
    runs = []
    for _ in range(2):
        loader = ft.DataLoader(kind(bad=(5, 17)), batch_size=4, shuffle=True, seed=3, on_error="replace")
        runs.append(numbers(loader))
        replaced = {change["sample"]: change["substitute"] for change in loader.audit()["replaced"]}
        assert set(replaced) == {5, 17}
        assert loader.audit()["ok"]
    plain = numbers(ft.DataLoader(Squares(), batch_size=4, shuffle=True, seed=3))
    assert runs[0] == runs[1] == [replaced.get(i, i) for i in plain]


@pytest.mark.parametrize("kind", [Squares, AtOnce])
def test_a_failed_sample_is_skipped_and_the_number_of_batches_stays(kind: type[Squares]) -> None:
    loader = ft.DataLoader(kind(bad=(4, 5, 6, 7, 9)), batch_size=4, on_error="skip")
    sizes = [len(ids) for ids, _ in loader]
    assert sizes == [4, 1, 3, 4, 4, 3], "a batch is never empty"
    assert len(loader) == len(sizes)


def test_finished_samples_are_not_made_again_after_the_fault_of_another() -> None:
    dataset = Squares(bad=(2,))
    list(ft.DataLoader(dataset, batch_size=4, on_error="skip"))
    assert dataset.made == list(range(N))


def test_a_callable_gets_the_fault_and_returns_the_substitute() -> None:
    faults = []

    def choose(fault: SampleFault) -> int:
        faults.append(fault)
        return 0

    assert numbers(ft.DataLoader(Squares(bad=(5,)), batch_size=4, on_error=choose)) == [
        *range(5),
        0,
        *range(6, N),
    ]
    (fault,) = faults
    assert (fault.sample, fault.kind, fault.uri) == (5, "dataset", "Squares[5]")
    assert isinstance(fault.__cause__, ValueError)


def test_a_dataset_of_which_no_sample_can_be_made_ends_in_an_error() -> None:
    with pytest.raises(SampleFault, match="is damaged"):
        list(ft.DataLoader(Squares(bad=tuple(range(N))), batch_size=4, on_error="replace"))


def test_the_error_of_a_dataset_has_its_place_in_the_run() -> None:
    loader = ft.DataLoader(Squares(bad=(5,)), batch_size=4, rank=1, world_size=2)
    with pytest.raises(ValueError, match="row 5 is damaged") as caught:
        list(loader)
    notes = getattr(caught.value, "__notes__", ["for Squares[5] at position 5 of epoch 0, rank 1"])
    assert notes == ["for Squares[5] at position 5 of epoch 0, rank 1"]


def test_an_iterator_continues_after_a_batch_that_could_not_be_made() -> None:
    iterator = iter(ft.DataLoader(Squares(bad=(5,)), batch_size=4))
    next(iterator)
    with pytest.raises(ValueError, match="row 5"):
        next(iterator)
    assert next(iterator)[0].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("dataset", "arguments", "named"),
    [
        (3, {}, "a int without __getitem__"),
        (Squares(0), {}, "Squares of 0 samples"),
        ({"a": 1}.__getitem__, {}, "without __getitem__"),
    ],
)
def test_other_than_map_style_datasets_are_refused_with_the_remedy(dataset, arguments, named) -> None:
    with pytest.raises(ConfigError, match=named):
        ft.DataLoader(dataset, **arguments)


class Keyed:
    """A dataset without length."""

    def __getitem__(self, key: str) -> str:
        if key == "b":
            raise LookupError(key)
        return key * 2


def test_a_dataset_without_a_length_needs_a_sampler_and_has_no_substitutes() -> None:
    with pytest.raises(ConfigError, match="without __len__; give it one, or a sampler"):
        ft.DataLoader(Keyed())
    with pytest.raises(ConfigError, match="on_error='skip' with a dataset without __len__"):
        ft.DataLoader(Keyed(), sampler=["a"], on_error="skip")
    assert list(ft.DataLoader(Keyed(), batch_size=2, sampler=["a", "c"])) == [["aa", "cc"]]


def test_foresee_off_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [
        numbers(loader) for loader in [ft.DataLoader(Squares(), shuffle=True, seed=1)] for _ in range(2)
    ]
    monkeypatch.setenv("FORESEE_OFF", "1")
    loader = ft.DataLoader(Squares(), shuffle=True, seed=1)
    assert [numbers(loader) for _ in range(2)] == expected


def test_stats_have_the_waits_and_no_reads() -> None:
    loader = ft.DataLoader(Squares(), batch_size=4)
    list(loader)
    stats = loader.stats()
    assert stats["samples"] == N
    assert stats["waits"]["transform"]["count"] == len(loader)
    assert "operations" not in stats


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.booleans(), st.data())
def test_the_number_of_steps_equals_the_number_of_batches(n, size, batch_size, drop_last, cut, data) -> None:
    world = World(data.draw(st.integers(0, size - 1)), size)
    order = orders.RunOrder("torch.distributed", n, seed=3, drop_last=cut)
    position = data.draw(st.integers(0, n))
    steps = EpochSteps(order, world, batch_size, drop_last=drop_last)
    steps.begin_epoch(2, position)
    seen = []
    while (step := steps.next()) is not None:
        seen.append(step)
    assert len(seen) == steps.count(position)
    expected = order.ids(2, position, world)
    assert len(expected) == order.samples_per_rank(position, world.size)
    returned = [i for step in seen for i in step.ids.tolist()]
    assert returned == expected.tolist()[: len(returned)]
    assert [step.last for step in seen] == [False] * (len(seen) - 1) + [True] * (len(seen) > 0)
    following = steps.next()
    assert following is None or following.epoch == 3
