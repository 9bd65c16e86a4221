# SPDX-License-Identifier: Apache-2.0
"""Counts of each loading policy on a bucket, from the known order: cached bytes, requests and waits.

``cost`` prices the counts. Counts that depend on timing, such as late prefetches, or on the evictions of a small cache
come from the simulator (:mod:`foresee.cli._bucket_runs`). The others are computed here, also for jobs that lack the
numbers for a simulation. A count from a formula is marked as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from foresee.cli import _bucket_runs
from foresee.errors import ConfigError, NotMeasured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from foresee.cli._bucket_runs import Simulated
    from foresee.jobspec import Job, RankShare
    from foresee.planning import cost

__all__ = ["KNOWN", "Arm", "Counts", "arm", "left_out", "policies", "uses_disk"]

KNOWN = ("direct", "disk", "cache", "full_fetch", "fifty_fifty", "foresee")
"""Policies that are priced."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Cached bytes of a policy, and its requests to the bucket in the whole run."""

    cached: int = 0
    """Samples that each machine keeps."""
    fetch: int | None = None
    """Samples of one request for prefetching; None: no prefetching."""
    lists: int | None = None
    """Answers of listings; None: as the equations have them."""
    gets: int | None = None
    """Reads; likewise."""
    read_share: float | None = None
    """Bytes of those reads, in sizes of the data set; None: all samples have one size."""
    counted: Literal["order", "simulated", "limit", "formula"] = "formula"
    """Method of counting reads: in the known order, by the simulator, as the limit of many samples, by equations."""
    note: str | None = None
    """Why reads are an estimate; None: they are not."""


@dataclass(frozen=True)
class Arm:
    """One policy of the comparison."""

    policy: str
    counts: Counts
    wait: float
    """Seconds of the whole run that it waits for data."""
    wait_from: Literal["job", "simulated"]
    """The source of the wait."""


def policies(asked: Job) -> tuple[str, ...]:
    """Those of the job that this command knows; all of them where the job names none."""
    if asked.cache.policies is None:
        return KNOWN
    chosen = tuple(policy for policy in asked.cache.policies if policy in KNOWN)
    if not chosen:
        raise ConfigError(
            f"{asked.file}: cache.policies has none that a bucket knows; one or more of {', '.join(KNOWN)} expected"
        )
    return chosen


def left_out(asked: Job) -> list[str]:
    """Policies of the job that have no price."""
    return [policy for policy in asked.cache.policies or () if policy not in KNOWN]


def uses_disk(asked: Job, policy: str) -> bool:
    """Whether machines have a disk that is paid: for the root, the data, or what is kept of them."""
    keeps = policy not in {"direct", "disk"} and asked.cost.cache_in == "disk"
    return policy == "disk" or keeps or asked.cost.root_disk > 0


def arm(policy: str, asked: Job, work: cost.Workload, compat: Literal["physical", "paper"]) -> Arm:
    """Count the cached bytes, the requests and the wait of a policy.

    Raises:
        ConfigError: as :func:`part`.
        NotMeasured: neither the job nor a simulation has what the policy needs; the message says what.
    """
    from foresee.jobspec import rank_share

    share = rank_share(asked, work.samples, work.readers)
    run = _run(policy, asked, compat, work.epochs * work.readers * share.reads)
    wait, wait_from = _wait(policy, asked, run)
    if policy == "foresee":
        counts = _of_plan(asked, work, share, run)
    elif compat == "paper":
        counts = _of_paper(policy, asked, work)
    else:
        counts = _of_window(policy, asked, work, share, run)
    return Arm(policy, counts, wait, wait_from)


def _run(policy: str, asked: Job, compat: Literal["physical", "paper"], reads: int) -> Simulated | str:
    """The simulation, unless nothing is asked of it."""
    given = asked.cost.wait_time or {}
    told = policy in given or "" in given
    if told and (policy == "disk" or (compat == "paper" and policy != "foresee")):
        return "not asked"
    return _bucket_runs.simulated(policy, asked, compat, reads)


def _wait(policy: str, asked: Job, run: Simulated | str) -> tuple[float, Literal["job", "simulated"]]:
    times = asked.cost.wait_time or {}
    if policy in times:
        return times[policy], "job"
    if "" in times:
        return times[""], "job"
    if isinstance(run, str):
        raise NotMeasured(
            f"how long {policy} waits for data",
            f"write [cost] wait_time = {{{policy} = ...}}; it was not simulated: {run}",
        )
    return run.wait, "simulated"


def _of_paper(policy: str, asked: Job, work: cost.Workload) -> Counts:
    """By the equations, to the letter."""
    if policy in {"direct", "disk"}:
        return Counts()
    fetch, capacity = (None, asked.cache.window.capacity) if policy == "cache" else _window(policy, asked)
    return Counts(cached=_kept(asked, work, capacity), fetch=fetch)


def _of_window(
    policy: str, asked: Job, work: cost.Workload, share: RankShare, run: Simulated | str
) -> Counts:
    """Of the policies that read a bucket sample by sample, or through a window of prefetching."""
    reads, pages = work.readers * share.reads, -(-work.samples // work.page)
    if policy == "disk":
        return Counts(counted="order")
    if policy == "direct":
        # Whatever the timing, all that is read comes from the bucket.
        share_of = None if isinstance(run, str) else _read_share(asked, work, run)
        return Counts(gets=work.epochs * reads, read_share=share_of, counted="order")
    fetch, capacity = (None, asked.cache.window.capacity) if policy == "cache" else _window(policy, asked)
    cached = _kept(asked, work, capacity)
    if not isinstance(run, str):
        return Counts(
            cached=cached,
            fetch=fetch,
            # Each of its listings is one of the whole bucket, page by page; without prefetching an epoch has one.
            lists=None if fetch is None else run.listings * pages,
            gets=run.gets,
            read_share=_read_share(asked, work, run),
            counted="simulated",
        )
    if fetch is None:
        return _missed(asked, work, share, capacity, cached)
    return Counts(
        cached=cached,
        fetch=fetch,
        lists=work.epochs * work.readers * pages * -(-share.reads // fetch),
        gets=work.epochs * reads,
        note=f"each sample fetched once an epoch; what comes late or is there already was not simulated: {run}",
    )


def _window(policy: str, asked: Job) -> tuple[int, int]:
    """Samples of a request, and samples that a rank's cache holds."""
    fetch, capacity = asked.cache.window.fetch, asked.cache.window.capacity
    if fetch is None and capacity is None:
        raise NotMeasured(f"what {policy} prefetches", "write [cache.window] fetch or capacity")
    if policy == "full_fetch":
        fetch = capacity if fetch is None else fetch
        capacity = fetch if capacity is None else capacity
    else:
        assert policy == "fifty_fifty"
        fetch = max(1, (capacity or 0) // 2) if fetch is None else fetch
        capacity = 2 * fetch if capacity is None else capacity
    assert fetch is not None
    assert capacity is not None
    return fetch, capacity


def _kept(asked: Job, work: cost.Workload, capacity: int | None) -> int:
    """Samples that a machine keeps whose ranks have caches of ``capacity`` each."""
    return work.samples if capacity is None else min(capacity * asked.cluster.ranks_per_machine, work.samples)


def _read_share(asked: Job, work: cost.Workload, run: Simulated) -> float | None:
    """Of samples that differ in size; of others, bytes follow from their number."""
    one_size = asked.data.index is None and asked.data.size_sigma == 0
    return None if one_size else run.read_bytes / work.data_bytes


def _missed(asked: Job, work: cost.Workload, share: RankShare, capacity: int | None, cached: int) -> Counts:
    """Count the misses of caches without prefetching in the whole run, without a simulation."""
    from foresee.planning import window

    if work.epochs * work.readers * share.reads > _bucket_runs.FOLLOWED_MAX:
        held = float("inf") if capacity is None else capacity / share.reads
        rate = window.miss_rate(work.readers, held)
        gets = round(work.readers * share.reads * (1 + (work.epochs - 1) * rate))
        return Counts(cached=cached, gets=gets, counted="limit", note="the limit of many samples")
    missed = sum(
        sum(window.misses(_orders(asked, work, share, rank), capacity)) for rank in range(work.readers)
    )
    return Counts(cached=cached, gets=missed, counted="order")


def _orders(asked: Job, work: cost.Workload, share: RankShare, rank: int) -> Iterator[NDArray[Any]]:
    """Return the reads of a rank, epoch by epoch."""
    from foresee import _native

    for epoch in range(work.epochs):
        ids = _native.order_distributed(work.samples, work.readers, rank, seed=asked.train.seed, epoch=epoch)
        yield ids[: share.reads]


def _of_plan(asked: Job, work: cost.Workload, share: RankShare, run: Simulated | str) -> Counts:
    """Of Foresee's own runs: one listing; reads by the planner, or all that ranks see where they can keep it."""
    room = sum(tier.capacity or 0 for tier in asked.cluster.tiers)
    size = work.data_bytes / work.samples
    large = work.epochs * work.readers * share.reads > _bucket_runs.FOLLOWED_MAX
    if large:
        # Of a sample, the chance that a rank reads it in some epoch.
        seen = round(work.samples * (1 - (1 - share.reads / work.samples) ** work.epochs))
        reads, most = work.readers * seen, seen
    else:
        reads, most = _distinct(asked, work, share)
    fits = most * size <= room
    held = min(most if fits else int(room // size), work.samples)
    kept = min(held * asked.cluster.ranks_per_machine, work.samples)
    pages = -(-work.samples // work.page)
    if not isinstance(run, str):
        return Counts(
            cached=kept,
            lists=pages,
            gets=run.gets,
            read_share=_read_share(asked, work, run),
            counted="simulated",
        )
    if not fits:
        raise NotMeasured(
            "what foresee reads from the bucket",
            f"the tiers have {room:,} bytes and a rank reads {most * size:,.0f}; it was not simulated: {run}",
        )
    if large:
        return Counts(cached=kept, lists=pages, gets=reads, counted="limit", note="the limit of many samples")
    return Counts(cached=kept, lists=pages, gets=reads, counted="order")


def _distinct(asked: Job, work: cost.Workload, share: RankShare) -> tuple[int, int]:
    """Different samples that a rank reads in the whole run: added up over ranks, and the most of one."""
    import numpy as np

    total = most = 0
    for rank in range(work.readers):
        seen = np.zeros(work.samples, dtype=bool)
        for ids in _orders(asked, work, share, rank):
            seen[ids] = True
        distinct = int(seen.sum())
        total, most = total + distinct, max(most, distinct)
    return total, most
