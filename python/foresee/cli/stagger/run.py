# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run``: start jobs when predicted, follow them, and compare the result with the prediction."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from foresee.cli._run_folder import make_run_folder
from foresee.cli.stagger.options import add_model, model_faults, notify, open_catalog
from foresee.errors import ConfigError, ForeseeError

if TYPE_CHECKING:
    from foresee.jobspec import Job
    from foresee.stagger import Catalog
    from foresee.stagger.catalog_entry import UsedValue
    from foresee.stagger.clock import Clock
    from foresee.stagger.external_job import ExternalJob
    from foresee.stagger.model import JobTimes
    from foresee.stagger.runner import Launcher
    from foresee.stagger.timing import Schedule

HELP = "start jobs at the best moments, follow them, and compare with what was predicted"
EPILOG = (
    "Each job's [run] command is run from its file's folder; it uses a Foresee loader, or wraps its own in "
    "foresee.torch.measure(loader). Times count from the first step of the first job to the last step. If the first "
    "job is not as fast as predicted, the starts of the others are planned again; if it fails or hangs, they start "
    "without it. A job that comes near to the leader is held until the leader is ahead again. With --slurm the run "
    "folder must be on a file system that all nodes share. All jobs have one seed, that of [train] in their files. "
    "Scripts get it as FORESEE_SEED, so random choices of jobs are not independent. Ctrl-C ends all jobs except one "
    "that ran already. Exit code 1: a job failed."
)
_FILE = "stagger.json"
_VERSION = 3
#: Seconds between two lines of progress in a log.
_LOG_EVERY = 30.0
#: Share of the data in memory above which a start is not cold, and that jobs read at least after a cold start.
_WARM = 0.05
#: Bytes of the blocks in which the kernel counts the reads of a process.
_BLOCK = 512


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_model(parser, running="; it is not started, and not ended")
    parser.add_argument(
        "--compat", choices=("physical", "paper"), default="physical", help="as for foresee stagger predict"
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
        help="how a later job waits: for its begin time, with a dependency on the first job and some minutes, or in "
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
        help="time for the first job to begin. The others do not wait for a leader that takes no step for as long. A "
        "job that does not end within this time after its steps is left running (300)",
    )
    parser.add_argument(
        "--folder", metavar="PATH", help="run folder: logs, steps, stagger.json (runs/stagger-DATE)"
    )


def run(options: argparse.Namespace, *, clock: Clock | None = None, launcher: Launcher | None = None) -> int:
    """Run the command; return its exit code. None: this machine's clock, and the launcher that the options name."""
    from foresee import jobspec
    from foresee.cli._signals import signals_as_interrupt
    from foresee.cli.stagger.comparison import compare, report
    from foresee.stagger import inputs
    from foresee.stagger.actions import TICK
    from foresee.stagger.clock import SYSTEM
    from foresee.stagger.local_job import command
    from foresee.stagger.runner import Runner
    from foresee.stagger.spacing import Spacing
    from foresee.stagger.timing import Timing, choose_schedule

    _check(options)
    clock = clock or SYSTEM
    jobs = jobspec.read_all(options.jobs)
    with open_catalog(options) as (catalog, machine):
        known = inputs.times(
            jobs, catalog=catalog, machine=machine, read=options.read, coalesces=options.coalesces
        )
        places = _data_places(jobs, catalog, machine, known.data)
    for each in jobs[_joins(options) :]:
        command(each)
    for doubt in known.doubts:
        notify(doubt)
    model = {"compat": options.compat, "cache": options.cache}
    read = options.read if options.coalesces else None
    external, elapsed = _external_job(options, jobs[0], known.jobs[0], clock)
    warning = None if _joins(options) else _warn_if_cached(places)
    chosen = choose_schedule(
        known.jobs,
        [each.run.start for each in jobs],
        running=elapsed,
        read=read,
        slack=options.slack,
        **model,
    )
    ordered = [known.jobs[place] for place in chosen.order]
    launcher = launcher or _launcher(options, chosen, clock)
    folder = make_run_folder(options.folder, "stagger", time.localtime(clock.wall()))
    notify(_announcement(ordered, chosen, folder, elapsed))
    # Near followers are not held if concurrent reads cost no time or the leader's steps are unknown.
    holds = not (options.no_hold or options.coalesces or options.running is not None)
    show = _progress(clock)
    runner = Runner(
        [(jobs[place], known.jobs[place].name) for place in chosen.order],
        Timing(ordered, chosen, slack=options.slack, **model),
        folder,
        spacing=Spacing(ordered, TICK) if holds else None,
        launcher=launcher,
        delay=chosen.delay,
        external=external,
        patience=options.patience,
        log=notify,
        show_progress=show,
        clock=clock,
    )
    with signals_as_interrupt():
        ran = runner.run()
    show("")
    facts = {
        "version": _VERSION,
        "data": known.data,
        **model,
        "slack": options.slack,
        "read_seconds": options.read,
        "coalesces": options.coalesces,
        "hold": holds,
        "slurm": getattr(launcher, "way", None),
        "running_seconds": elapsed,
        **compare(ordered, chosen, ran, read=read, notify=notify, **model),
        "doubts": [*known.doubts, *ran.doubts, *([] if warning is None else [warning])],
        "interrupted": ran.interrupted,
        "folder": folder,
    }
    facts["stands"] = _judge_catalog(options, known.used, places, facts)
    with open(os.path.join(folder, _FILE), "w", encoding="utf-8", newline="\n") as file:
        json.dump(facts, file, allow_nan=False, indent=1)
    print(json.dumps(facts, allow_nan=False) if options.json else report(facts))
    if ran.interrupted:
        return 130
    return 0 if all(outcome.state in {"done", "running"} for outcome in ran.outcomes) else 1


def _check(options: argparse.Namespace) -> None:
    """Refuse options outside their ranges and combinations without a meaning.

    Raises:
        ConfigError: all faults.
    """
    faults = model_faults(options)
    if not options.patience > 0:
        faults.append(f"--patience {options.patience}: seconds above 0 expected")
    if options.running is not None and options.steps is not None:
        faults.append("--running with --steps: the steps already show the progress of the first job")
    if options.slurm and _joins(options):
        faults.append(
            "--slurm with a first job that runs already: only jobs that were submitted together wait"
        )
    if not options.slurm and (options.sbatch or options.slurm_wait != "auto"):
        faults.append("--sbatch or --slurm-wait without --slurm: these jobs run on this machine")
    if faults:
        raise ConfigError(faults)


def _joins(options: argparse.Namespace) -> bool:
    """Return whether the first job runs already."""
    return options.running is not None or options.steps is not None


def _external_job(
    options: argparse.Namespace, job: Job, times: JobTimes, clock: Clock
) -> tuple[ExternalJob | float | None, float | None]:
    """Return the first job or its seconds if it runs already, and the seconds that it has run."""
    from foresee.stagger.external_job import ExternalJob

    if options.running is not None:
        elapsed = options.running / 100 * times.alone(options.cache)
        return elapsed, elapsed
    if options.steps is None:
        return None, None
    external = ExternalJob(job, times.name, options.steps, options.patience, clock=clock)
    steps = external.steps()
    # The time before the first batch does not count.
    return external, max(clock.now() - float(steps[0, 0]), 0.0) if len(steps) else 0.0


def _data_places(jobs: list[Job], catalog: Catalog | None, machine: str | None, data: str) -> list[str]:
    """Return the places of the data, from the catalog or from their index; empty if unknown."""
    from foresee.storage import page_cache

    known = () if catalog is None or machine is None else catalog.places(machine, data)
    try:
        return page_cache.find_places(jobs, known)
    except (ForeseeError, OSError):
        # The job itself reports the error of its index.
        return []


def _warn_if_cached(places: list[str]) -> str | None:
    """Print and return a warning if data are in memory, so that the start is not cold; else return None."""
    from foresee.storage import page_cache

    try:
        share = page_cache.resident_share(places)
    except OSError:
        # The job itself reports the error of its files.
        return None
    if share is None or share <= _WARM:
        return None
    warning = f"{100 * share:.0f} % of the data are in memory already; the prediction assumes a cold start"
    notify(warning)
    return warning


def _launcher(options: argparse.Namespace, chosen: Schedule, clock: Clock) -> Launcher:
    import shlex

    from foresee.stagger.runner import Local
    from foresee.stagger.slurm import Slurm

    if not options.slurm:
        return Local(clock)
    try:
        more = shlex.split(options.sbatch)
    except ValueError as error:
        raise ConfigError(f"--sbatch {options.sbatch!r}: {error}; options in shell syntax expected") from None
    return Slurm(options.slurm_wait, longest=max(chosen.starts), options=more, clock=clock)


def _announcement(jobs: list[JobTimes], chosen: Schedule, folder: str, elapsed: float | None) -> str:
    """Describe the starts; ``elapsed``: seconds that the first job has run, or None."""
    starts = []
    for job, start in zip(jobs[1:], chosen.starts[1:], strict=True):
        now = "" if elapsed is None else f", {max(start - elapsed, 0.0):.1f} s from now"
        starts.append(f"{job.name} {start:.1f} s later{now}")
    first = "first" if elapsed is None else "runs already"
    return f"{jobs[0].name} {first}, {', '.join(starts)}, makespan {chosen.makespan:.1f} s predicted; logs in {folder}"


def _progress(clock: Clock) -> Callable[[str], None]:
    """Return a function that overwrites a line of a terminal, or logs a line from time to time."""
    if sys.stderr.isatty():
        return lambda line: print(f"{line}\x1b[K", end="\r", file=sys.stderr, flush=True)
    last = clock.now()

    def log(line: str) -> None:
        nonlocal last
        if line and clock.now() - last >= _LOG_EVERY:
            last = clock.now()
            notify(line)

    return log


def _judge_catalog(
    options: argparse.Namespace, used: Sequence[UsedValue], places: list[str], facts: dict[str, Any]
) -> bool | None:
    """Return whether the used values of the catalog are confirmed, else mark them stale; None: no basis for it."""
    from foresee.stagger import Catalog

    measured, at_starts = facts["measured"]["makespan"], facts["predicted_at_starts"]
    if not used or facts["doubts"] or measured is None or at_starts is None:
        return None
    if not options.slurm and not _joins(options) and _read_little(places):
        notify(
            "the jobs read almost nothing from the storage, so this run was not cold and confirms no values"
        )
        return None
    try:
        with Catalog.open(options.catalog, write=True) as catalog:
            is_confirmed = catalog.judge(used, predicted=at_starts["makespan"], measured=measured)
    except (ForeseeError, OSError) as error:
        # The jobs are done, and the run folder has their results.
        notify(f"the catalog was not updated: {error}")
        return None
    if not is_confirmed:
        notify(
            "the makespan is more than 10 % off: values marked stale, foresee stagger calibrate measures them"
        )
    return is_confirmed


def _read_little(places: list[str]) -> bool:
    """Return whether all ended jobs together read less than a share of the data from the storage.

    If the size of the data is unknown, any read suffices. The kernel counts only processes that a job waited for.
    """
    import resource

    from foresee.storage import page_cache

    read = _BLOCK * resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    try:
        return read == 0 or page_cache.has_bytes(places, read / _WARM)
    except OSError:
        return False
