# SPDX-License-Identifier: Apache-2.0
"""The tables of a job file, as frozen dataclasses in base units: bytes, seconds, bytes per second.

One schema for every command that plans; each reads what it needs and asks for it with :meth:`Job.need`. None stands
for a value that was not given, never 0. Values may be given in code as in the file, ``Tier(capacity="120 GB")``.
``docs/formats/job.md`` is the same as a table.
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
    "nopfs",
    "foresee",
)
"""Policies of loading from a file system, with tiers."""
WINDOW_POLICIES = ("direct", "disk", "cache", "full_fetch", "fifty_fifty")
"""Policies of loading from a bucket, with a window of prefetching."""
POLICIES = (*CACHE_POLICIES, *WINDOW_POLICIES)
GRADIENT_POLICIES = ("oracle", "mercury", "barrier", "fifo_packet", "fifo_tensor")
"""As ``foresee.network.model`` has them."""

_VERSION = 1
_RANKS_BELOW = 2**20
_BATCH_BELOW = 2**32


@dataclass(frozen=True, kw_only=True)
class Data(Checked):
    """``[data]``: what is read. An index, or a number of samples and the distribution of their sizes."""

    index: str | None = value_of(Text())
    """Path of an index, from the job file's folder."""
    samples: int | None = value_of(Count())
    """How many there are."""
    size: float | None = value_of(Size())
    """Mean size of a sample, bytes."""
    size_sigma: float = value_of(Size(zero=True), 0.0)
    """Standard deviation of a normal distribution of sizes, bytes; a size below 0 is drawn again. 0: all have
    ``size``.
    """
    seed: int = value_of(Count(least=0), 0)
    """Of the draw of sizes."""
    name: str | None = value_of(Text())
    """For the reader. Jobs with equal names, or equal indexes, share their data."""

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
    """``[train]``: in which steps it is read, and what a step computes."""

    batch: int | None = value_of(Count(below=_BATCH_BELOW))
    """Samples per rank and step."""
    epochs: int | None = value_of(Count(below=_BATCH_BELOW))
    """Reads of each sample."""
    seed: int = value_of(Count(least=0), 0)
    """Of the order."""
    drop_last: bool = value_of(Flag(), False)
    """Whether a last batch that is short is left out."""
    steps_per_epoch: int | None = value_of(Count())
    """Given if it does not follow from samples, batch and ranks."""
    compute_rate: float | None = value_of(Rate())
    """Rate of a rank's computation, bytes of original samples per second."""
    compute_step: float | None = value_of(Time())
    """Or what a step of a rank computes, seconds."""
    preprocess_rate: float | None = value_of(Rate())
    """Rate at which one thread decodes and transforms, bytes of original samples per second."""
    barrier: bool = value_of(Flag(), True)
    """Whether ranks wait for each other after each step."""

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if self.compute_rate is not None and self.compute_step is not None:
            yield "compute_step beside compute_rate: both say how long a step computes; leave out one of both"


@dataclass(frozen=True, kw_only=True)
class Staging(Checked):
    """``[cluster.staging]``: tier 0, where batches come together."""

    capacity: int | None = value_of(Size(whole=True), required=True)
    """Bytes per rank."""
    threads: int = value_of(Count(below=2**16), 1)
    """That fetch and preprocess."""
    write: tuple[tuple[int, float], ...] | None = value_of(Curve())
    """Bytes per second into it, all threads together, against threads; not given: without limit."""


@dataclass(frozen=True, kw_only=True)
class Tier(Checked):
    """``[[cluster.tiers]]``: a place that keeps samples near a rank; the fastest first."""

    name: str = value_of(Text(), "", required=True)
    """``ram``, ``disk``; each once."""
    capacity: int | None = value_of(Size(whole=True), required=True)
    """Bytes per rank."""
    threads: int = value_of(Count(below=2**16), 1)
    """That fetch into it ahead of time."""
    read: tuple[tuple[int, float], ...] | None = value_of(Curve())
    """Random reads, bytes per second of all threads together, against threads."""
    write: tuple[tuple[int, float], ...] | None = value_of(Curve())
    """Likewise into it; not given: without limit."""


@dataclass(frozen=True, kw_only=True)
class Network(Checked):
    """``[cluster.network]``: one direction of a rank's link to the others."""

    rate: float | None = value_of(Rate())
    """Bytes per second."""
    latency: float = value_of(Time(), 0.0)
    """Seconds of a request."""


@dataclass(frozen=True, kw_only=True)
class Origin(Checked):
    """``[cluster.origin]``: bucket or file system that has everything."""

    read: tuple[tuple[int, float], ...] | None = value_of(Curve("readers"))
    """Random reads, bytes per second of all readers together, against reading ranks."""
    link: float | None = value_of(Rate())
    """A rank's link to it, bytes per second; not given: without limit."""
    latency: float | None = value_of(Time())
    """Seconds from a request to its first byte; of a whole download where windows are simulated without ``read``."""
    requests: int | None = value_of(Count())
    """Requests per second that it takes of all ranks together; not given: without limit. Not of windows of a bucket."""
    list_time: float = value_of(Time(), 0.0)
    """Seconds of the listing that precedes a window's downloads."""
    readers: str = value_of(Choice(("all", "active", "demand", "queue")), "all")
    """Sharing of the origin: among all ranks, or among those that read in the step before (active), in fixed equal
    shares; or by requests, in turns of 64 KiB (demand) or, up to 1 MiB of each, one after the other (queue)."""


@dataclass(frozen=True, kw_only=True)
class Cluster(Checked):
    """``[cluster]``: on what."""

    ranks: int | None = value_of(Count(below=_RANKS_BELOW))
    """Training processes."""
    ranks_per_machine: int = value_of(Count(below=_RANKS_BELOW), 1)
    """The last machine may have fewer."""
    profile: str | None = value_of(Text())
    """Path of a machine profile, from the job file's folder; it gives what this table leaves out."""
    staging: Staging | None = value_of(Table(Staging))
    """Tier 0."""
    tiers: tuple[Tier, ...] = value_of(Tables(Tier), ())
    """The fastest first; none: nothing is kept."""
    network: Network = section(Network)
    """Between ranks."""
    origin: Origin = section(Origin)
    """The place of the data."""

    @property
    def machines(self) -> int | None:
        """Number of machines that ``ranks`` fill."""
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
    """Samples that the cache holds; not given: all."""
    fetch: int | None = value_of(Count())
    """Samples of one request for prefetching."""
    threshold: int | None = value_of(Count(least=0))
    """Samples left in the queue at which the next request goes out."""
    parallel: int = value_of(Count(below=2**16), 16)
    """Downloads of a request for prefetching at a time."""
    miss_time: float | None = value_of(Time())
    """Seconds to download a sample that is not there, alone; not given: by the origin's latency and rate."""
    download_time: float | None = value_of(Time())
    """Seconds of each of the ``parallel`` downloads of a request; likewise."""
    hit_time: float = value_of(Time(), 0.0)
    """Seconds to load a sample that is there."""
    strict: bool = value_of(Flag(), False)
    """Whether a request goes out below the threshold only, not at it."""

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if self.strict and self.threshold == 0:
            yield "threshold = 0 with strict: a queue is never below it; 1 or more expected"
        if self.threshold is not None and self.fetch is None and "fetch" not in wrong:
            yield "fetch is missing beside threshold"


@dataclass(frozen=True, kw_only=True)
class Cache(Checked):
    """``[cache]``: which rule of loading."""

    policies: tuple[str, ...] | None = value_of(Choices(POLICIES))
    """Which are compared."""
    write_cost: str = value_of(Choice(("preprocess", "write", "none")), "preprocess")
    """Cost of a sample on its way into a tier, without the fetch: preprocessing or the tier's write rate if
    that takes longer, the write rate only, nothing.
    """
    window: Window = section(Window)
    """For loading from a bucket."""


@dataclass(frozen=True, kw_only=True)
class Gradients(Checked):
    """``[gradients]``: what crosses the network besides."""

    model: str | None = value_of(Text())
    """Path of a model trace, from the job file's folder."""
    policies: tuple[str, ...] | None = value_of(Choices(GRADIENT_POLICIES))
    """Which are compared."""
    servers: int = value_of(Count(least=0, below=_RANKS_BELOW), 0)
    """Machines with a server only."""
    efficiency: float | None = value_of(Number(above=True, most=1.0))
    """Share of a link that framing leaves."""


@dataclass(frozen=True, kw_only=True)
class Run(Checked):
    """``[run]``: how it is started."""

    command: tuple[str, ...] | None = value_of(Texts())
    """Program and arguments."""
    folder: str | None = value_of(Text())
    """The run folder, from the job file's folder."""
    cores: int | None = value_of(Count(below=2**20))
    """Processor cores of the job."""
    gpus: int | None = value_of(Count(least=0, below=2**20))
    """Its GPUs."""
    start: float = value_of(Time(), 0.0)
    """Seconds after which it may begin at the earliest."""


@dataclass(frozen=True, kw_only=True)
class Stagger(Checked):
    """``[stagger]``: beside other jobs that read the same data. Figures given here go before the catalog's."""

    model: str | None = value_of(Text())
    """The model's name in the catalog; by default the file's name without its suffix."""
    loader: str = value_of(Text(), "default")
    """The loader's settings, as the catalog has them."""
    wait: float | None = value_of(Time())
    """Seconds per step that it waits for data, alone, with a cold cache."""
    wait_cached: float | None = value_of(Time())
    """The same with a warm cache."""
    wait_conc: float | None = value_of(Time())
    """The same with a cold cache beside the other job, which reads cold data too."""


@dataclass(frozen=True, kw_only=True)
class Cost(Checked):
    """``[cost]``: what is paid, by its names in the price book, and for how long."""

    provider: str | None = value_of(Text())
    """``gcp``, ``aws``, ``azure``, or one of the user's book."""
    region: str | None = value_of(Text())
    """As the book has it."""
    vm: str | None = value_of(Text())
    """The machine type of each machine."""
    gpu: str | None = value_of(Text())
    """A GPU that is paid separately from its machine."""
    gpus_per_machine: int = value_of(Count(least=0, below=2**10), 0)
    """Their number."""
    disk: str | None = value_of(Text())
    """The disk of each machine."""
    bucket: str | None = value_of(Text())
    """The storage class of the bucket."""
    egress: str | None = value_of(Text())
    """The tariff of bytes that leave the bucket; not given: they stay in the region, for free."""
    machines: int | None = value_of(Count(below=_RANKS_BELOW))
    """Given if it is not ranks / ranks_per_machine."""
    root_disk: int = value_of(Size(whole=True, zero=True), 0)
    """Bytes of each machine's disk beside the data."""
    page: int = value_of(Count(), 1000)
    """Names per answer of a listing."""
    compute_time: float | None = value_of(Time())
    """Seconds of the whole run that compute; not given: from ``[train]``."""
    wait_time: Mapping[str, float] | None = value_of(ByWord(Time(), POLICIES))
    """Seconds of the whole run that wait for data, by policy; one time for all stands under ``""``."""
    period: str = value_of(Choice(("run", "month")), "run")
    """For how long storage is paid: the run, or a month."""
    cache_in: str = value_of(Choice(("disk", "ram")), "disk")
    """The place of cached samples; memory is paid with the machine."""


@dataclass(frozen=True)
class _AsGiven(Kind):
    """Values that a job was completed from; they are not read from its file."""

    expected: str = "a Given expected"

    def read(self, value: object) -> Given:
        """The value itself."""
        if not isinstance(value, Given):
            raise Refused
        return value


@dataclass(frozen=True, kw_only=True)
class Job(Checked):
    """A job, as every planning command reads it.

    >>> job = Job(train=Train(batch=32, epochs=90), cluster=Cluster(ranks=4))
    >>> job.need("train.batch", "cluster.ranks")
    (32, 4)
    """

    version: int = value_of(Count(below=_VERSION + 1), _VERSION)
    """Of the format."""
    data: Data = section(Data)
    """The data set."""
    train: Train = section(Train)
    """In which steps."""
    cluster: Cluster = section(Cluster)
    """On what."""
    cache: Cache = section(Cache)
    """By which rule."""
    gradients: Gradients = section(Gradients)
    """The gradients that cross the network."""
    run: Run = section(Run)
    """Its command."""
    stagger: Stagger = section(Stagger)
    """Beside which others."""
    cost: Cost = section(Cost)
    """Prices."""
    file: str | None = value_of(Text(), key=False)
    """The path of the file, for messages; it is not a key."""
    given: Given | None = field(
        default=None,
        repr=False,
        compare=False,
        metadata={"kind": _AsGiven(), "required": False, "key": False},
    )
    """Values that ``cluster`` was completed from, for a job with other values; None: it was not read. Code that
    replaces ``cluster`` sets it to None.
    """

    def need(self, *keys: str) -> tuple[Any, ...]:
        """Values that a command cannot do without, by key: ``"train.batch"``.

        Raises:
            ConfigError: some were not given; the message has all of them, with what they may be.
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
