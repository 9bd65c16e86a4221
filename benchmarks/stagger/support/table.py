# SPDX-License-Identifier: Apache-2.0
"""Table of the raw lines."""

from __future__ import annotations

from .runs import Runs, error_pct, follower, makespan

HEAD = (
    "| part | origin | jobs, the leader first | start | makespan, s: median (min to max) | predicted less measured | "
    "second job, s |\n|---|---|---|---|---|---|---|\n"
)


def markdown(runs: Runs) -> str:
    """Return one row per part, order and arm, and void runs with the reason.

    Of the search only the first start has a row; figures show the others.
    """
    rows = ""
    for origin in dict.fromkeys(run.origin for run in runs.valid):
        same = Runs(run for run in runs.valid if run.origin == origin)
        for part in dict.fromkeys(run.part for run in same.valid):
            if part != "calibration":
                rows += "".join(
                    _row(same, origin, part, jobs, arm)
                    for jobs in same.orders(part)
                    for arm in same.arms(part, jobs)
                    if not arm.isdigit() or arm == "0"
                )
    void = sorted(
        {f"- {run.part}, {' '.join(run.jobs)}, {run.arm}: {run.void}" for run in runs.all if run.void}
    )
    return HEAD + rows + ("\nNot counted:\n" + "\n".join(void) + "\n" if void else "")


def _row(runs: Runs, origin: str, part: str, jobs: list[str], arm: str) -> str:
    found = runs.of(part, arm=arm, jobs=jobs)
    each = [run.makespan for run in found]
    error = error_pct(found)
    cells = [
        part,
        origin,
        ", ".join(jobs),
        f"{arm} %" if arm.isdigit() else arm,
        f"{makespan(found):.2f} ({min(each):.2f} to {max(each):.2f})",
        "" if error is None else f"{error:+.2f} %",
        f"{follower(found):.2f}",
    ]
    return "| " + " | ".join(cells) + " |\n"
