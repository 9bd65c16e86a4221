# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run``: start two jobs when predicted, follow them, and say how right that was."""

from __future__ import annotations

import json
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
    from foresee.jobs.asked import Asked
    from foresee.jobs.running import Ran
    from foresee.jobs.timing import Chosen

_HELP = "start two jobs at the best moments, follow them, and compare with what was predicted"
_EPILOG = (
    "Each job's [run] command is run from its file's folder; it has to train with a Foresee loader, or with one in "
    "foresee.torch.measure(loader). Times count from the first step of the first job to the last step. If the first "
    "job is not as fast as predicted the second one's start is decided anew; if it fails, the second starts at once. "
    "Ctrl-C ends both. exit code 1: a job failed."
)
_FILE = "stagger.json"
_VERSION = 1


def add_to(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the action."""
    parser = actions.add_parser("run", help=_HELP, description=_HELP, epilog=_EPILOG)
    parser.add_argument("jobs", nargs=2, metavar="JOB.toml", help="two job files that share their data")
    parser.add_argument("--catalog", metavar="FILE", help="a catalog of measured figures")
    parser.add_argument("--machine", metavar="NAME", help="whose figures of the catalog (this one's name)")
    parser.add_argument(
        "--cache", type=float, default=1.0, metavar="SHARE", help="of the data that the cache keeps (1)"
    )
    parser.add_argument(
        "--compat", choices=("physical", "paper"), default="physical", help="as of foresee stagger predict"
    )
    parser.add_argument(
        "--patience", type=float, default=300.0, metavar="SECONDS", help="for the first job to begin (300)"
    )
    parser.add_argument(
        "--folder", metavar="PATH", help="run folder: logs, steps, stagger.json (runs/stagger-DATE)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    from foresee import job
    from foresee.errors import ConfigError
    from foresee.jobs import Catalog

    faults = []
    if not 0 < options.cache <= 1:
        faults.append(f"--cache {options.cache}: a share above 0 and at most 1 expected")
    if not options.patience > 0:
        faults.append(f"--patience {options.patience}: seconds above 0 expected")
    if options.machine is not None and options.catalog is None:
        faults.append(f"--machine {options.machine!r} without --catalog: whose figures would it be?")
    if faults:
        raise ConfigError(faults)
    jobs = [job.read(path) for path in options.jobs]
    if options.catalog is None:
        return _run(options, jobs, None, None)
    machine = platform.node() if options.machine is None else options.machine
    with Catalog.open(options.catalog) as catalog:
        return _run(options, jobs, catalog, machine)


def _run(options: argparse.Namespace, jobs: list[Job], catalog: Catalog | None, machine: str | None) -> int:
    from foresee.cli._ended import like_interrupt
    from foresee.jobs import asked
    from foresee.jobs.process import command
    from foresee.jobs.running import Runner
    from foresee.jobs.timing import Timing, choose

    for each in jobs:
        command(each)
    known = asked.times(jobs, catalog=catalog, machine=machine)
    for doubt in known.doubts:
        _tell(doubt)
    at = {"compat": options.compat, "cache": options.cache}
    chosen = choose(known.jobs, [each.run.start for each in jobs], **at)
    leader, follower = (known.jobs[i] for i in (chosen.leader, 1 - chosen.leader))
    folder = _folder(options.folder)
    _tell(
        f"{leader.name} first, {follower.name} {chosen.best.start:.1f} s later, makespan {chosen.best.makespan:.1f} s "
        f"predicted; logs in {folder}"
    )
    timing = Timing(leader, follower, start=chosen.best.start, earliest=chosen.earliest, **at)
    runner = Runner(
        (jobs[chosen.leader], leader.name),
        (jobs[1 - chosen.leader], follower.name),
        timing,
        folder,
        delay=chosen.delay,
        together=chosen.best.start == 0,
        patience=options.patience,
        tell=_tell,
        show=_shown(),
    )
    with like_interrupt():
        ran = runner.run()
    _shown()("")
    told = _facts(options, known, chosen, ran)
    told["folder"] = folder
    told["stands"] = _judged(options, jobs, machine, told)
    with open(os.path.join(folder, _FILE), "w", encoding="utf-8", newline="\n") as file:
        json.dump(told, file, allow_nan=False, indent=1)
    print(json.dumps(told, allow_nan=False) if options.json else _report(told))
    if ran.interrupted:
        return 130
    return 0 if all(outcome.state == "done" for outcome in ran.outcomes) else 1


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


def _facts(options: argparse.Namespace, known: Asked, chosen: Chosen, ran: Ran) -> dict[str, Any]:
    """Predicted against measured, in plain values; times count from the leader's first step."""
    import math

    from foresee.models import stagger

    leader, follower = (known.jobs[i] for i in (chosen.leader, 1 - chosen.leader))
    best = chosen.best
    one, other = ran.outcomes
    predicted: dict[str, Any] = {
        "start": best.start,
        "case": best.case,
        "catch_up": best.catch_up if math.isfinite(best.catch_up) else None,
        "leader_seconds": best.leader,
        "follower_seconds": best.follower,
        "makespan": best.makespan,
        "gpu_seconds": best.gpu_seconds,
    }
    measured = at_start = off = None
    if one.state == other.state == "done":
        assert one.start is not None
        assert one.end is not None
        assert other.start is not None
        assert other.end is not None
        spans = (one.end - one.start, other.end - other.start)
        measured = {
            "start": other.start,
            "leader_seconds": spans[0],
            "follower_seconds": spans[1],
            "makespan": max(one.end, other.end) - one.start,
            "gpu_seconds": sum(spans),
        }
        # What the figures say of the start that it became: the test of the model, whatever the clock did.
        there = stagger.predict(
            leader, follower, [max(other.start, 0.0)], compat=options.compat, cache=options.cache
        )
        at_start = {"makespan": float(there.makespan[0]), "gpu_seconds": float(there.gpu_seconds[0])}
        off = {
            name: 100 * (predicted[name] - measured[name]) / measured[name]
            for name in ("leader_seconds", "follower_seconds", "makespan", "gpu_seconds")
        }
    return {
        "version": _VERSION,
        "data": known.data,
        "compat": options.compat,
        "cache": options.cache,
        "leader": leader.name,
        "follower": follower.name,
        "predicted": predicted,
        "measured": measured,
        "predicted_at_start": at_start,
        "off_percent": off,
        "retimed": [{"at": at, "start": start} for at, start in ran.moved],
        "jobs": [{**vars(outcome)} for outcome in ran.outcomes],
        "doubts": [*known.doubts, *ran.doubts],
        "interrupted": ran.interrupted,
    }


def _judged(
    options: argparse.Namespace, jobs: list[Job], machine: str | None, told: dict[str, Any]
) -> bool | None:
    """Whether the catalog's figures stand; marks them stale if not. None: nothing to judge by."""
    from foresee.errors import CatalogBusy
    from foresee.jobs import Catalog, asked

    if options.catalog is None or told["measured"] is None or told["doubts"]:
        return None
    one, other = asked.shared(jobs, machine).keys
    assert one is not None
    assert other is not None
    try:
        with Catalog.open(options.catalog, write=True) as catalog:
            stands = catalog.judge(
                one,
                other,
                predicted=told["predicted_at_start"]["makespan"],
                measured=told["measured"]["makespan"],
            )
    except (CatalogBusy, OSError) as error:
        # The jobs are done: what they showed is in the run folder.
        _tell(f"the catalog is not told: {error}")
        return None
    if not stands:
        _tell(
            "the makespan is more than 10 % off: figures marked stale, foresee stagger calibrate measures them"
        )
    return stands


def _report(told: dict[str, Any]) -> str:
    lines = [f"{'':24}{'predicted':>13}{'measured':>13}{'off':>10}"]
    measured, off = told["measured"], told["off_percent"]
    for name, shown in (
        ("start", f"start of {told['follower']}"),
        ("leader_seconds", f"{told['leader']} runs"),
        ("follower_seconds", f"{told['follower']} runs"),
        ("makespan", "makespan"),
        ("gpu_seconds", "GPU-seconds"),
    ):
        value = f"{measured[name]:>11.1f} s" if measured else f"{'-':>13}"
        share = f"{off[name]:>+8.1f} %" if off and name in off else ""
        lines.append(f"{shown[:23]:24}{told['predicted'][name]:>11.1f} s{value}{share}")
    lines += [
        f"{job['name']}: {job['state']} after {job['steps']} of {job['expected']} steps"
        for job in told["jobs"]
    ]
    if told["interrupted"]:
        lines.append("interrupted: both jobs have been ended")
    lines.append(f"logs and steps in {told['folder']}")
    return "\n".join(lines)
