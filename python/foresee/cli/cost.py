# SPDX-License-Identifier: Apache-2.0
"""``foresee cost``: the cost of a job from disks and from a bucket, by policy, and the break-even points."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from foresee.cli import _bucket, _bucket_runs
from foresee.cli._commands import add_compat
from foresee.errors import ConfigError, NotMeasured

if TYPE_CHECKING:
    from foresee._schema.compat import Compat
    from foresee.jobspec import Job
    from foresee.planning import cost, prices

HELP = "compare the cost of a job on disks and on a bucket, with break-even points"
EPILOG = (
    "Exit code 1: no policy stays within --budget. Reads and waiting times are those of `foresee simulate --order "
    "distributed` if the job has the keys for it; [cost] wait_time has precedence."
)

Tariff: TypeAlias = tuple[tuple[float, float], ...]
#: Columns of the bill.
_AMOUNTS = ("storage", "machines", "requests", "egress", "total")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("job", metavar="job.toml", help="a job file")
    parser.add_argument("--prices", metavar="FILE", help="a price book that overrides the shipped one")
    add_compat(parser, "equations to the letter, a month of storage, every rank prefetching all samples")
    parser.add_argument("--budget", type=float, metavar="X", help="exit 1 if no policy costs at most X")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee import jobspec
    from foresee.planning import prices

    if options.budget is not None and not options.budget >= 0:
        raise ConfigError(f"--budget {options.budget}: 0 or more expected")
    job = jobspec.read(options.job)
    facts = _facts(job, prices.load(options.prices), options.compat)
    for warning in facts["warnings"]:
        print(f"foresee: {warning}", file=sys.stderr)
    print(json.dumps(facts) if options.json else _report(facts))
    totals = [row["total"] for row in facts["policies"] if "total" in row]
    return 1 if options.budget is not None and min(totals) > options.budget else 0


@dataclass(frozen=True)
class _Pricing:
    """The prices of a job."""

    job: Job
    rates: cost.Rates
    tariff: Tariff
    """Of egress; empty: no bytes leave the region."""
    compat: Compat

    def bill(self, usage: _bucket.PolicyUsage, work: cost.Workload) -> cost.Bill:
        """Return the bill of a policy.

        Raises:
            NotMeasured: the job does not name its disk.
        """
        from foresee.planning import cost

        costs, counts = self.job.cost, usage.counts
        period: Any = None if self.compat == "paper" else costs.period
        if self.rates.disk is None and _bucket.uses_disk(self.job, usage.policy):
            raise NotMeasured(
                f"what the disk of {usage.policy} costs", "write [cost] disk, a name of the price book"
            )
        if usage.policy == "disk":
            return cost.disk(work, self.rates, period=period, compat=self.compat)
        return cost.bucket(
            work,
            self.rates,
            cached=counts.cached,
            fetch=counts.fetch,
            lists=counts.lists,
            gets=counts.gets,
            read_bytes=None if counts.read_share is None else counts.read_share * work.data_bytes,
            cache_in="ram" if costs.cache_in == "ram" else "disk",
            egress=self.tariff,
            period=period,
            compat=self.compat,
        )


def _facts(job: Job, book: prices.PriceBook, compat: Compat) -> dict[str, Any]:
    from foresee.planning import prices

    _check_complete(job)
    work = _workload(job)
    prices_by_kind = _find_prices(job, book)
    pricing = _pricing(job, prices_by_kind, compat)
    rows: list[dict[str, Any]] = []
    usages: dict[str, tuple[_bucket.PolicyUsage, cost.Workload]] = {}
    for policy in _bucket.policies(job):
        try:
            usage = _bucket.count_usage(policy, job, work, compat)
            waiting = replace(work, wait_time=usage.wait)
            bill = pricing.bill(usage, waiting)
        except NotMeasured as missing:
            rows.append({"policy": policy, "missing": str(missing)})
            continue
        usages[policy] = usage, waiting
        rows.append(
            {
                "policy": policy,
                "wait_seconds": usage.wait,
                "wait_from": usage.wait_from,
                "lists": bill.lists,
                "gets": bill.gets,
                "counted": usage.counts.counted,
                "estimated": usage.counts.note is not None,
                "note": usage.counts.note,
                **{amount: getattr(bill, amount) for amount in _AMOUNTS},
            }
        )
    if not usages:
        reasons = "; ".join(f"{row['policy']}: {row['missing']}" for row in rows)
        raise NotMeasured(f"the cost of any policy of {job.file}", reasons)
    used = list(prices_by_kind.values())
    return {
        "job": job.file,
        "compat": compat,
        "period": "month" if compat == "paper" else job.cost.period,
        "currency": used[0].currency,
        "machines": work.machines,
        "samples": work.samples,
        "bytes": work.data_bytes,
        "epochs": work.epochs,
        "compute_seconds": work.compute_time,
        "policies": rows,
        "left_out": _bucket.unpriced_policies(job),
        "break_even": [
            _break_even(policy, usages, pricing) for policy in usages if policy != "disk" and "disk" in usages
        ],
        "prices": [
            {
                "kind": price.kind,
                "name": price.name,
                "price": [list(tier) for tier in price.tariff] if price.tiers else price.base,
                "date": price.date.isoformat(),
                "source": price.source,
            }
            for price in used
        ],
        "warnings": prices.stale(used, dt.datetime.now(tz=dt.timezone.utc).date()),
    }


def _check_complete(job: Job) -> None:
    """Refuse a job that lacks values without a default.

    Raises:
        ConfigError: all missing keys.
    """
    costs, train = job.cost, job.train
    keys = [] if job.data.index is not None else ["data.samples"]
    keys += ["train.epochs", *([] if costs.machines else ["cluster.ranks"])]
    keys += ["cost.provider", "cost.region", "cost.vm", *(["cost.gpu"] if costs.gpus_per_machine else [])]
    if _needs_disk(job):
        keys.append("cost.disk")
    if any(policy != "disk" for policy in _bucket.policies(job)):
        keys.append("cost.bucket")
    faults: list[str] = []
    try:
        job.need(*keys)
    except ConfigError as error:
        faults += error.faults
    if costs.compute_time is None and train.compute_rate is None and train.compute_step is None:
        where = f"{job.file}: " if job.file else ""
        faults.append(
            f"{where}train.compute_rate, train.compute_step and cost.compute_time are missing; one of them expected"
        )
    if faults:
        raise ConfigError(faults)


def _needs_disk(job: Job) -> bool:
    """Return whether the job has to name its disk; without one, policies that were not chosen have no bill."""
    on_disk = any(_bucket.uses_disk(job, policy) for policy in _bucket.policies(job))
    costs = job.cost
    return on_disk and (costs.disk is not None or costs.root_disk > 0 or job.cache.policies is not None)


def _workload(job: Job) -> cost.Workload:
    from foresee import _native
    from foresee.planning import cost

    if job.data.index is not None:
        index = _native.Index.open(job.data.index)
        samples, data_bytes = len(index), float(index.total_bytes)
    else:
        samples, data_bytes = job.need("data.samples")[0], _bucket_runs.drawn_bytes(job.data)
    machines = job.cost.machines or job.cluster.machines
    assert machines is not None, "checked before"
    return cost.Workload(
        machines=machines,
        ranks=job.cluster.ranks,
        samples=samples,
        epochs=job.need("train.epochs")[0],
        data_bytes=data_bytes,
        root_bytes=job.cost.root_disk,
        compute_time=_compute_seconds(job, samples, data_bytes / samples, machines),
        wait_time=0.0,
        page=job.cost.page,
    )


def _compute_seconds(job: Job, samples: int, size: float, machines: int) -> float:
    """Return the seconds of the run that compute."""
    from foresee.jobspec import rank_share

    if job.cost.compute_time is not None:
        return job.cost.compute_time
    train = job.train
    batch, epochs = job.need("train.batch", "train.epochs")
    share = rank_share(job, samples, job.cluster.ranks or machines)
    steps = train.steps_per_epoch or share.steps
    assert steps is not None
    if train.compute_step is not None:
        return float(epochs * steps * train.compute_step)
    assert train.compute_rate is not None, "checked before"
    # A rate makes a short last batch faster.
    reads = share.reads if train.steps_per_epoch is None else batch * steps
    return float(epochs * reads * size / train.compute_rate)


def _find_prices(job: Job, book: prices.PriceBook) -> dict[str, prices.Price]:
    """Return the prices of the job by kind, the machine's first.

    Raises:
        ConfigError: prices in several currencies.
        NotMeasured: the book lacks a price.
    """
    costs = job.cost
    provider, region, vm = job.need("cost.provider", "cost.region", "cost.vm")
    names = {"vm": vm}
    if _needs_disk(job):
        names["disk"] = costs.disk
    if costs.gpus_per_machine:
        names["gpu"] = costs.gpu
    if any(policy != "disk" for policy in _bucket.policies(job)):
        names |= dict.fromkeys(("bucket", "list", "get"), costs.bucket)
    if costs.egress is not None:
        names["egress"] = costs.egress
    found = {kind: book.find(kind, provider, region, name) for kind, name in names.items()}
    currencies = sorted({price.currency for price in found.values()})
    if len(currencies) > 1:
        raise ConfigError(f"prices in {' and '.join(currencies)}: one currency expected; give rows of one")
    return found


def _pricing(job: Job, found: dict[str, prices.Price], compat: Compat) -> _Pricing:
    from foresee.planning import cost

    base = {kind: price.base for kind, price in found.items() if kind != "egress"}
    rates = cost.Rates(
        machine=base["vm"] + job.cost.gpus_per_machine * base.get("gpu", 0.0),
        disk=base.get("disk"),
        bucket=base.get("bucket"),
        lists=base.get("list"),
        gets=base.get("get"),
    )
    return _Pricing(job, rates, found["egress"].tariff if "egress" in found else (), compat)


def _break_even(
    policy: str, usages: dict[str, tuple[_bucket.PolicyUsage, cost.Workload]], pricing: _Pricing
) -> dict[str, Any]:
    """Return the points at which a policy costs as much as disks, all else being equal."""
    from foresee.planning import cost

    (usage, work), (disk, disk_work) = usages[policy], usages["disk"]
    # The egress of a month's runs goes through the tariff together, so the bill of one run leaves it out.
    by_month = replace(pricing.job, cost=replace(pricing.job.cost, period="month"))
    monthly = replace(pricing, job=by_month, tariff=())
    in_bucket, on_disk = monthly.bill(usage, work), monthly.bill(disk, disk_work)
    disk_total = pricing.bill(disk, disk_work).total

    def total_at(size: float, usage: _bucket.PolicyUsage, work: cost.Workload) -> float:
        return pricing.bill(usage, replace(work, data_bytes=max(size, 1e-9))).total

    sizes = _tier_ends(pricing.tariff, in_bucket.read_bytes / work.data_bytes)
    runs = _tier_ends(pricing.tariff, in_bucket.read_bytes)
    return {
        "policy": policy,
        "wait_seconds": cost.break_even(
            lambda seconds: pricing.bill(usage, replace(work, wait_time=seconds)).total,
            lambda _: disk_total,
            scale=3600.0,
        ),
        "bytes": cost.break_even(
            lambda size: total_at(size, usage, work),
            lambda size: total_at(size, disk, disk_work),
            scale=work.data_bytes,
            bends=sizes,
            end=max(sizes, default=math.inf),
        ),
        "bytes_known_to": _last_finite(sizes),
        "runs_per_month": cost.break_even(
            lambda count: cost.runs_cost(in_bucket, count, pricing.tariff),
            lambda count: cost.runs_cost(on_disk, count),
            bends=runs,
            end=max(runs, default=math.inf),
        ),
        "runs_known_to": _last_finite(runs),
    }


def _tier_ends(tariff: Tariff, unit_bytes: float) -> list[float]:
    """Return the ends of a tariff's tiers in units of ``unit_bytes``; none if no bytes leave."""
    # Slightly before the end, so that rounding does not exceed the last tier.
    return [up_to / unit_bytes * (1 - 1e-12) for up_to, _ in tariff] if unit_bytes else []


def _last_finite(ends: list[float]) -> float | None:
    """Return the end of a tariff, None if it has none."""
    end = max(ends, default=math.inf)
    return None if math.isinf(end) else end


def _report(facts: dict[str, Any]) -> str:
    unit = facts["currency"]
    size = f"{facts['samples']:,} samples of {facts['bytes'] / 1e9:,.3f} GB, {facts['epochs']:,} epochs"
    period = "a month" if facts["period"] == "month" else "the run"
    lines = [
        f"{facts['job']}: {size}, {facts['machines']:,} machines, computing {_time(facts['compute_seconds'])}",
        f"{unit}; storage is paid for {period}; compat {facts['compat']}",
        "",
        f"{'policy':<13}{'waiting':>11}{'listings':>13}{'reads':>15}"
        + "".join(f"{key:>12}" for key in _AMOUNTS),
    ]
    for row in facts["policies"]:
        if "missing" in row:
            lines.append(f"{row['policy']:<13}{row['missing']}")
            continue
        reads = f"{'~' if row['estimated'] else ''}{row['gets']:,}"
        lines.append(
            f"{row['policy']:<13}{_time(row['wait_seconds']):>11}{row['lists']:>13,}{reads:>15}"
            + "".join(f"{row[key]:>12,.4f}" for key in _AMOUNTS)
        )
    lines += _notes(facts["policies"])
    if facts["left_out"]:
        priced = ", ".join(_bucket.PRICED)
        lines.append(f"left out: {', '.join(facts['left_out'])}; priced policies are {priced}")
    if facts["break_even"]:
        lines += ["", "as much as disk, all else being equal, at"]
        lines += [f"{point['policy']:<13}{_point(point)}" for point in facts["break_even"]]
    dates = sorted({row["date"] for row in facts["prices"]})
    span = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return "\n".join([*lines, "", f"prices of {span}; --json has their sources"])


def _notes(rows: list[dict[str, Any]]) -> list[str]:
    """Return the footnotes of the table."""
    lines = [f"~ {row['policy']}: {row['note']}" for row in rows if row.get("note") is not None]
    simulated = [row["policy"] for row in rows if row.get("wait_from") == "simulated"]
    if simulated:
        lines.append(f"waiting of {', '.join(simulated)} is simulated")
    return ["", *lines] if lines else []


def _point(point: dict[str, Any]) -> str:
    """Describe the points at which a policy costs as much as disks."""
    parts = []
    if point["wait_seconds"] is not None:
        parts.append(f"{_time(point['wait_seconds'])} of waiting")
    if point["bytes"] is not None:
        parts.append(f"{point['bytes'] / 1e9:,.4g} GB of data")
    elif point["bytes_known_to"] is not None:
        parts.append(
            f"no size below {point['bytes_known_to'] / 1e9:,.4g} GB, where the tariff of egress ends"
        )
    if point["runs_per_month"] is not None:
        parts.append(f"{point['runs_per_month']:,.4g} runs a month on the same storage")
    elif point["runs_known_to"] is not None:
        parts.append(f"no number of runs a month below {point['runs_known_to']:,.4g}, where it ends")
    return "; ".join(parts) or "no point"


def _time(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:,.2f} h"
    return f"{seconds:,.1f} s"
