# SPDX-License-Identifier: Apache-2.0
"""Orders of epochs that are known before the sampler draws them."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from foresee.torch.cached.expected import ExpectedEpochs

N = 23


def numbers():
    return TensorDataset(torch.arange(N))


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_expected_epochs_of_a_distributed_sampler_are_those_that_it_yields(world, shuffle, drop_last):
    dataset = numbers()
    for rank in range(world):
        sampler = DistributedSampler(dataset, world, rank, shuffle=shuffle, seed=5, drop_last=drop_last)
        batches = BatchSampler(sampler, 4, drop_last)
        expected, of_batches = ExpectedEpochs(sampler), ExpectedEpochs(batches)
        for epoch in range(3):
            sampler.set_epoch(epoch + 1)
            later = [(list(sampler), list(itertools.chain(*batches)))]
            sampler.set_epoch(epoch)
            now = [(list(sampler), list(itertools.chain(*batches)))]
            ours = zip(expected.epochs(), of_batches.epochs(), strict=True)
            assert [(one.tolist(), other.tolist()) for one, other in ours] == now + later


def test_further_epochs_are_expected_until_they_have_as_many_samples_as_wanted():
    sampler = DistributedSampler(numbers(), 4, 1, seed=5)
    later = []
    for epoch in range(40):
        sampler.set_epoch(epoch)
        later.append(list(sampler))
    sampler.set_epoch(0)
    for wanted in (0, 6, 7, 15, N, 2 * N):
        orders = [order.tolist() for order in ExpectedEpochs(sampler).epochs(wanted)]
        assert orders == later[: len(orders)]
        found = [len(set(itertools.chain(*orders[1:end]))) for end in range(2, len(orders) + 1)]
        assert found[-1] >= min(wanted, N) or (len(found) > 1 and found[-1] == found[-2])
        assert len(found) == 1 or found[-2] < wanted
    assert len(ExpectedEpochs(SequentialSampler(numbers())).epochs(2 * N)) == 3


def test_without_set_epoch_the_same_epoch_is_expected_again():
    sampler = DistributedSampler(numbers(), 1, 0)
    expected = ExpectedEpochs(sampler)
    expected.epochs()
    first, second = expected.epochs()
    assert first.tolist() == second.tolist() == list(sampler)


def test_orders_that_are_no_function_of_a_seed_are_not_expected():
    class Reversed(SequentialSampler):
        def __iter__(self):
            return iter(range(N))[::-1]

    for sampler in (Reversed(numbers()), [3, 1]):
        assert ExpectedEpochs(sampler).epochs() == []
    (first, second) = ExpectedEpochs(SequentialSampler(numbers())).epochs()
    assert first.tolist() == second.tolist() == list(range(N))


DRAWING = {
    "random": lambda generator: RandomSampler(numbers(), generator=generator),
    "replaced": lambda generator: RandomSampler(numbers(), True, 70, generator),
    "subset": lambda generator: SubsetRandomSampler([3, 4, 8], generator),
    "weighted": lambda generator: WeightedRandomSampler([1.0, 0.0, 2.0], 40, generator=generator),
    "batches": lambda generator: BatchSampler(RandomSampler(numbers(), generator=generator), 4, True),
}


@pytest.mark.parametrize("kind", DRAWING)
def test_two_epochs_are_expected_of_a_generator_and_nothing_is_drawn_from_it(kind):
    generator = torch.Generator().manual_seed(3)
    sampler = DRAWING[kind](generator)
    expected = ExpectedEpochs(sampler)
    for _ in range(2):
        ours = [order.tolist() for order in expected.epochs()]
        assert ours[0] == flat(sampler)
        state = generator.get_state()
        assert ours[1] == flat(sampler)
        generator.set_state(state)


@pytest.mark.parametrize("kind", DRAWING)
def test_this_epoch_is_expected_of_a_sampler_that_draws_from_the_generator_of_the_process(kind):
    sampler = DRAWING[kind](None)
    expected = ExpectedEpochs(sampler)
    for _ in range(2):
        (ours,) = expected.epochs()
        assert ours.tolist() == flat(sampler)


def flat(sampler):
    entries = list(sampler)
    return list(itertools.chain(*entries)) if isinstance(sampler, BatchSampler) else entries


def epoch(expected: ExpectedEpochs, samples: list[int], *, is_whole: bool = True) -> list[list[int]]:
    """Return what is expected before an epoch of these samples, two at a time."""
    orders = [order.tolist() for order in expected.epochs()]
    for place in range(0, len(samples), 2):
        expected.note(samples[place : place + 2])
    if is_whole:
        expected.note_end()
    return orders


def test_an_order_without_a_seed_is_expected_again_while_it_repeats():
    expected, order = ExpectedEpochs([3, 1, 2, 1, 0]), [3, 1, 2, 1, 0]
    assert epoch(expected, order[:2], is_whole=False) == []
    assert epoch(expected, order) == []
    assert epoch(expected, order) == [order, order]
    assert epoch(expected, order[:3], is_whole=False) == [order, order]
    assert epoch(expected, order) == [order, order]


@pytest.mark.parametrize("other", [[3, 1, 2, 0, 1], [3, 1, 2, 1], [3, 1, 2, 1, 0, 0]])
def test_an_order_that_does_not_repeat_is_not_expected(other):
    expected, order = ExpectedEpochs([3, 1, 2, 1, 0]), [3, 1, 2, 1, 0]
    epoch(expected, order)
    assert epoch(expected, other) == [order, order]
    assert epoch(expected, order) == epoch(expected, order) == []


def test_the_next_epoch_is_known_while_expectations_come_true():
    sampler = DistributedSampler(numbers(), 1, 0, seed=2)
    expected = ExpectedEpochs(sampler)
    for number in range(3):
        sampler.set_epoch(number)
        epoch(expected, list(sampler))
        sampler.set_epoch(number + 1)
        assert expected.next_samples(5).tolist() == list(sampler)[:5]


def test_the_next_epoch_is_not_known_after_a_wrong_expectation_until_one_comes_true():
    sampler = DistributedSampler(numbers(), 1, 0, seed=2)
    expected, order = ExpectedEpochs(sampler), list(sampler)
    known = []
    for _ in range(3):
        # The loop never sets the epoch.
        epoch(expected, order)
        known.append(expected.next_samples(5).tolist() == order[:5])
    assert known == [False, False, True]
    epoch(expected, order[:-1][::-1])
    assert expected.next_samples(5).tolist() == []


def test_the_next_epoch_of_an_order_that_was_recorded_is_known_once_it_has_repeated():
    expected, order = ExpectedEpochs([3, 1, 2, 1, 0]), [3, 1, 2, 1, 0]
    known = []
    for _ in range(3):
        epoch(expected, order)
        known.append(expected.next_samples(2).tolist())
    assert known == [[], [3, 1], [3, 1]]
