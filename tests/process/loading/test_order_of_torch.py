# SPDX-License-Identifier: Apache-2.0
"""The access order compared with the installed torch: same indices, and the same generator afterwards.

The goldens in `testdata/order` check the order without torch; these tests detect a torch with another order.
"""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from foresee import _native as native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

EPOCHS: list[list[int | None]] = [[None, None, None], [1, None, 2], [0, 1, None], [2, 3, 1]]
"""How many batches are taken of each epoch; None runs into its end."""
SEEDS = [0, 1, 42, -1, -(2**63), 2**31, 2**32, 2**32 + 7, 2**64 - 1]


class Indices(Dataset[int]):
    """A data set whose samples are their own ids."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


def seeded(seed: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


def state_of(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


def test_randperm_equals_torch_for_every_small_n_and_many_seeds() -> None:
    for n in [*range(300), 623, 624, 625, 626, 1248, 1249, 4096, 65_536, 1_000_003]:
        for seed in SEEDS if n < 5000 else SEEDS[:2]:
            ours = native.order_randperm(n, seed)
            assert np.array_equal(ours, torch.randperm(n, generator=seeded(seed)).numpy()), (n, seed)


def test_distributed_sampler_equals_torch_in_thousands_of_cases() -> None:
    rng = random.Random(0)
    sizes = [0, 1, 2, 3, 5, 7, 10, 16, 17, 100]
    cases = [(n, ranks) for n in sizes for ranks in (1, 2, 3, 8, 16)]
    cases += [(rng.randrange(2000), rng.randrange(1, 70)) for _ in range(100)]
    compared = 0
    for n, ranks in cases:
        for shuffle, drop_last in [(True, False), (True, True), (False, False), (False, True)]:
            seed, rank = rng.choice([0, 42, 2**40, rng.getrandbits(62)]), rng.randrange(ranks)
            sampler: DistributedSampler[int] = DistributedSampler(
                Indices(n), ranks, rank, shuffle, seed, drop_last
            )
            for epoch in (0, 1, rng.randrange(1000)):
                sampler.set_epoch(epoch)
                ours = native.order_distributed(
                    n, ranks, rank, seed=seed, epoch=epoch, shuffle=shuffle, drop_last=drop_last
                )
                assert ours.tolist() == list(sampler), (n, ranks, rank, seed, epoch, shuffle, drop_last)
                compared += 1
    assert compared == 1800


def test_the_rest_of_an_epoch_at_another_world_size_has_the_unread_samples() -> None:
    n, batch, steps = 1000, 3, 20
    had = [native.order_distributed(n, 8, rank, seed=5)[: batch * steps] for rank in range(8)]
    rest = [native.order_distributed(n, 5, rank, seed=5, start=8 * batch * steps) for rank in range(5)]
    assert sorted(np.concatenate(had + rest).tolist()) == list(range(n))


def random_cases() -> Iterator[tuple[int, int, bool, int | None]]:
    for n, num_samples in [(1, 1), (1, 7), (5, 5), (10, 4), (10, 20), (10, 33), (64, 64), (700, 700)]:
        for replacement in (False, True):
            yield n, num_samples, replacement, None
            for taken in {0, 1, n, n + 1, 31, 32, 33, num_samples - 1, num_samples}:
                if taken <= num_samples:
                    yield n, num_samples, replacement, taken


def test_random_sampler_equals_torch_and_leaves_its_generator_as_torch_does() -> None:
    for n, num_samples, replacement, taken in random_cases():
        for seed in SEEDS:
            generator = seeded(seed)
            torch.randn(3, generator=generator)  # Leaves a cached normal in the state, which must survive.
            state = state_of(generator)
            sampler = RandomSampler(Indices(n), replacement, num_samples, generator)
            for _ in range(3):
                theirs = list(sampler) if taken is None else list(islice(iter(sampler), taken))
                ours, state = native.order_random(
                    n, state, replacement=replacement, num_samples=num_samples, count=taken
                )
                case = (n, num_samples, replacement, taken, seed)
                assert ours.tolist() == theirs, case
                assert state == state_of(generator), case


def test_replacement_takes_two_words_where_torch_does() -> None:
    for n in (2**28 - 1, 2**28, 2**32, 2**33):
        generator = seeded(3)
        ours, state = native.order_random(n, state_of(generator), replacement=True, num_samples=70)
        assert ours.tolist() == list(RandomSampler(Indices(n), True, 70, generator))
        assert state == state_of(generator)


def test_a_generator_state_advanced_here_continues_in_torch() -> None:
    generator, twin = seeded(9), seeded(9)
    torch.randperm(1000, generator=generator)
    _, state = native.order_random(1000, state_of(twin), count=1000)
    twin.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    assert torch.equal(torch.rand(2000, generator=twin), torch.rand(2000, generator=generator))


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_data_loader_without_workers_draws_what_torch_draws(*, given: bool, drop_last: bool) -> None:
    for n, batch in [(1, 1), (6, 2), (7, 2), (10, 4), (3, 8), (64, 16)]:
        for epochs in EPOCHS:
            check_loader(n, batch, epochs, given=given, drop_last=drop_last, workers=0, persistent=False)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(("given", "drop_last"), [(True, False), (True, True), (False, False)])
def test_data_loader_with_workers_draws_what_torch_draws(
    *, given: bool, drop_last: bool, persistent: bool
) -> None:
    check_loader(41, 4, [None, 3, None], given=given, drop_last=drop_last, workers=2, persistent=persistent)
    check_loader(16, 2, [1, 4, 5, 8], given=given, drop_last=drop_last, workers=2, persistent=persistent)


def check_loader(
    n: int,
    batch: int,
    epochs: list[int | None],
    *,
    given: bool,
    drop_last: bool,
    workers: int,
    persistent: bool,
) -> None:
    """Epoch by epoch: the batches, and at the end the generator, are torch's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        generator = seeded(11) if given else torch.default_generator
        state = state_of(generator)
        loader: DataLoader[Any] = DataLoader(
            Indices(n),
            batch,
            shuffle=True,
            drop_last=drop_last,
            generator=generator if given else None,
            num_workers=workers,
            persistent_workers=persistent,
        )
        theirs = []
        for taken in epochs:
            iterator = iter(loader)
            batches = iterator if taken is None else islice(iterator, taken)
            theirs.append([index for group in batches for index in group.tolist()])
            after = state_of(generator)
            del iterator
        ours, state = native.order_loader(
            n,
            state,
            epochs,
            batch_size=batch,
            drop_last=drop_last,
            generator_given=given,
            num_workers=workers,
            persistent_workers=persistent,
        )
    for (_, ids), expected in zip(ours, theirs, strict=True):
        # The sampler may have returned more than was trained on: a dropped batch, or batches in flight.
        assert ids.tolist()[: len(expected)] == expected
    assert state == after


@pytest.mark.parametrize("n", [10, 1023, 1024, 1_000_003, 10**12])
def test_keyed_order_is_undone_by_its_inverse(n: int) -> None:
    positions = np.unique(np.linspace(0, n - 1, 5000).astype(np.uint64))
    ids: NDArray[np.uint64] = native.order_keyed(n, 3, 2, positions)
    assert len(np.unique(ids)) == len(positions)
    assert np.array_equal(native.order_keyed_inverse(n, 3, 2, ids), positions)
    with pytest.raises(ValueError, match=f"{n} is not below n = {n}"):
        native.order_keyed(n, 3, 2, np.array([n], np.uint64))


def test_audit_sums_of_all_ranks_are_the_expected_sum() -> None:
    n, ranks = 1003, 8
    total = 0
    for rank in range(ranks):
        ids = native.order_distributed(n, ranks, rank, seed=-3, epoch=4).astype(np.int64)
        total += native.order_audit_sum(-3, 4, ids, first=rank, stride=ranks)
    assert total % 2**128 == native.order_audit_expected(n, ranks, seed=-3, epoch=4)


def test_values_that_torch_refuses_are_refused_with_the_value() -> None:
    state = state_of(seeded(0))
    with pytest.raises(ValueError, match="num_samples=0"):
        native.order_random(5, state, num_samples=0)
    with pytest.raises(ValueError, match="batch_size=0"):
        native.order_loader(5, state, [None], batch_size=0)
    with pytest.raises(ValueError, match="rank 4 is not in a world of 4"):
        native.order_distributed(5, 4, 4)
    with pytest.raises(ValueError, match=r"5056 bytes \(got 3\)"):
        native.order_random(5, b"abc")
    with pytest.raises(MemoryError, match="keyed"):
        native.order_randperm(2**61, 0)
