# SPDX-License-Identifier: Apache-2.0
"""Comparison of the predicted and the measured times of ``foresee stagger run``: as plain values and as a table.

The command runs the jobs and sets its exit code by these values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foresee.stagger.model import Compat, JobTimes
    from foresee.stagger.outcome import Outcome, Ran
    from foresee.stagger.timing import Chosen

__all__ = ["compared", "report"]


def compared(
    jobs: list[JobTimes],
    chosen: Chosen,
    ran: Ran,
    *,
    compat: Compat,
    cache: float,
    read: float | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Predicted against measured, in plain values; times count from the leader's first step.

    Args:
        jobs: the leader's figures, the followers'.
        chosen: what was predicted of them.
        ran: what became of them.
        compat: which reading.
        cache: share of the data that the cache keeps.
        read: seconds in which the origin delivers the data set once to all who are at one place; None: it does not.
        tell: gets a line on what cannot be said.
    """
    from foresee.errors import ForeseeError

    predicted: dict[str, Any] = {
        "at_once": _at_once(jobs, chosen, compat, cache, read),
        "starts": list(chosen.starts),
        "seconds": list(chosen.runs),
        "case": chosen.case,
        "catch_up": chosen.catch_up if math.isfinite(chosen.catch_up) else None,
        "makespan": chosen.makespan,
        "gpu_seconds": chosen.gpu_seconds,
    }
    at_starts = None
    spans = [outcome.end - outcome.start if _whole(outcome) else None for outcome in ran.outcomes]  # type: ignore[operator]
    starts = [outcome.start for outcome in ran.outcomes]
    measured: dict[str, Any] = {"starts": starts, "seconds": spans, "makespan": None, "gpu_seconds": None}
    whole = [span for span in spans if span is not None]
    if len(whole) == len(spans):
        began = [start or 0.0 for start in starts]
        measured["makespan"] = max(outcome.end or 0.0 for outcome in ran.outcomes) - began[0]
        measured["gpu_seconds"] = sum(whole)
        try:
            at_starts = _there(jobs, began, ran, compat, cache, read)
        except ForeseeError as error:
            tell(f"no prediction for the starts that it became: {error}")
    off = {
        "seconds": [_off(one, other) for one, other in zip(chosen.runs, spans, strict=True)],
        **{name: _off(predicted[name], measured[name]) for name in ("makespan", "gpu_seconds")},
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


def _whole(outcome: Outcome) -> bool:
    """Whether a job has done all its steps, and has not failed after them."""
    return (
        outcome.state in {"done", "running"} and outcome.steps >= outcome.expected and outcome.end is not None
    )


def _off(predicted: float, measured: float | None) -> float | None:
    return 100 * (predicted - measured) / measured if measured else None


def _at_once(
    jobs: list[JobTimes], chosen: Chosen, compat: Compat, cache: float, read: float | None
) -> dict[str, float] | None:
    """Return the prediction for all jobs as early as they can; None: the cost of company is unknown."""
    from foresee import stagger

    if any(job.wait_conc is None for job in jobs):
        return None
    if len(jobs) > 2 or read is not None:
        if sum(job.steps * job.epochs for job in jobs) > stagger.STEPS_MAX:
            return None
        played = stagger.simulate(jobs, chosen.earliest, compat=compat, cache=cache, read=read)
        return {"makespan": played.makespan, "gpu_seconds": played.gpu_seconds}
    leader, follower = jobs
    told = stagger.predict(leader, follower, chosen.earliest[1:], compat=compat, cache=cache)
    return {"makespan": float(told.makespan[0]), "gpu_seconds": float(told.gpu_seconds[0])}


def _there(
    jobs: list[JobTimes], starts: list[float], ran: Ran, compat: Compat, cache: float, read: float | None
) -> dict[str, float]:
    """Return the prediction for the actual starts, which tests the model independently of the clock."""
    from dataclasses import replace

    from foresee import stagger
    from foresee.stagger.spacing import AHEAD

    held = any(outcome.holds for outcome in ran.outcomes)
    starts = [max(start, 0.0) for start in starts]
    if len(jobs) == 2 and not held and read is None:
        leader, follower = jobs
        told = stagger.predict(leader, follower, starts[1:], compat=compat, cache=cache)
        return {"makespan": float(told.makespan[0]), "gpu_seconds": float(told.gpu_seconds[0])}
    # The cost of company of more than two jobs is unknown, and plans avoid it.
    each = [replace(job, wait_conc=job.wait) if job.wait_conc is None else job for job in jobs]
    hold = min(max(AHEAD / job.steps for job in jobs), 1.0) if held else None
    played = stagger.simulate(each, starts, compat=compat, cache=cache, read=read, hold=hold)
    return {"makespan": played.makespan, "gpu_seconds": played.gpu_seconds}


def report(told: dict[str, Any]) -> str:
    """Predicted, measured and how far off, job by job; what became of each."""
    from foresee.cli.stagger.report import only

    predicted, measured, off = told["predicted"], told["measured"], told["off_percent"]
    names = [told["leader"], *told["followers"]]

    def row(shown: str, name: str, at: int | None = None) -> str:
        def of(table: dict[str, Any]) -> float | None:
            value: float | None = table[name] if at is None else table[name][at]
            return value

        became, away = of(measured), of(off) if name in off else None
        value = f"{'-':>13}" if became is None else f"{became:>11.1f} s"
        share = "" if away is None else f"{away:>+8.1f} %"
        return f"{shown[:23]:24}{of(predicted):>11.1f} s{value}{share}"

    lines = [f"{'':24}{'predicted':>13}{'measured':>13}{'off':>10}"]
    lines += [row(f"start of {name}", "starts", at) for at, name in enumerate(names) if at]
    lines += [row(f"{name} runs", "seconds", at) for at, name in enumerate(names)]
    lines += [row("makespan", "makespan"), row("GPU-seconds", "gpu_seconds")]
    at_once = predicted["at_once"]
    if at_once is not None:
        less = 100 * (1 - predicted["gpu_seconds"] / at_once["gpu_seconds"])
        gained = only(predicted["makespan"], at_once["makespan"], told["slack"], less)
        lines.append(
            f"all as early as they can, by prediction: makespan {at_once['makespan']:.1f} s, GPU-seconds "
            f"{at_once['gpu_seconds']:.1f}{gained}"
        )
    for job in told["jobs"]:
        times = "once" if job["holds"] == 1 else f"{job['holds']} times"
        held = f", held {times} for {job['held']:.1f} s" if job["holds"] else ""
        state = "still running" if job["state"] == "running" else job["state"]
        lines.append(f"{job['name']}: {state} after {job['steps']} of {job['expected']} steps{held}")
    if told["interrupted"]:
        lines.append("interrupted: all jobs that were started here have been ended")
    lines.append(f"logs and steps in {told['folder']}")
    return "\n".join(lines)
