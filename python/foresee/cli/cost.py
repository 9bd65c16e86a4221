# SPDX-License-Identifier: Apache-2.0
"""``foresee cost``: what a job costs from disks and from a bucket, by policy, and where one overtakes the other."""

from __future__ import annotations

import datetime as dt
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from foresee.cli import _bucket
from foresee.errors import ConfigError, NotMeasured

if TYPE_CHECKING:
    import argparse

    from foresee.job import Job
    from foresee.models import cost, prices

_HELP = "what a job costs from disks and from a bucket, and where one overtakes the other"
_EPILOG = (
    "exit code 1: --budget was given, and no policy stays within it. Waiting times come from [cost] wait_time of the "
    "job; `foresee simulate` predicts them."
)

#: Columns of the bill.
_AMOUNTS = ("storage", "machines", "requests", "egress", "total")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("cost", help=_HELP, description=_HELP, epilog=_EPILOG)
    parser.add_argument("job", metavar="job.toml", help="a job file")
    parser.add_argument("--prices", metavar="FILE", help="a price book that goes before the shipped one")
    parser.add_argument(
        "--compat",
        choices=("physical", "paper"),
        default="physical",
        help="paper: equations to the letter, a month of storage, every rank prefetching all samples",
    )
    parser.add_argument("--budget", type=float, metavar="X", help="exit 1 if no policy costs at most X")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    from foresee import job
    from foresee.models import prices

    if options.budget is not None and not options.budget >= 0:
        raise ConfigError(f"--budget {options.budget}: 0 or more expected")
    asked = job.read(options.job)
    book = prices.load(options.prices)
    facts = _facts(asked, book, options)
    for warning in facts["warnings"]:
        print(f"foresee: {warning}", file=sys.stderr)
    print(json.dumps(facts) if options.json else _report(facts))
    totals = [arm["total"] for arm in facts["policies"] if "total" in arm]
    return 1 if options.budget is not None and min(totals) > options.budget else 0


def _facts(asked: Job, book: prices.PriceBook, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is printed, in plain values."""
    from foresee.models import prices

    work = _workload(asked)
    rows, rates = _rates(asked, book)
    tariff = _tariff(asked, book, rows)
    told: list[dict[str, Any]] = []
    arms: dict[str, tuple[_bucket.Arm, cost.Workload]] = {}
    for policy in _bucket.policies(asked):
        try:
            arm = _bucket.arm(policy, asked, work, options.compat)
            waiting = replace(work, wait_time=_bucket.wait(asked, policy))
            bill = _bill(arm, waiting, asked, rates, tariff, options.compat)
        except NotMeasured as missing:
            told.append({"policy": policy, "missing": str(missing)})
            continue
        arms[policy] = arm, waiting
        told.append(
            {
                "policy": policy,
                "wait_seconds": waiting.wait_time,
                "lists": bill.lists,
                "gets": bill.gets,
                "estimated": arm.estimated,
                "storage": bill.storage,
                "machines": bill.machines,
                "requests": bill.requests,
                "egress": bill.egress,
                "total": bill.total,
            }
        )
    if not arms:
        raise NotMeasured(
            f"the cost of any policy of {asked.file}",
            "; ".join(f"{arm['policy']}: {arm['missing']}" for arm in told),
        )
    return {
        "job": asked.file,
        "compat": options.compat,
        "period": "month" if options.compat == "paper" else asked.cost.period,
        "currency": rows[0].currency,
        "machines": work.machines,
        "samples": work.samples,
        "bytes": work.data_bytes,
        "epochs": work.epochs,
        "compute_seconds": work.compute_time,
        "policies": told,
        "break_even": _break_even(arms, asked, rates, tariff, options.compat),
        "prices": [
            {
                "kind": row.kind,
                "name": row.name,
                "price": [list(tier) for tier in row.tariff] if row.tiers else row.base,
                "date": row.date.isoformat(),
                "source": row.source,
            }
            for row in rows
        ],
        "warnings": prices.stale(rows, dt.datetime.now(tz=dt.timezone.utc).date()),
    }


def _workload(asked: Job) -> cost.Workload:
    from foresee.models import cost

    samples, size = _data(asked)
    (epochs,) = asked.need("train.epochs")
    machines = asked.cost.machines or asked.cluster.machines
    if machines is None:
        asked.need("cluster.ranks")
    assert machines is not None
    return cost.Workload(
        machines=machines,
        ranks=asked.cluster.ranks,
        samples=samples,
        epochs=epochs,
        data_bytes=samples * size,
        root_bytes=asked.cost.root_disk,
        compute_time=_compute(asked, samples, size, machines),
        wait_time=0.0,
        page=asked.cost.page,
    )


def _data(asked: Job) -> tuple[int, float]:
    """How many samples, and their mean size."""
    if asked.data.index is not None:
        from foresee import _native

        index = _native.Index.open(asked.data.index)
        return len(index), index.total_bytes / len(index)
    samples, size = asked.need("data.samples", "data.size")
    return int(samples), float(size)


def _compute(asked: Job, samples: int, size: float, machines: int) -> float:
    """Seconds of the run that compute."""
    if asked.cost.compute_time is not None:
        return asked.cost.compute_time
    train = asked.train
    if train.compute_rate is None and train.compute_step is None:
        raise NotMeasured(
            "how long the run computes", "write [train] compute_rate or compute_step, or [cost] compute_time"
        )
    batch, epochs = asked.need("train.batch", "train.epochs")
    if train.compute_step is not None:
        step = train.compute_step
    else:
        assert train.compute_rate is not None
        step = batch * size / train.compute_rate
    whole = batch * (asked.cluster.ranks or machines)
    steps = train.steps_per_epoch or (samples // whole if train.drop_last else -(-samples // whole))
    return float(epochs * steps * step)


def _rates(asked: Job, book: prices.PriceBook) -> tuple[list[prices.Price], cost.Rates]:
    """The rows of the book that the job names, and what they come to."""
    from foresee.models import cost

    names = asked.cost
    provider, region, vm, disk = asked.need("cost.provider", "cost.region", "cost.vm", "cost.disk")
    wanted = [("vm", vm), ("disk", disk)]
    if names.gpus_per_machine:
        (gpu,) = asked.need("cost.gpu")
        wanted.append(("gpu", gpu))
    if any(policy != "disk" for policy in _bucket.policies(asked)):
        (bucket,) = asked.need("cost.bucket")
        wanted += [(kind, bucket) for kind in ("bucket", "list", "get")]
    found = {kind: book.find(kind, provider, region, name) for kind, name in wanted}
    rows = list(found.values())
    currencies = sorted({row.currency for row in rows})
    if len(currencies) > 1:
        raise ConfigError(f"prices in {' and '.join(currencies)}: one currency expected; give rows of one")
    price = {kind: row.base for kind, row in found.items()}
    machine = price["vm"] + names.gpus_per_machine * price.get("gpu", 0.0)
    rates = cost.Rates(
        machine=machine,
        disk=price["disk"],
        bucket=price.get("bucket"),
        lists=price.get("list"),
        gets=price.get("get"),
    )
    return rows, rates


def _tariff(asked: Job, book: prices.PriceBook, rows: list[prices.Price]) -> tuple[tuple[float, float], ...]:
    if asked.cost.egress is None:
        return ()
    assert asked.cost.provider is not None
    assert asked.cost.region is not None
    row = book.find("egress", asked.cost.provider, asked.cost.region, asked.cost.egress)
    if row.currency != rows[0].currency:
        raise ConfigError(f"prices in {rows[0].currency} and {row.currency}: one currency expected")
    rows.append(row)
    return row.tariff


def _bill(
    arm: _bucket.Arm,
    work: cost.Workload,
    asked: Job,
    rates: cost.Rates,
    tariff: tuple[tuple[float, float], ...],
    compat: Literal["physical", "paper"],
) -> cost.Bill:
    from foresee.models import cost

    period: Any = None if compat == "paper" else asked.cost.period
    if arm.policy == "disk":
        return cost.disk(work, rates, period=period, compat=compat)
    cache_in: Any = asked.cost.cache_in
    return cost.bucket(
        work,
        rates,
        cached=arm.cached,
        fetch=arm.fetch,
        lists=arm.lists,
        gets=arm.gets,
        cache_in=cache_in,
        egress=tariff,
        period=period,
        compat=compat,
    )


def _break_even(
    arms: dict[str, tuple[_bucket.Arm, cost.Workload]],
    asked: Job,
    rates: cost.Rates,
    tariff: tuple[tuple[float, float], ...],
    compat: Literal["physical", "paper"],
) -> list[dict[str, Any]]:
    """Where each policy costs as much as disks, all else being equal."""
    from foresee.models import cost

    if "disk" not in arms:
        return []
    points = []
    disk, at_disk = arms["disk"]

    def total(arm: _bucket.Arm, work: cost.Workload) -> float:
        return _bill(arm, work, asked, rates, tariff, compat).total

    def monthly(arm: _bucket.Arm, work: cost.Workload, runs: float) -> float:
        bill = _bill(
            arm, work, replace(asked, cost=replace(asked.cost, period="month")), rates, tariff, compat
        )
        return bill.storage + runs * (bill.total - bill.storage)

    fixed = total(disk, at_disk)
    for policy, (arm, work) in arms.items():
        if policy == "disk":
            continue

        def by_wait(seconds: float, arm: _bucket.Arm = arm, work: cost.Workload = work) -> float:
            return total(arm, replace(work, wait_time=seconds))

        def by_size(bytes_: float, arm: _bucket.Arm = arm, work: cost.Workload = work) -> float:
            return total(arm, replace(work, data_bytes=max(bytes_, 1e-9)))

        def by_runs(runs: float, arm: _bucket.Arm = arm, work: cost.Workload = work) -> float:
            return monthly(arm, work, runs)

        points.append(
            {
                "policy": policy,
                "wait_seconds": cost.break_even(by_wait, lambda _: fixed, scale=3600.0),
                "bytes": None
                if tariff
                else cost.break_even(
                    by_size,
                    lambda bytes_: total(disk, replace(at_disk, data_bytes=max(bytes_, 1e-9))),
                    scale=work.data_bytes,
                ),
                "runs_per_month": cost.break_even(by_runs, lambda runs: monthly(disk, at_disk, runs)),
            }
        )
    return points


def _report(facts: dict[str, Any]) -> str:
    unit = facts["currency"]
    size = f"{facts['samples']:,} samples of {facts['bytes'] / 1e9:,.3f} GB, {facts['epochs']:,} epochs"
    paid = "a month" if facts["period"] == "month" else "the run"
    lines = [
        f"{facts['job']}: {size}, {facts['machines']:,} machines, computing {_time(facts['compute_seconds'])}",
        f"{unit}; storage is paid for {paid}; compat {facts['compat']}",
        "",
        f"{'policy':<13}{'waiting':>11}{'listings':>13}{'reads':>15}"
        + "".join(f"{key:>12}" for key in _AMOUNTS),
    ]
    for arm in facts["policies"]:
        if "missing" in arm:
            lines.append(f"{arm['policy']:<13}{arm['missing']}")
            continue
        reads = f"{'~' if arm['estimated'] else ''}{arm['gets']:,}"
        lines.append(
            f"{arm['policy']:<13}{_time(arm['wait_seconds']):>11}{arm['lists']:>13,}{reads:>15}"
            + "".join(f"{arm[key]:>12,.4f}" for key in _AMOUNTS)
        )
    if facts["break_even"]:
        lines += ["", "as much as disk, all else being equal, at"]
        for point in facts["break_even"]:
            told = []
            if point["wait_seconds"] is not None:
                told.append(f"{_time(point['wait_seconds'])} of waiting")
            if point["bytes"] is not None:
                told.append(f"{point['bytes'] / 1e9:,.4g} GB of data")
            if point["runs_per_month"] is not None:
                told.append(f"{point['runs_per_month']:,.4g} runs a month on the same storage")
            lines.append(f"{point['policy']:<13}{'; '.join(told) or 'no point'}")
    dates = sorted({row["date"] for row in facts["prices"]})
    lines += [
        "",
        f"prices of {dates[0]}"
        + (f" to {dates[-1]}" if len(dates) > 1 else "")
        + "; --json has their sources",
    ]
    return "\n".join(lines)


def _time(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:,.2f} h"
    return f"{seconds:,.1f} s"
