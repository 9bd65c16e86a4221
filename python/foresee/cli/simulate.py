# SPDX-License-Identifier: Apache-2.0
"""``foresee simulate``: the duration of a job under each loading policy, on a machine that need not exist.

``_simulate_run`` runs the simulations, ``_simulate_report`` and ``_simulate_plot`` show them. All faults of the options
are reported before a simulation starts.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from foresee.cli import _plot_option, _simulate_options, _simulate_run
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from foresee.jobspec import Job

#: Not counted by --within: no loader can have samples at once or caches that are full at the start.
_BOUNDS = frozenset({"perfect", "nopfs_prestaged"})
#: Nor these, whose ranks read other samples, or in another order, than the training requests.
_OTHER_ORDER = frozenset({"deepio_optimistic", "parallel_staging", "locality_aware", "static_share"})

HELP = "simulate a job under each loading policy: its duration, its waits, and its reads by source"
EPILOG = (
    "A job is a file, or the name of a published scenario: --list shows them. Exit code 1: no policy that keeps the "
    f"order stays within --within; {', '.join(sorted(_OTHER_ORDER))} do not keep it, and "
    f"{' and '.join(sorted(_BOUNDS))} are bounds. Ctrl-C prints the results so far, and exits with 130."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("job", metavar="job.toml", nargs="?", help="a job file, or a scenario's name")
    parser.add_argument("--list", action="store_true", help="names of the published scenarios")
    parser.add_argument("--policies", nargs="+", metavar="P", help="loading policies (those of the job)")
    _simulate_options.add_to(parser)
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=V,V,...",
        help="simulate these values of a key, such as cluster.tiers.ram.capacity='32 GB,64 GB'; twice for two keys",
    )
    parser.add_argument(
        "--within",
        type=float,
        metavar="S",
        help="exit 1 if no policy that keeps the order takes at most S seconds",
    )
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="write ledgers as a run does, for analyze and predict; several policies have a folder each",
    )
    parser.add_argument(
        "--details", action="store_true", help="show each epoch and each source; --json always has them"
    )
    _plot_option.add_to(
        parser, "draw the time by cause as stacked bars, or two swept keys of one policy as a heat map"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee import jobspec
    from foresee.cli import _simulate_report

    if options.list:
        print(json.dumps(jobspec.scenarios()) if options.json else "\n".join(jobspec.scenarios()))
        return 0
    job, simulations = _plan(options)
    _simulate_run.run_all(simulations, options)
    facts = _facts(job, simulations, options)
    if options.plot is not None:
        _plot(options.plot, facts, simulations)
    print(json.dumps(facts) if options.json else _simulate_report.text(facts, details=options.details))
    if simulations.is_interrupted:
        return 130
    if options.within is None:
        return 0
    totals = [
        one["total_s"]
        for one in facts["runs"]
        if "total_s" in one and one["policy"] not in _BOUNDS | _OTHER_ORDER
    ]
    return 0 if any(total <= options.within for total in totals) else 1


def _plan(options: argparse.Namespace) -> tuple[Job, _simulate_run.Simulations]:
    """Return the job and the simulations.

    Raises:
        ConfigError: all faults of the options and the job.
    """
    from foresee.jobspec import vary
    from foresee.planning import simulation

    faults = [*_plot_option.check("--plot", options.plot), *_faults(options)]
    axes = _axes(options.sweep, faults)
    if options.job is None:
        faults.append("simulate: a job file or a scenario's name is missing; --list shows the scenarios")
        job = None
    else:
        job = _simulate_options.read_job(options.job, faults)
    points: list[vary.Point] = []
    policies = tuple(options.policies or ())
    if job is not None:
        policies = policies or job.cache.policies or _default_policies(job)
        points, wrong = vary.try_points(
            job, {key: [_number(one) for one in each] for key, each in axes.items()}
        )
        faults += wrong
        # If no point is a job, the job itself shows what else is missing, except for the swept keys.
        faults += [
            fault
            for variant in [variant for _, variant in points] or [job]
            for policy in policies
            for fault in simulation.missing(variant, policy)
            if points or not any(f"{key} is missing" in fault for key in axes)
        ]
    if options.plot is not None and len(axes) == 2 and len(policies) > 1:
        faults.append(
            f"--plot of two swept keys shows one policy; choose one of {' '.join(policies)} with --policies"
        )
    if faults or job is None:
        raise ConfigError(list(dict.fromkeys(faults)))
    simulations = _simulate_run.Simulations(axes)
    for values, variant in points:
        for policy in policies:
            run_dir = options.run_dir
            if run_dir is not None and len(policies) > 1:
                run_dir = os.path.join(run_dir, policy)
            simulations.tasks.append(_simulate_run.Task(policy, tuple(map(str, values)), variant, run_dir))
    # An index that cannot be opened is no fault of the job, but is reported as early.
    first = simulations.tasks[0]
    simulation.scenario_of(
        first.job,
        first.policy,
        compat=options.compat,
        order=options.order,
        hand_over=options.hand_over,
        node_cache=options.node_cache,
        peers=options.peers,
    )
    return job, simulations


def _axes(sweeps: Sequence[str], faults: list[str]) -> dict[str, list[str]]:
    """Return the values to sweep by key; other words are added to ``faults``."""
    axes: dict[str, list[str]] = {}
    for sweep in sweeps:
        key, equals, values = sweep.partition("=")
        if not equals or key in axes:
            faults.append(f"--sweep {sweep!r}: KEY=VALUE,VALUE,... with another key each time expected")
        else:
            axes[key] = [value.strip() for value in values.split(",") if value.strip()]
    if len(axes) > 2:
        faults.append(f"--sweep {' '.join(axes)}: two keys at most")
    return axes


def _faults(options: argparse.Namespace) -> list[str]:
    """Return the faults of the options; results of an older run must not mix with this one's."""
    from foresee.jobspec import POLICIES
    from foresee.planning import simulation

    faults = _simulate_options.faults(options)
    unknown = [policy for policy in options.policies or () if policy not in simulation.POLICIES]
    if unknown:
        faults.append(f"--policies {' '.join(unknown)}: one or more of {', '.join(POLICIES)} expected")
    if options.run_dir is None:
        return faults
    if options.sweep:
        faults.append("--run-dir with --sweep: ledgers of many points are no run; leave out one of both")
    path = options.run_dir
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        faults.append(f"--run-dir {path}: it exists and is not an empty folder; name another")
    return faults


def _default_policies(job: Job) -> tuple[str, ...]:
    """Return the policies of a job that names none: all for which it has the values."""
    from foresee.jobspec import CACHE_POLICIES, WINDOW_POLICIES

    return CACHE_POLICIES if job.cluster.origin.read is not None else WINDOW_POLICIES


def _number(word: str) -> object:
    """Parse a value as a job file has it: a number, true or false, or a text with its unit."""
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float):
        try:
            return kind(word.replace("_", ""))
        except ValueError:
            continue
    return word


def _facts(job: Job, simulations: _simulate_run.Simulations, options: argparse.Namespace) -> dict[str, Any]:
    runs = []
    for task in simulations.tasks:
        one: dict[str, Any] = {"policy": task.policy}
        if simulations.axes:
            one["at"] = dict(zip(simulations.axes, task.point, strict=True))
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
        "data": job.data.name,
        "compat": options.compat,
        "order": options.order,
        "hand_over": options.hand_over,
        "node_cache": options.node_cache,
        "peers": options.peers,
        "sweep": simulations.axes,
        "runs": runs,
        "interrupted": simulations.is_interrupted,
    }


def _plot(path: str, facts: dict[str, Any], simulations: _simulate_run.Simulations) -> None:
    """Draw the simulated runs; draw nothing after an interrupt before any of them had begun."""
    from foresee.cli import _figures, _simulate_plot

    if any("total_s" in one for one in facts["runs"]):
        tiers = [tier.name for tier in simulations.tasks[0].job.cluster.tiers]
        _figures.write(path, _simulate_plot.figure(facts, tiers))
    elif not simulations.is_interrupted:
        raise ConfigError("--plot: no policy has an answer, so there is nothing to draw")
