# SPDX-License-Identifier: Apache-2.0
"""``foresee simulate``: how long a job would take under each policy of loading, on a machine that need not exist."""

from __future__ import annotations

import json
import os
import sys
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from foresee.cli import _svg
from foresee.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from foresee.job import Job
    from foresee.models import loading

__all__ = ["add_to", "run"]

_HELP = "how long a job would take under each policy of loading, where its time goes, and what it reads from where"
_EPILOG = (
    "A job is a file, or the name of a published scenario: --list shows them. exit code 1: --within was given, and no "
    "policy that keeps the order stays within it. Ctrl-C prints what was simulated so far, and exits with 130."
)
_LOOK_S = 0.1
_BAR = 24
_CLASSES = ("init", "compute", "stall", "barrier")


@dataclass
class _Task:
    """One policy on one point of a sweep."""

    policy: str
    point: tuple[str, ...]
    job: Job
    run_dir: str | None = None
    share: float = 0.0
    report: loading.Report | None = None
    reason: str = ""


@dataclass
class _Asked:
    """All that is to be simulated, in the order in which it is shown."""

    axes: dict[str, list[str]]
    tasks: list[_Task] = field(default_factory=list)
    stopped: bool = False


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("simulate", help=_HELP, description=_HELP, epilog=_EPILOG)
    parser.add_argument("job", metavar="job.toml", nargs="?", help="a job file, or a scenario's name")
    parser.add_argument("--list", action="store_true", help="names of the published scenarios")
    parser.add_argument("--policies", nargs="+", metavar="P", help="instead of the job's")
    parser.add_argument(
        "--compat",
        choices=("physical", "paper"),
        default="physical",
        help="paper: the published formulas, in which every thread has a rank's share of the origin",
    )
    parser.add_argument(
        "--order",
        choices=("shuffled", "distributed", "sequential"),
        default="shuffled",
        help="shuffled: as published scenarios; distributed: torch's DistributedSampler",
    )
    parser.add_argument(
        "--hand-over",
        choices=("sample", "batch"),
        default="sample",
        help="what a rank has before it computes: sample after sample, as published, or its whole batch, as loaders do",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=V,V,...",
        help="at these values of a key, such as cluster.tiers.ram.capacity='32 GB,64 GB'; twice for two keys",
    )
    parser.add_argument(
        "--within", type=float, metavar="S", help="exit 1 if no policy takes at most S seconds"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="simulations at a time (cores of this machine)"
    )
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="write ledgers there as a run does, for analyze and predict; of several policies, a folder each",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument(
        "--plot", metavar="FILE.svg", help="stacked bars; of two swept keys a heat map of one policy"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    from foresee import job

    if options.list:
        print(json.dumps(job.scenarios()) if options.json else "\n".join(job.scenarios()))
        return 0
    if options.job is None:
        raise ConfigError("simulate: a job file or a scenario's name is missing; --list shows the scenarios")
    if faults := _svg.check("--plot", options.plot):
        raise ConfigError(faults)
    if options.threads is not None and options.threads < 1:
        raise ConfigError(f"--threads {options.threads}: 1 or more")
    _check_run_dir(options)
    known = options.job in job.scenarios()
    given = job.scenario(options.job) if known else job.read(options.job)
    asked = _asked(given, options)
    _simulate(asked, options, _Shown(asked))
    facts = _facts(given, asked, options)
    if options.plot is not None:
        _svg.write(options.plot, _picture(facts, asked))
    print(json.dumps(facts) if options.json else _report(facts, asked))
    if asked.stopped:
        return 130
    if options.within is None:
        return 0
    totals = [one["total_s"] for one in facts["runs"] if "total_s" in one and one["policy"] != "perfect"]
    return 0 if any(total <= options.within for total in totals) else 1


def _asked(given: Job, options: argparse.Namespace) -> _Asked:
    from foresee.job import POLICIES, vary
    from foresee.models import loading

    policies = tuple(options.policies or given.cache.policies or _usual(given))
    unknown = [policy for policy in policies if policy not in loading.POLICIES]
    if unknown:
        raise ConfigError(f"--policies {' '.join(unknown)}: one or more of {', '.join(POLICIES)} expected")
    axes: dict[str, list[str]] = {}
    for sweep in options.sweep:
        key, equals, values = sweep.partition("=")
        if not equals or key in axes:
            raise ConfigError(f"--sweep {sweep!r}: KEY=VALUE,VALUE,... with another key each time expected")
        axes[key] = [value.strip() for value in values.split(",") if value.strip()]
    if len(axes) > 2:
        raise ConfigError(f"--sweep {' '.join(axes)}: two keys at most")
    asked = _Asked(axes)
    for values, there in vary.points(
        given, {key: [_number(one) for one in each] for key, each in axes.items()}
    ):
        shown = tuple(str(value) for value in values)
        asked.tasks += [
            _Task(policy, shown, there, _run_dir(options.run_dir, policy, policies)) for policy in policies
        ]
    # What is missing is said before anything takes time.
    for task in asked.tasks[: len(policies)]:
        loading.scenario_of(
            task.job, task.policy, compat=options.compat, order=options.order, hand_over=options.hand_over
        )
    return asked


def _check_run_dir(options: argparse.Namespace) -> None:
    """Before anything takes time: nothing of an older run may be mixed with this one."""
    if options.run_dir is None:
        return
    if options.sweep:
        raise ConfigError("--run-dir with --sweep: ledgers of many points are no run; leave out one of both")
    if os.path.lexists(options.run_dir) and not (
        os.path.isdir(options.run_dir) and not os.listdir(options.run_dir)
    ):
        raise ConfigError(
            f"--run-dir {options.run_dir}: it is there already, and not an empty folder; name another"
        )


def _run_dir(folder: str | None, policy: str, policies: Sequence[str]) -> str | None:
    """The run folder of a policy: the named one if it is alone, one of its name in it if not."""
    return folder if folder is None or len(policies) == 1 else os.path.join(folder, policy)


def _usual(given: Job) -> tuple[str, ...]:
    """Where a job names no policies: all that it has the figures for."""
    from foresee.job import CACHE_POLICIES, WINDOW_POLICIES

    return CACHE_POLICIES if given.cluster.origin.read is not None else WINDOW_POLICIES


def _number(word: str) -> object:
    """A value as a job file has it: a number, true or false, or a text with its unit."""
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float):
        try:
            return kind(word.replace("_", ""))
        except ValueError:
            continue
    return word


def _simulate(asked: _Asked, options: argparse.Namespace, shown: _Shown) -> None:
    """Run all tasks on a few threads; Ctrl-C ends them where they are."""
    stop = threading.Event()
    workers = options.threads or os.cpu_count() or 1
    with ThreadPoolExecutor(workers, thread_name_prefix="foresee-simulate") as pool:
        running = [pool.submit(_one, task, options, stop) for task in asked.tasks]
        try:
            while not all(future.done() for future in running):
                wait(running, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
                if any(future.done() and future.exception() for future in running):
                    # The others need not go on.
                    stop.set()
                shown.now()
        except KeyboardInterrupt:
            asked.stopped = True
        finally:
            stop.set()
            shown.end()
    for future in running:
        future.result()


def _one(task: _Task, options: argparse.Namespace, stop: threading.Event) -> None:
    from foresee.models import loading

    if stop.is_set():
        return
    try:
        simulated = loading.Run(
            task.job,
            task.policy,
            compat=options.compat,
            order=options.order,
            hand_over=options.hand_over,
            run_dir=task.run_dir,
        )
    except Unsupported as why:
        task.reason, task.share = why.reason, 1.0
        return
    stage = ""
    while stage != "finished" and not stop.is_set():
        stage, done, total = simulated.advance()
        if stage != "preparing":
            task.share = done / total
    simulated.close()
    task.report = simulated.report()


class _Shown:
    """The progress bar, on stderr where that is a terminal."""

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self._on = sys.stderr.isatty()

    def now(self) -> None:
        """Draw it."""
        if self._on:
            tasks = self._asked.tasks
            share = sum(task.share for task in tasks) / len(tasks)
            done = sum(task.share == 1.0 for task in tasks)
            bar = "#" * round(share * _BAR)
            print(
                f"\r[{bar:<{_BAR}}] {share:4.0%}  {done} of {len(tasks)}", end="", file=sys.stderr, flush=True
            )

    def end(self) -> None:
        """Leave its line."""
        if self._on:
            print("\r" + " " * (_BAR + 24) + "\r", end="", file=sys.stderr, flush=True)


def _facts(given: Job, asked: _Asked, options: argparse.Namespace) -> dict[str, Any]:
    runs = []
    for task in asked.tasks:
        one: dict[str, Any] = {"policy": task.policy}
        if asked.axes:
            one["at"] = dict(zip(asked.axes, task.point, strict=True))
        if task.reason:
            one["unsupported"] = task.reason
        elif task.report is None:
            one["not_begun"] = True
        else:
            one |= asdict(task.report) | {"hit_rate": task.report.hit_rate}
            if task.run_dir is not None:
                one["run_dir"] = task.run_dir
        runs.append(one)
    return {
        "job": options.job,
        "data": given.data.name,
        "compat": options.compat,
        "order": options.order,
        "hand_over": options.hand_over,
        "sweep": asked.axes,
        "runs": runs,
        "interrupted": asked.stopped,
    }


def _report(facts: dict[str, Any], asked: _Asked) -> str:
    ranks = next((one["ranks"] for one in facts["runs"] if "ranks" in one), None)
    head = (
        f"{facts['job']}: {facts['data'] or 'data set'}, {ranks or '?'} ranks; compat {facts['compat']}, "
        f"order {facts['order']}; times in seconds, per rank"
    )
    lines = [head]
    if facts["interrupted"]:
        lines.append("interrupted: ~ marks what is not the whole run")
    at: dict[str, str] | None = None
    for number, one in enumerate(facts["runs"]):
        if number == 0 or one.get("at") != at:
            at = one.get("at")
            lines += ["", "  ".join(f"{key} = {value}" for key, value in (at or {}).items())] if at else [""]
            lines.append(
                f"{'policy':<19}{'total':>12}{'init':>10}{'stall':>11}{'others':>10}{'last epoch':>12}{'hits':>7}"
                f"{'from origin':>13}{'coverage':>10}"
            )
        lines.append(_row(one))
    if len(asked.axes) == 2:
        lines.append("\n--plot draws two swept keys as a heat map")
    return "\n".join(lines)


def _row(one: dict[str, Any]) -> str:
    if "unsupported" in one:
        return f"{one['policy']:<19}no answer: {one['unsupported']}"
    if "not_begun" in one:
        return f"{one['policy']:<19}not begun"
    ranks, ends = one["ranks"], [0.0, *(epoch["end_s"] for epoch in one["epochs"])]
    last = f"{ends[-1] - max(ends[-2], one['init_s']):,.2f}" if len(ends) > 1 else "-"
    hits = "-" if one["hit_rate"] is None else f"{one['hit_rate']:.1%}"
    total = f"{'' if one['finished'] else '~'}{one['total_s']:,.2f}"
    stall, others, origin = one["stall_s"] / ranks, one["barrier_s"] / ranks, _bytes(one["origin_bytes"])
    return (
        f"{one['policy']:<19}{total:>12}{one['init_s']:>10,.2f}{stall:>11,.2f}{others:>10,.2f}{last:>12}{hits:>7}"
        f"{origin:>13}{one['coverage']:>10.1%}"
    )


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:,.4g} {unit}"
        count /= 1000
    return f"{count:,.4g} PB"


def _picture(facts: dict[str, Any], asked: _Asked) -> str:
    from foresee.cli import _bars, _heat

    told = [one for one in facts["runs"] if "total_s" in one]
    if not told:
        raise ConfigError("--plot: no policy has an answer, so there is nothing to draw")
    title = f"{facts['job']}: {facts['data'] or 'data set'}"
    lines = [f"{told[0]['ranks']} ranks, compat {facts['compat']}; seconds per rank"]
    if len(asked.axes) == 2:
        policies = list(dict.fromkeys(one["policy"] for one in told))
        if len(policies) > 1:
            raise ConfigError(
                f"--plot of two swept keys shows one policy; choose one of {' '.join(policies)} with --policies"
            )
        (down, rows), (across, columns) = asked.axes.items()
        by_point = {tuple(one["at"].values()): one["total_s"] for one in told}
        values = [[by_point.get((row, column)) for column in columns] for row in rows]
        return _heat.svg(
            f"{title}, {policies[0]}: total seconds", lines, (down, rows), (across, columns), values
        )
    groups: dict[str, list[_bars.Stack]] = {}
    for one in told:
        ranks = one["ranks"]
        parts = (one["init_s"], *(one[f"{name}_s"] / ranks for name in _CLASSES[1:]))
        point = ", ".join(one["at"].values()) if asked.axes else ""
        label = f"{one['policy']} {point}".strip()
        groups.setdefault(label, []).append(_bars.Stack(parts))
    bars = [_bars.Group(label, stacks) for label, stacks in groups.items()]
    return _bars.svg(title, lines, "policy", _CLASSES, bars)
