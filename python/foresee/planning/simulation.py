# SPDX-License-Identifier: Apache-2.0
"""Simulated runs of a job file: the time that any loading policy needs on any machine.

A run is one policy on one scenario in virtual time, with every read of every rank. The policy ``foresee`` is the code
of the runtime's planner. With ``compat="physical"``, the default, threads share the rate of a tier or origin;
``"paper"`` divides it by threads as the paper's formulas do.

Seconds, bytes, and bytes per second throughout. Sums are over all ranks, so ``ranks * total_s`` is
``ranks * init_s + compute_s + stall_s + barrier_s``.

Source: Dryden et al., "Clairvoyant Prefetching for Distributed Machine Learning I/O", SC 2021, sections 3, 4 and 6;
Krichevsky et al., "Quantifying and Improving Performance of Distributed Deep Learning with Cloud Storage", IC2E 21.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from foresee import _native
from foresee._schema.compat import Compat
from foresee.errors import ConfigError, Unsupported
from foresee.jobspec import WINDOW_POLICIES, Job
from foresee.planning import bucket_window

__all__ = [
    "POLICIES",
    "Epoch",
    "Often",
    "Reads",
    "Report",
    "Run",
    "drawn_mean",
    "missing",
    "read_often",
    "reads_by_count",
    "reads_in_order",
    "scenario_of",
]

HandOver = Literal["sample", "batch"]

POLICIES: tuple[str, ...] = tuple(_native.LOADING_POLICIES)
"""Names of all policies, including bounds and variants, in the order of reports."""

_NS = 1e9
#: Keys that every policy needs; :func:`missing` checks those that depend on others.
_NEEDED = ("train.batch", "train.epochs", "cluster.ranks", "cluster.staging")
#: Steps between two returns of :meth:`Run.advance`.
_STEPS = 256


@dataclass(frozen=True)
class Reads:
    """Reads of one kind, over all ranks."""

    source: str
    """``origin``, a tier's name, or ``peer NAME``."""
    samples: int
    bytes: int
    seconds: float
    """Sum over threads."""
    waited_s: float
    """Stalls of training for samples of this source."""


@dataclass(frozen=True)
class Epoch:
    """One pass over the data set."""

    end_s: float
    """From the start of the run to the end of the slowest rank."""
    stall_s: float
    """Waiting for samples, sum over ranks."""
    origin_samples: int
    """Samples that were read from the origin in the epoch."""


@dataclass(frozen=True)
class Report:
    """The result of a policy."""

    policy: str
    total_s: float
    """From the start to the end of the slowest rank."""
    init_s: float
    """Part of it before training began."""
    compute_s: float
    stall_s: float
    """Waiting for samples."""
    barrier_s: float
    """Waiting for other ranks."""
    ranks: int
    epochs: tuple[Epoch, ...]
    """Epochs so far."""
    reads: tuple[Reads, ...]
    """Into staging."""
    loads: tuple[Reads, ...]
    """From the origin into tiers, by separate threads."""
    origin_requests: int
    """Samples that were requested from the origin."""
    origin_bytes: int
    pushed_samples: int
    """Samples that the reader of the origin sent to the node that caches them; they are no reads, and delay nothing."""
    pushed_bytes: int
    listings: int
    """Of a bucket."""
    coverage: float
    """Share of the data set that training saw, 0 to 1."""
    finished: bool
    """Whether the run is complete."""

    @property
    def hit_rate(self) -> float | None:
        """Return the share of reads that the origin did not answer; None before the first read."""
        total = sum(each.samples for each in self.reads)
        origin = sum(each.samples for each in self.reads if each.source == "origin")
        return 1 - origin / total if total else None


class Run:
    """One policy on one job, advanced in parts.

    Args:
        job: needs ``[data]``, ``[train]`` with ``batch``, ``epochs`` and a compute rate or time, and ``[cluster]`` with
            ``ranks``, ``staging`` and the origin's rates.
        policy: one of :data:`POLICIES`.
        compat: which reading of the model.
        order: ``shuffled``: a new shuffle for every epoch, cut into global batches, as in published scenarios;
            ``distributed``: torch's ``DistributedSampler``; ``sequential``.
        hand_over: whether a rank computes ``sample`` by sample, as published, or on a whole ``batch``, as loaders
            deliver it (``physical`` only).
        node_cache: whether the ranks of a node (``cluster.ranks_per_machine``) share one cache, as in a run with
            several ranks per node: their tiers are one, each at the rate of one rank, planned by the code of the
            cache's host. Only for the policy ``foresee``; ranks of the others have caches of their own in any case.
        peers: whether nodes read each other's caches under the policy ``foresee``, by a placement of the samples that
            all nodes plan together; without ``node_cache``, each rank is a node. Needs ``cluster.network.rate``. The
            runtime has no peers yet.
        sizes: bytes of each sample by id, instead of ``[data]``; shape (samples,), 1 or more each. Read only, copied.
        run_dir: a run folder without ledgers; one per rank is written, as in a real run, on the simulated clock. A tier
            named ``ram`` is memory there, any other a disk.

    Raises:
        ConfigError: missing or wrong values, all of them; or ``run_dir`` has ledgers.
        Unsupported: the policy does not support this job.
        OSError: the ledgers cannot be written; ``advance`` and ``close`` raise it too.

    >>> from foresee.jobspec import loads
    >>> job = loads('''
    ... version = 1
    ... [data]
    ... samples = 2000
    ... size = "100 KB"
    ... [train]
    ... batch = 25
    ... epochs = 3
    ... compute_rate = "50 MB/s"
    ... [cluster]
    ... ranks = 2
    ... [cluster.staging]
    ... capacity = "50 MB"
    ... threads = 2
    ... [[cluster.tiers]]
    ... name = "ram"
    ... capacity = "200 MB"
    ... read = "10 GB/s"
    ... [cluster.network]
    ... rate = "1 GB/s"
    ... [cluster.origin]
    ... read = {1 = "40 MB/s", 2 = "60 MB/s"}
    ... ''')
    >>> report = Run(job, "foresee").finish()
    >>> report.coverage, report.total_s >= 3 * 200e6 / (2 * 50e6)
    (1.0, True)
    """

    def __init__(
        self,
        job: Job,
        policy: str,
        *,
        compat: Compat = "physical",
        order: Literal["shuffled", "distributed", "sequential"] = "shuffled",
        hand_over: HandOver = "sample",
        node_cache: bool = False,
        peers: bool = False,
        sizes: NDArray[np.uint64] | None = None,
        run_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if run_dir is not None and os.path.lexists(os.path.join(run_dir, "ledger")):
            raise ConfigError(
                f"run_dir={os.fspath(run_dir)!r}: it has ledgers already; name another folder, or remove it"
            )
        if policy not in POLICIES:
            raise ConfigError(f"policy={policy!r}; one of {', '.join(POLICIES)}")
        if hand_over not in get_args(HandOver):
            raise ConfigError(f"hand_over={hand_over!r}; one of {', '.join(get_args(HandOver))}")
        self._tiers = tuple(tier.name for tier in job.cluster.tiers) or ("ram",)
        scenario = scenario_of(
            job,
            policy,
            compat=compat,
            order=order,
            hand_over=hand_over,
            node_cache=node_cache,
            peers=peers,
            sizes=sizes,
        )
        run = _native.LoadingRun.begin(scenario, policy)
        if isinstance(run, str):
            raise Unsupported(policy, run)
        self._run = run
        if run_dir is not None:
            self._run.write_to(run_dir, [tier.name == "ram" for tier in job.cluster.tiers])

    def advance(self, steps: int = _STEPS) -> tuple[str, int, int]:
        """Advance by a part of the preparation, or by ``steps`` of training.

        Returns:
            ``preparing``, ``training`` or ``finished``; the done part of that stage; its total.
        """
        progress = self._run.advance(steps)
        if progress[0] == "finished":
            self.close()
        return progress

    def close(self) -> None:
        """End the ledgers, also of an incomplete run. Idempotent; the end of a run does it."""
        self._run.end_ledgers()

    def report(self) -> Report:
        """Return the result so far, of the whole run if it is finished."""
        report: dict[str, Any] = self._run.report()
        coverage = report.pop("covered") / report.pop("samples")
        epochs = tuple(Epoch(**each) for each in report.pop("epochs"))
        reads = tuple(self._reads(each, self._source(each)) for each in report.pop("reads"))
        loads = tuple(
            self._reads(each, tier)
            for each, tier in zip(report.pop("loads"), self._tiers, strict=False)
            if each["samples"]
        )
        return Report(**report, coverage=coverage, epochs=epochs, reads=reads, loads=loads)

    def finish(self, between: Callable[[str, int, int], None] | None = None) -> Report:
        """Run to the end; ``between`` is called with the results of :meth:`advance`, and may raise."""
        stage = ""
        while stage != "finished":
            stage, done, total = self.advance()
            if between is not None:
                between(stage, done, total)
        return self.report()

    def _source(self, reads: Mapping[str, Any]) -> str:
        if reads["source"] == "origin":
            return "origin"
        name = self._tiers[reads["tier"]]
        return name if reads["source"] == "tier" else f"peer {name}"

    @staticmethod
    def _reads(reads: Mapping[str, Any], source: str) -> Reads:
        return Reads(source, reads["samples"], reads["bytes"], reads["seconds"], reads["waited"])


class Often(NamedTuple):
    """Samples that one rank reads often."""

    least_reads: int
    """The least number of reads that counts."""
    samples: float
    """Their expected number."""


def read_often(*, ranks: int, epochs: int, samples: int, delta: str, compat: Compat = "physical") -> Often:
    """Return the expected number of samples that a rank reads over ``(1 + delta)`` times the mean, ``epochs / ranks``.

    ``delta`` is the text of a decimal number or a ratio, ``"0.8"`` or ``"4/5"``: a float could miss a threshold.
    ``compat="paper"`` also counts samples that are read exactly that often, as the printed limit does.

    Raises:
        ConfigError: a count below 1, or a ``delta`` that is negative or no number.

    >>> often = read_often(ranks=16, epochs=90, samples=1_281_167, delta="0.8")
    >>> often.least_reads, round(often.samples, 2)
    (11, 31634.69)
    """
    return Often(*_native.reads_above(ranks, epochs, samples, delta, compat=compat))


def reads_by_count(*, ranks: int, epochs: int, samples: int, seed: int | None = None) -> NDArray[np.float64]:
    """Return the numbers of samples that one rank reads 0, 1, ... ``epochs`` times; shape (epochs + 1,).

    These are expected numbers, or with a ``seed`` those of one Monte Carlo draw, in which every epoch assigns each
    sample to a random rank. :func:`reads_in_order` has the order of a seed.

    Raises:
        ConfigError: a count below 1; with a seed, samples of 2^32 and more or epochs of 2^16 and more.

    >>> float(reads_by_count(ranks=4, epochs=2, samples=1600)[2])
    100.0
    """
    if seed is None:
        return _native.reads_expected(ranks, epochs, samples)
    _check_counted(epochs, samples)
    return _native.reads_drawn(seed, ranks, epochs, samples).astype(np.float64)


def reads_in_order(*, ranks: int, epochs: int, samples: int, seed: int, rank: int = 0) -> NDArray[np.int64]:
    """Count the samples that ``rank`` reads 0, 1, ... ``epochs`` times in a run with that seed; shape (epochs + 1,).

    The order is that of torch's ``DistributedSampler``, shuffled in every epoch. Counting takes about 10 ns per sample
    and epoch; Ctrl-C ends it between epochs.

    Raises:
        ConfigError: a count below 1, samples of 2^32 and more, epochs of 2^16 and more, or no such rank.

    >>> reads_in_order(ranks=4, epochs=2, samples=1600, seed=0).tolist()
    [905, 590, 105]
    """
    _check_counted(epochs, samples)
    return _native.reads_counted(seed, ranks, epochs, samples, rank).astype(np.int64)


def _check_counted(epochs: int, samples: int) -> None:
    if not samples < 2**32:
        raise ConfigError(f"samples={samples}; below 2^32 expected, since reads are counted one by one")
    if not epochs < 2**16:
        raise ConfigError(f"epochs={epochs}; below 2^16 expected, since reads are counted one by one")


def scenario_of(
    job: Job,
    policy: str,
    *,
    compat: Compat = "physical",
    order: str = "shuffled",
    hand_over: HandOver = "sample",
    node_cache: bool = False,
    peers: bool = False,
    sizes: NDArray[np.uint64] | None = None,
) -> dict[str, Any]:
    """Return the simulator's scenario: whole bytes, rates in bytes per second, times in nanoseconds.

    Arguments are those of :class:`Run`. A compute time per step becomes a rate by the mean simulated size.

    Raises:
        ConfigError: missing values, all of them; or sizes of another number of samples.
    """
    if faults := missing(job, policy):
        raise ConfigError(faults)
    batch, epochs, ranks, staging = job.need(*_NEEDED)
    window = policy in WINDOW_POLICIES
    data, mean = _data(job) if sizes is None else _given_sizes(job, sizes)
    compute = job.train.compute_rate
    if compute is None:
        assert job.train.compute_step is not None
        compute = batch * mean / job.train.compute_step
    origin, cluster = job.cluster.origin, job.cluster
    return {
        "data": data,
        "ranks": ranks,
        "staging": _tier(staging, read=((1, 1.0),)),
        "tiers": [_tier(tier, read=tier.read) for tier in cluster.tiers],
        "origin": _points(origin.read or ((1, 1.0),)),  # windows have times of their own
        "origin_link": _whole(origin.link),
        "origin_latency_ns": round((origin.latency or 0.0) * _NS),
        "origin_requests": origin.requests,
        "peer_link": _whole(cluster.network.rate),
        "batch": batch,
        "epochs": epochs,
        "drop_last": job.train.drop_last,
        "compute": _whole(compute),
        "preprocess": _whole(job.train.preprocess_rate),
        "compat": compat,
        "order": order,
        "seed": job.train.seed,
        "barrier": job.train.barrier,
        "readers": origin.readers,
        "write_cost": job.cache.write_cost,
        "hand_over": hand_over,
        "node_cache": cluster.ranks_per_machine if node_cache and policy == "foresee" else None,
        "peers": peers,
        "bucket": bucket_window.times(job, policy, mean, compat) if window else None,
    }


def missing(job: Job, policy: str) -> list[str]:
    r"""Return a message for each value that the simulation of ``policy`` needs and ``job`` lacks.

    >>> from foresee.jobspec import loads
    >>> missing(loads("version = 1\n[train]\nbatch = 8"), "foresee")[0]
    'train.epochs is missing; a whole number of 1 or more, below 4294967296 expected'
    """
    faults: list[str] = []
    try:
        job.need(*_NEEDED)
    except ConfigError as error:
        faults += error.faults
    window = policy in WINDOW_POLICIES
    where = f"{job.file}: " if job.file else ""
    if job.data.index is None and job.data.samples is None:
        faults.append(f"{where}data.samples is missing, and so is data.index; one of both expected")
    if job.train.compute_rate is None and job.train.compute_step is None:
        faults.append(
            f"{where}train.compute_rate is missing, and so is train.compute_step; one of both expected"
        )
    times = job.cache.window
    has_times = (
        window
        and times.miss_time is not None
        and (policy not in bucket_window.PREFETCHING or times.download_time is not None)
    )
    if job.cluster.origin.read is None and not (has_times or (window and job.cluster.origin.latency)):
        faults.append(f"{where}cluster.origin.read is missing; a rate, or a table from readers to rates")
    if window and not has_times and job.cluster.origin.latency is None:
        faults.append(
            f"{where}cluster.origin.latency is missing; the time of one request, for windows over a bucket, if "
            "cache.window has no miss_time and download_time"
        )
    faults += [
        f"{where}cluster.tiers[{at}].{key} is missing; `foresee calibrate` measures it"
        for at, tier in enumerate(job.cluster.tiers)
        for key in ("capacity", "read")
        if getattr(tier, key) is None
    ]
    return faults


def _data(job: Job) -> tuple[Any, float]:
    """Return the sizes and their mean."""
    data = job.data
    if data.index is not None:
        index = _native.Index.open(data.index)
        uniform = index.uniform_size
        if uniform is not None:
            return (len(index), float(uniform), 0.0, 0), float(uniform)
        sizes = np.fromiter((index.size(sample) for sample in range(len(index))), np.uint64, len(index))
        return sizes, float(sizes.mean()) if len(sizes) else 0.0
    assert data.samples is not None
    assert data.size is not None
    return (data.samples, data.size, data.size_sigma, data.seed), drawn_mean(data.size, data.size_sigma)


def _given_sizes(job: Job, sizes: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], float]:
    """Return the given sizes and their mean."""
    samples = job.data.samples
    if sizes.ndim != 1 or (samples is not None and len(sizes) != samples):
        raise ConfigError(f"sizes of shape {sizes.shape}; one for each of data.samples = {samples} expected")
    return np.ascontiguousarray(sizes, np.uint64), float(sizes.mean())


def drawn_mean(mean: float, sigma: float) -> float:
    """Return the mean of a normal distribution whose values of 0 and less are redrawn.

    It is ``mean + sigma phi(t) / Phi(t)`` with ``t = mean / sigma``.

    >>> round(drawn_mean(107.7, 100.0), 1), drawn_mean(107.7, 0.0)
    (133.7, 107.7)
    """
    if not sigma:
        return mean
    at = mean / sigma
    density = math.exp(-at * at / 2) / math.sqrt(2 * math.pi)
    return mean + sigma * density / ((1 + math.erf(at / math.sqrt(2))) / 2)


def _tier(tier: Any, read: Any) -> dict[str, Any]:
    return {
        "capacity": tier.capacity,
        "threads": tier.threads,
        "read": _points(read),
        "write": None if tier.write is None else _points(tier.write),
    }


def _points(curve: Any) -> list[tuple[int, int]]:
    return [(count, max(1, round(rate))) for count, rate in curve]


def _whole(rate: float | None) -> int | None:
    return None if rate is None else max(1, round(rate))
