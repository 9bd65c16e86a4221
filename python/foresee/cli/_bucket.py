# SPDX-License-Identifier: Apache-2.0
"""Counts of each loading policy on a bucket, from the known order: cached bytes, requests and waits.

``cost`` prices the counts. Counts that depend on timing, such as late prefetches, or on the evictions of a small cache
come from the simulator (:mod:`foresee.cli._bucket_runs`). The others are computed here, also for jobs that lack the
numbers for a simulation. A count from a formula is marked as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from foresee.cli import _bucket_runs
from foresee.errors import ConfigError, NotMeasured

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foresee._schema.compat import Compat
    from foresee.jobspec import Job, RankShare
    from foresee.planning import cost
    from foresee.planning.simulation import Report

PRICED = ("direct", "disk", "cache", "full_fetch", "fifty_fifty", "foresee")
"""Policies that have a price."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Cached bytes of a policy, and its requests to the bucket in the whole run."""

    cached: int = 0
    """Samples in the cache of each machine."""
    fetch: int | None = None
    """Samples of one request for prefetching; None: no prefetching."""
    lists: int | None = None
    """Answers of listings; None: by the equations of ``foresee.planning.cost``."""
    gets: int | None = None
    """Reads; None: by the equations."""
    read_share: float | None = None
    """Bytes of those reads, in sizes of the data set; None: all samples have one size."""
    counted: Literal["order", "simulated", "limit", "formula"] = "formula"
    """Method of counting reads: in the known order, by the simulator, as the limit of many samples, by equations."""
    note: str | None = None
    """Why reads are an estimate; None: they are not."""


@dataclass(frozen=True)
class PolicyUsage:
    """Resources that one policy uses."""

    policy: str
    counts: Counts
    wait: float
    """Seconds of the whole run that it waits for data."""
    wait_from: Literal["job", "simulated"]
    """The source of the wait."""


def policies(job: Job) -> tuple[str, ...]:
    """Return the priced policies of the job; all of them if the job names none.

    Raises:
        ConfigError: no policy of the job has a price.
    """
    listed = PRICED if job.cache.policies is None else job.cache.policies
    chosen = tuple(policy for policy in listed if policy in PRICED)
    if not chosen:
        raise ConfigError(
            f"{job.file}: cache.policies has none with a price; one or more of {', '.join(PRICED)} expected"
        )
    return chosen


def unpriced_policies(job: Job) -> list[str]:
    """Return the policies of the job that have no price."""
    return [policy for policy in job.cache.policies or () if policy not in PRICED]


def uses_disk(job: Job, policy: str) -> bool:
    """Return whether machines have a paid disk: for the root, the data, or the cache."""
    caches = policy not in {"direct", "disk"} and job.cost.cache_in == "disk"
    return policy == "disk" or caches or job.cost.root_disk > 0


def count_usage(policy: str, job: Job, work: cost.Workload, compat: Compat) -> PolicyUsage:
    """Count the cached bytes, the requests and the wait of a policy.

    Raises:
        ConfigError: as :func:`foresee.jobspec.rank_share`.
        NotMeasured: the job and the simulation lack a value that the policy needs.
    """
    from foresee.jobspec import rank_share

    share = rank_share(job, work.samples, work.readers)
    run = _simulate(policy, job, compat, work.epochs * work.readers * share.reads)
    wait, wait_from = _wait(policy, job, run)
    if policy == "foresee":
        counts = _planner_counts(job, work, share, run)
    elif compat == "paper":
        counts = _paper_counts(policy, job, work)
    else:
        counts = _window_counts(policy, job, work, share, run)
    return PolicyUsage(policy, counts, wait, wait_from)


def _simulate(policy: str, job: Job, compat: Compat, reads: int) -> Report | str:
    """Simulate the policy unless no count depends on the simulation."""
    waits = job.cost.wait_time or {}
    has_wait = policy in waits or "" in waits
    if has_wait and (policy == "disk" or (compat == "paper" and policy != "foresee")):
        return "not needed"
    return _bucket_runs.simulate(policy, job, compat, reads)


def _wait(policy: str, job: Job, run: Report | str) -> tuple[float, Literal["job", "simulated"]]:
    """Return the seconds that do not compute: before training, for samples, and for other ranks."""
    waits = job.cost.wait_time or {}
    wait = waits.get(policy, waits.get(""))
    if wait is not None:
        return wait, "job"
    if isinstance(run, str):
        raise NotMeasured(
            f"how long {policy} waits for data",
            f"write [cost] wait_time = {{{policy} = ...}}; it was not simulated: {run}",
        )
    return max(0.0, run.total_s - run.compute_s / run.ranks), "simulated"


def _paper_counts(policy: str, job: Job, work: cost.Workload) -> Counts:
    """Count by the equations to the letter."""
    if policy in {"direct", "disk"}:
        return Counts()
    fetch, capacity = _window(policy, job)
    return Counts(cached=_cached_samples(job, work, capacity), fetch=fetch)


def _window_counts(policy: str, job: Job, work: cost.Workload, share: RankShare, run: Report | str) -> Counts:
    """Count for policies that read a bucket sample by sample, or through a prefetch window."""
    reads, pages = work.readers * share.reads, -(-work.samples // work.page)
    if policy == "disk":
        return Counts(counted="order")
    if policy == "direct":
        # All reads come from the bucket, independent of timing.
        read_share = None if isinstance(run, str) else _read_share(job, work, run)
        return Counts(gets=work.epochs * reads, read_share=read_share, counted="order")
    fetch, capacity = _window(policy, job)
    cached = _cached_samples(job, work, capacity)
    if not isinstance(run, str):
        return Counts(
            cached=cached,
            fetch=fetch,
            # Each of its listings is one of the whole bucket, page by page; without prefetching an epoch has one.
            lists=None if fetch is None else run.listings * pages,
            gets=run.origin_requests,
            read_share=_read_share(job, work, run),
            counted="simulated",
        )
    if fetch is None:
        return _missed_counts(job, work, share, capacity, cached)
    return Counts(
        cached=cached,
        fetch=fetch,
        lists=work.epochs * work.readers * pages * -(-share.reads // fetch),
        gets=work.epochs * reads,
        note=f"each sample fetched once an epoch; late and cached samples were not simulated: {run}",
    )


def _window(policy: str, job: Job) -> tuple[int | None, int | None]:
    """Return the samples of a request, None without prefetching, and of a rank's cache, None without a limit."""
    fetch, capacity = job.cache.window.fetch, job.cache.window.capacity
    if policy == "cache":
        return None, capacity
    if fetch is None and capacity is None:
        raise NotMeasured(f"what {policy} prefetches", "write [cache.window] fetch or capacity")
    if policy == "full_fetch":
        return capacity if fetch is None else fetch, fetch if capacity is None else capacity
    assert policy == "fifty_fifty"
    fetch = max(1, (capacity or 0) // 2) if fetch is None else fetch
    return fetch, 2 * fetch if capacity is None else capacity


def _cached_samples(job: Job, work: cost.Workload, capacity: int | None) -> int:
    """Return the cached samples of a machine whose ranks have caches of ``capacity`` each."""
    return work.samples if capacity is None else min(capacity * job.cluster.ranks_per_machine, work.samples)


def _read_share(job: Job, work: cost.Workload, run: Report) -> float | None:
    """Return the read bytes in sizes of the data set; None for samples of one size."""
    has_one_size = job.data.index is None and job.data.size_sigma == 0
    return None if has_one_size else run.origin_bytes / work.data_bytes


def _missed_counts(
    job: Job, work: cost.Workload, share: RankShare, capacity: int | None, cached: int
) -> Counts:
    """Count the misses of caches without prefetching in the whole run, without a simulation."""
    from foresee.planning import window

    if work.epochs * work.readers * share.reads > _bucket_runs.SIMULATED_MAX:
        rate = window.miss_rate(work.readers, float("inf") if capacity is None else capacity / share.reads)
        gets = round(work.readers * share.reads * (1 + (work.epochs - 1) * rate))
        return Counts(cached=cached, gets=gets, counted="limit", note="the limit of many samples")
    orders = (_orders(job, work, share, rank) for rank in range(work.readers))
    return Counts(
        cached=cached, gets=sum(sum(window.misses(each, capacity)) for each in orders), counted="order"
    )


def _orders(job: Job, work: cost.Workload, share: RankShare, rank: int) -> Iterator[NDArray[Any]]:
    """Return the reads of a rank, epoch by epoch."""
    from foresee import _native

    for epoch in range(work.epochs):
        ids = _native.order_distributed(work.samples, work.readers, rank, seed=job.train.seed, epoch=epoch)
        yield ids[: share.reads]


def _planner_counts(job: Job, work: cost.Workload, share: RankShare, run: Report | str) -> Counts:
    """Count for Foresee: one listing; the planner's reads, or one read per sample and rank if the tiers have space."""
    capacity = sum(tier.capacity or 0 for tier in job.cluster.tiers)
    size = work.data_bytes / work.samples
    is_large = work.epochs * work.readers * share.reads > _bucket_runs.SIMULATED_MAX
    if is_large:
        # A rank reads a sample in an epoch with probability share.reads / samples.
        most = round(work.samples * (1 - (1 - share.reads / work.samples) ** work.epochs))
        reads = work.readers * most
    else:
        reads, most = _distinct_reads(job, work, share)
    has_space = most * size <= capacity
    held = min(most if has_space else int(capacity // size), work.samples)
    cached = min(held * job.cluster.ranks_per_machine, work.samples)
    pages = -(-work.samples // work.page)
    if not isinstance(run, str):
        return Counts(
            cached=cached,
            lists=pages,
            gets=run.origin_requests,
            read_share=_read_share(job, work, run),
            counted="simulated",
        )
    if not has_space:
        raise NotMeasured(
            "what foresee reads from the bucket",
            f"the tiers have {capacity:,} bytes and a rank reads {most * size:,.0f}; it was not simulated: {run}",
        )
    note = "the limit of many samples" if is_large else None
    return Counts(cached=cached, lists=pages, gets=reads, counted="limit" if is_large else "order", note=note)


def _distinct_reads(job: Job, work: cost.Workload, share: RankShare) -> tuple[int, int]:
    """Return the distinct samples of each rank in the whole run: their sum over ranks, and the largest number."""
    import numpy as np

    counts = []
    for rank in range(work.readers):
        is_read = np.zeros(work.samples, dtype=bool)
        for ids in _orders(job, work, share, rank):
            is_read[ids] = True
        counts.append(int(is_read.sum()))
    return sum(counts), max(counts)
