# SPDX-License-Identifier: Apache-2.0
"""What each policy of loading keeps, and asks of a bucket: counts from the known order where it can be followed.

Apart from the command, which prices the counts. Refuses what hangs on timing: which prefetches come too late, and what
a cache that is too small for its rank would read, are the simulator's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from foresee.errors import ConfigError, NotMeasured

if TYPE_CHECKING:
    from foresee.job import Job
    from foresee.models import cost

__all__ = ["Arm", "arm", "policies", "wait"]

#: Reads that are followed one by one to count what a cache misses; above, the limit of many samples is taken.
_FOLLOWED_MAX = 20_000_000


@dataclass(frozen=True)
class Arm:
    """One policy, and what it asks of the bucket."""

    policy: str
    cached: int = 0
    fetch: int | None = None
    lists: int | None = None
    gets: int | None = None
    estimated: bool = False


def policies(asked: Job) -> tuple[str, ...]:
    """Those of the job that this command knows; all of them where the job names none."""
    from foresee.job import WINDOW_POLICIES

    known = (*WINDOW_POLICIES, "foresee")
    if asked.cache.policies is None:
        return known
    chosen = tuple(policy for policy in asked.cache.policies if policy in known)
    if not chosen:
        raise ConfigError(
            f"{asked.file}: cache.policies has none that a bucket knows; one or more of {', '.join(known)} expected"
        )
    return chosen


def wait(asked: Job, policy: str) -> float:
    times = asked.cost.wait_time or {}
    if policy in times:
        return times[policy]
    if "" in times:
        return times[""]
    raise NotMeasured(
        f"how long {policy} waits for data",
        f"write [cost] wait_time = {{{policy} = ...}}; `foresee simulate` predicts it",
    )


def arm(policy: str, asked: Job, work: cost.Workload, compat: Literal["physical", "paper"]) -> Arm:
    """What a policy keeps and asks for."""
    window, per_machine = asked.cache.window, asked.cluster.ranks_per_machine
    if policy in {"disk", "direct"}:
        return Arm(policy, gets=None if compat == "paper" else work.epochs * _reads(asked, work))
    if policy == "foresee":
        gets, held = _planned(asked, work)
        return Arm(policy, cached=held, lists=-(-work.samples // work.page), gets=gets)
    fetch, capacity = window.fetch, window.capacity
    if policy == "cache":
        kept = work.samples if capacity is None else min(capacity * per_machine, work.samples)
        if compat == "paper":
            return Arm(policy, cached=kept)
        gets, estimated = _missed(asked, work, capacity)
        return Arm(policy, cached=kept, gets=gets, estimated=estimated)
    if fetch is None and capacity is None:
        raise NotMeasured(f"what {policy} prefetches", "write [cache.window] fetch or capacity")
    if policy == "full_fetch":
        fetch = capacity if fetch is None else fetch
        capacity = fetch if capacity is None else capacity
    else:
        assert policy == "fifty_fifty"
        fetch = max(1, (capacity or 0) // 2) if fetch is None else fetch
        capacity = 2 * fetch if capacity is None else capacity
    assert capacity is not None
    return Arm(policy, cached=min(capacity * per_machine, work.samples), fetch=fetch)


def _reads(asked: Job, work: cost.Workload) -> int:
    """Samples that all ranks read in an epoch: the last ones are read twice, or left out."""
    if asked.train.drop_last and asked.train.batch is not None:
        whole = asked.train.batch * work.readers
        return work.samples // whole * whole
    return -(-work.samples // work.readers) * work.readers


def _missed(asked: Job, work: cost.Workload, capacity: int | None) -> tuple[int, bool]:
    """Reads that caches without prefetching miss in the whole run, and whether that is an estimate."""
    from foresee import _native
    from foresee.models import window

    share = -(-work.samples // work.readers)
    if work.epochs * share * work.readers > _FOLLOWED_MAX:
        rate = window.miss_rate(work.readers, float("inf") if capacity is None else capacity / share)
        return round(work.readers * share * (1 + (work.epochs - 1) * rate)), True
    missed = 0
    for rank in range(work.readers):
        orders = (
            _native.order_distributed(work.samples, work.readers, rank, seed=asked.train.seed, epoch=epoch)
            for epoch in range(work.epochs)
        )
        missed += sum(window.misses(orders, capacity))
    return missed, False


def _planned(asked: Job, work: cost.Workload) -> tuple[int, int]:
    """Reads of a run of Foresee whose tiers hold all that a rank reads, and the samples that a machine keeps."""
    import numpy as np

    from foresee import _native

    room = sum(tier.capacity or 0 for tier in asked.cluster.tiers)
    size = work.data_bytes / work.samples
    if work.epochs * work.samples > _FOLLOWED_MAX and room < work.data_bytes:
        raise NotMeasured(
            "what foresee reads from the bucket", "`foresee simulate` predicts it for so large a run"
        )
    reads = most = 0
    for rank in range(work.readers):
        if work.epochs * work.samples > _FOLLOWED_MAX:
            # Of a sample, the chance that a rank reads it in some epoch.
            distinct = round(work.samples * (1 - (1 - 1 / work.readers) ** work.epochs))
        else:
            seen = np.zeros(work.samples, dtype=bool)
            for epoch in range(work.epochs):
                seen[
                    _native.order_distributed(
                        work.samples, work.readers, rank, seed=asked.train.seed, epoch=epoch
                    )
                ] = True
            distinct = int(seen.sum())
        reads, most = reads + distinct, max(most, distinct)
    if most * size > room:
        raise NotMeasured(
            "what foresee reads from the bucket",
            f"the tiers have {room:,} bytes and a rank reads {most * size:,.0f}: `foresee simulate` predicts the rest",
        )
    return reads, min(most * asked.cluster.ranks_per_machine, work.samples)
