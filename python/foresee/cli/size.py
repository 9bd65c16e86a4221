# SPDX-License-Identifier: Apache-2.0
"""``foresee size``: the smallest machine with which a job meets a goal, and the cheapest of several.

``foresee.planning.sizing`` bisects, the simulator decides whether a point meets the goal, and ``_size_report`` shows
the result. All faults of the options are reported before the search starts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foresee.cli import _plot_option, _simulate_options, _simulate_run
from foresee.cli._status import Status
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from foresee.jobspec import Job
    from foresee.planning.simulation import Report
    from foresee.planning.sizing import Axis, Values

HELP = "find the least memory, disk, rate or other value of a machine with which a job meets a goal"
EPILOG = (
    "Each key is found by bisection between its ends, to 1 % of the range, which assumes that more is no worse; each "
    "answer was simulated and meets the goal. Exit code 1: the dearest ends do not meet it. Ctrl-C prints the answers "
    "so far, and exits with 130."
)
_KEYS_MAX = 4
_RANGE = re.compile(r"\s*([-+.\d_eE]+?)\s*([A-Za-zµ/]*)\s*\.\.\s*([-+.\d_eE]+?)\s*([A-Za-zµ/]*)\s*")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("job", metavar="job.toml", help="a job file, or a published scenario's name")
    parser.add_argument(
        "--of",
        action="append",
        required=True,
        metavar="KEY=FROM..TO",
        help="from the cheapest value to the dearest, such as cluster.tiers.ram.capacity=1..512GB; up to four keys",
    )
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="KEY=AMOUNT",
        help="price of one unit of a key, the unit of its --of: marks the cheapest answer",
    )
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("--within", metavar="T", help='limit of the whole run: seconds, or "2 h"')
    goal.add_argument(
        "--utilization",
        type=float,
        metavar="U",
        help="share of the run that ranks compute, above 0, at most 1",
    )
    parser.add_argument("--policy", default="foresee", metavar="P", help="loading policy (foresee)")
    parser.add_argument(
        "--steps",
        type=int,
        default=8,
        metavar="N",
        help="steps of each key but the last; from each step all keys are bisected to 1 %% (8)",
    )
    _simulate_options.add_to(parser)
    _plot_option.add_to(parser, "draw the combinations of two keys that were simulated and meet the goal")


@dataclass(frozen=True)
class _Key:
    """A key of the search, and the unit of its values."""

    axis: Axis
    unit: str

    def value(self, number: float) -> object:
        """Return the value as a job file has it."""
        if self.unit:
            return f"{number:.12g} {self.unit}"
        return int(number) if self.axis.whole else number


@dataclass
class _Search:
    """The request, and the results so far."""

    job: Job
    keys: list[_Key]
    meets: Callable[[Report], bool]
    options: argparse.Namespace
    reports: dict[Values, Report] = field(default_factory=dict)
    running: list[_simulate_run.Task] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    is_interrupted: bool = False

    @property
    def axes(self) -> list[Axis]:
        return [key.axis for key in self.keys]

    def report(self, values: Values) -> Report:
        """Return the result of the policy at a point; each point is simulated once.

        Raises:
            ConfigError: the policy does not support the job.
            _Cancelled: ``stop`` was set.
        """
        from foresee.jobspec import vary

        if values in self.reports:
            return self.reports[values]
        job = self.job
        for key, number in zip(self.keys, values, strict=True):
            job = vary.with_value(job, key.axis.name, key.value(number))
        task = _simulate_run.Task(self.options.policy, (), job)
        self.running.append(task)
        _simulate_run.run(task, self.options, self.stop)
        self.running.remove(task)
        if task.reason:
            raise ConfigError(f"--policy {self.options.policy}: no answer for this job: {task.reason}")
        if task.report is None or not task.report.finished:
            raise _Cancelled
        self.reports[values] = task.report
        return task.report

    def least(self, cell: Values) -> Values | None:
        """Minimize the last key at the values of a cell, then each other key; None: no value meets the goal."""
        from foresee.planning import sizing

        def meets(values: Values) -> bool:
            return self.meets(self.report(values))

        found = sizing.least(self.axes[-1], lambda number: meets((*cell, number)))
        return None if found is None else sizing.tighten(self.axes, (*cell, found), meets)


class _Cancelled(Exception):
    """A simulation was stopped early."""


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee.cli import _size_report

    search = _parse(options)
    dearest = tuple(axis.high for axis in search.axes)
    points = _find_points(search, dearest)
    facts = _facts(search, points, dearest)
    if points:
        _plot_option.write(options.plot, lambda: _size_report.figure(facts))
    print(json.dumps(facts) if options.json else _size_report.text(facts))
    if search.is_interrupted:
        return 130
    return 0 if points else 1


def _parse(options: argparse.Namespace) -> _Search:
    """Return the search.

    Raises:
        ConfigError: all faults of the options and the job.
    """
    from foresee.jobspec import vary
    from foresee.planning import simulation

    faults = _plot_option.check("--plot", options.plot)
    keys = _keys(options, faults)
    meets = _goal(options, faults)
    if options.policy not in simulation.POLICIES:
        faults.append(f"--policy {options.policy}: one of {', '.join(simulation.POLICIES)} expected")
    if options.steps < 1:
        faults.append(f"--steps {options.steps}: 1 or more expected")
    faults += _simulate_options.faults(options)
    if options.plot is not None and len(keys) != 2:
        faults.append(f"--plot shows two keys; --of has {len(keys)}")
    job = _simulate_options.read_job(options.job, faults)
    if job is not None and keys:
        ends = {key.axis.name: [key.value(key.axis.low), key.value(key.axis.high)] for key in keys}
        points, wrong = vary.try_points(job, ends)
        faults += wrong
        if not wrong and options.policy in simulation.POLICIES:
            faults += [
                fault for _, variant in points for fault in simulation.missing(variant, options.policy)
            ]
    if faults or job is None:
        raise ConfigError(list(dict.fromkeys(faults)))
    return _Search(job, keys, meets, options)


def _keys(options: argparse.Namespace, faults: list[str]) -> list[_Key]:
    """Return the axes of the search with their prices; faults are added to ``faults``."""
    from foresee.planning.sizing import Axis

    prices = _prices(options.price, faults)
    keys: dict[str, _Key] = {}
    for word in options.of:
        name, _, span = word.partition("=")
        found = _RANGE.fullmatch(span)
        low, high = (_number(found[1]), _number(found[3])) if found else (None, None)
        if found is None or low is None or high is None or name in keys or found[2] not in ("", found[4]):
            faults.append(
                f"--of {word!r}: KEY=FROM..TO with one unit and another key each time expected, such as "
                "cluster.tiers.ram.capacity=1..512GB"
            )
            continue
        whole = (
            not found[4] and all(end.is_integer() for end in (low, high)) and "." not in found[1] + found[3]
        )
        try:
            axis = Axis(name, low, high, prices.pop(name, 0.0), whole=whole)
        except ConfigError as error:
            faults += [f"--of {fault}" for fault in error.faults]
        else:
            keys[name] = _Key(axis, found[4])
    faults += [f"--price {name}: --of does not have this key" for name in prices]
    if len(keys) > _KEYS_MAX:
        faults.append(f"--of {' '.join(keys)}: {_KEYS_MAX} keys at most")
    return list(keys.values())


def _prices(words: Sequence[str], faults: list[str]) -> dict[str, float]:
    prices: dict[str, float] = {}
    for word in words:
        name, _, amount = word.partition("=")
        number = _number(amount)
        if number is None or number < 0 or name in prices:
            faults.append(f"--price {word!r}: KEY=AMOUNT of 0 or more with another key each time expected")
        else:
            prices[name] = number
    return prices


def _number(word: str) -> float | None:
    """Return the finite number that ``word`` spells, or None."""
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _goal(options: argparse.Namespace, faults: list[str]) -> Callable[[Report], bool]:
    """Return whether a run meets the goal; replace ``--within`` in ``options`` by seconds."""
    from foresee._schema.values import Refused, Time

    if options.utilization is not None:
        share = options.utilization
        if not 0 < share <= 1:
            faults.append(f"--utilization {share:g}: above 0, at most 1, expected")
        return lambda report: utilization(report) >= share
    kind = Time(zero=False)
    seconds = _number(options.within)
    try:
        within = kind.read(options.within if seconds is None else seconds)
    except Refused:
        faults.append(f"--within {options.within!r}: {kind.expected}")
        within = 0.0
    options.within = within
    return lambda report: report.total_s <= within


def utilization(report: Report) -> float:
    """Return the mean share of a run that its ranks compute."""
    return report.compute_s / (report.ranks * report.total_s) if report.total_s else 1.0


def _find_points(search: _Search, dearest: Values) -> list[Values]:
    """Return the undominated points that meet the goal, after Ctrl-C those found so far."""
    from foresee.planning import sizing

    most = sizing.count_queries(search.axes, search.options.steps)
    status = Status()

    def show() -> None:
        done = len(search.reports)
        running = sum(task.share for task in tuple(search.running))
        status.bar((done + running) / most, f"{done} simulated, {most} at most")

    futures: list[Future[Values | None]] = []
    with ThreadPoolExecutor(search.options.threads or os.cpu_count() or 1, "foresee-size") as pool:
        try:
            top = pool.submit(search.report, dearest)
            _simulate_run.follow([top], search.stop, show)
            if not search.meets(top.result()):
                return []
            cells = sizing.cells(search.axes, search.options.steps)
            futures = [pool.submit(search.least, cell) for cell in cells]
            _simulate_run.follow(futures, search.stop, show)
        except KeyboardInterrupt:
            search.is_interrupted = True
        finally:
            search.stop.set()
            status.end()
    points = []
    for future in futures:
        try:
            point = future.result()
        except _Cancelled:
            continue
        if point is not None:
            points.append(point)
    return sizing.undominated(search.axes, points)


def _facts(search: _Search, points: Sequence[Values], dearest: Values) -> dict[str, Any]:
    from foresee.planning import sizing

    options = search.options
    rows = [_row(search, point) for point in points]
    costs = [sizing.cost(search.axes, point) for point in points]
    known = [cost for cost in costs if cost is not None]
    return {
        "job": options.job,
        "policy": options.policy,
        "compat": options.compat,
        "order": options.order,
        "hand_over": options.hand_over,
        "node_cache": options.node_cache,
        "peers": options.peers,
        "goal": {"within_s": options.within, "utilization": options.utilization},
        "keys": [
            {
                "key": key.axis.name,
                "unit": key.unit or None,
                "from": key.axis.low,
                "to": key.axis.high,
                "price": key.axis.price or None,
            }
            for key in search.keys
        ],
        "met": bool(points),
        "points": [row | {"cost": cost} for row, cost in zip(rows, costs, strict=True)],
        "cheapest": costs.index(min(known)) if known else None,
        "dearest": _row(search, dearest) if dearest in search.reports else None,
        "simulated": len(search.reports),
        "interrupted": search.is_interrupted,
    }


def _row(search: _Search, values: Values) -> dict[str, Any]:
    report = search.reports[values]
    at = {key.axis.name: number for key, number in zip(search.keys, values, strict=True)}
    return {"at": at, "total_s": report.total_s, "utilization": utilization(report)}
