# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run``: start jobs when predicted, follow them, and say how right that was."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from typing import TYPE_CHECKING, Any

from foresee.cli.stagger.options import SLACK, SLACK_HELP, add_read, read_faults, running_faults

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from foresee.jobspec import Job
    from foresee.stagger import Catalog
    from foresee.stagger.catalog_entry import UsedValue
    from foresee.stagger.clock import Clock
    from foresee.stagger.external_job import Already
    from foresee.stagger.model import JobTimes
    from foresee.stagger.runner import Launcher
    from foresee.stagger.timing import Chosen

_HELP = "start jobs at the best moments, follow them, and compare with what was predicted"
_EPILOG = (
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
#: Share of the data in memory from which a start is no cold one, and that jobs read at least that find none there.
_WARM = 0.05
#: Bytes of what the kernel counts a process's reading in.
_BLOCK = 512


def add_to(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the action."""
    from foresee.cli.stagger import catalog_path

    parser = actions.add_parser("run", help=_HELP, description=_HELP, epilog=_EPILOG)
    parser.add_argument(
        "jobs", nargs="+", metavar="JOB.toml", help="two or more job files that share their data"
    )
    catalog_path.add_to(parser, machine="machine whose values of the catalog are used (this machine's name)")
    add_read(parser)
    parser.add_argument(
        "--cache", type=float, default=1.0, metavar="SHARE", help="share of the data that the cache holds (1)"
    )
    parser.add_argument(
        "--compat", choices=("physical", "paper"), default="physical", help="as for foresee stagger predict"
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
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, *, clock: Clock | None = None, launcher: Launcher | None = None) -> int:
    """Carry it out; ``clock`` and ``launcher``: None for this machine's, and for the one that the options name."""
    from foresee import jobspec
    from foresee.cli.stagger import catalog_path
    from foresee.stagger import Catalog
    from foresee.stagger.clock import SYSTEM

    _check(options)
    jobs = jobspec.read_all(options.jobs)
    options.catalog = catalog_path.found(options.catalog, options.machine)
    if options.catalog is None:
        return _run(options, jobs, None, None, clock or SYSTEM, launcher)
    machine = platform.node() if options.machine is None else options.machine
    with Catalog.open(options.catalog) as catalog:
        return _run(options, jobs, catalog, machine, clock or SYSTEM, launcher)


def _check(options: argparse.Namespace) -> None:
    """Options outside their ranges, and those that do not go together."""
    from foresee.errors import ConfigError

    faults = read_faults(options)
    if not 0 < options.cache <= 1:
        faults.append(f"--cache {options.cache}: a share above 0 and at most 1 expected")
    if not 0 <= options.slack < 1:
        faults.append(f"--slack {options.slack}: a share of 0 or more and below 1 expected")
    if not options.patience > 0:
        faults.append(f"--patience {options.patience}: seconds above 0 expected")
    faults += running_faults(options)
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


def _run(
    options: argparse.Namespace,
    jobs: list[Job],
    catalog: Catalog | None,
    machine: str | None,
    clock: Clock,
    launcher: Launcher | None,
) -> int:
    from foresee.cli._ended import like_interrupt
    from foresee.cli.stagger.compared import compared, report
    from foresee.stagger import inputs
    from foresee.stagger.actions import TICK
    from foresee.stagger.local_job import command
    from foresee.stagger.runner import Runner
    from foresee.stagger.spacing import Pace
    from foresee.stagger.timing import Timing, choose

    known = inputs.times(
        jobs, catalog=catalog, machine=machine, read=options.read, coalesces=options.coalesces
    )
    joins = options.running is not None or options.steps is not None
    for each in jobs[joins:]:
        command(each)
    for doubt in known.doubts:
        _notify(doubt)
    at = {"compat": options.compat, "cache": options.cache}
    read = options.read if options.coalesces else None
    already, elapsed = _joined(options, jobs[0], known.jobs[0], clock)
    places = _places(jobs, catalog, machine, known.data)
    warm = None if joins else _warm(places)
    chosen = choose(
        known.jobs,
        [each.run.start for each in jobs],
        running=elapsed,
        read=read,
        slack=options.slack,
        **at,
    )
    ordered = [known.jobs[place] for place in chosen.order]
    launcher = launcher or _launcher(options, chosen, clock)
    folder = _folder(options.folder, clock)
    _notify(_announced(ordered, chosen, folder, elapsed=elapsed))
    runner = Runner(
        [(jobs[place], known.jobs[place].name) for place in chosen.order],
        Timing(ordered, chosen, slack=options.slack, **at),
        folder,
        pace=Pace(ordered, TICK) if _holds(options) else None,
        launcher=launcher,
        delay=chosen.delay,
        already=already,
        patience=options.patience,
        tell=_notify,
        show=_shown(clock),
        clock=clock,
    )
    with like_interrupt():
        ran = runner.run()
    _shown(clock)("")
    told = {
        "version": _VERSION,
        "data": known.data,
        **at,
        "slack": options.slack,
        "read_seconds": options.read,
        "coalesces": options.coalesces,
        "hold": _holds(options),
        "slurm": getattr(launcher, "way", None),
        "running_seconds": elapsed,
        **compared(ordered, chosen, ran, read=read, tell=_notify, **at),
        "doubts": [*known.doubts, *ran.doubts, *([] if warm is None else [warm])],
        "interrupted": ran.interrupted,
        "folder": folder,
    }
    told["stands"] = _judged(options, known.used, places, told)
    with open(os.path.join(folder, _FILE), "w", encoding="utf-8", newline="\n") as file:
        json.dump(told, file, allow_nan=False, indent=1)
    print(json.dumps(told, allow_nan=False) if options.json else report(told))
    if ran.interrupted:
        return 130
    return 0 if all(outcome.state in {"done", "running"} for outcome in ran.outcomes) else 1


def _holds(options: argparse.Namespace) -> bool:
    """Return whether near followers are held: not if company costs no time or the leader's steps are unknown."""
    return not (options.no_hold or options.coalesces or options.running is not None)


def _joined(
    options: argparse.Namespace, job: Job, times: JobTimes, clock: Clock
) -> tuple[Already | float | None, float | None]:
    """A first job that runs already, if one does, and for how long it has."""
    from foresee.stagger.external_job import Already

    if options.running is not None:
        elapsed = options.running / 100 * times.alone(options.cache)
        return elapsed, elapsed
    if options.steps is None:
        return None, None
    already = Already(job, times.name, options.steps, options.patience, clock=clock)
    steps = already.steps()
    # One that waits for its first batch has run for no time that counts.
    return already, max(clock.now() - float(steps[0, 0]), 0.0) if len(steps) else 0.0


def _places(jobs: list[Job], catalog: Catalog | None, machine: str | None, data: str) -> list[str]:
    """Return the places of the data, from the catalog or from their index; empty if unknown."""
    from foresee.errors import ForeseeError
    from foresee.storage import page_cache

    said = () if catalog is None or machine is None else catalog.places(machine, data)
    try:
        return page_cache.places_of(jobs, said)
    except (ForeseeError, OSError):
        # The job itself will report what is wrong with the index.
        return []


def _warm(places: list[str]) -> str | None:
    """Return the warning that data are in memory already, which is no cold start; None if not, or unknown."""
    from foresee.storage import page_cache

    try:
        share = page_cache.share_in_memory(places)
    except OSError:
        # The job itself will report what is wrong with them.
        return None
    if share is None or share <= _WARM:
        return None
    told = f"{100 * share:.0f} % of the data are in memory already; what is predicted begins with none of them there"
    _notify(told)
    return told


def _launcher(options: argparse.Namespace, chosen: Chosen, clock: Clock) -> Launcher:
    import shlex

    from foresee.errors import ConfigError
    from foresee.stagger.runner import Local
    from foresee.stagger.slurm import Slurm

    if not options.slurm:
        return Local(clock)
    try:
        more = shlex.split(options.sbatch)
    except ValueError as error:
        raise ConfigError(
            f"--sbatch {options.sbatch!r}: {error}; options as a shell has them expected"
        ) from None
    return Slurm(options.slurm_wait, longest=max(chosen.starts), options=more, clock=clock)


def _announced(jobs: list[JobTimes], chosen: Chosen, folder: str, *, elapsed: float | None) -> str:
    """``elapsed``: for how long the first job has run; None: it is started."""

    def when(start: float) -> str:
        later = f"{start:.1f} s later"
        return later if elapsed is None else f"{later}, {max(start - elapsed, 0.0):.1f} s from now"

    later = ", ".join(
        f"{job.name} {when(start)}" for job, start in zip(jobs[1:], chosen.starts[1:], strict=True)
    )
    first = "first" if elapsed is None else "runs already"
    return f"{jobs[0].name} {first}, {later}, makespan {chosen.makespan:.1f} s predicted; logs in {folder}"


def _notify(line: str) -> None:
    end = "\x1b[K\n" if sys.stderr.isatty() else "\n"
    print(f"foresee: {line}", end=end, file=sys.stderr, flush=True)


def _shown(clock: Clock) -> Callable[[str], None]:
    """Progress: one line of a terminal that is overwritten, or a line now and then in a log."""
    if sys.stderr.isatty():
        return lambda line: print(f"{line}\x1b[K", end="\r", file=sys.stderr, flush=True)
    last = clock.now()

    def now_and_then(line: str) -> None:
        nonlocal last
        if line and clock.now() - last >= _LOG_EVERY:
            last = clock.now()
            _notify(line)

    return now_and_then


def _folder(asked: str | None, clock: Clock) -> str:
    from foresee.errors import ConfigError

    folder = asked or os.path.join(
        "runs", time.strftime("stagger-%Y%m%d-%H%M%S", time.localtime(clock.wall()))
    )
    os.makedirs(folder, exist_ok=True)
    if os.listdir(folder):
        raise ConfigError(
            f"{folder}: not empty; a run folder of its own expected, so name another with --folder"
        )
    return folder


def _judged(
    options: argparse.Namespace, used: Sequence[UsedValue], places: list[str], told: dict[str, Any]
) -> bool | None:
    """Whether the figures that came from the catalog stand; marks them stale if not. None: nothing to judge by."""
    from foresee.errors import ForeseeError
    from foresee.stagger import Catalog

    if not used or told["doubts"] or None in (told["measured"]["makespan"], told["predicted_at_starts"]):
        return None
    ours = not options.slurm and options.running is None and options.steps is None
    if ours and _read_nothing(places):
        _notify(
            "the jobs had the storage read next to nothing, so this was no cold run and says nothing of figures"
        )
        return None
    try:
        with Catalog.open(options.catalog, write=True) as catalog:
            stands = catalog.judge(
                used,
                predicted=told["predicted_at_starts"]["makespan"],
                measured=told["measured"]["makespan"],
            )
    except (ForeseeError, OSError) as error:
        # The jobs are done: what they showed is in the run folder.
        _notify(f"the catalog is not told: {error}")
        return None
    if not stands:
        _notify(
            "the makespan is more than 10 % off: figures marked stale, foresee stagger calibrate measures them"
        )
    return stands


def _read_nothing(places: list[str]) -> bool:
    """Return whether all ended jobs together had the storage read less than a share of the data.

    If the size of the data is unknown, that share is nothing at all. The kernel does not count processes that a job did
    not wait for.
    """
    import resource

    from foresee.storage import page_cache

    read = _BLOCK * resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    try:
        return read == 0 or page_cache.holds(places, read / _WARM)
    except OSError:
        return False
