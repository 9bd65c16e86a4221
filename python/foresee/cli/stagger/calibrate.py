# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger calibrate``: run jobs for some steps, alone and together, and store their times."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from foresee.cli.stagger.options import add_jobs, machine_name, notify

if TYPE_CHECKING:
    from foresee.jobspec import Job
    from foresee.stagger import Catalog
    from foresee.stagger.calibrate import Storage
    from foresee.stagger.clock import Clock
    from foresee.stagger.job_monitor import JobMonitor

    #: Name of a job, name of a value, and name of the concurrent job or None.
    _Key = tuple[str, str, str | None]

HELP = "run jobs for some steps, alone and together, and store their times in a catalog"
EPILOG = (
    "Each job's [run] command is run from its file's folder and ended after its steps. It uses a Foresee loader, or "
    "wraps its own in foresee.torch.measure(loader). Values of the catalog are not measured again, unless they are "
    "stale, or derived and --short is not given: then both are shown. Exit code 3: the data cannot be evicted from "
    "memory, the jobs read other data, or the catalog is locked."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_jobs(parser, machine="machine whose values these are (this machine's name)")
    parser.add_argument(
        "--steps",
        type=int,
        metavar="K",
        help="measured steps of each run (100; with --short 50, and fewer warm)",
    )
    parser.add_argument("--warmup", type=int, default=10, metavar="N", help="steps before them (10)")
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="PATH",
        help="place of the data, which are evicted from memory (the place in the jobs' index); may be repeated, and is "
        "stored in the catalog for stagger run",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="measure one job cold, and all jobs warm until their steps are stable; derive the other waits and mark "
        "them as estimates: less than 5 %% of the time of two jobs of 1500 steps",
    )
    parser.add_argument(
        "--coalesces",
        action="store_true",
        default=None,
        help="with --short: jobs share their reads, so concurrent jobs cost no time (default for files)",
    )
    parser.add_argument(
        "--no-coalesces",
        dest="coalesces",
        action="store_false",
        default=None,
        help="with --short: each job reads separately (default for a bucket)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="time for a job to begin, and between two of its steps (300)",
    )
    parser.add_argument(
        "--drop-caches",
        action="store_true",
        help="as root: drop the whole machine's page cache if dropping the data's files is not enough",
    )
    parser.add_argument(
        "--folder", metavar="PATH", help="folder for logs and steps, created if missing (a temporary one)"
    )


def run(
    options: argparse.Namespace,
    *,
    clock: Clock | None = None,
    start: Callable[..., JobMonitor] | None = None,
    storage: Storage | None = None,
) -> int:
    """Run the command; return its exit code. Arguments replace those of this machine."""
    from foresee import jobspec
    from foresee._native import __version__
    from foresee.cli._signals import signals_as_interrupt
    from foresee.cli.stagger import catalog_path
    from foresee.stagger import Catalog
    from foresee.stagger.calibrate import Calibration, CalibrationOptions
    from foresee.stagger.clock import SYSTEM
    from foresee.stagger.local_job import LocalJob
    from foresee.storage import page_cache

    clock = clock or SYSTEM
    plan = CalibrationOptions(
        steps=options.steps,
        warmup=options.warmup,
        short=options.short,
        coalesces=options.coalesces,
        patience=options.patience,
        data=tuple(options.data),
        drop_machine=options.drop_caches,
    )
    jobs = jobspec.read_all(options.jobs)
    machine = machine_name(options)
    path = options.catalog
    if path is None:
        path = catalog_path.user_catalog()
        os.makedirs(os.path.dirname(path), exist_ok=True)
    began = clock.now()
    # A temporary folder by default, which stays: an error quotes the end of a job's log.
    folder = options.folder or tempfile.mkdtemp(prefix="foresee-calibrate-")
    os.makedirs(folder, exist_ok=True)
    with signals_as_interrupt(), Catalog.open(path, write=True) as catalog:
        derived = _derived(_jobs(jobs, catalog, machine))
        ran = Calibration(
            jobs,
            catalog,
            machine,
            plan,
            folder,
            program=__version__,
            log=notify,
            clock=clock,
            start=start or LocalJob,
            storage=storage or page_cache,
        ).run()
        result: dict[str, Any] = {
            "catalog": path,
            "machine": machine,
            "steps": plan.counted,
            "warmup": plan.warmup,
            "short": plan.short,
            "folder": folder,
            "runs": [each.facts() for each in ran],
            "jobs": _jobs(jobs, catalog, machine, derived),
            "lasted_seconds": clock.now() - began,
        }
    print(json.dumps(result, allow_nan=False) if options.json else _report(result))
    return 0


def _derived(jobs: list[dict[str, Any]]) -> dict[_Key, float]:
    """Return the derived values."""
    return {
        (job["name"], figure["name"], figure["beside"]): figure["seconds"]
        for job in jobs
        for figure in job["figures"]
        if figure["estimated"]
    }


def _jobs(
    jobs: list[Job], catalog: Catalog, machine: str, derived: Mapping[_Key, float] | None = None
) -> list[dict[str, Any]]:
    """Return the values of the catalog, with those that were ``derived`` before the measurement."""
    from foresee.stagger.inputs import common_facts

    common = common_facts(jobs, machine)
    facts = []
    for at, (name, key) in enumerate(zip(common.names, common.keys, strict=True)):
        assert key is not None
        figures: list[dict[str, Any]] = []
        others = [(None, None), *zip(common.names, common.keys, strict=True)]
        del others[at + 1]
        for other, other_key in others:
            for figure in ("compute", "wait", "wait_cached") if other_key is None else ("wait_conc",):
                entry = catalog.get(key, figure, beside=other_key)
                if entry is None:
                    continue
                is_measured = entry.steps is not None
                figures.append(
                    {
                        "name": figure,
                        "beside": other,
                        "seconds": entry.seconds,
                        "sd": entry.sd,
                        "steps": entry.steps,
                        "date": entry.date.isoformat(),
                        "estimated": not is_measured,
                        "derived_seconds": (derived or {}).get((name, figure, other))
                        if is_measured
                        else None,
                    }
                )
        facts.append({"name": name, "figures": figures})
    return facts


def _report(facts: dict[str, Any]) -> str:
    lines = [f"{'per step':24}{'mean':>13}{'spread':>13}{'steps':>8}"]
    for job in facts["jobs"]:
        for figure in job["figures"]:
            other = f" with {figure['beside']}" if figure["beside"] else ""
            spread = "-" if figure["sd"] is None else f"{1e3 * figure['sd']:.3f} ms"
            steps = "derived" if figure["estimated"] else str(figure["steps"])
            mean = f"{1e3 * figure['seconds']:.3f} ms"
            was = figure["derived_seconds"]
            before = "" if was is None else f", {1e3 * was:.3f} ms derived before"
            lines.append(
                f"{job['name'][:12]:13}{figure['name']:11}{mean:>13}{spread:>13}{steps:>8}{other}{before}"
            )
    runs = len(facts["runs"])
    lines.append(
        f"nothing was missing in {facts['catalog']}"
        if not runs
        else f"measured in {facts['lasted_seconds']:.1f} s, stored in {facts['catalog']}; logs in {facts['folder']}"
    )
    return "\n".join(lines)
