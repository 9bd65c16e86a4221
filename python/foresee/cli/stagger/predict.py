# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger predict``: makespan and GPU-seconds by start, and the best start."""

from __future__ import annotations

import json
import math
import platform
import sys
from typing import TYPE_CHECKING, Any

from foresee.cli import _plot_option
from foresee.cli.stagger.options import SLACK, SLACK_HELP, add_read, read_faults, running_faults
from foresee.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from foresee import stagger
    from foresee.jobspec import Job
    from foresee.stagger import inputs
    from foresee.stagger import timing as timing_

_HELP = "predict makespan and GPU-seconds by start, and the best start"
_EPILOG = (
    "Values come from [stagger] and [train] of the job files, else from the catalog, else from --read. "
    "All jobs have one seed, so their random choices are not independent. "
    "Exit code 1: the cache is too small for a follower at any start; --simulate has an answer for it."
)
#: Starts that the table has, in percent of the leader's run alone, as the paper's exhaustive search.
_PERCENTS = tuple(range(0, 101, 10))


def add_to(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    from foresee.cli.stagger import catalog_path

    predict = actions.add_parser("predict", help=_HELP, description=_HELP, epilog=_EPILOG)
    predict.add_argument(
        "jobs", nargs="+", metavar="JOB.toml", help="two or more job files that share their data"
    )
    catalog_path.add_to(predict, machine="machine whose values of the catalog are used (this machine's name)")
    add_read(predict)
    predict.add_argument(
        "--cache", type=float, default=1.0, metavar="SHARE", help="share of the data that the cache holds (1)"
    )
    predict.add_argument("--slack", type=float, default=SLACK, metavar="SHARE", help=SLACK_HELP)
    predict.add_argument(
        "--running", type=float, metavar="X", help="the first job runs already, at X %% of its run alone"
    )
    predict.add_argument(
        "--compat",
        choices=("physical", "paper"),
        default="physical",
        help="paper: equation (2) to the letter, the slower job keeps its rate when the other has ended its epoch",
    )
    predict.add_argument(
        "--simulate",
        action="store_true",
        help="also simulate each start step by step, also beyond the cache's reach",
    )
    predict.add_argument(
        "--hold",
        type=float,
        metavar="SHARE",
        help="with --simulate: hold a near follower until the cache has this share of the data beyond it",
    )
    predict.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    predict.add_argument("--plot", metavar=_plot_option.METAVAR, help="draw the curves; .svg, .png or .pdf")
    predict.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry out ``predict``."""
    _check(options)
    jobs, known = _known(options)
    for doubt in known.doubts:
        print(f"foresee: {doubt}", file=sys.stderr)
    facts: dict[str, Any] = {
        "data": known.data,
        "compat": options.compat,
        "cache": options.cache,
        "slack": options.slack,
        "read_seconds": options.read,
        "coalesces": options.coalesces,
        "running_percent": options.running,
        "simulated": options.simulate,
        "hold": options.hold,
        "jobs": [_job(job, options.cache) for job in known.jobs],
        "doubts": list(known.doubts),
        "plot": options.plot,
    }
    add = _add_plan if _planned(options) else _add_orders
    reached = add(facts, jobs, known, options)
    if options.plot is not None:
        from foresee.cli import _figures
        from foresee.cli.stagger import plot

        figure = plot.figure(facts, known.jobs, compat=options.compat, cache=options.cache)
        _figures.write(options.plot, figure)
    if options.json:
        print(json.dumps(facts, allow_nan=False))
    else:
        from foresee.cli.stagger import report

        print(report.report(facts))
    return 0 if reached or options.simulate else 1


def _check(options: argparse.Namespace) -> None:
    """Options that do not go together, and times as people write them."""
    faults = []
    faults += _plot_option.check("--plot", options.plot)
    faults += read_faults(options)
    if not 0 < options.cache <= 1:
        faults.append(f"--cache {options.cache}: a share above 0 and at most 1 expected")
    if not 0 <= options.slack < 1:
        faults.append(f"--slack {options.slack}: a share of 0 or more and below 1 expected")
    faults += running_faults(options)
    if options.hold is not None and not options.simulate:
        faults.append(f"--hold {options.hold} without --simulate: no closed form holds a job")
    if options.hold is not None and not 0 <= options.hold <= 1:
        faults.append(f"--hold {options.hold}: a share from 0 to 1 expected")
    if options.hold is not None and options.coalesces:
        faults.append(
            f"--hold {options.hold} with --coalesces: company costs no time there, so no job is held"
        )
    if faults:
        raise ConfigError(faults)


def _planned(options: argparse.Namespace) -> bool:
    """Return whether no job is to catch up, which is planned instead of the effect of two jobs on each other."""
    return bool(options.coalesces or len(options.jobs) > 2)


def _known(options: argparse.Namespace) -> tuple[list[Job], inputs.StaggerInputs]:
    """The jobs, and all figures."""
    from foresee import jobspec
    from foresee.cli.stagger import catalog_path
    from foresee.stagger import Catalog, inputs

    jobs = jobspec.read_all(options.jobs)
    more = {"read": options.read, "coalesces": options.coalesces}
    path = catalog_path.found(options.catalog, options.machine)
    if path is None:
        return jobs, inputs.times(jobs, **more)
    machine = platform.node() if options.machine is None else options.machine
    with Catalog.open(path) as catalog:
        return jobs, inputs.times(jobs, catalog=catalog, machine=machine, **more)


def _job(job: stagger.JobTimes, cache: float) -> dict[str, Any]:
    from foresee.stagger.model import FIGURES

    return {
        "name": job.name,
        **{f"{figure}_seconds": getattr(job, figure) for figure in FIGURES},
        "estimated": sorted(job.estimated),
        "steps": job.steps,
        "epochs": job.epochs,
        "alone_seconds": job.alone(cache),
    }


def _add_plan(
    facts: dict[str, Any], jobs: list[Job], known: inputs.StaggerInputs, options: argparse.Namespace
) -> bool:
    from foresee import stagger
    from foresee.stagger import timing

    read = options.read if options.coalesces else None
    there = [job.run.start for job in jobs]
    elapsed = None
    if options.running is None:
        made = stagger.plan(known.jobs, read, arrivals=there, cache=options.cache)
        arrivals = [arrival - min(there) for arrival in there]
    else:
        elapsed = options.running / 100 * known.jobs[0].alone(options.cache)
        arrivals = [0.0, *(elapsed + arrival for arrival in there[1:])]
        made = stagger.led_by(0, known.jobs, arrivals, read, cache=options.cache)
    # What is told is what `foresee stagger run` would do.
    chosen = timing.best(
        known.jobs,
        there,
        running=elapsed,
        read=read,
        compat=options.compat,
        cache=options.cache,
        slack=options.slack,
    )
    at_once = _at_once(made, known.jobs, arrivals, options) if options.coalesces else None
    if chosen is None:
        plan: dict[str, Any] = {
            "leader": known.jobs[made.leader].name,
            "case": "behind",
            "starts": list(made.starts),
            "runs": list(made.runs),
            "within_cache": list(made.within_cache),
            "makespan": made.makespan,
            "gpu_seconds": made.gpu_seconds,
            "sequential": made.sequential,
        }
    else:
        plan = _planned_by(chosen, known.jobs)
        led = stagger.led_by(chosen.order[0], known.jobs, arrivals, read, cache=options.cache)
        plan["sequential"] = led.sequential
    now = None if elapsed is None else [max(start - elapsed, 0.0) for start in plan["starts"]]
    facts["plan"] = {**plan, "at_once": at_once, "from_now": now}
    if options.simulate:
        facts["plan"]["played"] = _played(known.jobs, plan["starts"], options)
    return chosen is not None


def _planned_by(chosen: timing_.Chosen, jobs: Sequence[stagger.JobTimes]) -> dict[str, Any]:
    """Return the chosen plan, with lists in the order of the command line, and from the first arrival on."""
    starts, runs = [0.0] * len(jobs), [0.0] * len(jobs)
    for place, start, run_ in zip(chosen.order, chosen.starts, chosen.runs, strict=True):
        starts[place], runs[place] = chosen.delay + start, run_
    return {
        "leader": jobs[chosen.order[0]].name,
        "case": chosen.case,
        "starts": starts,
        "runs": runs,
        "within_cache": [True] * len(jobs),
        "makespan": chosen.delay + chosen.makespan,
        "gpu_seconds": chosen.gpu_seconds,
    }


def _at_once(
    made: stagger.Plan,
    jobs: Sequence[stagger.JobTimes],
    arrivals: Sequence[float],
    options: argparse.Namespace,
) -> dict[str, Any] | None:
    """All jobs as soon as they can, behind a cache that coalesces: no plan ends sooner.

    None: they come at several moments, and have more steps than are played.
    """
    from foresee import stagger

    if made.gpu_seconds_simultaneous is not None:
        makespan, gpu_seconds = made.makespan, made.gpu_seconds_simultaneous
    elif sum(job.steps * job.epochs for job in jobs) > stagger.STEPS_MAX:
        return None
    else:
        played = stagger.simulate(jobs, arrivals, cache=options.cache, read=options.read)
        makespan, gpu_seconds = played.makespan, played.gpu_seconds
    return {"makespan": makespan, "gpu_seconds": gpu_seconds}


def _add_orders(
    facts: dict[str, Any], jobs: list[Job], known: inputs.StaggerInputs, options: argparse.Namespace
) -> bool:
    from foresee.stagger import timing

    first, second = known.jobs
    there = [job.run.start for job in jobs]
    if options.running is None:
        elapsed = None
        one, other = (start - min(there) for start in there)
        orders = [_order(first, second, one, other, options), _order(second, first, other, one, options)]
    else:
        elapsed = options.running / 100 * first.alone(options.cache)
        orders = [_order(first, second, 0.0, elapsed + there[1], options)]
    for order in orders:
        for row in (*order["table"], *filter(None, (order["best"],))):
            row["from_now"] = None if elapsed is None else max(row["start"] - elapsed, 0.0)
    facts["orders"] = orders
    chosen = timing.best(
        known.jobs,
        there,
        running=elapsed,
        compat=options.compat,
        cache=options.cache,
        slack=options.slack,
    )
    best = None if chosen is None else orders[chosen.order[0]]
    facts["best"] = (
        None if best is None else {"leader": best["leader"], "follower": best["follower"], **best["best"]}
    )
    if options.simulate:
        each = [order["best_played"] for order in orders]
        at = min(range(len(each)), key=lambda i: orders[i]["leader_start"] + each[i]["played"]["makespan"])
        facts["best_played"] = {
            "leader": orders[at]["leader"],
            "follower": orders[at]["follower"],
            **each[at],
        }
    return chosen is not None


def _played(
    jobs: Sequence[stagger.JobTimes], starts: Sequence[float], options: argparse.Namespace
) -> dict[str, Any]:
    """Simulate the jobs step by step."""
    from foresee import stagger

    read = options.read if options.coalesces else None
    told = stagger.simulate(
        jobs, starts, compat=options.compat, cache=options.cache, read=read, hold=options.hold
    )
    return {
        "makespan": told.makespan,
        "gpu_seconds": told.gpu_seconds,
        "data_sets_read": sum(run.reads for run in told.runs),
        "held_seconds": sum(run.held for run in told.runs),
    }


def _order(
    leader: stagger.JobTimes,
    follower: stagger.JobTimes,
    leader_start: float,
    follower_start: float,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """All that is told of one order of start; times are seconds after the leader's start but for ``end``."""
    import numpy as np

    from foresee import stagger

    alone = leader.alone(options.cache)
    now = max(follower_start - leader_start, 0.0)
    starts = [percent / 100 * alone for percent in _PERCENTS]
    compat, cache = options.compat, options.cache
    best = stagger.optimum(leader, follower, now=now, compat=compat, cache=cache, slack=options.slack)
    shown = sorted({now, *(start for start in starts if start > now * (1 + 1e-12))})
    told = [
        _row(
            leader,
            follower,
            stagger.predict(leader, follower, np.array([start]), compat=compat, cache=cache),
            cache,
        )
        for start in shown
    ]
    last = stagger.sequential(leader, follower, cache=cache)
    within = [row for row in told if row["within_cache"]]
    row = None
    if best is not None:
        at_best = stagger.predict(leader, follower, np.array([best.start]), compat=compat, cache=cache)
        row = _row(leader, follower, at_best, cache)
        row["end"] = leader_start + row["makespan"]
    if options.simulate:
        for each in (*told, *([] if row is None else [row])):
            each["played"] = _played((leader, follower), (0.0, each["start"]), options)
    return {
        "leader": leader.name,
        "follower": follower.name,
        "leader_start": leader_start,
        "earliest": now,
        "best": row,
        "best_played": min(
            (*told, *([] if row is None else [row])),
            key=lambda each: (each["played"]["makespan"], each["played"]["gpu_seconds"]),
        )
        if options.simulate
        else None,
        "best_of_table": min(within, key=lambda each: each["makespan"], default=None),
        "simultaneous": told[0] if now == 0 else None,
        "sequential": {"makespan": last, "gpu_seconds": last} if now == 0 else None,
        "table": told,
    }


def _row(
    leader: stagger.JobTimes, follower: stagger.JobTimes, told: stagger.Prediction, cache: float
) -> dict[str, Any]:
    """One start, in plain values; infinite ones as None, which JSON has."""
    steps = follower.steps * follower.epochs
    return {
        "start": float(told.start[0]),
        "percent": 100 * float(told.start[0]) / leader.alone(cache),
        "case": str(told.case[0]),
        "catch_up": _finite(told.catch_up[0]),
        "caught_steps": _finite(told.caught_steps[0]),
        "leader_first_epoch_seconds": float(told.leader_first[0]),
        "follower_first_epoch_seconds": float(told.follower_first[0]),
        "leader_seconds": float(told.leader[0]),
        "follower_seconds": float(told.follower[0]),
        "makespan": float(told.makespan[0]),
        "gpu_seconds": float(told.gpu_seconds[0]),
        "follower_wait_seconds": float(told.follower[0]) / steps - follower.compute,
        "within_cache": bool(told.within_cache[0]),
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
