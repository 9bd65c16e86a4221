# SPDX-License-Identifier: Apache-2.0
"""Simulations of ``foresee simulate``: policies on points of a sweep, concurrently on a few threads, with progress.

Ctrl-C stops every run at its current step and keeps the results so far. Faults of the core are reported with the job's
file and its keys.
"""

from __future__ import annotations

import os
import re
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foresee.cli._status import Status
from foresee.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    import argparse

    from foresee.jobspec import Job
    from foresee.planning import simulation

__all__ = ["Simulations", "Task", "one", "simulate"]

_LOOK_S = 0.1
#: Of a task that prepares: as much as its training, which no one can know before.
_PREPARING = 0.5


@dataclass(eq=False)
class Task:
    """One policy on one point of a sweep. Equal only to itself: threads find theirs in a list of running ones."""

    policy: str
    point: tuple[str, ...]
    job: Job
    run_dir: str | None = None
    share: float = 0.0
    report: simulation.Report | None = None
    reason: str = ""


@dataclass
class Simulations:
    """All that is to be simulated, in the order in which it is shown."""

    axes: dict[str, list[str]]
    tasks: list[Task] = field(default_factory=list)
    stopped: bool = False


def simulate(simulations: Simulations, options: argparse.Namespace) -> None:
    """Run all tasks on a few threads; Ctrl-C ends them where they are.

    Raises:
        ConfigError: what the core found wrong with the jobs that had begun, all of it.
        OSError: a ledger cannot be written.
    """
    stop, status = threading.Event(), Status()
    workers = options.threads or os.cpu_count() or 1
    with ThreadPoolExecutor(workers, thread_name_prefix="foresee-simulate") as pool:
        running = [pool.submit(one, task, options, stop) for task in simulations.tasks]
        try:
            while not all(future.done() for future in running):
                wait(running, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
                if any(future.done() and future.exception() for future in running):
                    # The others need not go on.
                    stop.set()
                _show(status, simulations.tasks)
        except KeyboardInterrupt:
            simulations.stopped = True
        finally:
            stop.set()
            status.end()
    faults: list[str] = []
    for future in running:
        try:
            future.result()
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))


def one(task: Task, options: argparse.Namespace, stop: threading.Event) -> None:
    """Run a task to its end, or until ``stop``: then it has no report, or that of a part.

    Raises:
        ConfigError: what the core found wrong with its job.
        OSError: a ledger cannot be written.
    """
    from foresee.planning import simulation

    if stop.is_set():
        return
    try:
        simulated = simulation.Run(
            task.job,
            task.policy,
            compat=options.compat,
            order=options.order,
            hand_over=options.hand_over,
            run_dir=task.run_dir,
        )
    except Unsupported as why:
        task.reason, task.share = why.reason, 1.0
        return
    except ConfigError as error:
        raise ConfigError(_of_the_job(error.faults, task.job.file)) from None
    stage, before = "", 0.0
    while stage != "finished" and not stop.is_set():
        stage, done, total = simulated.advance()
        if stage == "preparing":
            before = _PREPARING
            task.share = before * done / total
        else:
            task.share = before + (1 - before) * done / total
    simulated.close()
    task.report = simulated.report()


#: Fields of the core's scenario by what a job file, or the command, calls them.
_KEYS = {
    "data.count": "data.samples",
    "data.mean": "data.size",
    "data.deviation": "data.size_sigma",
    "data.sizes": "data.index",
    "cluster.origin_link": "cluster.origin.link",
    "cluster.peer_link": "cluster.network.rate",
    "training.batch": "train.batch",
    "training.epochs": "train.epochs",
    "training.compute": "train.compute_rate",
    "training.preprocess": "train.preprocess_rate",
    "ranks times training.batch": "cluster.ranks times train.batch",
    "options.readers": "cluster.origin.readers",
    "options.hand_over": "--hand-over",
    "bucket.cache": "cache.window.capacity",
    "bucket.fetch": "cache.window.fetch",
    "bucket.threshold": "cache.window.threshold",
}
_FAULT = re.compile(r"(?P<field>.+?) is (?P<value>.+?); it must be (?P<rule>.+)")


def _of_the_job(faults: list[str], file: str | None) -> list[str]:
    """Faults of the core, each in the job's words, and with its file unless that stands there already."""
    where = f"{file}: " if file else ""
    told = []
    for line in (line for fault in faults for line in fault.splitlines()):
        found = _FAULT.fullmatch(line)
        if found is not None:
            key = _KEYS.get(found["field"], found["field"])
            of = "" if key.startswith("--") else where
            told.append(f"{of}{key} = {found['value']}; it must be {found['rule']}")
        else:
            told.append(line if line.startswith(where) else where + line)
    return told


def _show(status: Status, tasks: list[Task]) -> None:
    share = sum(task.share for task in tasks) / len(tasks)
    status.bar(share, f"{sum(task.share == 1.0 for task in tasks)} of {len(tasks)}")
