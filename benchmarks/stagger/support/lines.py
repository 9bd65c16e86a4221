# SPDX-License-Identifier: Apache-2.0
"""Compute the acceptance lines of PROTOCOL.md from the runs."""

from __future__ import annotations

from common.verdicts import Line, judged

from .runs import Run, Runs, error_pct, follower, makespan

FULL_ONLY = "the full run measures it"
#: Steps of an epoch from which the limit of the calibration's cost applies.
STEPS = 1500
#: Makespans up to this multiple of the best count as equal.
AS_GOOD = 1.01


def judge(runs: Runs) -> list[Line]:
    """Return every line in the protocol's order."""
    disk = Runs(run for run in runs.all if run.origin == "disk")
    gluster = Runs(run for run in runs.all if run.origin == "glusterfs")
    return [
        judged("error_best_pct", "%", 1.0, below=True, value=_errors(disk, "pairs", "best")),
        judged("error_all_pct", "%", 1.0, below=True, value=_errors(disk, "pairs", None)),
        judged("best_over_found", "x", 1.01, below=True, value=_worst(disk, _best_over_found)),
        judged("follower_over_least", "x", 1.03, below=True, value=_worst(disk, _follower_over_least)),
        judged("command_over_found", "x", 1.01, below=True, value=_command(disk)),
        judged("over_sequential", "x", None, below=True, value=_worst(disk, _over("sequential"))),
        judged("over_simultaneous", "x", None, below=True, value=_worst(disk, _over("0"))),
        judged(
            "follower_over_simultaneous",
            "x",
            None,
            below=True,
            value=_worst(disk, _follower_over_simultaneous),
        ),
        judged("networks_error_pct", "%", 5.0, below=True, value=_errors(disk, "networks", "best")),
        judged("three_error_pct", "%", 3.0, below=True, value=_several(disk, 3)),
        judged("four_error_pct", "%", 3.0, below=True, value=_several(disk, 4)),
        judged("calibration_pct", "%", 5.0, below=True, value=_calibration(disk, "short")),
        judged("calibration_long_pct", "%", None, below=True, value=_calibration(disk, "long")),
        judged("short_error_pct", "%", 1.0, below=True, value=_short(disk, "best")),
        judged("short_at_once_pct", "%", 1.0, below=True, value=_short(disk, "0")),
        judged("second_calibration_runs", "runs", 0.0, below=True, value=_second(disk)),
        judged(
            "glusterfs_error_pct",
            "%",
            1.0,
            below=True,
            value=_errors(gluster, "pairs", "best") if gluster.valid else "needs --origin glusterfs",
        ),
    ]


def _errors(runs: Runs, part: str, arm: str | None) -> float | str:
    """Return the largest error of the medians of each order and arm."""
    found = [
        abs(error)
        for jobs in runs.orders(part)
        for each in ([arm] if arm else runs.arms(part, jobs))
        if (same := runs.of(part, arm=each, jobs=jobs)) and (error := error_pct(same)) is not None
    ]
    return max(found) if found else FULL_ONLY


def _worst(runs: Runs, of: object) -> float | str:
    """Return the largest value of ``of`` over all orders of ``pairs``."""
    assert callable(of)
    found = [value for jobs in runs.orders("pairs") if (value := of(runs, jobs)) is not None]
    return float(max(found)) if found else FULL_ONLY


def _searched(runs: Runs, jobs: list[str]) -> dict[str, list[Run]]:
    """Return runs by start, with the sequential and the predicted start."""
    return {arm: runs.of("pairs", arm=arm, jobs=jobs) for arm in runs.arms("pairs", jobs)}


def _best_over_found(runs: Runs, jobs: list[str]) -> float | None:
    arms = _searched(runs, jobs)
    if "best" not in arms or len(arms) < 2:
        return None
    return makespan(arms["best"]) / min(map(makespan, arms.values()))


def _follower_over_least(runs: Runs, jobs: list[str]) -> float | None:
    arms = _searched(runs, jobs)
    if "best" not in arms or len(arms) < 2:
        return None
    least = min(map(makespan, arms.values()))
    good = [follower(same) for same in arms.values() if makespan(same) <= AS_GOOD * least]
    return follower(arms["best"]) / min(good)


def _over(other: str) -> object:
    def of(runs: Runs, jobs: list[str]) -> float | None:
        arms = _searched(runs, jobs)
        return makespan(arms["best"]) / makespan(arms[other]) if {"best", other} <= arms.keys() else None

    return of


def _follower_over_simultaneous(runs: Runs, jobs: list[str]) -> float | None:
    arms = _searched(runs, jobs)
    return follower(arms["best"]) / follower(arms["0"]) if {"best", "0"} <= arms.keys() else None


def _command(runs: Runs) -> float | str:
    found = []
    for run in runs.of("command"):
        both = [jobs for jobs in runs.orders("pairs") if sorted(jobs) == sorted(run.jobs)]
        searched = [makespan(same) for jobs in both for same in _searched(runs, jobs).values()]
        if searched:
            found.append(run.makespan / min(searched))
    return max(found) if found else FULL_ONLY


def _several(runs: Runs, jobs: int) -> float | str:
    each = [order for order in runs.orders("several") if len(order) == jobs]
    found = [abs(error) for order in each if (error := error_pct(runs.of("several", jobs=order))) is not None]
    return max(found) if found else FULL_ONLY


def _calibration(runs: Runs, form: str) -> float | str:
    calibrations = [run for run in runs.of("calibration", arm=form) if run.steps >= STEPS]
    if not calibrations:
        return f"epochs of {STEPS} steps and more: {FULL_ONLY}"
    return max(100 * run.lasted / run.makespan for run in calibrations)


def _short(runs: Runs, arm: str) -> float | str:
    found = []
    for run in runs.of("calibration", arm="short"):
        pairs = [jobs for jobs in runs.orders("pairs") if sorted(jobs) == sorted(run.jobs)]
        measured = [makespan(runs.of("pairs", arm=arm, jobs=jobs)) for jobs in pairs if jobs[0] == run.leader]
        found += [100 * abs((run.best if arm == "best" else run.at_once) / each - 1) for each in measured]
    return max(found) if found else FULL_ONLY


def _second(runs: Runs) -> float | str:
    again = runs.of("calibration", arm="again")
    return float(max(run.runs for run in again)) if again else FULL_ONLY
