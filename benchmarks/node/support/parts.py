# SPDX-License-Identifier: Apache-2.0
"""The parts of the benchmark: each function runs one arm and returns its values.

The functions of jobs return several arms: ``warm`` uses the service of ``node`` after both jobs have ended.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping

from . import measures
from .origins import Origin
from .processes import SAMPLE_S, Launch, PeakMemory, ProcessFailed
from .sizes import LATENCY_MS, RANKS, Size
from .task import Task

Values = Mapping[str, float]

#: Seconds after which the refusals of ``cap`` count, limit of the search after its cap is raised, and its window.
SETTLE_S, RAISED_S, WINDOW_S = 5.0, 30.0, 4.0
#: Share of a raised cap from which it is used.
USED = 0.95
#: Variables of each arm; the service adds its own.
SEPARATE = {"FORESEE_NODE": "off"}


def arms_of(part: str, *, quick: bool) -> tuple[str, ...]:
    """Return the arms that a part runs one after the other; ``node`` of ``jobs`` includes ``warm``."""
    if part == "cap":
        return ("node",) if quick else ("separate", "node")
    arms = {
        "jobs": ("alone", "node", "separate"),
        "first_epoch": ("node", "separate"),
        "start": ("one", "large", "separate", "node"),
    }
    return arms.get(part, ("one", "separate", "node"))


def ranks_of(part: str, arm: str) -> int:
    """Return the number of ranks of all jobs of an arm."""
    if arm in ("one", "large", "alone", "warm"):
        return 1
    return 2 if part in ("jobs", "first_epoch") else RANKS


def bound_s(size: Size, arm: str, copied_bytes_per_s: float) -> float:
    """Return the bound of an arm by PROTOCOL.md; 0 for ``cap``.

    ``copied_bytes_per_s``: rate at which one core copies samples of this size.
    """
    if size.part == "small":
        return size.data_bytes * (size.epochs - 1) / copied_bytes_per_s
    if size.part == "start":
        return 2 * LATENCY_MS / 1e3
    if size.part != "jobs":
        return size.origin_pass_s
    computed_s = size.samples / size.batch * size.compute_s
    if arm == "warm":
        return size.epochs * computed_s
    first_epoch_s = max(size.origin_pass_s, computed_s) + size.compute_s
    alone_s = first_epoch_s + (size.epochs - 1) * computed_s
    if arm == "alone":
        return alone_s
    started_s = size.second_start_step * size.batch / size.samples * size.origin_pass_s
    return max(alone_s, started_s + size.epochs * computed_s)


def measure(size: Size, arm: str, origin: Origin, seed: int, timeout_s: float) -> dict[str, Values]:
    """Run one arm of a part once; return the values of each arm that this measures.

    Raises:
        ProcessFailed: a process failed, or delivered other data.
    """
    functions: dict[str, Callable[[Size, str, Origin, int, Launch], dict[str, Values]]] = {
        "jobs": jobs,
        "first_epoch": jobs,
        "cap": cap,
    }
    own = SEPARATE if arm != "node" else {}
    with Launch({**origin.environment, **own}, timeout_s) as launch:
        return functions.get(size.part, ranks)(size, arm, origin, seed, launch)


def task_of(size: Size, origin: Origin, seed: int) -> Task:
    """Return the task of each rank of a part."""
    return Task(
        data=origin.uri if size.part == "start" else origin.index,
        batch=size.batch,
        epochs=size.epochs,
        seed=seed,
        ram_bytes=size.ram_bytes,
        compute_s=size.compute_s if size.part == "jobs" else 0.0,
        report_step=size.second_start_step if size.part in ("jobs", "first_epoch") else 0,
        waits_after_first=size.part == "small",
        only_first_batch=size.part == "start",
        checks=size.part not in ("start", "cap"),
    )


def ranks(size: Size, arm: str, origin: Origin, seed: int, launch: Launch) -> dict[str, Values]:
    """Run the ranks of one job: parts ``ranks``, ``small`` and ``start``."""
    task = task_of(size, origin, seed)
    if arm == "large":
        task = dataclasses.replace(task, batch=RANKS * size.batch)
    started = launch.job(ranks_of(size.part, arm), task)
    memory = PeakMemory(launch)
    # Reading the memory of a process stops its allocations, which matters where epochs take milliseconds.
    on_wait = memory.sample if size.part == "ranks" else None
    origin.begin(size)
    waits = ["first"] if task.waits_after_first else []
    for state in [*waits, "timed", "done"]:
        launch.go_on(started)
        launch.until(state, started, on_wait)
    results = [rank.result for rank in started]
    values = measures.times(results, first_epoch=len(waits))
    if size.is_bucket:
        values |= measures.at_origin(origin.counted(), size.data_bytes)
    if on_wait is not None:
        values["memory_bytes"] = memory.bytes
    launch.end(started)
    if task.checks:
        measures.check(results, origin.truth)
    return {arm: values}


def jobs(size: Size, arm: str, origin: Origin, seed: int, launch: Launch) -> dict[str, Values]:
    """Run two jobs, the second one later, or the first one alone: parts ``jobs`` and ``first_epoch``."""
    task = task_of(size, origin, seed)
    if arm == "node":
        launch.serve(size.ram_bytes)
    started = [launch.job(1, task)[0] for _ in range(ranks_of(size.part, arm))]
    origin.begin(size)
    service_cpu_s = launch.service_cpu_s()
    launch.go_on(started[:1])
    for later in started[1:]:
        launch.until("step", started[:1])
        launch.go_on([later])
    launch.until("timed", started)
    service_cpu_s = launch.service_cpu_s() - service_cpu_s
    launch.go_on(started)
    launch.until("done", started)
    results = [rank.result for rank in started]
    values = measures.times(results, service_cpu_s)
    values |= measures.at_origin(origin.counted(), size.data_bytes)
    values["first_job_s"] = measures.job_s(results[0])
    launch.end(started)
    for result in results:
        measures.check([result], origin.truth)
    if arm != "node" or size.part != "jobs":
        return {arm: values}
    (warm,) = launch.job(1, task)
    origin.begin(size)
    service_cpu_s = launch.service_cpu_s()
    for state in ("timed", "done"):
        launch.go_on([warm])
        launch.until(state, [warm])
    warm_values = measures.times([warm.result], launch.service_cpu_s() - service_cpu_s)
    warm_values |= measures.at_origin(origin.counted(), size.data_bytes)
    launch.end([warm])
    measures.check([warm.result], origin.truth)
    steps = measures.ahead_steps(*results)
    if steps:
        values["second_behind_first_s"] = measures.steps_s(results[1], steps)
        warm_values["second_behind_first_s"] = measures.steps_s(warm.result, steps)
    return {"node": values, "warm": warm_values}


def cap(size: Size, arm: str, origin: Origin, seed: int, launch: Launch) -> dict[str, Values]:
    """Run the ranks of one job at a bucket that refuses requests above a cap, which is raised once."""
    started = launch.job(ranks_of(size.part, arm), task_of(size, origin, seed))
    origin.begin(size)
    began = time.monotonic()
    launch.go_on(started)
    _wait_until(launch, began + SETTLE_S)
    settled, settled_at = origin.counted(), time.monotonic()
    _wait_until(launch, began + size.raised_after_s)
    kept, raised_at = origin.counted(), time.monotonic()
    first, raised = size.caps
    origin.set_cap(size, raised)
    answered = [(raised_at, kept.requests - kept.refused)]
    raised_share = 0.0
    while raised_share < USED and time.monotonic() < raised_at + RAISED_S:
        _wait_until(launch, time.monotonic() + SAMPLE_S)
        now = origin.counted()
        answered.append((time.monotonic(), now.requests - now.refused))
        raised_share = measures.used_share(answered, raised, WINDOW_S)
    if any("timed" in rank.states for rank in started):
        raise ProcessFailed("a rank had read all its samples before the end of the measurement")
    requests, refused = kept.requests - settled.requests, kept.refused - settled.refused
    values = measures.at_origin(origin.counted(), size.data_bytes) | {
        "seconds": answered[-1][0] - began,
        "refused_share": refused / max(1, requests),
        "used_share": (requests - refused) / ((raised_at - settled_at) * first),
        "raised_used_share": raised_share,
    }
    return {arm: values}


def _wait_until(launch: Launch, end: float) -> None:
    """Take reports until ``end``, on the monotonic clock."""
    while (left := end - time.monotonic()) > 0:
        launch.take_reports(left)
