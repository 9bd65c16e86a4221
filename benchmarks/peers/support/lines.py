# SPDX-License-Identifier: Apache-2.0
"""Compute the acceptance lines of PROTOCOL.md from the runs."""

from __future__ import annotations

from common.runs import Runs, median_line
from common.verdicts import Line

from .sizes import FULL

NODES = [size for size in FULL if size.part.startswith("nodes_")]


def judge(runs: Runs) -> list[Line]:
    """Return every line in the protocol's order."""
    lines = [
        _of_exact(runs, size.part, "origin_over_data", "ratio", 1.002, f"{size.part}_origin_over_data")
        for size in NODES
    ]
    lines += [
        _of_exact(runs, size.part, "run_over_bound", "ratio", 1.05, f"{size.part}_run_over_bound")
        for size in NODES
    ]
    lines += [_over_alone(runs, size.part) for size in NODES if "alone" in size.arms(quick=False)]
    return [*lines, _of_exact(runs, "links", "later_wait_share", "share", 0.02, "links_wait_share")]


def _of_exact(runs: Runs, part: str, value: str, unit: str, limit: float, name: str) -> Line:
    """Return the line of a value of arm `exact`."""
    missing = runs.why_missing(part, value, "exact")
    return median_line(name, unit, limit, runs.each(part, "exact", value), missing, below=True)


def _over_alone(runs: Runs, part: str) -> Line:
    found = runs.ratios(part, "exact", "alone", "seconds")
    missing = runs.why_missing(part, "seconds", "exact", "alone")
    return median_line(f"{part}_over_alone", "ratio", None, found, missing, below=True)
