# SPDX-License-Identifier: Apache-2.0
"""``foresee predict``: the duration of a traced run on another machine, from that machine's profile."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from foresee._runtime.waits import PREPARING
from foresee.cli import _plot_option
from foresee.cli._status import Status
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from foresee import predict

HELP = "predict the duration of a traced run on another machine, under each loading policy"
EPILOG = (
    "Intervals are those of the time per step: 90 % of the means over resampled steps. Ctrl-C prints the predictions "
    "so far, and exits with 130."
)
_REDRAW_S = 0.1
_CLASSES = ("init", "compute", "stall", "barrier")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("folder", metavar="RUN", help="a run folder, as FORESEE_TRACE names it")
    parser.add_argument("--profile", required=True, metavar="there.toml", help="profile of the other machine")
    parser.add_argument("--job", metavar="job.toml", help="keys that the trace lacks, or that differ")
    parser.add_argument(
        "--compute-factor",
        type=float,
        default=1.0,
        metavar="X",
        help="a step computes X times as long on that machine",
    )
    parser.add_argument(
        "--node-cache",
        action=argparse.BooleanOptionalAction,
        help="whether the ranks of a node share one cache under the policy foresee (as traced)",
    )
    parser.add_argument("--policies", nargs="+", metavar="P", help="loading policies (those of the job)")
    _plot_option.add_to(parser, "draw the time by cause as stacked bars")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee import predict
    from foresee.jobspec import profile
    from foresee.planning import simulation

    if faults := _plot_option.check("--plot", options.plot):
        raise ConfigError(faults)
    unknown = [policy for policy in options.policies or () if policy not in simulation.POLICIES]
    if unknown:
        raise ConfigError(
            f"--policies {' '.join(unknown)}: one or more of {', '.join(simulation.POLICIES)} expected"
        )
    target = profile.read(options.profile)
    trace = predict.read(options.folder)
    task = predict.task(
        trace,
        target,
        job_file=options.job,
        compute_factor=options.compute_factor,
        node_cache=options.node_cache,
    )
    forecasts: list[predict.Forecast] = []
    policies = options.policies or predict.policies(task.job)
    progress = _Progress(len(policies), len(task.steps_s))
    is_interrupted = False
    try:
        for policy in policies:
            forecasts += predict.predict(task, [policy], progress)
            progress.finish(len(forecasts))
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        progress.end()
    facts = _facts(trace, task, forecasts, target.machine, is_interrupted=is_interrupted)
    _plot_option.write(options.plot, lambda: _figure(facts))
    print(json.dumps(facts) if options.json else _report(facts))
    if is_interrupted:
        print("interrupted", file=sys.stderr)
    return 130 if is_interrupted else 0


class _Progress:
    """The progress bar on stderr, if that is a terminal: ``policies``, with ``simulations`` each."""

    def __init__(self, policies: int, simulations: int) -> None:
        self._policies = policies
        self._simulations = simulations
        self._finished = 0
        self._simulated = 0
        self._drawn = -math.inf
        self._status = Status()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show the progress of a simulation, as :meth:`foresee.planning.simulation.Run.advance` reports it."""
        if stage == "finished":
            self._simulated += 1
        now = time.monotonic()
        if now - self._drawn >= _REDRAW_S:
            self._drawn = now
            part = done / total if stage == "training" else 0.0
            share = (self._finished + (self._simulated + part) / self._simulations) / self._policies
            self._status.bar(share, f"{self._finished} of {self._policies}")

    def finish(self, policies: int) -> None:
        """Count the finished policies, also those without simulations."""
        self._finished, self._simulated = policies, 0

    def end(self) -> None:
        """Leave its line empty."""
        self._status.end()


def _facts(
    trace: predict.Trace,
    task: predict.Task,
    forecasts: list[predict.Forecast],
    machine: str,
    *,
    is_interrupted: bool,
) -> dict[str, Any]:
    first, later = trace.epoch_s[:1], trace.epoch_s[1:]
    return {
        "run": trace.folder,
        "machine": machine,
        "traced": {
            **{
                name: getattr(trace, name)
                for name in ("ranks", "epochs", "steps", "batch", "samples", "order")
            },
            "sample_bytes": float(trace.sizes.mean()),
            "compute_step_s": float(trace.compute.mean()),
            "first_epoch_s": first[0] if first else None,
            "later_epoch_s": sum(later) / len(later) if later else None,
            "waits_s": dict(trace.waits),
            "limits": list(trace.limits),
            "node_cache": trace.node_cache,
        },
        "node_cache": task.node_cache,
        "compute_step_s": None if task.compute_s is None else asdict(task.compute_s),
        "untold": dict(task.untold),
        "policies": [asdict(each) for each in forecasts],
        "interrupted": is_interrupted,
    }


def _report(facts: dict[str, Any]) -> str:
    traced = facts["traced"]
    # As in the simulations: waits for reads, of all ranks.
    stall = sum(seconds for cause, seconds in traced["waits_s"].items() if cause not in PREPARING)
    lines = [
        (
            f"{facts['run']}: {traced['ranks']} ranks, {traced['epochs']} epochs of {traced['steps']} steps, "
            f"{traced['samples']:,} samples of {traced['sample_bytes']:,.0f} bytes, {traced['order']}"
        ),
        (
            f"there: {facts['machine']}; a step computes {_range(facts['compute_step_s'])} s "
            f"({traced['compute_step_s']:.4g} here); seconds of the slowest rank, with 90 % intervals"
        ),
        "",
        f"{'policy':<19}{'total':>28}{'first epoch':>28}{'later epochs':>28}{'stall':>10}",
        (
            f"{'measured here':<19}{'':>28}{_plain(traced['first_epoch_s']):>28}{_plain(traced['later_epoch_s']):>28}"
            f"{stall / traced['ranks']:>10,.2f}"
        ),
    ]
    for one in facts["policies"]:
        if one["reason"] is not None:
            lines.append(f"{one['policy']:<19}no answer: {one['reason']}")
            continue
        stall = one["report"]["stall_s"] / one["report"]["ranks"]
        times = "".join(
            f"{_range(one[key], ',.2f'):>28}" for key in ("total_s", "first_epoch_s", "later_epoch_s")
        )
        lines.append(f"{one['policy']:<19}{times}{stall:>10,.2f}")
    if facts["untold"]:
        lines += ["", "values that the trace lacks, and their replacements:"]
        lines += [f"  {key}: {what}" for key, what in facts["untold"].items()]
    lines += [f"  {limit}" for limit in traced["limits"]]
    return "\n".join(lines)


def _range(interval: dict[str, float] | None, spec: str = ".4g") -> str:
    if interval is None:
        return "-" if spec != ".4g" else "as the job file says"
    value, low, high = (format(interval[name], spec) for name in ("value", "low", "high"))
    return value if interval["low"] == interval["high"] else f"{value} [{low}, {high}]"


def _plain(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.2f}"


def _figure(facts: dict[str, Any]) -> Figure:
    from foresee.cli import _figures

    forecasts = [one for one in facts["policies"] if one["reason"] is None]
    if not forecasts:
        raise ConfigError("--plot: no policy has an answer, so there is nothing to draw")
    bars = []
    for one in forecasts:
        report = one["report"]
        ranks = report["ranks"]
        parts = (report["init_s"], *(report[f"{name}_s"] / ranks for name in _CLASSES[1:]))
        bars.append(_figures.Group(one["policy"], [_figures.Stack(parts)]))
    title = f"{facts['run']} on {facts['machine']}"
    lines = [f"{forecasts[0]['report']['ranks']} ranks; seconds per rank, predicted from a trace"]
    return _figures.bars(title, lines, "policy", _CLASSES, {"": bars})
