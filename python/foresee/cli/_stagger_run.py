# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run``: start jobs when predicted, follow them, and say how right that was."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from foresee.job import Job
    from foresee.jobs import Catalog
    from foresee.jobs.already import Already
    from foresee.jobs.outcome import Ran
    from foresee.jobs.running import Launcher
    from foresee.jobs.timing import Chosen
    from foresee.models.stagger import JobTimes

_HELP = "start jobs at the best moments, follow them, and compare with what was predicted"
_EPILOG = (
    "Each job's [run] command is run from its file's folder; it has to train with a Foresee loader, or with one in "
    "foresee.torch.measure(loader). Times count from the first step of the first job to the last step. If the first "
    "job is not as fast as predicted the others' starts are decided anew; if it fails or hangs, they start without it. "
    "A job that comes near to the one that reads the data in is held until that one is ahead again. With --slurm the "
    "run folder has to be on a file system that all nodes share. All jobs have one seed: what is random in them is not "
    "independent any more. Ctrl-C ends all jobs but one that ran already. exit "
    "code 1: a job failed."
)
_FILE = "stagger.json"
_VERSION = 2
#: Share of the data in memory from which a start is no cold one.
_WARM = 0.05


def add_to(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the action."""
    from foresee.cli import _catalog
    from foresee.cli.stagger import SLACK, SLACK_HELP

    parser = actions.add_parser("run", help=_HELP, description=_HELP, epilog=_EPILOG)
    parser.add_argument(
        "jobs", nargs="+", metavar="JOB.toml", help="two or more job files that share their data"
    )
    _catalog.add_to(parser, machine="whose figures of the catalog (this one's name)")
    parser.add_argument(
        "--cache", type=float, default=1.0, metavar="SHARE", help="of the data that the cache keeps (1)"
    )
    parser.add_argument(
        "--compat", choices=("physical", "paper"), default="physical", help="as of foresee stagger predict"
    )
    parser.add_argument("--slack", type=float, default=SLACK, metavar="SHARE", help=SLACK_HELP)
    parser.add_argument(
        "--running",
        type=float,
        metavar="X",
        help="the first job runs already, at X %% of its run alone; it is not started, and not ended",
    )
    parser.add_argument(
        "--steps",
        metavar="FOLDER",
        help="the first job runs already and writes its steps there (its FORESEE_STEPS), so it is followed",
    )
    parser.add_argument(
        "--no-hold", action="store_true", help="let a job that comes near to another one catch up with it"
    )
    parser.add_argument("--slurm", action="store_true", help="submit the jobs to Slurm")
    parser.add_argument(
        "--slurm-wait",
        choices=("auto", "begin", "dependency", "hold"),
        default="auto",
        help="how a later job waits: for its time of begin, for the first job's start and some minutes, or inside of "
        "its allocation (auto: hold up to 60 s, else begin)",
    )
    parser.add_argument(
        "--sbatch",
        metavar="OPTIONS",
        default="",
        help="more options for sbatch, as one text: --sbatch='--partition=a --time=60'",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="for the first job to begin; one that takes no step for as long the others do not wait for (300)",
    )
    parser.add_argument(
        "--folder", metavar="PATH", help="run folder: logs, steps, stagger.json (runs/stagger-DATE)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    from foresee import job
    from foresee.cli import _catalog
    from foresee.jobs import Catalog

    _check(options)
    jobs = [job.read(path) for path in options.jobs]
    options.catalog = _catalog.found(options.catalog, options.machine)
    if options.catalog is None:
        return _run(options, jobs, None, None)
    machine = platform.node() if options.machine is None else options.machine
    with Catalog.open(options.catalog) as catalog:
        return _run(options, jobs, catalog, machine)


def _check(options: argparse.Namespace) -> None:
    """Options outside their ranges, and those that do not go together."""
    from foresee.errors import ConfigError

    faults = []
    if not 0 < options.cache <= 1:
        faults.append(f"--cache {options.cache}: a share above 0 and at most 1 expected")
    if not 0 <= options.slack < 1:
        faults.append(f"--slack {options.slack}: a share of 0 or more and below 1 expected")
    if not options.patience > 0:
        faults.append(f"--patience {options.patience}: seconds above 0 expected")
    if options.running is not None and not 0 <= options.running < math.inf:
        faults.append(f"--running {options.running}: percent expected, 0 or more")
    if options.running is not None and options.steps is not None:
        faults.append("--running with --steps: the steps say how far the first job is")
    if options.slurm and (options.running is not None or options.steps is not None):
        faults.append(
            "--slurm with a first job that runs already: only jobs that were submitted together wait"
        )
    if not options.slurm and (options.sbatch or options.slurm_wait != "auto"):
        faults.append("--sbatch or --slurm-wait without --slurm: these jobs run on this machine")
    if faults:
        raise ConfigError(faults)


def _run(options: argparse.Namespace, jobs: list[Job], catalog: Catalog | None, machine: str | None) -> int:
    from foresee.cli._ended import like_interrupt
    from foresee.jobs import asked
    from foresee.jobs.pace import Pace
    from foresee.jobs.process import command
    from foresee.jobs.running import Runner
    from foresee.jobs.timing import Timing, choose
    from foresee.jobs.watched import TICK

    known = asked.times(jobs, catalog=catalog, machine=machine)
    joins = options.running is not None or options.steps is not None
    for each in jobs[joins:]:
        command(each)
    for doubt in known.doubts:
        _tell(doubt)
    at = {"compat": options.compat, "cache": options.cache}
    already, elapsed = _joined(options, jobs[0], known.jobs[0])
    warm = None if joins else _warm(jobs)
    chosen = choose(known.jobs, [each.run.start for each in jobs], running=elapsed, slack=options.slack, **at)
    ordered = [known.jobs[place] for place in chosen.order]
    launcher = _launcher(options, chosen)
    folder = _folder(options.folder)
    _tell(_announced(ordered, chosen, folder, joins=joins))
    runner = Runner(
        [(jobs[place], known.jobs[place].name) for place in chosen.order],
        Timing(ordered, chosen, slack=options.slack, **at),
        folder,
        pace=None if options.no_hold else Pace(ordered, TICK),
        launcher=launcher,
        delay=chosen.delay,
        already=already,
        patience=options.patience,
        tell=_tell,
        show=_shown(),
    )
    with like_interrupt():
        ran = runner.run()
    _shown()("")
    told = {
        "version": _VERSION,
        "data": known.data,
        **at,
        "slack": options.slack,
        "hold": not options.no_hold,
        "slurm": getattr(launcher, "way", None),
        "running_seconds": elapsed,
        **_compared(ordered, chosen, ran, options),
        "doubts": [*known.doubts, *ran.doubts, *([] if warm is None else [warm])],
        "interrupted": ran.interrupted,
        "folder": folder,
    }
    told["stands"] = _judged(options, [jobs[place] for place in chosen.order], machine, told)
    with open(os.path.join(folder, _FILE), "w", encoding="utf-8", newline="\n") as file:
        json.dump(told, file, allow_nan=False, indent=1)
    print(json.dumps(told, allow_nan=False) if options.json else _report(told))
    if ran.interrupted:
        return 130
    return 0 if all(outcome.state in {"done", "running"} for outcome in ran.outcomes) else 1


def _joined(
    options: argparse.Namespace, job: Job, times: JobTimes
) -> tuple[Already | float | None, float | None]:
    """A first job that runs already, if one does, and for how long it has."""
    from foresee.jobs.already import Already

    if options.running is not None:
        elapsed = options.running / 100 * times.alone(options.cache)
        return elapsed, elapsed
    if options.steps is None:
        return None, None
    already = Already(job, times.name, options.steps, options.patience)
    steps = already.steps()
    # One that waits for its first batch has run for no time that counts.
    return already, max(time.monotonic() - float(steps[0, 0]), 0.0) if len(steps) else 0.0


def _warm(jobs: list[Job]) -> str | None:
    """That data are in memory already, which is no cold start; None: they are not, or nobody knows."""
    from foresee.errors import ForeseeError
    from foresee.jobs import cold

    try:
        share = cold.share_in_memory(jobs)
    except (ForeseeError, OSError):
        # Whoever reads them will say what is wrong with them.
        return None
    if share is None or share <= _WARM:
        return None
    told = f"{100 * share:.0f} % of the data are in memory already; what is predicted begins with none of them there"
    _tell(told)
    return told


def _launcher(options: argparse.Namespace, chosen: Chosen) -> Launcher:
    import shlex

    from foresee.errors import ConfigError
    from foresee.jobs.running import Local
    from foresee.jobs.slurm import Slurm

    if not options.slurm:
        return Local()
    try:
        more = shlex.split(options.sbatch)
    except ValueError as error:
        raise ConfigError(
            f"--sbatch {options.sbatch!r}: {error}; options as a shell has them expected"
        ) from None
    return Slurm(options.slurm_wait, longest=max(chosen.starts), options=more)


def _announced(jobs: list[JobTimes], chosen: Chosen, folder: str, *, joins: bool) -> str:
    later = ", ".join(
        f"{job.name} {start:.1f} s later" for job, start in zip(jobs[1:], chosen.starts[1:], strict=True)
    )
    first = "runs already" if joins else "first"
    return f"{jobs[0].name} {first}, {later}, makespan {chosen.makespan:.1f} s predicted; logs in {folder}"


def _tell(line: str) -> None:
    end = "\x1b[K\n" if sys.stderr.isatty() else "\n"
    print(f"foresee: {line}", end=end, file=sys.stderr, flush=True)


def _shown() -> Callable[[str], None]:
    """Where progress goes: one line of a terminal, written over."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda line: print(f"{line}\x1b[K", end="\r", file=sys.stderr, flush=True)


def _folder(asked: str | None) -> str:
    from foresee.errors import ConfigError

    folder = asked or os.path.join("runs", time.strftime("stagger-%Y%m%d-%H%M%S"))
    os.makedirs(folder, exist_ok=True)
    if os.listdir(folder):
        raise ConfigError(
            f"{folder}: not empty; a run folder of its own expected, so name another with --folder"
        )
    return folder


def _compared(jobs: list[JobTimes], chosen: Chosen, ran: Ran, options: argparse.Namespace) -> dict[str, Any]:
    """Predicted against measured, in plain values; times count from the leader's first step."""
    from foresee.errors import ForeseeError

    predicted: dict[str, Any] = {
        "at_once": _at_once(jobs, chosen, options),
        "starts": list(chosen.starts),
        "seconds": list(chosen.runs),
        "case": chosen.case,
        "catch_up": chosen.catch_up if math.isfinite(chosen.catch_up) else None,
        "makespan": chosen.makespan,
        "gpu_seconds": chosen.gpu_seconds,
    }
    measured = at_starts = off = None
    if all(outcome.state == "done" for outcome in ran.outcomes):
        starts = [outcome.start or 0.0 for outcome in ran.outcomes]
        ends = [outcome.end or 0.0 for outcome in ran.outcomes]
        spans = [end - start for start, end in zip(starts, ends, strict=True)]
        measured = {
            "starts": starts,
            "seconds": spans,
            "makespan": max(ends) - starts[0],
            "gpu_seconds": sum(spans),
        }
        try:
            at_starts = _there(jobs, starts, ran, options)
        except ForeseeError as error:
            _tell(f"no prediction for the starts that it became: {error}")
        off = {
            "seconds": [100 * (one - other) / other for one, other in zip(chosen.runs, spans, strict=True)],
            **{
                name: 100 * (predicted[name] - measured[name]) / measured[name]
                for name in ("makespan", "gpu_seconds")
            },
        }
    return {
        "leader": jobs[0].name,
        "followers": [job.name for job in jobs[1:]],
        "predicted": predicted,
        "measured": measured,
        "predicted_at_starts": at_starts,
        "off_percent": off,
        "retimed": [{"at": moved.at, "job": moved.name, "start": moved.start} for moved in ran.moved],
        "jobs": [{**vars(outcome)} for outcome in ran.outcomes],
    }


def _at_once(jobs: list[JobTimes], chosen: Chosen, options: argparse.Namespace) -> dict[str, float] | None:
    """What is predicted of all jobs as early as they can; None: nobody knows what company costs."""
    from foresee.models import stagger

    if any(job.wait_conc is None for job in jobs):
        return None
    at = {"compat": options.compat, "cache": options.cache}
    if len(jobs) > 2:
        played = stagger.simulate(jobs, chosen.earliest, **at)
        return {"makespan": played.makespan, "gpu_seconds": played.gpu_seconds}
    leader, follower = jobs
    told = stagger.predict(leader, follower, chosen.earliest[1:], **at)
    return {"makespan": float(told.makespan[0]), "gpu_seconds": float(told.gpu_seconds[0])}


def _there(
    jobs: list[JobTimes], starts: list[float], ran: Ran, options: argparse.Namespace
) -> dict[str, float]:
    """What the figures say of the starts that it became: the test of the model, whatever the clock did."""
    from dataclasses import replace

    from foresee.jobs.pace import AHEAD
    from foresee.models import stagger

    at = {"compat": options.compat, "cache": options.cache}
    held = any(outcome.holds for outcome in ran.outcomes)
    starts = [max(start, 0.0) for start in starts]
    if len(jobs) == 2 and not held:
        leader, follower = jobs
        told = stagger.predict(leader, follower, starts[1:], **at)
        return {"makespan": float(told.makespan[0]), "gpu_seconds": float(told.gpu_seconds[0])}
    # Of more than two nobody knows what company costs, and nobody is meant to have any.
    each = [replace(job, wait_conc=job.wait) if job.wait_conc is None else job for job in jobs]
    hold = min(max(AHEAD / job.steps for job in jobs), 1.0) if held else None
    played = stagger.simulate(each, starts, hold=hold, **at)
    return {"makespan": played.makespan, "gpu_seconds": played.gpu_seconds}


def _judged(
    options: argparse.Namespace, jobs: list[Job], machine: str | None, told: dict[str, Any]
) -> bool | None:
    """Whether the catalog's figures stand; marks them stale if not. None: nothing to judge by."""
    import itertools

    from foresee.errors import ForeseeError
    from foresee.jobs import Catalog, asked

    if options.catalog is None or told["doubts"] or None in (told["measured"], told["predicted_at_starts"]):
        return None
    keys = [key for key in asked.shared(jobs, machine).keys if key is not None]
    try:
        with Catalog.open(options.catalog, write=True) as catalog:
            judged = [
                catalog.judge(
                    one,
                    other,
                    predicted=told["predicted_at_starts"]["makespan"],
                    measured=told["measured"]["makespan"],
                )
                for one, other in itertools.combinations(keys, 2)
            ]
    except (ForeseeError, OSError) as error:
        # The jobs are done: what they showed is in the run folder.
        _tell(f"the catalog is not told: {error}")
        return None
    if not all(judged):
        _tell(
            "the makespan is more than 10 % off: figures marked stale, foresee stagger calibrate measures them"
        )
    return all(judged)


def _report(told: dict[str, Any]) -> str:
    from foresee.cli._stagger_report import only

    predicted, measured, off = told["predicted"], told["measured"], told["off_percent"]
    names = [told["leader"], *told["followers"]]

    def row(shown: str, name: str, at: int | None = None) -> str:
        def of(table: dict[str, Any]) -> float:
            value = table[name] if at is None else table[name][at]
            return float(value)

        value = f"{of(measured):>11.1f} s" if measured else f"{'-':>13}"
        share = f"{of(off):>+8.1f} %" if off and name in off else ""
        return f"{shown[:23]:24}{of(predicted):>11.1f} s{value}{share}"

    lines = [f"{'':24}{'predicted':>13}{'measured':>13}{'off':>10}"]
    lines += [row(f"start of {name}", "starts", at) for at, name in enumerate(names) if at]
    lines += [row(f"{name} runs", "seconds", at) for at, name in enumerate(names)]
    lines += [row("makespan", "makespan"), row("GPU-seconds", "gpu_seconds")]
    at_once = predicted["at_once"]
    if at_once is not None:
        gained = only(predicted["makespan"], at_once["makespan"], told["slack"])
        lines.append(
            f"all as early as they can, by prediction: makespan {at_once['makespan']:.1f} s, GPU-seconds "
            f"{at_once['gpu_seconds']:.1f}{gained}"
        )
    for job in told["jobs"]:
        times = "once" if job["holds"] == 1 else f"{job['holds']} times"
        held = f", held {times} for {job['held']:.1f} s" if job["holds"] else ""
        lines.append(f"{job['name']}: {job['state']} after {job['steps']} of {job['expected']} steps{held}")
    if told["interrupted"]:
        lines.append("interrupted: all jobs that were started here have been ended")
    lines.append(f"logs and steps in {told['folder']}")
    return "\n".join(lines)
