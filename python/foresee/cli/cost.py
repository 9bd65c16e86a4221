# SPDX-License-Identifier: Apache-2.0
"""``foresee cost``: what a job costs from disks and from a bucket, by policy, and where one overtakes the other."""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from foresee.cli import _bucket, _bucket_runs
from foresee.errors import ConfigError, NotMeasured

if TYPE_CHECKING:
    import argparse

    from foresee.jobspec import Job
    from foresee.planning import cost, prices

_HELP = "compare the cost of a job on disks and on a bucket, with break-even points"
_EPILOG = (
    "Exit code 1: no policy stays within --budget. Reads and waiting times are those of `foresee simulate --order "
    "distributed` if the job has the keys for it; [cost] wait_time has precedence."
)

#: Columns of the bill.
_AMOUNTS = ("storage", "machines", "requests", "egress", "total")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("cost", help=_HELP, description=_HELP, epilog=_EPILOG)
    parser.add_argument("job", metavar="job.toml", help="a job file")
    parser.add_argument("--prices", metavar="FILE", help="a price book that overrides the shipped one")
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
    from foresee import jobspec
    from foresee.planning import prices

    if options.budget is not None and not options.budget >= 0:
        raise ConfigError(f"--budget {options.budget}: 0 or more expected")
    asked = jobspec.read(options.job)
    book = prices.load(options.prices)
    facts = _facts(asked, book, options)
    for warning in facts["warnings"]:
        print(f"foresee: {warning}", file=sys.stderr)
    print(json.dumps(facts) if options.json else _report(facts))
    totals = [arm["total"] for arm in facts["policies"] if "total" in arm]
    return 1 if options.budget is not None and min(totals) > options.budget else 0


def _facts(asked: Job, book: prices.PriceBook, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is printed, in plain values."""
    from foresee.planning import prices

    _complete(asked)
    work = _workload(asked)
    rows, rates = _rates(asked, book)
    tariff = _tariff(asked, book, rows)
    told: list[dict[str, Any]] = []
    arms: dict[str, tuple[_bucket.Arm, cost.Workload]] = {}
    for policy in _bucket.policies(asked):
        try:
            arm = _bucket.arm(policy, asked, work, options.compat)
            waiting = replace(work, wait_time=arm.wait)
            bill = _bill(arm, waiting, asked, rates, tariff, options.compat)
        except NotMeasured as missing:
            told.append({"policy": policy, "missing": str(missing)})
            continue
        arms[policy] = arm, waiting
        told.append(
            {
                "policy": policy,
                "wait_seconds": waiting.wait_time,
                "wait_from": arm.wait_from,
                "lists": bill.lists,
                "gets": bill.gets,
                "counted": arm.counts.counted,
                "estimated": arm.counts.note is not None,
                "note": arm.counts.note,
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
        "left_out": _bucket.left_out(asked),
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


def _complete(asked: Job) -> None:
    """Refuse a job that leaves out what has no default: all of that at once."""
    names, chosen = asked.cost, _bucket.policies(asked)
    keys = [] if asked.data.index is not None else ["data.samples"]
    keys += ["train.epochs", *([] if names.machines else ["cluster.ranks"])]
    keys += ["cost.provider", "cost.region", "cost.vm", *(["cost.gpu"] if names.gpus_per_machine else [])]
    if _needs_disk(asked):
        keys.append("cost.disk")
    if any(policy != "disk" for policy in chosen):
        keys.append("cost.bucket")
    faults: list[str] = []
    try:
        asked.need(*keys)
    except ConfigError as error:
        faults += error.faults
    if names.compute_time is None and asked.train.compute_rate is None and asked.train.compute_step is None:
        where = f"{asked.file}: " if asked.file else ""
        keys_ = "train.compute_rate, train.compute_step and cost.compute_time are"
        faults.append(f"{where}{keys_} missing; one of them says how long the run computes")
    if faults:
        raise ConfigError(faults)


def _needs_disk(asked: Job) -> bool:
    """Whether the job has to name its disk; without one, policies that were not chosen are left out one by one."""
    names = asked.cost
    on_disk = any(_bucket.uses_disk(asked, policy) for policy in _bucket.policies(asked))
    return on_disk and (names.disk is not None or names.root_disk > 0 or asked.cache.policies is not None)


def _workload(asked: Job) -> cost.Workload:
    from foresee.planning import cost

    samples, data_bytes = _data(asked)
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
        data_bytes=data_bytes,
        root_bytes=asked.cost.root_disk,
        compute_time=_compute(asked, samples, data_bytes / samples, machines),
        wait_time=0.0,
        page=asked.cost.page,
    )


def _data(asked: Job) -> tuple[int, float]:
    """Return the number of samples, and their bytes."""
    if asked.data.index is not None:
        from foresee import _native

        index = _native.Index.open(asked.data.index)
        return len(index), float(index.total_bytes)
    (samples,) = asked.need("data.samples")
    return int(samples), _bucket_runs.drawn_bytes(asked.data)


def _compute(asked: Job, samples: int, size: float, machines: int) -> float:
    """Seconds of the run that compute."""
    from foresee.jobspec import rank_share

    if asked.cost.compute_time is not None:
        return asked.cost.compute_time
    train = asked.train
    if train.compute_rate is None and train.compute_step is None:
        raise NotMeasured(
            "how long the run computes", "write [train] compute_rate or compute_step, or [cost] compute_time"
        )
    batch, epochs = asked.need("train.batch", "train.epochs")
    share = rank_share(asked, samples, asked.cluster.ranks or machines)
    steps = train.steps_per_epoch or share.steps
    assert steps is not None
    if train.compute_step is not None:
        return float(epochs * steps * train.compute_step)
    assert train.compute_rate is not None
    # At a rate, a last batch that is short takes as much less.
    reads = share.reads if train.steps_per_epoch is None else batch * steps
    return float(epochs * reads * size / train.compute_rate)


def _rates(asked: Job, book: prices.PriceBook) -> tuple[list[prices.Price], cost.Rates]:
    """The rows of the book that the job names, and what they come to."""
    from foresee.planning import cost

    names, chosen = asked.cost, _bucket.policies(asked)
    provider, region, vm = asked.need("cost.provider", "cost.region", "cost.vm")
    wanted = [("vm", vm)]
    if _needs_disk(asked):
        (disk,) = asked.need("cost.disk")
        wanted.append(("disk", disk))
    if names.gpus_per_machine:
        (gpu,) = asked.need("cost.gpu")
        wanted.append(("gpu", gpu))
    if any(policy != "disk" for policy in chosen):
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
        disk=price.get("disk"),
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
    from foresee.planning import cost

    period: Any = None if compat == "paper" else asked.cost.period
    if rates.disk is None and _bucket.uses_disk(asked, arm.policy):
        raise NotMeasured(
            f"what the disk of {arm.policy} costs", "write [cost] disk, a name of the price book"
        )
    if arm.policy == "disk":
        return cost.disk(work, rates, period=period, compat=compat)
    counts, cache_in = arm.counts, asked.cost.cache_in
    return cost.bucket(
        work,
        rates,
        cached=counts.cached,
        fetch=counts.fetch,
        lists=counts.lists,
        gets=counts.gets,
        read_bytes=None if counts.read_share is None else counts.read_share * work.data_bytes,
        cache_in="ram" if cache_in == "ram" else "disk",
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
    """Return the points at which each policy costs as much as disks, all else being equal."""
    from foresee.planning import cost

    if "disk" not in arms:
        return []
    disk, at_disk = arms["disk"]
    by_month = replace(asked, cost=replace(asked.cost, period="month"))

    def total(arm: _bucket.Arm, work: cost.Workload) -> float:
        return _bill(arm, work, asked, rates, tariff, compat).total

    def month(arm: _bucket.Arm, work: cost.Workload) -> cost.Bill:
        # Egress of a month's runs goes through the tariff together, and so not into the bill of one.
        return _bill(arm, work, by_month, rates, (), compat)

    def sized(work: cost.Workload, bytes_: float) -> cost.Workload:
        return replace(work, data_bytes=max(bytes_, 1e-9))

    fixed, on_disk = total(disk, at_disk), month(disk, at_disk)
    points = []
    for policy, (arm, work) in arms.items():
        if policy == "disk":
            continue
        in_bucket = month(arm, work)
        read = in_bucket.read_bytes

        def by_wait(seconds: float, arm: _bucket.Arm = arm, work: cost.Workload = work) -> float:
            return total(arm, replace(work, wait_time=seconds))

        def by_size(bytes_: float, arm: _bucket.Arm = arm, work: cost.Workload = work) -> float:
            return total(arm, sized(work, bytes_))

        def by_runs(runs: float, in_bucket: cost.Bill = in_bucket) -> float:
            return cost.runs_cost(in_bucket, runs, tariff)

        sizes, runs = _ends(tariff, read / work.data_bytes), _ends(tariff, read)
        points.append(
            {
                "policy": policy,
                "wait_seconds": cost.break_even(by_wait, lambda _: fixed, scale=3600.0),
                "bytes": cost.break_even(
                    by_size,
                    lambda bytes_: total(disk, sized(at_disk, bytes_)),
                    scale=work.data_bytes,
                    bends=sizes,
                    end=max(sizes, default=math.inf),
                ),
                "bytes_known_to": _finite(sizes),
                "runs_per_month": cost.break_even(
                    by_runs,
                    lambda runs: cost.runs_cost(on_disk, runs),
                    bends=runs,
                    end=max(runs, default=math.inf),
                ),
                "runs_known_to": _finite(runs),
            }
        )
    return points


def _ends(tariff: tuple[tuple[float, float], ...], each: float) -> list[float]:
    """Return the ends of a tariff's tiers, in units of so many bytes each; none if no bytes leave."""
    # A hair before the end, so that rounding leads to no byte beyond a tariff's last.
    return [up_to / each * (1 - 1e-12) for up_to, _ in tariff] if each else []


def _finite(ends: list[float]) -> float | None:
    """Return the end of a tariff, None if it has none."""
    end = max(ends, default=math.inf)
    return None if math.isinf(end) else end


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
    lines += _notes(facts["policies"])
    if facts["left_out"]:
        known = ", ".join(_bucket.KNOWN)
        lines.append(f"left out: {', '.join(facts['left_out'])}; what is priced reads a bucket: {known}")
    if facts["break_even"]:
        lines += ["", "as much as disk, all else being equal, at"]
        lines += [f"{point['policy']:<13}{_point(point)}" for point in facts["break_even"]]
    dates = sorted({row["date"] for row in facts["prices"]})
    lines += [
        "",
        f"prices of {dates[0]}"
        + (f" to {dates[-1]}" if len(dates) > 1 else "")
        + "; --json has their sources",
    ]
    return "\n".join(lines)


def _notes(told: list[dict[str, Any]]) -> list[str]:
    """Return the footnotes of the table."""
    lines = [f"~ {arm['policy']}: {arm['note']}" for arm in told if arm.get("note") is not None]
    simulated = [arm["policy"] for arm in told if arm.get("wait_from") == "simulated"]
    if simulated:
        lines.append(f"waiting of {', '.join(simulated)} is simulated")
    return ["", *lines] if lines else []


def _point(point: dict[str, Any]) -> str:
    """Describe the points at which a policy costs as much as disks."""
    told = []
    if point["wait_seconds"] is not None:
        told.append(f"{_time(point['wait_seconds'])} of waiting")
    if point["bytes"] is not None:
        told.append(f"{point['bytes'] / 1e9:,.4g} GB of data")
    elif point["bytes_known_to"] is not None:
        told.append(f"no size below {point['bytes_known_to'] / 1e9:,.4g} GB, where the tariff of egress ends")
    if point["runs_per_month"] is not None:
        told.append(f"{point['runs_per_month']:,.4g} runs a month on the same storage")
    elif point["runs_known_to"] is not None:
        told.append(f"no number of runs a month below {point['runs_known_to']:,.4g}, where it ends")
    return "; ".join(told) or "no point"


def _time(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:,.2f} h"
    return f"{seconds:,.1f} s"
