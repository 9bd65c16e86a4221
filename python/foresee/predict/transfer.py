# SPDX-License-Identifier: Apache-2.0
"""Predict the duration of a traced run on another host, under every loading policy.

The trace gives the job, the other host's profile the cluster, and a job file the missing values. A given factor scales
the compute time, because no ledger contains the speed of another accelerator. All ranks are assumed to share a node,
unless the job file says otherwise.

Intervals come from the time per step: the middle 90 % of a thousand bootstrap means over steps, with a fixed seed. A
run's time grows with its time per step, so two simulations at the ends of this interval give the ends of the run's own.
Other errors, above all of the profile, are not part of it.
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
from foresee.jobspec import CACHE_POLICIES, WINDOW_POLICIES, Job, Profile, complete, vary
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
    "ram_capacity",
    "staging_bytes",
    "task",
]

_DRAWS = 1000
_SEED = 0
_SHARE = 0.9
#: The loader's default staging buffer: batches; samples if that is more, up to a number of bytes; a limit in bytes.
_STAGING_BATCHES, _STAGING_SAMPLES, _STAGING_SAMPLES_BYTES, _STAGING_MAX = 8, 4096, 64 * 2**20, 2 * 10**9
#: Its largest share of a memory budget, as a divisor; its least number of batches: in use, ready, in flight.
_STAGING_OF_RAM, _STAGING_LEAST = 4, 3
#: Bytes per sample of the planner's tables, and the limit for copies in flight to a disk.
_TABLES, _COPIES_MAX = 40, 32 * 2**20
_LEAST_S = 1e-9


@dataclass(frozen=True)
class Range:
    """A predicted time in seconds, with its interval from the spread of the steps."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Task:
    """Input of a prediction: a job from a trace, and assumptions for the values that the trace lacks."""

    job: Job
    """For the simulator, at the mean time per step."""
    order: Literal["distributed", "sequential"]
    compute_s: Range | None
    """Of a step on the other host; None: the job file gives it, without an interval."""
    untold: Mapping[str, str]
    """By key of the job file: an assumption in place of a value that the trace lacks."""
    sizes: NDArray[np.uint64] | None = field(default=None, compare=False)
    """Shape (samples,): bytes of each sample, by id; None: from the job."""
    by_requests: Mapping[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """By concurrent requests of a rank, the origin's rates against ranks: for window policies, whose number of requests
    is not that of staging. Empty if the job file has the rates.
    """
    node_cache: bool = False
    """Whether the ranks of a node share one cache under the policy ``foresee``."""

    @property
    def steps_s(self) -> tuple[float | None, ...]:
        """Simulated times per step, the mean first; None: that of the job."""
        compute = self.compute_s
        return (
            (None,) if compute is None else tuple(dict.fromkeys((compute.value, compute.low, compute.high)))
        )


@dataclass(frozen=True)
class Forecast:
    """Prediction for one policy."""

    policy: str
    reason: str | None
    """Reason for a missing prediction; None: there is one."""
    total_s: Range | None
    first_epoch_s: Range | None
    """Duration of the first epoch, including initialization."""
    later_epoch_s: Range | None
    """Mean duration of the other epochs; None if there is only one."""
    report: simulation.Report | None
    """At the mean time per step."""


def task(
    trace: Trace,
    target: Profile,
    *,
    job_file: str | os.PathLike[str] | None = None,
    compute_factor: float = 1.0,
    node_cache: bool | None = None,
) -> Task:
    """Return the job of a trace on the host of a profile.

    Args:
        trace: trace of a run on any host.
        target: profile of the other host.
        job_file: keys that the trace lacks, or that override it.
        compute_factor: compute time of a step on the other host, as a multiple of the traced one; above 0.
        node_cache: whether the ranks of a node share one cache under the policy ``foresee``; None: as traced.

    Raises:
        ConfigError: a wrong factor, or a job file with faults.
        OSError: the job file cannot be read.
    """
    if not (isinstance(compute_factor, (int, float)) and 0 < compute_factor < math.inf):
        raise ConfigError(f"compute_factor={compute_factor!r}; a number above 0 expected")
    # A step of 0 s is shorter than the resolution of the clock.
    mean = max(float(trace.compute.mean()) * compute_factor, _LEAST_S)
    job = complete(_tables(trace, target, mean, trace.ranks), target, job_file)
    ranks = job.cluster.ranks
    if ranks is not None and ranks != trace.ranks:
        # Another number of ranks is on one node as well.
        job = complete(_tables(trace, target, mean, ranks), target, job_file)
    order: Literal["distributed", "sequential"] = (
        "sequential" if trace.order == "sequential" else "distributed"
    )
    compute: Range | None = None
    if job.train.compute_step == mean:
        low, high = (max(end * compute_factor, _LEAST_S) for end in interval(trace.compute))
        compute = Range(mean, low, high)
    elif compute_factor != 1.0:
        raise ConfigError(
            f"{job.file}: it has the compute time of a step, and compute_factor={compute_factor:g} is given; omit one "
            "of them"
        )
    sizes = _sizes(trace, job)
    is_shared = trace.node_cache if node_cache is None else node_cache
    assumptions = _assumptions(trace, job, sizes)
    if node_cache is None and is_shared:
        assumptions["cluster.tiers"] += "; under foresee the ranks of a node share theirs, as traced"
    return Task(job, order, compute, assumptions, sizes, _by_requests(target, job), is_shared)


def predict(
    task: Task,
    chosen: Sequence[str] | None = None,
    between: Callable[[str, int, int], None] | None = None,
) -> list[Forecast]:
    """Predict the duration of ``task`` under each chosen policy; by default those of :func:`policies`.

    ``between`` is called with each value that :meth:`foresee.planning.simulation.Run.advance` returns; it may raise.

    Raises:
        ConfigError: values for the simulation are missing in trace, profile and job file; the error lists their keys.
    """
    made = []
    for policy in chosen or policies(task.job):
        try:
            made.append(_forecast(task, policy, between))
        except Unsupported as why:
            made.append(Forecast(policy, why.reason, None, None, None, None))
    return made


def interval(
    values: NDArray[np.float64], *, draws: int = _DRAWS, seed: int = _SEED, share: float = _SHARE
) -> tuple[float, float]:
    """Return the middle ``share`` of the means of ``draws`` samples of ``values``, drawn with replacement.

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
    """Return the job's policies, or all policies for which it has the values."""
    if job.cache.policies:
        return job.cache.policies
    return CACHE_POLICIES if job.cluster.origin.latency is None else (*CACHE_POLICIES, *WINDOW_POLICIES)


def staging_bytes(batch: int, mean: float, *, ram: int = 0, largest: float | None = None) -> int:
    """Return the loader's default size of the staging buffer in bytes, for samples of ``mean`` bytes.

    It takes at most a quarter of a memory budget ``ram`` (bytes; 0: no budget), and at least three batches of the
    ``largest`` sample.

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


def ram_capacity(ram: int, staging: int, samples: int, *, disk: bool) -> int:
    """Return the bytes of the loader's memory budget ``ram`` that remain for samples, 0 or more.

    Staging, the planner's tables and, with a disk, copies in flight to it are subtracted.

    >>> ram_capacity(100_000_000, 25_000_000, 1000, disk=True)
    62460000
    """
    rest = ram - staging - _TABLES * samples
    return max(0, rest - (min(_COPIES_MAX, ram // 8) if disk else 0))


def _forecast(task: Task, policy: str, between: Callable[[str, int, int], None] | None) -> Forecast:
    reports = [_simulate(task, policy, seconds, between) for seconds in task.steps_s]

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


def _simulate(
    task: Task, policy: str, seconds: float | None, between: Callable[[str, int, int], None] | None
) -> simulation.Report:
    job = task.job
    if seconds is not None:
        job = dataclasses.replace(job, train=dataclasses.replace(job.train, compute_step=seconds))
    if policy in WINDOW_POLICIES:
        rates = task.by_requests.get(bucket_window.downloads(job, policy))
        if rates is not None:
            job = vary.with_value(job, "cluster.origin.read", dict(rates))
    run = simulation.Run(
        job, policy, order=task.order, hand_over="batch", node_cache=task.node_cache, sizes=task.sizes
    )
    return run.finish(between)


def _later(report: simulation.Report) -> float:
    epochs = report.epochs
    return (epochs[-1].end_s - epochs[0].end_s) / (len(epochs) - 1)


def _sizes(trace: Trace, job: Job) -> NDArray[np.uint64] | None:
    """Return the sizes of the trace if it has those of single samples and the job has its data."""
    data = job.data
    if not len(trace.ids):
        return None
    if data.index is not None or data.samples is None or (data.size, data.size_sigma) != _distribution(trace):
        return None
    return filled(data.samples, trace.ids, trace.sizes)


def _distribution(trace: Trace) -> tuple[float, float]:
    """Mean and deviation of the sizes, for a job file's keys."""
    return float(trace.sizes.mean()), float(trace.sizes.std())


def _by_requests(target: Profile, job: Job) -> dict[int, tuple[tuple[int, float], ...]]:
    staging, given = job.cluster.staging, job.cluster.origin.read
    if staging is None or given is None or given != _rates(target, staging.threads):
        return {}
    counts = {bucket_window.downloads(job, policy) for policy in WINDOW_POLICIES}
    return {count: rates for count in counts if (rates := _rates(target, count))}


def _rates(target: Profile, requests: int) -> tuple[tuple[int, float], ...]:
    """Return the origin's rates against ranks, each with ``requests`` in flight."""
    curve = target.complete({"staging": {"threads": requests}})["origin"].get("read", {})
    return tuple(sorted(curve.items()))


def _tables(
    trace: Trace, target: Profile, compute_s: float, ranks_per_node: int
) -> dict[str, dict[str, Any]]:
    """Return the facts of the trace as tables of a job file."""
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
            "ranks_per_machine": ranks_per_node,
            "origin": {"readers": "queue" if _is_folder(target) else "demand"},
            "staging": {"capacity": staging_bytes(trace.batch, mean), "threads": trace.fetches},
            "tiers": [{"name": name} for name in _tiers(target)],
        },
    }


def _is_folder(target: Profile) -> bool:
    """Whether the origin is a folder, whose reads are served one after the other.

    Only a folder has measured reads from the page cache.
    """
    return bool(target.curve("origin.cached_read"))


def _tiers(target: Profile) -> list[str]:
    """Return the tiers with capacity and rates in the profile, the fastest first."""
    names = dict.fromkeys(
        figure.name.split(".")[1] for figure in target.figure if figure.name.startswith("tier.")
    )
    measured = [
        name for name in names if target.get(f"tier.{name}.capacity") and target.curve(f"tier.{name}.read")
    ]
    return sorted(measured, key=lambda name: -max(target.curve(f"tier.{name}.read").values()))


def _assumptions(trace: Trace, job: Job, sizes: NDArray[np.uint64] | None) -> dict[str, str]:
    """Return the assumptions by key."""
    cluster = job.cluster
    assumptions: dict[str, str] = {}
    if trace.order != "sequential":
        assumptions["train.seed"] = f"{job.train.seed}; any shuffled order takes about as long"
    unread = 0 if sizes is None else len(sizes) - int((trace.ids < len(sizes)).sum())
    if unread:
        assumptions["data.index"] = (
            f"sizes of {unread:,} samples, which were not read individually, are drawn from those of the others"
        )
    if job.train.preprocess_rate is None:
        assumptions["train.preprocess_rate"] = (
            "no decoding in the ledgers: decoding in the training loop is part of the time per step, decoding ahead is "
            "missing"
        )
    staging = cluster.staging
    if staging is not None:
        assumptions["cluster.staging"] = (
            f"{staging.capacity:,} bytes and {staging.threads} threads, unless the job file says otherwise"
        )
    together = min(cluster.ranks_per_machine, cluster.ranks or 1)
    if together > 1:
        assumptions["cluster.ranks_per_machine"] = (
            f"{together} ranks share a node, and its memory and disk in equal parts, unless the job file says otherwise"
        )
    names = ", ".join(tier.name for tier in cluster.tiers)
    assumptions["cluster.tiers"] = (
        f"{names}: capacities of the profile in equal parts for the ranks of a node, those of a job file for each rank"
        if names
        else "none: the profile has no tier with capacity and rates, so nothing is cached"
    )
    if cluster.network.rate is None and trace.ranks > 1:
        assumptions["cluster.network.rate"] = (
            "not in the profile: no prediction for policies that read from peers"
        )
    if cluster.origin.latency is None:
        assumptions["cluster.origin.latency"] = "not in the profile: no prediction for window policies"
    return assumptions
