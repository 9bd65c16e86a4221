# SPDX-License-Identifier: Apache-2.0
"""Hits of a node's cache next to those of libCacheSim's Belady, on equal traces of one node.

A node knows the order of each rank, but not which rank is next within a step: it expects access i of all ranks at one
time. Belady with these times has no more hits than the node, for any number of ranks and any sizes. Belady with the exact
order of all ranks has no more hits than a single rank, and than ranks that share equal samples.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
from support.environment import plain_environment
from support.house import ROOT
from torch.utils.data import DistributedSampler

PYTHON = ROOT / ".libcachesim-venv" / "bin" / "python"
#: `make setup` builds it.
NODE_HITS = ROOT / "target" / "debug" / "examples" / "node_hits"
#: Divisible by each number of ranks. The planner knows all accesses of four epochs.
SAMPLES, EPOCHS = 600, 4
RANKS, BATCHES, PERCENT = (1, 2, 3, 4), (1, 8), (10, 30, 50, 70)
NEVER = 2**63 - 1

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


def shuffled(ranks: int, rank: int, epoch: int) -> list[int]:
    """Return a rank's samples of an epoch in torch's order, each on one rank."""
    sampler: DistributedSampler[int] = DistributedSampler(range(SAMPLES), ranks, rank, seed=1)  # type: ignore[arg-type]
    sampler.set_epoch(epoch)
    return list(sampler)


def repeated(ranks: int, rank: int, epoch: int) -> list[int]:
    """Return samples of which each is any of the data set."""
    return random.Random(f"{rank} {epoch}").choices(range(SAMPLES), k=SAMPLES // ranks)


def popular(ranks: int, rank: int, epoch: int) -> list[int]:
    """Return samples of which few are used often."""
    weights = [1 / (1 + sample) for sample in range(SAMPLES)]
    return random.Random(f"{rank} {epoch}").choices(range(SAMPLES), weights, k=SAMPLES // ranks)


Order = Callable[[int, int, int], list[int]]
ORDERS: tuple[Order, ...] = (shuffled, repeated, popular)
SIZES = {"equal": [100] * SAMPLES, "varying": random.Random(2).choices(range(50, 151), k=SAMPLES)}


class Access(NamedTuple):
    """An access of the node: its number among those of its rank is the time at which the planner expects it."""

    sample: int
    number: int
    is_hit: int


class Cache(NamedTuple):
    """Ranks of a node that share a cache, in steps of a batch per rank."""

    order: Order
    sizes: Sequence[int]
    ranks: int
    batch: int
    percent: int

    @property
    def capacity(self) -> int:
        """Bytes of the cache."""
        return sum(self.sizes) * self.percent // 100

    def replay(self) -> list[Access]:
        """Return the accesses of the node, in the order of its requests, with the production planner."""
        streams = [
            [self.order(self.ranks, rank, epoch) for epoch in range(EPOCHS)] for rank in range(self.ranks)
        ]
        lines = ["|".join(" ".join(map(str, epoch)) for epoch in stream) for stream in streams]
        done = subprocess.run(
            [NODE_HITS, str(self.capacity), str(self.batch)],
            input="\n".join([" ".join(map(str, self.sizes)), *lines]),
            capture_output=True,
            text=True,
            check=True,
        )
        accesses = [Access(*map(int, line.split())) for line in done.stdout.splitlines()]
        wanted = sorted(sample for stream in streams for epoch in stream for sample in epoch)
        assert sorted(access.sample for access in accesses) == wanted
        return accesses


def caches(order: Order, sizes: str, ranks: Sequence[int]) -> Iterator[Cache]:
    """Return caches of all batches and capacities."""
    for count, batch, percent in itertools.product(ranks, BATCHES, PERCENT):
        yield Cache(order, SIZES[sizes], count, batch, percent)


def next_uses(samples: Sequence[int], times: Sequence[int]) -> list[int]:
    """Return the earliest time of a later access of the same sample, for each access."""
    found, expected = [NEVER] * len(samples), dict[int, int]()
    for index in reversed(range(len(samples))):
        sample = samples[index]
        found[index] = expected.get(sample, NEVER)
        expected[sample] = min(found[index], times[index])
    return found


def libcachesim(traces: Sequence[dict[str, object]]) -> list[tuple[int, int]]:
    """Return the hits and hit bytes of libCacheSim for each trace."""
    program = ROOT / "tests" / "support" / "cachesim_hits.py"
    done = subprocess.run(
        [PYTHON, program],
        input=json.dumps(traces),
        capture_output=True,
        text=True,
        check=False,
        env=plain_environment(),
    )
    assert done.returncode == 0, done.stderr
    return [(hits, hit_bytes) for hits, hit_bytes in json.loads(done.stdout)]


def compare(
    caches: Sequence[Cache], *, knows_order: bool, rule: str = "Belady"
) -> list[tuple[Cache, tuple[int, int], tuple[int, int]]]:
    """Return hits and hit bytes of the node, and those of a rule of libCacheSim, for each cache.

    With ``knows_order`` libCacheSim knows the order of all ranks, else the times that the node expects.
    """
    ours: list[tuple[int, int]] = []
    traces: list[dict[str, object]] = []
    for cache in caches:
        accesses = cache.replay()
        found = [cache.sizes[access.sample] for access in accesses if access.is_hit]
        ours.append((len(found), sum(found)))
        samples = [access.sample for access in accesses]
        # Of accesses at one time, the node expects the smaller sample first.
        expected = [access.number * SAMPLES + access.sample for access in accesses]
        uses = next_uses(samples, range(len(samples)) if knows_order else expected)
        rows = [(sample, cache.sizes[sample], use) for sample, use in zip(samples, uses, strict=True)]
        traces.append({"rule": rule, "capacity": cache.capacity, "accesses": rows})
    return list(zip(caches, ours, libcachesim(traces), strict=True))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("order", ORDERS)
def test_a_node_hits_no_less_than_belady_that_expects_the_same_times(order: Order, sizes: str) -> None:
    for cache, (hits, _), (belady, _) in compare([*caches(order, sizes, RANKS)], knows_order=False):
        assert hits >= belady, cache


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("order", ORDERS)
def test_one_rank_hits_no_less_than_belady(order: Order, sizes: str) -> None:
    for cache, (hits, _), (belady, _) in compare([*caches(order, sizes, (1,))], knows_order=True):
        assert hits >= belady > 0, cache


def test_ranks_that_share_equal_samples_hit_no_less_than_belady_that_knows_the_order_of_all_ranks() -> None:
    for cache, (hits, _), (belady, _) in compare([*caches(shuffled, "equal", RANKS)], knows_order=True):
        assert hits >= belady > 0, cache


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("order", ORDERS)
def test_turns_of_ranks_that_the_node_does_not_know_cost_at_most_one_hit_in_a_hundred(
    order: Order, sizes: str
) -> None:
    for cache, (hits, _), (belady, _) in compare([*caches(order, sizes, RANKS)], knows_order=True):
        assert hits >= 0.99 * belady, cache


@pytest.mark.parametrize("order", ORDERS)
def test_belady_with_sizes_saves_no_more_bytes_although_it_hits_more_samples(order: Order) -> None:
    ours = compare([*caches(order, "varying", (1,))], knows_order=True, rule="BeladySize")
    for cache, (_, hit_bytes), (_, theirs) in ours:
        # It draws its victims from a random choice.
        assert hit_bytes >= 0.99 * theirs, cache
    assert sum(hits for _, (hits, _), _ in ours) < sum(hits for _, _, (hits, _) in ours)


def test_belady_of_libcachesim_stores_every_sample() -> None:
    # One that may bypass would keep sample 0, and hit it.
    accesses = [(sample, 1, use) for sample, use in zip([0, 1, 0], [2, NEVER, NEVER], strict=True)]
    assert libcachesim([{"rule": "Belady", "capacity": 1, "accesses": accesses}]) == [(0, 0)]
