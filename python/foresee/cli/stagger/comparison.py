# SPDX-License-Identifier: Apache-2.0
"""Comparison of the predicted and the measured times of ``foresee stagger run``: as plain values and as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foresee.stagger.model import Compat, JobTimes
    from foresee.stagger.outcome import Outcome, RunResult
    from foresee.stagger.timing import Schedule


def compare(
    jobs: list[JobTimes],
    chosen: Schedule,
    ran: RunResult,
    *,
    compat: Compat,
    cache: float,
    read: float | None,
    notify: Callable[[str], None],
) -> dict[str, Any]:
    """Return predicted and measured times as plain values, in seconds from the leader's first step.

    Args:
        jobs: the values of the leader, then of the followers.
        chosen: their predicted starts.
        ran: the result of the run.
        compat: which reading of the model.
        cache: share of the data in the cache.
        read: seconds in which the origin delivers the data set once, behind a cache that coalesces; else None.
        notify: gets a message if a prediction is missing.
    """
    from foresee import stagger
    from foresee.errors import ForeseeError
    from foresee.stagger.spacing import LEAST_LEAD

    def predict(jobs: list[JobTimes], starts: Sequence[float], hold: float | None = None) -> dict[str, float]:
        if len(jobs) == 2 and hold is None and read is None:
            pair = stagger.predict(jobs[0], jobs[1], starts[1:], compat=compat, cache=cache)
            return {"makespan": float(pair.makespan[0]), "gpu_seconds": float(pair.gpu_seconds[0])}
        played = stagger.simulate(jobs, starts, compat=compat, cache=cache, read=read, hold=hold)
        return {"makespan": played.makespan, "gpu_seconds": played.gpu_seconds}

    at_once = None
    is_short = sum(job.steps * job.epochs for job in jobs) <= stagger.STEPS_MAX
    if all(job.wait_conc is not None for job in jobs) and (is_short or (len(jobs) == 2 and read is None)):
        at_once = predict(jobs, chosen.earliest)
    predicted: dict[str, Any] = {
        "at_once": at_once,
        "starts": list(chosen.starts),
        "seconds": list(chosen.runs),
        "case": chosen.case,
        "catch_up": chosen.catch_up if math.isfinite(chosen.catch_up) else None,
        "makespan": chosen.makespan,
        "gpu_seconds": chosen.gpu_seconds,
    }
    at_starts = None
    spans = [outcome.end - outcome.start if _is_complete(outcome) else None for outcome in ran.outcomes]  # type: ignore[operator]
    starts = [outcome.start for outcome in ran.outcomes]
    measured: dict[str, Any] = {"starts": starts, "seconds": spans, "makespan": None, "gpu_seconds": None}
    complete = [span for span in spans if span is not None]
    if len(complete) == len(spans):
        began = [start or 0.0 for start in starts]
        measured["makespan"] = max(outcome.end or 0.0 for outcome in ran.outcomes) - began[0]
        measured["gpu_seconds"] = sum(complete)
        # For more than two jobs wait_conc is unknown, and plans avoid concurrent reads.
        known = [replace(job, wait_conc=job.wait) if job.wait_conc is None else job for job in jobs]
        has_holds = any(outcome.holds for outcome in ran.outcomes)
        hold = min(max(LEAST_LEAD / job.steps for job in jobs), 1.0) if has_holds else None
        try:
            # This tests the model independently of the scheduler: it predicts for the measured starts.
            at_starts = predict(known, [max(start, 0.0) for start in began], hold)
        except ForeseeError as error:
            notify(f"no prediction for the measured starts: {error}")
    off = {
        "seconds": [_error_percent(*pair) for pair in zip(chosen.runs, spans, strict=True)],
        **{name: _error_percent(predicted[name], measured[name]) for name in ("makespan", "gpu_seconds")},
    }
    return {
        "leader": jobs[0].name,
        "followers": [job.name for job in jobs[1:]],
        "predicted": predicted,
        "measured": measured,
        "predicted_at_starts": at_starts,
        "off_percent": off,
        "retimed": [
            {"at": change.at, "job": change.name, "start": change.start} for change in ran.start_changes
        ],
        "jobs": [{**vars(outcome)} for outcome in ran.outcomes],
    }


def _is_complete(outcome: Outcome) -> bool:
    """Return whether a job has done all its steps, and has not failed after them."""
    return (
        outcome.state in {"done", "running"} and outcome.steps >= outcome.expected and outcome.end is not None
    )


def _error_percent(predicted: float, measured: float | None) -> float | None:
    return 100 * (predicted - measured) / measured if measured else None


def report(facts: dict[str, Any]) -> str:
    """Return a table of predicted and measured times with their errors, and the state of each job."""
    from foresee.cli.stagger.report import describe_gain

    predicted, measured, off = facts["predicted"], facts["measured"], facts["off_percent"]
    names = [facts["leader"], *facts["followers"]]

    def row(label: str, name: str, at: int | None = None) -> str:
        forecast, value, error = (
            table.get(name) if at is None or name not in table else table[name][at]
            for table in (predicted, measured, off)
        )
        cell = f"{'-':>13}" if value is None else f"{value:>11.1f} s"
        share = "" if error is None else f"{error:>+8.1f} %"
        return f"{label[:23]:24}{forecast:>11.1f} s{cell}{share}"

    lines = [f"{'':24}{'predicted':>13}{'measured':>13}{'off':>10}"]
    lines += [row(f"start of {name}", "starts", at) for at, name in enumerate(names) if at]
    lines += [row(f"{name} runs", "seconds", at) for at, name in enumerate(names)]
    lines += [row("makespan", "makespan"), row("GPU-seconds", "gpu_seconds")]
    at_once = predicted["at_once"]
    if at_once is not None:
        less = 100 * (1 - predicted["gpu_seconds"] / at_once["gpu_seconds"])
        gain = describe_gain(predicted["makespan"], at_once["makespan"], facts["slack"], less)
        lines.append(
            f"all as early as they can, by prediction: makespan {at_once['makespan']:.1f} s, GPU-seconds "
            f"{at_once['gpu_seconds']:.1f}{gain}"
        )
    for job in facts["jobs"]:
        times = "once" if job["holds"] == 1 else f"{job['holds']} times"
        holds = f", held {times} for {job['held']:.1f} s" if job["holds"] else ""
        state = "still running" if job["state"] == "running" else job["state"]
        lines.append(f"{job['name']}: {state} after {job['steps']} of {job['expected']} steps{holds}")
    if facts["interrupted"]:
        lines.append("interrupted: all started jobs were ended")
    lines.append(f"logs and steps in {facts['folder']}")
    return "\n".join(lines)
