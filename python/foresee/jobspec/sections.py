# SPDX-License-Identifier: Apache-2.0
"""The tables of a job file, as frozen dataclasses in base units: bytes, seconds, bytes per second.

All planning commands share this schema; each command requests its keys with :meth:`Job.need`. None is a missing value,
never 0. Code may use the spelling of the file, ``Tier(capacity="120 GB")``. ``docs/formats/job.md`` has the same
information as a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from foresee._schema.checked import Checked, Table, Tables, expected, section, value_of
from foresee._schema.values import (
    ByWord,
    Choice,
    Choices,
    Count,
    Curve,
    Flag,
    Kind,
    Number,
    Rate,
    Refused,
    Size,
    Text,
    Texts,
    Time,
)
from foresee.errors import ConfigError
from foresee.jobspec.profile import Given

__all__ = [
    "CACHE_POLICIES",
    "GRADIENT_POLICIES",
    "POLICIES",
    "WINDOW_POLICIES",
    "Cache",
    "Cluster",
    "Cost",
    "Data",
    "Gradients",
    "Job",
    "Network",
    "Origin",
    "Run",
    "Stagger",
    "Staging",
    "Tier",
    "Train",
    "Window",
]

CACHE_POLICIES = (
    "perfect",
    "naive",
    "staging_buffer",
    "deepio_ordered",
    "deepio_optimistic",
    "parallel_staging",
    "lbann_dynamic",
    "lbann_preloading",
    "locality_aware",
    "hash_owner",
    "static_share",
    "nopfs",
    "foresee",
)
"""Policies of loading from a file system, with tiers."""
WINDOW_POLICIES = ("direct", "disk", "cache", "full_fetch", "fifty_fifty")
"""Policies of loading from a bucket, with a window of prefetching."""
POLICIES = (*CACHE_POLICIES, *WINDOW_POLICIES)
GRADIENT_POLICIES = ("oracle", "mercury", "barrier", "fifo_packet", "fifo_tensor")
"""Policies of ``foresee.network.model``."""

_VERSION = 1
_RANKS_BELOW = 2**20
_BATCH_BELOW = 2**32


@dataclass(frozen=True, kw_only=True)
class Data(Checked):
    """``[data]``: an index, or a number of samples and the distribution of their sizes."""

    index: str | None = value_of(Text())
    """Path of an index, from the job file's folder."""
    samples: int | None = value_of(Count())
    """Number of samples."""
    size: float | None = value_of(Size())
    """Mean size of a sample, bytes."""
    size_sigma: float = value_of(Size(zero=True), 0.0)
    """Standard deviation of a normal distribution of sizes, bytes; a size below 0 is drawn again. 0: all have
    ``size``.
    """
    seed: int = value_of(Count(least=0), 0)
    """Seed of the sizes."""
    name: str | None = value_of(Text())
    """Free text. Jobs with equal names, or equal indexes, share their data."""

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if self.index is not None:
            for key in ("samples", "size"):
                if getattr(self, key) is not None:
                    yield f"{key} = {getattr(self, key)!r} beside index: an index has the sizes; leave out one of both"
            return
        for one, other in (("samples", "size"), ("size", "samples")):
            if getattr(self, one) is not None and getattr(self, other) is None:
                yield f"{other} is missing beside {one}"


@dataclass(frozen=True, kw_only=True)
class Train(Checked):
    """``[train]``: the steps of training, and their compute time."""

    batch: int | None = value_of(Count(below=_BATCH_BELOW))
    """Samples per rank and step."""
    epochs: int | None = value_of(Count(below=_BATCH_BELOW))
    """Reads of each sample."""
    seed: int = value_of(Count(least=0), 0)
    """Seed of the order."""
    drop_last: bool = value_of(Flag(), False)
    """Whether a short last batch is left out."""
    steps_per_epoch: int | None = value_of(Count())
    """Given if it does not follow from samples, batch and ranks."""
    compute_rate: float | None = value_of(Rate())
    """Rate of a rank's computation, bytes of original samples per second."""
    compute_step: float | None = value_of(Time())
    """Compute time of a rank's step in seconds, instead of ``compute_rate``."""
    preprocess_rate: float | None = value_of(Rate())
    """Rate at which one thread decodes and transforms, bytes of original samples per second."""
    barrier: bool = value_of(Flag(), True)
    """Whether ranks wait for each other after each step."""

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if self.compute_rate is not None and self.compute_step is not None:
            yield "compute_step beside compute_rate: both say how long a step computes; leave out one of both"


@dataclass(frozen=True, kw_only=True)
class Staging(Checked):
    """``[cluster.staging]``: tier 0, where batches are assembled."""

    capacity: int | None = value_of(Size(whole=True), required=True)
    """Bytes per rank."""
    threads: int = value_of(Count(below=2**16), 1)
    """Threads that fetch and preprocess."""
    write: tuple[tuple[int, float], ...] | None = value_of(Curve())
    """Bytes per second into it, all threads together, against threads; None: no limit."""


@dataclass(frozen=True, kw_only=True)
class Tier(Checked):
    """``[[cluster.tiers]]``: a cache of a rank; the fastest first."""

    name: str = value_of(Text(), "", required=True)
    """``ram``, ``disk``; each once."""
    capacity: int | None = value_of(Size(whole=True), required=True)
    """Bytes per rank."""
    threads: int = value_of(Count(below=2**16), 1)
    """Threads that prefetch into it."""
    read: tuple[tuple[int, float], ...] | None = value_of(Curve())
    """Random reads, bytes per second of all threads together, against threads."""
    write: tuple[tuple[int, float], ...] | None = value_of(Curve())
    """Writes into it, likewise; None: no limit."""


@dataclass(frozen=True, kw_only=True)
class Network(Checked):
    """``[cluster.network]``: one direction of a rank's link to the others."""

    rate: float | None = value_of(Rate())
    """Bytes per second."""
    latency: float = value_of(Time(), 0.0)
    """Seconds of a request."""


@dataclass(frozen=True, kw_only=True)
class Origin(Checked):
    """``[cluster.origin]``: the bucket or file system with the whole data set."""

    read: tuple[tuple[int, float], ...] | None = value_of(Curve("readers"))
    """Random reads, bytes per second of all readers together, against reading ranks."""
    link: float | None = value_of(Rate())
    """A rank's link to it, bytes per second; None: no limit."""
    latency: float | None = value_of(Time())
    """Seconds from a request to its first byte; of a whole download where windows are simulated without ``read``."""
    requests: int | None = value_of(Count())
    """Accepted requests per second of all ranks together; None: no limit. Not used for bucket windows."""
    list_time: float = value_of(Time(), 0.0)
    """Seconds of the listing that precedes a window's downloads."""
    readers: str = value_of(Choice(("all", "active", "demand", "queue")), "all")
    """Sharing of the origin: among all ranks, or among those that read in the step before (active), in fixed equal
    shares; or by requests, in turns of 64 KiB (demand) or, up to 1 MiB of each, one after the other (queue)."""


@dataclass(frozen=True, kw_only=True)
class Cluster(Checked):
    """``[cluster]``: the hardware."""

    ranks: int | None = value_of(Count(below=_RANKS_BELOW))
    """Training processes."""
    ranks_per_machine: int = value_of(Count(below=_RANKS_BELOW), 1)
    """Ranks per node; the last node may have fewer."""
    profile: str | None = value_of(Text())
    """Path of a machine profile, from the job file's folder; it provides missing values of this table."""
    staging: Staging | None = value_of(Table(Staging))
    """Tier 0."""
    tiers: tuple[Tier, ...] = value_of(Tables(Tier), ())
    """The fastest first; none: nothing is cached."""
    network: Network = section(Network)
    """Links between ranks."""
    origin: Origin = section(Origin)
    """The place of the data."""

    @property
    def machines(self) -> int | None:
        """Number of nodes for ``ranks``."""
        return None if self.ranks is None else -(-self.ranks // self.ranks_per_machine)

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if "tiers" not in wrong:
            seen: set[str] = set()
            for at, tier in enumerate(self.tiers):
                if tier.name in seen:
                    yield f'tiers[{at}].name = "{tier.name}"; each name once'
                seen.add(tier.name)


@dataclass(frozen=True, kw_only=True)
class Window(Checked):
    """``[cache.window]``: prefetching from a bucket, in samples of one rank."""

    capacity: int | None = value_of(Count())
    """Capacity of the cache in samples; None: all."""
    fetch: int | None = value_of(Count())
    """Samples per prefetch request."""
    threshold: int | None = value_of(Count(least=0))
    """Remaining samples in the queue that trigger the next request."""
    parallel: int = value_of(Count(below=2**16), 16)
    """Concurrent downloads of a prefetch request."""
    miss_time: float | None = value_of(Time())
    """Seconds to download a missing sample alone; None: from the origin's latency and rate."""
    download_time: float | None = value_of(Time())
    """Seconds of each of the ``parallel`` downloads of a request; likewise."""
    hit_time: float = value_of(Time(), 0.0)
    """Seconds to load a cached sample."""
    strict: bool = value_of(Flag(), False)
    """Whether a request is sent only below the threshold, not at it."""

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if self.strict and self.threshold == 0:
            yield "threshold = 0 with strict: a queue is never below it; 1 or more expected"
        if self.threshold is not None and self.fetch is None and "fetch" not in wrong:
            yield "fetch is missing beside threshold"


@dataclass(frozen=True, kw_only=True)
class Cache(Checked):
    """``[cache]``: the loading policy."""

    policies: tuple[str, ...] | None = value_of(Choices(POLICIES))
    """Policies to compare."""
    write_cost: str = value_of(Choice(("preprocess", "write", "none")), "preprocess")
    """Cost of writing a sample to a tier, without the fetch: preprocessing or the tier's write rate if
    that takes longer, the write rate only, nothing.
    """
    window: Window = section(Window)
    """Window for loading from a bucket."""


@dataclass(frozen=True, kw_only=True)
class Gradients(Checked):
    """``[gradients]``: gradient traffic."""

    model: str | None = value_of(Text())
    """Path of a model trace, from the job file's folder."""
    policies: tuple[str, ...] | None = value_of(Choices(GRADIENT_POLICIES))
    """Policies to compare."""
    servers: int = value_of(Count(least=0, below=_RANKS_BELOW), 0)
    """Number of dedicated servers."""
    efficiency: float | None = value_of(Number(above=True, most=1.0))
    """Share of a link that remains after framing."""


@dataclass(frozen=True, kw_only=True)
class Run(Checked):
    """``[run]``: how the job is started."""

    command: tuple[str, ...] | None = value_of(Texts())
    """Program and arguments."""
    folder: str | None = value_of(Text())
    """The run folder, from the job file's folder."""
    cores: int | None = value_of(Count(below=2**20))
    """Processor cores of the job."""
    gpus: int | None = value_of(Count(least=0, below=2**20))
    """GPUs of the job."""
    start: float = value_of(Time(), 0.0)
    """Earliest start in seconds."""


@dataclass(frozen=True, kw_only=True)
class Stagger(Checked):
    """``[stagger]``: together with jobs that read the same data. Values given here override the catalog's."""

    model: str | None = value_of(Text())
    """The model's name in the catalog; by default the file's name without its suffix."""
    loader: str = value_of(Text(), "default")
    """The loader's settings, as in the catalog."""
    wait: float | None = value_of(Time())
    """Seconds of waiting for data per step, alone, with an empty cache."""
    wait_cached: float | None = value_of(Time())
    """The same with a full cache."""
    wait_conc: float | None = value_of(Time())
    """The same with an empty cache, next to the other job, which also reads uncached data."""


@dataclass(frozen=True, kw_only=True)
class Cost(Checked):
    """``[cost]``: names in the price book, and periods."""

    provider: str | None = value_of(Text())
    """``gcp``, ``aws``, ``azure``, or one of the user's book."""
    region: str | None = value_of(Text())
    """Region in the price book."""
    vm: str | None = value_of(Text())
    """The machine type of each node."""
    gpu: str | None = value_of(Text())
    """A GPU that is charged separately."""
    gpus_per_machine: int = value_of(Count(least=0, below=2**10), 0)
    """Their number."""
    disk: str | None = value_of(Text())
    """The disk of each node."""
    bucket: str | None = value_of(Text())
    """The storage class of the bucket."""
    egress: str | None = value_of(Text())
    """The tariff of bytes that leave the bucket; None: they stay in the region, for free."""
    machines: int | None = value_of(Count(below=_RANKS_BELOW))
    """Given if it is not ranks / ranks_per_machine."""
    root_disk: int = value_of(Size(whole=True, zero=True), 0)
    """Bytes of each node's disk without the data."""
    page: int = value_of(Count(), 1000)
    """Names per answer of a listing."""
    compute_time: float | None = value_of(Time())
    """Compute time of the whole run in seconds; None: from ``[train]``."""
    wait_time: Mapping[str, float] | None = value_of(ByWord(Time(), POLICIES))
    """Seconds of the whole run spent waiting for data, by policy; the key ``""`` is one time for all."""
    period: str = value_of(Choice(("run", "month")), "run")
    """Period for which storage is charged: the run, or a month."""
    cache_in: str = value_of(Choice(("disk", "ram")), "disk")
    """The place of cached samples; memory is part of the price of the machine."""


@dataclass(frozen=True)
class _GivenKind(Kind):
    """Values that a job was completed from; they are not read from its file."""

    expected: str = "a Given expected"

    def read(self, value: object) -> Given:
        """Return the value unchanged."""
        if not isinstance(value, Given):
            raise Refused
        return value


@dataclass(frozen=True, kw_only=True)
class Job(Checked):
    """The job of a planning command.

    >>> job = Job(train=Train(batch=32, epochs=90), cluster=Cluster(ranks=4))
    >>> job.need("train.batch", "cluster.ranks")
    (32, 4)
    """

    version: int = value_of(Count(below=_VERSION + 1), _VERSION)
    """Version of the format."""
    data: Data = section(Data)
    """The data set."""
    train: Train = section(Train)
    """The steps of training."""
    cluster: Cluster = section(Cluster)
    """The hardware."""
    cache: Cache = section(Cache)
    """The loading policy."""
    gradients: Gradients = section(Gradients)
    """The gradients that cross the network."""
    run: Run = section(Run)
    """The command of the job."""
    stagger: Stagger = section(Stagger)
    """Values for staggering."""
    cost: Cost = section(Cost)
    """Prices."""
    file: str | None = value_of(Text(), key=False)
    """The path of the file, for messages; it is not a key."""
    given: Given | None = field(
        default=None,
        repr=False,
        compare=False,
        metadata={"kind": _GivenKind(), "required": False, "key": False},
    )
    """Values that ``cluster`` was completed from, for a job with other values; None: it was not read. Code that
    replaces ``cluster`` sets it to None.
    """

    def need(self, *keys: str) -> tuple[Any, ...]:
        """Return required values by key, such as ``"train.batch"``.

        Raises:
            ConfigError: values are missing; the message lists all of them, with their allowed values.
        """
        values: list[Any] = []
        faults: list[str] = []
        for key in keys:
            value: Any = self
            within: Checked = self
            for part in key.split("."):
                within, value = value, getattr(value, part, None)
            values.append(value)
            if value is None:
                faults.append(
                    f"{self._where}{key} is missing; {expected(type(within), key.rpartition('.')[2])}"
                )
        if faults:
            raise ConfigError(faults)
        return tuple(values)

    @property
    def _where(self) -> str:
        return f"{self.file}: " if self.file else ""

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if not wrong & {"data", "cluster"}:
            samples, ranks = self.data.samples, self.cluster.ranks
            if samples is not None and ranks is not None and ranks > samples:
                yield f"cluster.ranks = {ranks}; at most one rank per sample expected, and data.samples = {samples}"
