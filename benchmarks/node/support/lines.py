# SPDX-License-Identifier: Apache-2.0
"""Compute the acceptance lines of PROTOCOL.md from the runs."""

from __future__ import annotations

from common.runs import Runs, median_line
from common.verdicts import Line, judged

ELSEWHERE = "benchmarks/loading measures it, before and after the node's cache"


def judge(runs: Runs) -> list[Line]:
    """Return every line in the protocol's order."""
    return [
        judged("one_consumer_slowdown", "ratio", 1.02, below=True, value=ELSEWHERE),
        _at_most(runs, "ranks_origin_over_data", 1.002, "ranks", "origin_over_data"),
        _at_most(runs, "ranks_memory_over_one", 1.25, "ranks", "memory_bytes", "one"),
        _at_most(runs, "ranks_cpu_over_one", 1.2, "ranks", "cpu_s_per_sample", "one"),
        _at_most(runs, "jobs_origin_over_data", 1.002, "jobs", "origin_over_data"),
        _at_most(runs, "jobs_first_over_alone", 1.05, "jobs", "first_job_s", "alone"),
        _at_most(runs, "jobs_second_over_warm", 1.05, "jobs", "second_behind_first_s", "warm"),
        _at_least(
            runs, "first_epoch_separate_over_node", 1.9, "first_epoch", "seconds", ("separate", "node")
        ),
        _at_least(runs, "small_rate_over_one", 0.7, "small", "samples_per_s", ("node", "one")),
        _at_most(runs, "cap_refused_share", 0.01, "cap", "refused_share"),
        _at_least(runs, "cap_used_share", 0.95, "cap", "used_share"),
        _at_least(runs, "raised_cap_used_share", 0.95, "cap", "raised_used_share"),
        _at_most(runs, "start_listings_over_one", 1.0, "start", "listings", "one"),
        _at_most(runs, "start_first_batch_over_one", 1.2, "start", "first_batch_s", "one"),
        _at_most(runs, "start_first_batch_over_large", 1.2, "start", "first_batch_s", "large"),
    ]


def _at_most(runs: Runs, name: str, limit: float, part: str, value: str, other: str = "") -> Line:
    """Return the line of a value of the arm ``node``, over that of ``other`` if one is given."""
    return _line(runs, name, limit, part, value, ("node", other), below=True)


def _at_least(
    runs: Runs, name: str, limit: float, part: str, value: str, arms: tuple[str, str] = ("node", "")
) -> Line:
    """Return the line of a value of one arm, over that of another if its name is not empty."""
    return _line(runs, name, limit, part, value, arms, below=False)


def _line(
    runs: Runs, name: str, limit: float, part: str, value: str, arms: tuple[str, str], *, below: bool
) -> Line:
    """Return the line of the median of all repeats, with their spread."""
    arm, other = arms
    found = runs.ratios(part, arm, other, value) if other else runs.each(part, arm, value)
    missing = runs.why_missing(part, value, *filter(None, arms))
    return median_line(name, "ratio", limit, found, missing, below=below)
