# SPDX-License-Identifier: Apache-2.0
"""Comparison of the ids of several ranks: counts, padding, and the ranks that count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.properties import properties
from torch.utils.data import DistributedSampler

from foresee._loading import epoch_audit
from foresee._loading.epoch_audit import Sketch, Tally
from foresee._loading.rank_facts import RankFacts

N = 23


def counts(report):
    return tuple(report[name] for name in ("lost", "doubled", "padding", "dropped", "same_on_all_ranks"))


def facts(tally, **more):
    return RankFacts(
        whole=True,
        batches=tally.batches,
        samples=tally.samples,
        largest=tally.largest,
        digest=tally.digest,
        same_order=None,
        shuffled=False,
        last=tally.last,
        **({"hashed": False, "expected": N} | more),
    )


def compared(ranks, batch=3, **more):
    """The report of ``ranks``, whose ids are given in order."""
    tallies = [Tally() for _ in ranks]
    for tally, ids in zip(tallies, ranks, strict=True):
        for at in range(0, len(ids), batch):
            tally.add(np.array(ids[at : at + batch], np.uint64))
    every = [facts(tally, **more) for tally in tallies]
    edges = epoch_audit.partition_edges(every)
    ids = [tally.sorted() for tally in tallies]
    parts = (
        ([epoch_audit.select(one, edges, part) for one in ids], [None] * len(ids))
        for part in range(len(edges) - 1)
    )
    return epoch_audit.compare(0, every, parts, edges, source="test", sketch=Sketch())


@properties(ordinary=40)
@given(
    n=st.integers(1, 60),
    world=st.integers(1, 4),
    lose=st.sets(st.integers(0, 59)),
    twice=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 59)), max_size=10),
    part=st.sampled_from([5, 1 << 20]),
    hashed=st.booleans(),
)
def test_counts_are_those_of_sets_whatever_the_parts(n, world, lose, twice, part, hashed):
    ranks = [[i for i in range(rank, n, world) if i not in lose] for rank in range(world)]
    for rank, i in twice:
        if i < n:
            ranks[rank % world].insert(0, i)
    before, epoch_audit._PARTITION = epoch_audit._PARTITION, part
    try:
        report = compared(ranks, expected=n, hashed=hashed)
    finally:
        epoch_audit._PARTITION = before
    seen = [i for rank in ranks for i in rank]
    assert report["lost"] == n - len(set(seen))
    assert report["doubled"] + report["padding"] == len(seen) - len(set(seen))
    same = len(set.intersection(*map(set, ranks))) if world > 1 else 0
    assert report["same_on_all_ranks"] == (0 if report["padding"] else same)


@pytest.mark.parametrize("n", range(1, 20))
@pytest.mark.parametrize("world", [2, 3, 5])
def test_padding_and_dropped_samples_of_a_distributed_sampler_are_no_faults(n, world):
    def shares(drop_last):
        return [
            list(DistributedSampler(range(n), world, rank, shuffle=False, drop_last=drop_last))
            for rank in range(world)
        ]

    report = compared(shares(drop_last=False), expected=n)
    assert (report["padding"], report["faults"], report["ok"]) == (-n % world, [], True)
    if n >= world:
        report = compared(shares(drop_last=True), expected=n, drop_last=True)
        assert (report["dropped"], report["faults"], report["ok"]) == (n % world, [], True)


def test_equal_samples_on_all_ranks_and_uneven_batches_are_faults():
    report = compared([list(range(N)), list(range(N))])
    assert counts(report) == (0, N, 0, 0, N)
    assert report["faults"][0].startswith(
        "every rank read the same samples: pass sampler=DistributedSampler(dataset)"
    )
    report = compared([list(range(16)), list(range(16, N))])
    (fault,) = report["faults"]
    assert fault.startswith("ranks had 3 to 6 batches: those with more wait for the others in a collective")


def test_ranks_with_the_same_share_are_counted_once():
    of = {"expected": N, "hashed": False}
    tally = Tally()
    tally.add(np.arange(3, dtype=np.uint64))
    every = [facts(tally, share=(rank // 2, 2), **of) for rank in range(4)]
    assert epoch_audit.ranks_to_compare(every) == [0, 2]
    assert epoch_audit.ranks_to_compare([facts(tally, share=(0, 1), **of)] * 2) == [0]
    assert epoch_audit.ranks_to_compare(
        [facts(tally, share=None, **of), facts(tally, share=(0, 2), **of)]
    ) == [0, 1]
    assert epoch_audit.ranks_to_compare([facts(tally, share=(0, 2), **of)] * 2) == [0, 1]


def test_ids_take_four_bytes_below_two_to_the_32_and_stay_exact_above():
    tally = Tally()
    tally.add(np.array([5, 3], np.uint64))
    assert tally.sorted().dtype == np.uint32
    tally.add(np.array([2**33], np.uint64))
    assert tally.sorted().tolist() == [3, 5, 2**33]
    assert epoch_audit.select(np.array([1, 2], np.uint32), [0, 2**40, 2**64], 1).tolist() == []
