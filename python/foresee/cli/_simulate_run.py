# SPDX-License-Identifier: Apache-2.0
"""Simulations of ``foresee simulate`` and ``foresee size``, concurrently on a few threads, with progress.

Ctrl-C stops every run at its current step, and the results so far are reported. Faults of the core are reported with
the job's file and its keys.
"""

from __future__ import annotations

import argparse
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foresee.cli._signals import deferred_interrupt
from foresee.cli._status import Status
from foresee.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from foresee.jobspec import Job
    from foresee.planning import simulation

_POLL_S = 0.1
#: Share of a run's progress for its preparation, whose relative duration is unknown in advance.
_PREPARATION_SHARE = 0.5


@dataclass(eq=False)
class Task:
    """One policy on one point of a sweep; compared by identity, so that a thread finds its own in a list."""

    policy: str
    point: tuple[str, ...]
    job: Job
    run_dir: str | None = None
    share: float = 0.0
    report: simulation.Report | None = None
    reason: str = ""


@dataclass
class Simulations:
    """All simulations, in the order of the report."""

    axes: dict[str, list[str]]
    tasks: list[Task] = field(default_factory=list)
    is_interrupted: bool = False


def run_all(simulations: Simulations, options: argparse.Namespace) -> None:
    """Run all tasks on a few threads; Ctrl-C stops them.

    Raises:
        ConfigError: faults that the core found in the jobs that had begun.
        OSError: a ledger cannot be written.
    """
    stop, status, tasks = threading.Event(), Status(), simulations.tasks

    def show() -> None:
        done = f"{sum(task.share == 1.0 for task in tasks)} of {len(tasks)}"
        status.bar(sum(task.share for task in tasks) / len(tasks), done)

    with ThreadPoolExecutor(options.threads or os.cpu_count() or 1, "foresee-simulate") as pool:
        running = [pool.submit(run, task, options, stop) for task in tasks]
        try:
            follow(running, stop, show)
        except KeyboardInterrupt:
            simulations.is_interrupted = True
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


def follow(futures: Sequence[Future[Any]], stop: threading.Event, show: Callable[[], None]) -> None:
    """Wait for all ``futures`` and ``show`` the progress; the first one that fails sets ``stop``.

    Raises:
        KeyboardInterrupt: on Ctrl-C, while no future is locked.
    """
    pending = list(futures)
    with deferred_interrupt() as check:
        while pending:
            wait(pending, timeout=_POLL_S, return_when=FIRST_EXCEPTION)
            pending = [future for future in pending if not future.done()]
            if any(future.done() and future.exception() for future in futures):
                stop.set()
            show()
            check()


def run(task: Task, options: argparse.Namespace, stop: threading.Event) -> None:
    """Run a task to its end, or until ``stop``: then it has a partial report or none.

    Raises:
        ConfigError: faults that the core found in its job.
        OSError: a ledger cannot be written.
    """
    from foresee.planning import simulation

    if stop.is_set():
        return
    try:
        policy_run = simulation.Run(
            task.job,
            task.policy,
            compat=options.compat,
            order=options.order,
            hand_over=options.hand_over,
            node_cache=options.node_cache,
            peers=options.peers,
            run_dir=task.run_dir,
        )
    except Unsupported as error:
        task.reason, task.share = error.reason, 1.0
        return
    except ConfigError as error:
        raise ConfigError(_translate_faults(error.faults, task.job.file)) from None
    stage, before = "", 0.0
    while stage != "finished" and not stop.is_set():
        stage, done, total = policy_run.advance()
        if stage == "preparing":
            before = _PREPARATION_SHARE
            task.share = before * done / total
        else:
            task.share = before + (1 - before) * done / total
    policy_run.close()
    task.report = policy_run.report()


#: Keys of the job file, or options of the command, by the core's fields.
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


def _translate_faults(faults: list[str], file: str | None) -> list[str]:
    """Name the keys of the job file in faults of the core, and the file in all of them."""
    where = f"{file}: " if file else ""
    translated = []
    for line in (line for fault in faults for line in fault.splitlines()):
        found = _FAULT.fullmatch(line)
        if found is not None:
            key = _KEYS.get(found["field"], found["field"])
            prefix = "" if key.startswith("--") else where
            translated.append(f"{prefix}{key} = {found['value']}; it must be {found['rule']}")
        else:
            translated.append(line if line.startswith(where) else where + line)
    return translated
