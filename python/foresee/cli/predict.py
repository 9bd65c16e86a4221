# SPDX-License-Identifier: Apache-2.0
"""``foresee predict``: from a traced run and the profile of another machine, how long the run takes there."""

from __future__ import annotations

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
    import argparse

    from matplotlib.figure import Figure

    from foresee import predict

__all__ = ["add_to", "run"]

_HELP = "predict the duration of a traced run on another machine, under each loading policy"
_EPILOG = (
    "Intervals are those of the time per step: 90 % of the means over resampled steps. Ctrl-C prints the predictions "
    "so far, and exits with 130."
)
#: Seconds between two pictures of the bar.
_LOOK_S = 0.1
_CLASSES = ("init", "compute", "stall", "barrier")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("predict", help=_HELP, description=_HELP, epilog=_EPILOG)
    parser.add_argument("folder", metavar="RUN", help="a run folder, as FORESEE_TRACE names it")
    parser.add_argument("--profile", required=True, metavar="there.toml", help="profile of the other machine")
    parser.add_argument("--job", metavar="job.toml", help="keys that the trace lacks, or that differ")
    parser.add_argument(
        "--compute-factor", type=float, default=1.0, metavar="X", help="a step computes X times as long there"
    )
    parser.add_argument("--policies", nargs="+", metavar="P", help="loading policies (those of the job)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument("--plot", metavar=_plot_option.METAVAR, help="draw the time by cause as stacked bars")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
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
    there = profile.read(options.profile)
    trace = predict.read(options.folder)
    asked = predict.task(trace, there, job_file=options.job, compute_factor=options.compute_factor)
    made: list[predict.Forecast] = []
    policies = options.policies or predict.policies(asked.job)
    shown = _Shown(len(policies), len(asked.steps_s))
    stopped = False
    try:
        for policy in policies:
            made += predict.predict(asked, [policy], shown)
            shown.answered(len(made))
    except KeyboardInterrupt:
        stopped = True
    finally:
        shown.end()
    facts = _facts(trace, asked, made, there.machine, interrupted=stopped)
    if options.plot is not None:
        from foresee.cli import _figures

        _figures.write(options.plot, _picture(facts))
    print(json.dumps(facts) if options.json else _report(facts))
    if stopped:
        print("interrupted", file=sys.stderr)
    return 130 if stopped else 0


class _Shown:
    """The progress bar, on stderr where that is a terminal: of ``policies``, each by so many simulations."""

    def __init__(self, policies: int, simulations: int) -> None:
        self._policies = policies
        self._simulations = simulations
        self._answered = 0
        self._simulated = 0
        self._drawn = -math.inf
        self._status = Status()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show the progress of a simulation, as :meth:`foresee.planning.simulation.Run.advance` reports it."""
        if stage == "finished":
            self._simulated += 1
        now = time.monotonic()
        if now - self._drawn >= _LOOK_S:
            self._drawn = now
            self._draw(done / total if stage == "training" else 0.0)

    def answered(self, policies: int) -> None:
        """So many policies have their answer; one without simulations as well."""
        self._answered, self._simulated = policies, 0

    def end(self) -> None:
        """Leave its line."""
        self._status.end()

    def _draw(self, part: float) -> None:
        share = (self._answered + (self._simulated + part) / self._simulations) / self._policies
        self._status.bar(share, f"{self._answered} of {self._policies}")


def _facts(
    trace: predict.Trace,
    asked: predict.Task,
    made: list[predict.Forecast],
    machine: str,
    *,
    interrupted: bool,
) -> dict[str, Any]:
    measured = list(trace.epoch_s)
    later = measured[1:]
    return {
        "run": trace.folder,
        "machine": machine,
        "traced": {
            "ranks": trace.ranks,
            "epochs": trace.epochs,
            "steps": trace.steps,
            "batch": trace.batch,
            "samples": trace.samples,
            "sample_bytes": float(trace.sizes.mean()),
            "order": trace.order,
            "compute_step_s": float(trace.compute.mean()),
            "first_epoch_s": measured[0] if measured else None,
            "later_epoch_s": sum(later) / len(later) if later else None,
            "waits_s": dict(trace.waits),
            "limits": list(trace.limits),
        },
        "compute_step_s": None if asked.compute_s is None else asdict(asked.compute_s),
        "untold": dict(asked.untold),
        "policies": [asdict(each) for each in made],
        "interrupted": interrupted,
    }


def _stall(traced: dict[str, Any]) -> float:
    """Seconds of waiting for reads, of all ranks: what the simulations have."""
    waits: dict[str, float] = traced["waits_s"]
    return sum(seconds for cause, seconds in waits.items() if cause not in PREPARING)


def _report(facts: dict[str, Any]) -> str:
    traced = facts["traced"]
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
            f"{_stall(traced) / traced['ranks']:>10,.2f}"
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
        lines += ["", "what the trace does not tell, and what stands in its place:"]
        lines += [f"  {key}: {what}" for key, what in facts["untold"].items()]
    lines += [f"  {limit}" for limit in traced["limits"]]
    return "\n".join(lines)


def _range(told: dict[str, float] | None, form: str = ".4g") -> str:
    if told is None:
        return "-" if form != ".4g" else "as the job file says"
    value = format(told["value"], form)
    if told["low"] == told["high"]:
        return value
    return f"{value} [{format(told['low'], form)}, {format(told['high'], form)}]"


def _plain(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.2f}"


def _picture(facts: dict[str, Any]) -> Figure:
    from foresee.cli import _figures

    told = [one for one in facts["policies"] if one["reason"] is None]
    if not told:
        raise ConfigError("--plot: no policy has an answer, so there is nothing to draw")
    bars = []
    for one in told:
        report = one["report"]
        ranks = report["ranks"]
        parts = (report["init_s"], *(report[f"{name}_s"] / ranks for name in _CLASSES[1:]))
        bars.append(_figures.Group(one["policy"], [_figures.Stack(parts)]))
    title = f"{facts['run']} on {facts['machine']}"
    lines = [f"{told[0]['report']['ranks']} ranks; seconds per rank, predicted from a trace"]
    return _figures.bars(title, lines, "policy", _CLASSES, bars)
