# SPDX-License-Identifier: Apache-2.0
"""Trace here, predict there: how long a traced run takes on another machine, under every policy of loading.

A trace gives the job, the other machine's profile the cluster, a job file what neither knows. Compute is scaled by a
given factor alone: how much faster another accelerator is, no ledger of this one tells. Nor does any tell which ranks
shared a machine: all of them are taken to, unless the job file says otherwise.

Intervals are those of the time per step. The mean over steps is drawn anew (bootstrap) a thousand times with a fixed
seed, and the middle 90 % of the means are kept. A run's time grows with its time per step, so the times at both ends
of that interval are the ends of the time's own; three simulations tell what a thousand would. What else may be wrong,
the profile above all, is not in them.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from foresee.errors import ConfigError, Unsupported
from foresee.jobspec import CACHE_POLICIES, WINDOW_POLICIES, Job, Profile, completed, vary
from foresee.planning import bucket_window, simulation
from foresee.predict.run_trace import Trace
from foresee.predict.sizes import filled

__all__ = [
    "Forecast",
    "Range",
    "Task",
    "interval",
    "policies",
    "predict",
    "ram_room",
    "staging_bytes",
    "task",
]

_DRAWS = 1000
_SEED = 0
_SHARE = 0.9
#: As the loader takes it without being told: batches; or samples if that is more, but not for more than some bytes;
#: at most so many bytes in all.
_STAGING_BATCHES, _STAGING_SAMPLES, _STAGING_SAMPLES_BYTES, _STAGING_MAX = 8, 4096, 64 * 2**20, 2 * 10**9
#: Of a memory budget one part in so many; and so many batches in any case: in use, ready, on its way.
_STAGING_OF_RAM, _STAGING_LEAST = 4, 3
#: Bytes per sample of the planner's tables, and the most for copies on their way to a disk.
_TABLES, _COPIES_MOST = 40, 32 * 2**20
_LEAST_S = 1e-9


@dataclass(frozen=True)
class Range:
    """A predicted time in seconds, and the interval that it lies in as far as the steps tell."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Task:
    """The input of a prediction: a job made of a trace, and the facts that the trace lacks."""

    job: Job
    """For the simulator, at the mean time per step."""
    order: Literal["distributed", "sequential"]
    compute_s: Range | None
    """Of a step, there; None: as the job file says, and nothing else varies."""
    untold: Mapping[str, str]
    """By key of the job file: what the trace cannot tell, and what stands in its place."""
    sizes: NDArray[np.uint64] | None = field(default=None, compare=False)
    """Shape (samples,): bytes of each, by id; None: as the job says."""
    by_requests: Mapping[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """By requests that a rank has under way at a time, the origin's rates against ranks: for policies of windows, which
    do not ask as staging does. Empty where the job file has the rates.
    """

    @property
    def steps_s(self) -> tuple[float | None, ...]:
        """Times per step that are simulated for each policy, the mean first; None: that of the job."""
        told = self.compute_s
        return (None,) if told is None else tuple(dict.fromkeys((told.value, told.low, told.high)))


@dataclass(frozen=True)
class Forecast:
    """One policy there."""

    policy: str
    reason: str | None
    """Why it has no answer; None: it has."""
    total_s: Range | None
    first_epoch_s: Range | None
    """Duration of the first epoch, including initialization."""
    later_epoch_s: Range | None
    """Mean duration of the other epochs; None if there is only one."""
    report: simulation.Report | None
    """At the mean time per step."""


def task(
    trace: Trace,
    there: Profile,
    *,
    job_file: str | os.PathLike[str] | None = None,
    compute_factor: float = 1.0,
) -> Task:
    """The job that a trace tells of, on the machine of a profile.

    Args:
        trace: of a run, anywhere.
        there: what was measured on the machine that is asked about.
        job_file: keys that the trace cannot tell, or that are to be others than it tells.
        compute_factor: how many times as long a step computes there, above 0.

    Raises:
        ConfigError: a wrong factor, or a job file with faults.
        OSError: the job file cannot be read.
    """
    if not (isinstance(compute_factor, (int, float)) and 0 < compute_factor < math.inf):
        raise ConfigError(f"compute_factor={compute_factor!r}; a number above 0 expected")
    # A step that takes no time at all is one whose time a clock cannot tell.
    mean = max(float(trace.compute.mean()) * compute_factor, _LEAST_S)
    job = completed(_known(trace, there, mean, trace.ranks), there, job_file)
    ranks = job.cluster.ranks
    if ranks is not None and ranks != trace.ranks:
        # More ranks, or fewer, are on one machine as well.
        job = completed(_known(trace, there, mean, ranks), there, job_file)
    order: Literal["distributed", "sequential"] = (
        "sequential" if trace.order == "sequential" else "distributed"
    )
    compute: Range | None = None
    if job.train.compute_step == mean:
        low, high = (max(end * compute_factor, _LEAST_S) for end in interval(trace.compute))
        compute = Range(mean, low, high)
    elif compute_factor != 1.0:
        raise ConfigError(
            f"{job.file}: it says how long a step computes, beside a compute factor of {compute_factor:g}; leave out "
            "one of both"
        )
    sizes = _sizes(trace, job)
    return Task(job, order, compute, _untold(trace, job, sizes), sizes, _by_requests(there, job))


def predict(
    asked: Task,
    chosen: Sequence[str] | None = None,
    between: Callable[[str, int, int], None] | None = None,
) -> list[Forecast]:
    """Predict the duration of ``asked`` under each policy; those of :func:`policies`, if none are chosen.

    ``between`` is called with each value that :meth:`foresee.planning.simulation.Run.advance` returns; it may raise.

    Raises:
        ConfigError: what the simulation needs was neither traced nor measured nor given: all of it, by key.
    """
    made = []
    for policy in chosen or policies(asked.job):
        try:
            made.append(_forecast(asked, policy, between))
        except Unsupported as why:
            made.append(Forecast(policy, why.reason, None, None, None, None))
    return made


def interval(
    values: NDArray[np.float64], *, draws: int = _DRAWS, seed: int = _SEED, share: float = _SHARE
) -> tuple[float, float]:
    """The middle ``share`` of the means of ``draws`` samples of ``values``, drawn with replacement.

    Source: Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979: the percentile interval.

    >>> interval(np.array([2.0, 2.0, 2.0]))
    (2.0, 2.0)
    """
    random = np.random.default_rng(seed)
    means = np.array([values[random.integers(0, len(values), len(values))].mean() for _ in range(draws)])
    outside = (1 - share) / 2
    low, high = np.quantile(means, [outside, 1 - outside])
    return float(low), float(high)


def policies(job: Job) -> tuple[str, ...]:
    """The job's policies, or all that it has the figures for."""
    if job.cache.policies:
        return job.cache.policies
    return CACHE_POLICIES if job.cluster.origin.latency is None else (*CACHE_POLICIES, *WINDOW_POLICIES)


def staging_bytes(batch: int, mean: float, *, ram: int = 0, largest: float | None = None) -> int:
    """Return the loader's default size of the staging buffer for samples of ``mean`` bytes.

    Of a memory budget ``ram`` (bytes; 0: none was given) it takes a quarter at most, but always room for three batches
    of the ``largest`` sample.

    >>> staging_bytes(1000, 1e6), staging_bytes(32, 100.0)
    (3000000000, 409600)
    >>> staging_bytes(32, 1e5, ram=100_000_000), staging_bytes(32, 1e5, ram=20_000_000, largest=2e5)
    (25000000, 19200000)
    """
    ahead = min(_STAGING_SAMPLES * mean, _STAGING_SAMPLES_BYTES)
    wanted = min(max(_STAGING_BATCHES * batch * mean, ahead), _STAGING_MAX)
    if ram:
        wanted = min(wanted, ram / _STAGING_OF_RAM)
    return max(1, math.ceil(max(wanted, _STAGING_LEAST * batch * (largest or mean))))


def ram_room(ram: int, staging: int, samples: int, *, disk: bool) -> int:
    """Return the bytes of the loader's memory budget ``ram`` that are left for samples, 0 or more.

    Beside staging it pays for the planner's tables, and where there is a disk for copies on their way to it.

    >>> ram_room(100_000_000, 25_000_000, 1000, disk=True)
    62460000
    """
    rest = ram - staging - _TABLES * samples
    return max(0, rest - (min(_COPIES_MOST, ram // 8) if disk else 0))


def _forecast(asked: Task, policy: str, between: Callable[[str, int, int], None] | None) -> Forecast:
    reports = [_simulated(asked, policy, seconds, between) for seconds in asked.steps_s]

    def ranged(time: Callable[[simulation.Report], float]) -> Range:
        times = [time(report) for report in reports]
        return Range(times[0], min(times), max(times))

    return Forecast(
        policy=policy,
        reason=None,
        total_s=ranged(lambda report: report.total_s),
        first_epoch_s=ranged(lambda report: report.epochs[0].end_s),
        later_epoch_s=ranged(_later) if len(reports[0].epochs) > 1 else None,
        report=reports[0],
    )


def _simulated(
    asked: Task, policy: str, seconds: float | None, between: Callable[[str, int, int], None] | None
) -> simulation.Report:
    job = asked.job
    if seconds is not None:
        job = dataclasses.replace(job, train=dataclasses.replace(job.train, compute_step=seconds))
    if policy in WINDOW_POLICIES:
        rates = asked.by_requests.get(bucket_window.downloads(job, policy))
        if rates is not None:
            job = vary.with_value(job, "cluster.origin.read", dict(rates))
    return simulation.Run(job, policy, order=asked.order, hand_over="batch", sizes=asked.sizes).finish(
        between
    )


def _later(report: simulation.Report) -> float:
    epochs = report.epochs
    return (epochs[-1].end_s - epochs[0].end_s) / (len(epochs) - 1)


def _sizes(trace: Trace, job: Job) -> NDArray[np.uint64] | None:
    """Return the job's data if they are those of the trace."""
    data = job.data
    if data.index is not None or data.samples is None or (data.size, data.size_sigma) != _distribution(trace):
        return None
    return filled(data.samples, trace.ids, trace.sizes)


def _distribution(trace: Trace) -> tuple[float, float]:
    """Mean and deviation of the sizes, for a job file's keys."""
    return float(trace.sizes.mean()), float(trace.sizes.std())


def _by_requests(there: Profile, job: Job) -> dict[int, tuple[tuple[int, float], ...]]:
    staging, given = job.cluster.staging, job.cluster.origin.read
    if staging is None or given is None or given != _rates(there, staging.threads):
        return {}
    counts = {bucket_window.downloads(job, policy) for policy in WINDOW_POLICIES}
    return {count: rates for count in counts if (rates := _rates(there, count))}


def _rates(there: Profile, requests: int) -> tuple[tuple[int, float], ...]:
    """The origin's rates against ranks, each of which has so many requests under way."""
    curve = there.complete({"staging": {"threads": requests}})["origin"].get("read", {})
    return tuple(sorted(curve.items()))


def _known(trace: Trace, there: Profile, compute_s: float, together: int) -> dict[str, dict[str, Any]]:
    """Return the facts of the trace as tables of a job file; ``together``: ranks of a machine."""
    mean, sigma = _distribution(trace)
    train: dict[str, Any] = {
        "batch": trace.batch,
        "epochs": trace.epochs,
        "drop_last": trace.drop_last,
        "compute_step": compute_s,
    }
    if trace.preprocess_rate is not None:
        train["preprocess_rate"] = trace.preprocess_rate
    return {
        "data": {
            "samples": trace.samples,
            "size": mean,
            "size_sigma": sigma,
        },
        "train": train,
        "cluster": {
            "ranks": trace.ranks,
            "ranks_per_machine": together,
            "origin": {"readers": "queue" if _is_folder(there) else "demand"},
            "staging": {"capacity": staging_bytes(trace.batch, mean), "threads": trace.fetches},
            "tiers": [{"name": name} for name in _tiers(there)],
        },
    }


def _is_folder(there: Profile) -> bool:
    """Whether the origin there is a folder, whose reads are served one after the other.

    What a page cache answers is measured of no other.
    """
    return bool(there.curve("origin.cached_read"))


def _tiers(there: Profile) -> list[str]:
    """Tiers that the profile has room and rates of, the fastest first."""
    names = dict.fromkeys(
        figure.name.split(".")[1] for figure in there.figure if figure.name.startswith("tier.")
    )
    told = [name for name in names if there.get(f"tier.{name}.capacity") and there.curve(f"tier.{name}.read")]
    return sorted(told, key=lambda name: -max(there.curve(f"tier.{name}.read").values()))


def _untold(trace: Trace, job: Job, sizes: NDArray[np.uint64] | None) -> dict[str, str]:
    """By key, what no ledger has."""
    cluster = job.cluster
    untold: dict[str, str] = {}
    if trace.order != "sequential":
        untold["train.seed"] = f"{job.train.seed}; any shuffled order takes about as long"
    unread = 0 if sizes is None else len(sizes) - int((trace.ids < len(sizes)).sum())
    if unread:
        untold["data.index"] = (
            f"sizes of {unread:,} samples, which were not read one by one, are drawn from those of the others"
        )
    if job.train.preprocess_rate is None:
        untold["train.preprocess_rate"] = (
            "no decoding in the ledgers: what the training loop does is in its time per step, what runs ahead is not"
        )
    staging = cluster.staging
    if staging is not None:
        untold["cluster.staging"] = (
            f"{staging.capacity:,} bytes and {staging.threads} threads, unless the job file says otherwise"
        )
    together = min(cluster.ranks_per_machine, cluster.ranks or 1)
    if together > 1:
        untold["cluster.ranks_per_machine"] = (
            f"{together} ranks share a machine, and its memory and disk in equal parts; all of them do, unless the "
            "job file says otherwise"
        )
    names = ", ".join(tier.name for tier in cluster.tiers)
    untold["cluster.tiers"] = (
        f"{names}: rooms of the profile in equal parts for the ranks of a machine, those of a job file for each rank"
        if names
        else "none: the profile has no tier with capacity and rates, so nothing is kept"
    )
    if cluster.network.rate is None and trace.ranks > 1:
        untold["cluster.network.rate"] = "not in the profile: no policy that reads from peers has an answer"
    if cluster.origin.latency is None:
        untold["cluster.origin.latency"] = "not in the profile: no policy of windows has an answer"
    return untold
