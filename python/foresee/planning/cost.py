# SPDX-License-Identifier: Apache-2.0
"""Cost of a training run that reads from disks, or from a bucket through a cache of each machine.

With :func:`disk`, every machine has the data set on its own disk (equations 1 and 2 of the paper). With :func:`bucket`,
each machine caches some samples, and lists and gets the others (equations 2 to 5).

``compat="physical"``, the default, is consistent: storage is paid for the duration of the run, a rank prefetches its
own samples only, and reads that the cache missed are paid. ``compat="paper"`` is the paper to the letter: a month of
storage, every rank prefetching all samples, misses for free.

Bytes and seconds; prices per hour, per GB and month (10**9 bytes, 730 hours), per 10,000 requests. Not included: the
initial copy to disks or the bucket, and memory, which is paid with its machine.

Source: Krichevsky et al., "Quantifying and Improving Performance of Distributed Deep Learning with Cloud Storage",
IC2E 2021, section III-C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from foresee._schema.checked import Checked, value_of
from foresee._schema.compat import Compat
from foresee._schema.values import Count, Number, Size, Time
from foresee.errors import ConfigError, NotMeasured

__all__ = [
    "HOURS_PER_MONTH",
    "Bill",
    "Compat",
    "Period",
    "Rates",
    "Workload",
    "break_even",
    "bucket",
    "disk",
    "egress_cost",
    "runs_cost",
]

Period = Literal["run", "month"]

HOURS_PER_MONTH = 730.0
"""The providers' month: 8,760 hours a year."""
_GB = 1e9
_HOUR = 3600.0
_REQUESTS = 1e4


@dataclass(frozen=True, kw_only=True)
class Workload(Checked):
    """The training run.

    Raises:
        ConfigError: a field outside its range; all faults at once.
    """

    machines: int = value_of(Count(), required=True)
    """n."""
    ranks: int | None = value_of(Count())
    """Processes that list and fetch; default: one per machine."""
    samples: int = value_of(Count(), required=True)
    """m."""
    epochs: int = value_of(Count(), required=True)
    """e."""
    data_bytes: float = value_of(Size(), required=True)
    """s_t."""
    root_bytes: float = value_of(Size(zero=True), 0.0)
    """s_r: on each machine's disk in addition to the data."""
    compute_time: float = value_of(Time(), required=True)
    """t_c: seconds of the run that compute."""
    wait_time: float = value_of(Time(), required=True)
    """t_d: seconds that wait for data; the two do not overlap."""
    page: int = value_of(Count(), 1000)
    """p: names per answer of a listing."""

    @property
    def hours(self) -> float:
        """Return the hours of the run."""
        return (self.compute_time + self.wait_time) / _HOUR

    @property
    def readers(self) -> int:
        """Return ``ranks``, or one per machine."""
        return self.machines if self.ranks is None else self.ranks


@dataclass(frozen=True, kw_only=True)
class Rates(Checked):
    """Prices in one currency. Missing prices are unknown, and an error names those that are needed."""

    machine: float | None = value_of(Number())
    """c_c: per machine and hour, GPUs included."""
    disk: float | None = value_of(Number())
    """c_d: per GB and month."""
    bucket: float | None = value_of(Number())
    """c_b: per GB and month."""
    lists: float | None = value_of(Number())
    """c_A: per 10,000 listings (class A)."""
    gets: float | None = value_of(Number())
    """c_B: per 10,000 reads (class B)."""


@dataclass(frozen=True)
class Bill:
    """The cost of a run."""

    storage: float
    """Disks and bucket."""
    machines: float
    """Machines, computing and waiting."""
    requests: float
    """Listings and reads."""
    egress: float
    """Bytes that left the bucket's region."""
    lists: int
    """Listings, counted in answers."""
    gets: int
    """Reads."""
    read_bytes: float
    """Bytes of those reads, whether or not they leave the region."""

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.storage + self.machines + self.requests + self.egress


def disk(work: Workload, rates: Rates, *, period: Period | None = None, compat: Compat = "physical") -> Bill:
    """Return the bill of a run with the data on disks: ``n (c_d (s_t + s_r) + c_c (t_c + t_d))``.

    Args:
        work: the run.
        rates: needs ``machine`` and ``disk``.
        period: paid duration of storage, a ``"run"`` or a ``"month"``; default the run, in the paper a month.
        compat: which reading.

    Raises:
        ConfigError: an argument outside its range.
        NotMeasured: a price is unknown.

    >>> work = Workload(machines=3, samples=42000, epochs=2, data_bytes=0.27e9, root_bytes=16e9,
    ...                 compute_time=0, wait_time=228.9)
    >>> bill = disk(work, Rates(machine=0.546, disk=0.04), compat="paper")
    >>> round(bill.storage, 4), round(bill.machines, 7), round(bill.total, 7)
    (1.9524, 0.1041495, 2.0565495)
    """
    monthly = work.machines * _price(rates.disk, "disk") * (work.data_bytes + work.root_bytes) / _GB
    storage = monthly * _months(work, period, compat)
    return Bill(storage, _machines(work, rates), 0.0, 0.0, 0, 0, 0.0)


def bucket(
    work: Workload,
    rates: Rates,
    *,
    cached: int = 0,
    fetch: int | None = None,
    misses: int = 0,
    lists: int | None = None,
    gets: int | None = None,
    read_bytes: float | None = None,
    cache_in: Literal["disk", "ram"] = "disk",
    egress: tuple[tuple[float, float], ...] = (),
    period: Period | None = None,
    compat: Compat = "physical",
) -> Bill:
    """Return the bill of a run that reads from a bucket (equation 3) through caches, with or without prefetching.

    Requests follow equation 4, or with ``fetch`` equation 5: listings have answers of ``page`` names, and each fetch
    lists the bucket anew. A rank makes ``ceil(ceil(m / n) / f)`` fetches; the paper has ``ceil(m / f)``. ``lists`` and
    ``gets`` replace these counts by better known ones.

    Args:
        work: the run.
        rates: needs ``machine``, ``bucket``, ``lists`` and ``gets``, and ``disk`` for a root or cache on disk.
        cached: m_c, cached samples of each machine; 0 to ``work.samples``.
        fetch: f, samples of one request for prefetching, 1 or more; None: no prefetching.
        misses: reads of the run that a prefetching cache missed, 0 or more; free in the paper.
        lists: answers of listings in the whole run, 0 or more.
        gets: reads in the whole run without ``misses``, 0 or more.
        read_bytes: bytes of all those reads, 0 or more; None: each has the mean size.
        cache_in: whether the cache is on the disk, or in memory, which is paid with the machine.
        egress: the tariff of bytes that leave the bucket's region, as in :func:`egress_cost`; empty: they stay.
        period: as in :func:`disk`.
        compat: which reading.

    Raises:
        ConfigError: an argument outside its range; all faults at once.
        NotMeasured: a price is unknown, or the tariff ends below the bytes that leave.

    >>> work = Workload(machines=3, samples=42000, epochs=2, data_bytes=0.27e9, root_bytes=16e9,
    ...                 compute_time=0, wait_time=350.2)
    >>> rates = Rates(machine=0.546, disk=0.04, bucket=0.02, lists=0.05, gets=0.004)
    >>> paper = bucket(work, rates, cached=1024, fetch=1024, compat="paper")
    >>> round(paper.requests, 5), round(paper.total, 8)
    (0.08652, 2.17205094)
    >>> round(bucket(work, rates, cached=1024, fetch=1024).requests, 5)  # fetches of its own samples only
    0.05124
    """
    faults = [
        f"{name} = {value}; a whole number of {least} or more expected"
        for name, value, least in (
            ("cached", cached, 0),
            ("fetch", fetch, 1),
            ("misses", misses, 0),
            ("lists", lists, 0),
            ("gets", gets, 0),
        )
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least)
    ]
    if read_bytes is not None and not 0 <= read_bytes < math.inf:
        faults.append(f"read_bytes = {read_bytes}; a finite number expected, 0 or more")
    if not faults and cached > work.samples:
        faults.append(f"cached = {cached}; at most all {work.samples} samples expected")
    if cache_in not in {"disk", "ram"}:
        faults.append(f"cache_in = {cache_in!r}; disk or ram expected")
    if faults:
        raise ConfigError(faults)
    answers = -(-work.samples // work.page)
    fetches = 1
    if fetch is not None:
        share = work.samples if compat == "paper" else -(-work.samples // work.readers)
        fetches = -(-share // fetch)
    listed = work.epochs * work.readers * answers * fetches if lists is None else lists
    read = work.epochs * work.samples if gets is None else gets
    if compat != "paper":
        read += misses
    on_disk = work.root_bytes + (work.data_bytes * cached / work.samples if cache_in == "disk" else 0.0)
    monthly = _price(rates.bucket, "bucket") * work.data_bytes
    if on_disk:
        monthly += work.machines * _price(rates.disk, "disk") * on_disk
    requests = (listed * _price(rates.lists, "lists") + read * _price(rates.gets, "gets")) / _REQUESTS
    if read_bytes is None:
        read_bytes = read * work.data_bytes / work.samples
    egress_price = egress_cost(read_bytes, egress) if egress else 0.0
    storage = monthly / _GB * _months(work, period, compat)
    return Bill(storage, _machines(work, rates), requests, egress_price, listed, read, read_bytes)


def egress_cost(bytes_: float, tariff: tuple[tuple[float, float], ...]) -> float:
    """Return the cost of bytes that leave a region, each share at the price of its tier.

    Args:
        bytes_: 0 or more.
        tariff: upper end of each tier in bytes, ascending, and its price per GB; the last end may be infinite.

    Raises:
        NotMeasured: the last tier ends below ``bytes_``.

    >>> egress_cost(15e12, ((10e12, 0.09), (float("inf"), 0.085)))
    1325.0
    """
    cost = below = 0.0
    for up_to, price in tariff:
        cost += max(min(bytes_, up_to) - below, 0.0) / _GB * price
        below = up_to
    if bytes_ > below:
        raise NotMeasured(
            f"the price of egress beyond {below / _GB:,.0f} GB",
            "add the tier to the price book, or leave egress out",
        )
    return cost


def runs_cost(bill: Bill, runs: float, egress: tuple[tuple[float, float], ...] = ()) -> float:
    """Return the cost of several runs in a month on the same storage.

    Tiers of a tariff apply to a month, so the bytes of all runs pass through them together.

    Args:
        bill: of one run, its storage paid for the month.
        runs: 0 or more.
        egress: the tariff of the bill's reads; empty: they stay in the region.

    Raises:
        NotMeasured: the tariff ends below the bytes that leave.

    >>> one = Bill(storage=2.0, machines=1.0, requests=0.5, egress=900.0, lists=0, gets=1, read_bytes=10e12)
    >>> runs_cost(one, 2, ((10e12, 0.09), (float("inf"), 0.05)))
    1405.0
    """
    left = egress_cost(runs * bill.read_bytes, egress) if egress else 0.0
    return bill.storage + runs * (bill.machines + bill.requests) + left


def break_even(
    one: Callable[[float], float],
    other: Callable[[float], float],
    *,
    scale: float = 1.0,
    bends: Iterable[float] = (),
    end: float = math.inf,
) -> float | None:
    """Return the points at which two costs are equal that grow linearly, or linearly between bends.

    Args:
        one: the cost at x; continuous.
        other: likewise.
        scale: a typical x, > 0: the distance beyond the last bend for the slope.
        bends: x at which a slope changes, such as the tiers of a tariff.
        end: upper end of the known range, > 0.

    Returns:
        The least x, 0 to ``end``; None if there is none, or if both are equal on a whole segment.

    >>> break_even(lambda x: 3.0 + x, lambda x: 2 * x)
    3.0
    >>> break_even(lambda x: x + min(x, 10.0), lambda x: 16.0 + x / 2, bends=(10.0,))
    12.0
    """

    def gap(at: float) -> float:
        return other(at) - one(at)

    edges = [0.0, *sorted({at for at in bends if 0 < at < end}), end]
    for start, stop in pairwise(edges):
        ahead = gap(start)
        if not math.isinf(stop):
            # Comparing signs finds a point at a bend despite rounding.
            behind = gap(stop)
            if ahead != behind and min(ahead, behind) <= 0 <= max(ahead, behind):
                return start + ahead / (ahead - behind) * (stop - start)
            continue
        slope = (one(start + scale) - one(start)) - (other(start + scale) - other(start))
        if slope != 0 and ahead / slope >= 0:
            return start + ahead / slope * scale
    return None


def _months(work: Workload, period: Period | None, compat: Compat) -> float:
    """Return the paid months of storage."""
    if compat not in {"physical", "paper"}:
        raise ConfigError(f"compat = {compat!r}; physical or paper expected")
    if period not in {None, "run", "month"}:
        raise ConfigError(f"period = {period!r}; run or month expected")
    is_monthly = period == "month" or (period is None and compat == "paper")
    return 1.0 if is_monthly else work.hours / HOURS_PER_MONTH


def _machines(work: Workload, rates: Rates) -> float:
    return work.machines * _price(rates.machine, "machine") * work.hours


def _price(value: float | None, name: str) -> float:
    if value is None:
        raise NotMeasured(f"the price {name}", "give it, or a price book that has it")
    return value
