# SPDX-License-Identifier: Apache-2.0
"""Simulated runs of a job file: the time that any loading policy needs on any machine.

A run is one policy on one scenario, in virtual time: every read of every rank, by the rules of ``foresee-sim``.
``foresee`` is the planner of the runtime, the same code. ``compat="physical"``, the default, gives each place
a capacity that its threads share; ``"paper"`` divides by threads as the paper's formulas do.

Seconds, bytes, and bytes per second throughout. Sums are over all ranks, so ``ranks * total_s`` is
``ranks * init_s + compute_s + stall_s + barrier_s``.

A value that the job lacks is a :class:`foresee.ConfigError` with its key, and a policy that has no answer for the job
reports the reason.

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
    "missing",
    "read_often",
    "reads_by_count",
    "reads_in_order",
    "scenario_of",
]

HandOver = Literal["sample", "batch"]

POLICIES: tuple[str, ...] = tuple(_native.LOADING_POLICIES)
"""Names of all policies, bounds and variants included, in the order in which they are shown."""

_NS = 1e9
#: Of a job file, whatever the policy; what depends on others is asked for in :func:`missing`.
_NEEDED = ("train.batch", "train.epochs", "cluster.ranks", "cluster.staging")
#: Steps that a run takes before it looks whether it is still wanted.
_STEPS = 256


@dataclass(frozen=True)
class Reads:
    """Reads of one kind, over all ranks."""

    source: str
    """``origin``, a tier's name, or ``peer NAME``."""
    samples: int
    bytes: int
    seconds: float
    """Added up over threads."""
    waited_s: float
    """For which training waited for them; a stall is charged to where its sample was read."""


@dataclass(frozen=True)
class Epoch:
    """One pass over the data set."""

    end_s: float
    """From the start of the run to the end of the slowest rank."""
    stall_s: float
    """Waiting for samples, over ranks."""
    origin_samples: int
    """Samples that were read from the origin meanwhile."""


@dataclass(frozen=True)
class Report:
    """The result of a policy."""

    policy: str
    total_s: float
    """From the start to the end of the slowest rank."""
    init_s: float
    """Of that before training could begin."""
    compute_s: float
    stall_s: float
    """Waiting for samples."""
    barrier_s: float
    """Waiting for other ranks."""
    ranks: int
    epochs: tuple[Epoch, ...]
    """As far as the run got."""
    reads: tuple[Reads, ...]
    """Into staging."""
    loads: tuple[Reads, ...]
    """From the origin into tiers, by threads of their own."""
    origin_requests: int
    """Samples that the origin was asked for."""
    origin_bytes: int
    listings: int
    """Of a bucket."""
    coverage: float
    """Share of the data set that training saw, 0 to 1."""
    finished: bool
    """Whether it ran to its end."""

    @property
    def hit_rate(self) -> float | None:
        """Share of reads that the origin did not answer; None before any."""
        total = sum(each.samples for each in self.reads)
        origin = sum(each.samples for each in self.reads if each.source == "origin")
        return 1 - origin / total if total else None


class Run:
    """One policy on one job, advanced bit by bit.

    Args:
        job: needs ``[data]``, ``[train]`` with ``batch``, ``epochs`` and a compute rate or time, and ``[cluster]`` with
            ``ranks``, ``staging`` and the origin's rates.
        policy: one of :data:`POLICIES`.
        compat: which reading of the model.
        order: ``shuffled``: a new shuffle for every epoch, cut into global batches, as published scenarios have it;
            ``distributed``: torch's ``DistributedSampler``; ``sequential``.
        hand_over: what a rank has before it computes: a ``sample`` after the other, as published, or the whole
            ``batch``, as loaders hand it over (``physical`` only).
        sizes: bytes of each sample, by id, where they are better known than ``[data]`` says; shape (samples,), 1 or
            more each. Read only, copied.
        run_dir: a run folder for ledgers as a real run writes them, one per rank, on the simulated clock; there may be
            no ledgers in it. A tier that is called ``ram`` is memory there, any other a disk.

    Raises:
        ConfigError: something that the simulation needs is missing or wrong: all of it; or ``run_dir`` has ledgers.
        Unsupported: the policy has no answer for this job.
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
        self._ranks = job.cluster.ranks
        given = scenario_of(job, policy, compat=compat, order=order, hand_over=hand_over, sizes=sizes)
        made = _native.LoadingRun.begin(given, policy)
        if isinstance(made, str):
            raise Unsupported(policy, made)
        self._run = made
        if run_dir is not None:
            self._run.write_to(run_dir, [tier.name == "ram" for tier in job.cluster.tiers])

    def advance(self, steps: int = _STEPS) -> tuple[str, int, int]:
        """Go on by a part of what is prepared, or by so many steps of training.

        Returns:
            ``preparing``, ``training`` or ``finished``; how much of that is done; of how much.
        """
        told = self._run.advance(steps)
        if told[0] == "finished":
            self.close()
        return told

    def close(self) -> None:
        """End the ledgers, of a run that is given up too. Idempotent; the end of a run does it."""
        self._run.end_ledgers()

    def report(self) -> Report:
        """Return the result so far, and of the whole run once it is finished."""
        told: dict[str, Any] = self._run.report()
        reads = tuple(self._reads(each, self._source(each)) for each in told["reads"])
        loads = tuple(
            self._reads(each, tier)
            for each, tier in zip(told["loads"], self._tiers, strict=False)
            if each["samples"]
        )
        return Report(
            policy=told["policy"],
            total_s=told["total_s"],
            init_s=told["init_s"],
            compute_s=told["compute_s"],
            stall_s=told["stall_s"],
            barrier_s=told["barrier_s"],
            ranks=told["ranks"],
            epochs=tuple(Epoch(**each) for each in told["epochs"]),
            reads=reads,
            loads=loads,
            origin_requests=told["origin_requests"],
            origin_bytes=told["origin_bytes"],
            listings=told["listings"],
            coverage=told["covered"] / told["samples"],
            finished=told["finished"],
        )

    def finish(self, between: Callable[[str, int, int], None] | None = None) -> Report:
        """Go on to the end; ``between`` is called now and then with what ``advance`` returns, and may raise."""
        stage = ""
        while stage != "finished":
            stage, done, total = self.advance()
            if between is not None:
                between(stage, done, total)
        return self.report()

    def _source(self, told: Mapping[str, Any]) -> str:
        if told["source"] == "origin":
            return "origin"
        name = self._tiers[told["tier"]]
        return name if told["source"] == "tier" else f"peer {name}"

    @staticmethod
    def _reads(told: Mapping[str, Any], source: str) -> Reads:
        return Reads(source, told["samples"], told["bytes"], told["seconds"], told["waited"])


class Often(NamedTuple):
    """Samples that one rank reads often."""

    least_reads: int
    """The least number of reads that counts."""
    samples: float
    """Expected number of samples that it reads that often."""


def read_often(*, ranks: int, epochs: int, samples: int, delta: str, compat: Compat = "physical") -> Often:
    """Expected number of samples that a rank reads more than ``(1 + delta)`` times the mean, ``epochs / ranks``.

    ``delta`` is a decimal number or a ratio in words, ``"0.8"`` or ``"4/5"``: as a float it could miss a threshold.
    ``compat="paper"`` counts samples that are read exactly that often as well, as the printed limit does.

    Raises:
        ConfigError: a count below 1, or a ``delta`` that is negative or no number.

    >>> often = read_often(ranks=16, epochs=90, samples=1_281_167, delta="0.8")
    >>> often.least_reads, round(often.samples, 2)
    (11, 31634.69)
    """
    return Often(*_native.reads_above(ranks, epochs, samples, delta, compat=compat))


def reads_by_count(*, ranks: int, epochs: int, samples: int, seed: int | None = None) -> NDArray[np.float64]:
    """Return the numbers of samples that one rank reads 0, 1, ... ``epochs`` times; shape (epochs + 1,).

    Expected numbers, or with a ``seed`` those of one draw, in which every epoch deals each sample to any rank alike:
    Monte Carlo, and not the order of that seed, for which see :func:`reads_in_order`.

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

    The order is that of torch's ``DistributedSampler``, shuffled anew in every epoch, which is counted read by read:
    some 10 ns per sample and epoch. Ctrl-C ends it between epochs.

    Raises:
        ConfigError: a count below 1, samples of 2^32 and more, epochs of 2^16 and more, or no such rank.

    >>> reads_in_order(ranks=4, epochs=2, samples=1600, seed=0).tolist()
    [905, 590, 105]
    """
    _check_counted(epochs, samples)
    return _native.reads_counted(seed, ranks, epochs, samples, rank).astype(np.int64)


def _check_counted(epochs: int, samples: int) -> None:
    if not samples < 2**32:
        raise ConfigError(f"samples={samples}; below 2^32 where they are counted one by one")
    if not epochs < 2**16:
        raise ConfigError(f"epochs={epochs}; below 2^16 where reads are counted one by one")


def scenario_of(
    job: Job,
    policy: str,
    *,
    compat: Compat = "physical",
    order: str = "shuffled",
    hand_over: HandOver = "sample",
    sizes: NDArray[np.uint64] | None = None,
) -> dict[str, Any]:
    """The job in the simulator's words: whole bytes, rates in bytes per second, times in nanoseconds.

    ``sizes`` are as :class:`Run` has them. Steps that compute so many seconds become a rate by the mean of the sizes
    that are simulated, so that a step takes what was told in the mean.

    Raises:
        ConfigError: something that the simulation needs is missing: all of it; or sizes of another number of samples.
    """
    if faults := missing(job, policy):
        raise ConfigError(faults)
    batch, epochs, ranks, staging = job.need(*_NEEDED)
    window = policy in WINDOW_POLICIES
    data, mean = _data(job) if sizes is None else _sized(job, sizes)
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
        "bucket": bucket_window.times(job, policy, mean, compat) if window else None,
    }


def missing(job: Job, policy: str) -> list[str]:
    r"""What the simulation of ``policy`` needs and ``job`` leaves out: a message for each, none if it has all.

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
        faults.append(f"{where}data.samples is missing, and so is data.index: what is read has to be known")
    if job.train.compute_rate is None and job.train.compute_step is None:
        faults.append(f"{where}train.compute_rate is missing, and so is train.compute_step; one of both")
    times = job.cache.window
    timed = window and (
        times.miss_time is not None
        and (policy not in bucket_window.PREFETCHING or times.download_time is not None)
    )
    if job.cluster.origin.read is None and not (timed or (window and job.cluster.origin.latency)):
        faults.append(f"{where}cluster.origin.read is missing; a rate, or a table from readers to rates")
    if window and not timed and job.cluster.origin.latency is None:
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
    """The sizes, and their mean."""
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
    return (data.samples, data.size, data.size_sigma, data.seed), _drawn_mean(data.size, data.size_sigma)


def _sized(job: Job, sizes: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], float]:
    """Sizes that were given, and their mean."""
    samples = job.data.samples
    if sizes.ndim != 1 or (samples is not None and len(sizes) != samples):
        raise ConfigError(f"sizes of shape {sizes.shape}; one for each of data.samples = {samples} expected")
    return np.ascontiguousarray(sizes, np.uint64), float(sizes.mean())


def _drawn_mean(mean: float, sigma: float) -> float:
    """Mean of a normal distribution of which what is not above 0 is drawn again.

    ``mean + sigma phi(t) / Phi(t)`` with ``t = mean / sigma``: that of the normal distribution cut at 0.

    >>> round(_drawn_mean(107.7, 100.0), 1), _drawn_mean(107.7, 0.0)
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
