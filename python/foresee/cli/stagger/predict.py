# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger predict``: makespan and GPU-seconds by start, and the best start."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foresee.cli import _plot_option
from foresee.cli._commands import add_compat
from foresee.cli.stagger.options import add_model, model_faults, open_catalog
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from foresee import stagger
    from foresee.jobspec import Job
    from foresee.stagger.inputs import StaggerInputs
    from foresee.stagger.timing import Schedule

HELP = "predict makespan and GPU-seconds by start, and the best start"
EPILOG = (
    "Values come from [stagger] and [train] of the job files, else from the catalog, else from --read. "
    "All jobs have one seed, so their random choices are not independent. "
    "Exit code 1: the cache is too small for a follower at any start; --simulate still shows its result."
)
#: Starts in the table, in percent of the leader's run alone, as in the paper's exhaustive search.
_PERCENTS = tuple(range(0, 101, 10))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_model(parser)
    add_compat(
        parser, "equation (2) to the letter, the slower job keeps its rate when the other has ended its epoch"
    )
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="also simulate each start step by step, also beyond the cache's reach",
    )
    parser.add_argument(
        "--hold",
        type=float,
        metavar="SHARE",
        help="with --simulate: hold a near follower until the cache has this share of the data beyond it",
    )
    _plot_option.add_to(parser, "draw the curves; .svg, .png or .pdf")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee import jobspec
    from foresee.cli.stagger import report
    from foresee.stagger import inputs

    _check(options)
    jobs = jobspec.read_all(options.jobs)
    with open_catalog(options) as (catalog, machine):
        known = inputs.times(
            jobs, catalog=catalog, machine=machine, read=options.read, coalesces=options.coalesces
        )
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
        "jobs": [_job_facts(job, options.cache) for job in known.jobs],
        "doubts": list(known.doubts),
        "plot": options.plot,
    }
    # If no job is to catch up, all starts are planned together.
    add = _add_plan if options.coalesces or len(options.jobs) > 2 else _add_orders
    has_start = add(facts, jobs, known, options)

    def draw() -> Figure:
        from foresee.cli.stagger import plot

        return plot.figure(facts, known.jobs, compat=options.compat, cache=options.cache)

    _plot_option.write(options.plot, draw)
    print(json.dumps(facts, allow_nan=False) if options.json else report.report(facts))
    return 0 if has_start or options.simulate else 1


def _check(options: argparse.Namespace) -> None:
    """Refuse options outside their ranges and combinations without a meaning.

    Raises:
        ConfigError: all faults.
    """
    faults = _plot_option.check("--plot", options.plot) + model_faults(options)
    if options.hold is not None:
        option = f"--hold {options.hold}"
        if not options.simulate:
            faults.append(f"{option} without --simulate: the closed forms hold no job")
        if not 0 <= options.hold <= 1:
            faults.append(f"{option}: a share from 0 to 1 expected")
        if options.coalesces:
            faults.append(f"{option} with --coalesces: concurrent reads cost no time, so no job is held")
    if faults:
        raise ConfigError(faults)


def _job_facts(job: stagger.JobTimes, cache: float) -> dict[str, Any]:
    from foresee.stagger.model import FIGURES

    return {
        "name": job.name,
        **{f"{figure}_seconds": getattr(job, figure) for figure in FIGURES},
        "estimated": sorted(job.estimated),
        "steps": job.steps,
        "epochs": job.epochs,
        "alone_seconds": job.alone(cache),
    }


def _best(
    known: StaggerInputs, arrivals: Sequence[float], elapsed: float | None, options: argparse.Namespace
) -> Schedule | None:
    """Return the starts that ``foresee stagger run`` would choose."""
    from foresee.stagger import timing

    return timing.find_schedule(
        known.jobs,
        arrivals,
        running=elapsed,
        read=options.read if options.coalesces else None,
        compat=options.compat,
        cache=options.cache,
        slack=options.slack,
    )


def _add_plan(
    facts: dict[str, Any], jobs: list[Job], known: StaggerInputs, options: argparse.Namespace
) -> bool:
    """Add the plan of all jobs; return whether the cache suffices for it."""
    from foresee import stagger

    read = options.read if options.coalesces else None
    given = [job.run.start for job in jobs]
    elapsed = None
    if options.running is None:
        best_plan = stagger.plan(known.jobs, read, arrivals=given, cache=options.cache)
        arrivals = [arrival - min(given) for arrival in given]
    else:
        elapsed = options.running / 100 * known.jobs[0].alone(options.cache)
        arrivals = [0.0, *(elapsed + arrival for arrival in given[1:])]
        best_plan = stagger.led_by(0, known.jobs, arrivals, read, cache=options.cache)
    chosen = _best(known, given, elapsed, options)
    if chosen is None:
        plan: dict[str, Any] = {
            "leader": known.jobs[best_plan.leader].name,
            "case": "behind",
            **{name: getattr(best_plan, name) for name in ("starts", "runs", "within_cache")},
            **{name: getattr(best_plan, name) for name in ("makespan", "gpu_seconds", "sequential")},
        }
    else:
        plan = _plan_facts(chosen, known.jobs)
        led = stagger.led_by(chosen.order[0], known.jobs, arrivals, read, cache=options.cache)
        plan["sequential"] = led.sequential
    plan["at_once"] = _simultaneous(best_plan, known.jobs, arrivals, options) if options.coalesces else None
    plan["from_now"] = None if elapsed is None else [max(start - elapsed, 0.0) for start in plan["starts"]]
    if options.simulate:
        plan["played"] = _simulate(known.jobs, plan["starts"], options)
    facts["plan"] = plan
    return chosen is not None


def _plan_facts(chosen: Schedule, jobs: Sequence[stagger.JobTimes]) -> dict[str, Any]:
    """Return the chosen plan, with lists in the order of the command line, in seconds from the first arrival."""
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


def _simultaneous(
    best_plan: stagger.Plan,
    jobs: Sequence[stagger.JobTimes],
    arrivals: Sequence[float],
    options: argparse.Namespace,
) -> dict[str, Any] | None:
    """Return the result of starting all jobs at their arrival, behind a cache that coalesces: no plan ends sooner.

    None: the arrivals differ, and the jobs have more steps than are simulated.
    """
    from foresee import stagger

    if best_plan.gpu_seconds_simultaneous is not None:
        return {"makespan": best_plan.makespan, "gpu_seconds": best_plan.gpu_seconds_simultaneous}
    if sum(job.steps * job.epochs for job in jobs) > stagger.STEPS_MAX:
        return None
    played = stagger.simulate(jobs, arrivals, cache=options.cache, read=options.read)
    return {"makespan": played.makespan, "gpu_seconds": played.gpu_seconds}


def _add_orders(
    facts: dict[str, Any], jobs: list[Job], known: StaggerInputs, options: argparse.Namespace
) -> bool:
    """Add both orders of two jobs and the best start; return whether the cache suffices for a start."""
    first, second = known.jobs
    arrivals = [job.run.start for job in jobs]
    if options.running is None:
        elapsed = None
        one, other = (arrival - min(arrivals) for arrival in arrivals)
        orders = [_order(first, second, one, other, options), _order(second, first, other, one, options)]
    else:
        elapsed = options.running / 100 * first.alone(options.cache)
        orders = [_order(first, second, 0.0, elapsed + arrivals[1], options)]
    for order in orders:
        for row in (*order["table"], *filter(None, (order["best"],))):
            row["from_now"] = None if elapsed is None else max(row["start"] - elapsed, 0.0)
    facts["orders"] = orders
    chosen = _best(known, arrivals, elapsed, options)
    best = None if chosen is None else orders[chosen.order[0]]
    facts["best"] = None if best is None else _named(best, best["best"])
    if options.simulate:
        played = min(
            orders, key=lambda each: each["leader_start"] + each["best_played"]["played"]["makespan"]
        )
        facts["best_played"] = _named(played, played["best_played"])
    return chosen is not None


def _named(order: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return {"leader": order["leader"], "follower": order["follower"], **row}


def _simulate(
    jobs: Sequence[stagger.JobTimes], starts: Sequence[float], options: argparse.Namespace
) -> dict[str, Any]:
    """Simulate the jobs step by step."""
    from foresee import stagger

    read = options.read if options.coalesces else None
    played = stagger.simulate(
        jobs, starts, compat=options.compat, cache=options.cache, read=read, hold=options.hold
    )
    return {
        "makespan": played.makespan,
        "gpu_seconds": played.gpu_seconds,
        "data_sets_read": sum(run.reads for run in played.runs),
        "held_seconds": sum(run.held for run in played.runs),
    }


def _order(
    leader: stagger.JobTimes,
    follower: stagger.JobTimes,
    leader_start: float,
    follower_start: float,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Return one order of start; times are seconds after the leader's start except ``end``."""
    from foresee import stagger

    compat, cache = options.compat, options.cache
    alone = leader.alone(cache)
    earliest = max(follower_start - leader_start, 0.0)
    starts = [percent / 100 * alone for percent in _PERCENTS]
    table = [
        _row(leader, follower, start, options)
        for start in sorted({earliest, *(start for start in starts if start > earliest * (1 + 1e-12))})
    ]
    best = stagger.optimum(leader, follower, now=earliest, compat=compat, cache=cache, slack=options.slack)
    best_row = None
    if best is not None:
        best_row = _row(leader, follower, best.start, options)
        best_row["end"] = leader_start + best_row["makespan"]
    best_played = None
    if options.simulate:
        best_played = min(
            (*table, *filter(None, (best_row,))),
            key=lambda row: (row["played"]["makespan"], row["played"]["gpu_seconds"]),
        )
    within = [row for row in table if row["within_cache"]]
    last = stagger.sequential(leader, follower, cache=cache)
    return {
        "leader": leader.name,
        "follower": follower.name,
        "leader_start": leader_start,
        "earliest": earliest,
        "best": best_row,
        "best_played": best_played,
        "best_of_table": min(within, key=lambda row: row["makespan"], default=None),
        "simultaneous": table[0] if earliest == 0 else None,
        "sequential": {"makespan": last, "gpu_seconds": last} if earliest == 0 else None,
        "table": table,
    }


def _row(
    leader: stagger.JobTimes, follower: stagger.JobTimes, start: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the prediction for one start; None replaces infinity, which JSON lacks."""
    import numpy as np

    from foresee import stagger

    predicted = stagger.predict(
        leader, follower, np.array([start]), compat=options.compat, cache=options.cache
    )
    follower_seconds = float(predicted.follower[0])
    row: dict[str, Any] = {
        "start": float(predicted.start[0]),
        "percent": 100 * float(predicted.start[0]) / leader.alone(options.cache),
        "case": str(predicted.case[0]),
        "catch_up": _finite(predicted.catch_up[0]),
        "caught_steps": _finite(predicted.caught_steps[0]),
        "leader_first_epoch_seconds": float(predicted.leader_first[0]),
        "follower_first_epoch_seconds": float(predicted.follower_first[0]),
        "leader_seconds": float(predicted.leader[0]),
        "follower_seconds": follower_seconds,
        "makespan": float(predicted.makespan[0]),
        "gpu_seconds": float(predicted.gpu_seconds[0]),
        "follower_wait_seconds": follower_seconds / (follower.steps * follower.epochs) - follower.compute,
        "within_cache": bool(predicted.within_cache[0]),
    }
    if options.simulate:
        row["played"] = _simulate((leader, follower), (0.0, row["start"]), options)
    return row


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
