# SPDX-License-Identifier: Apache-2.0
"""Compute the acceptance lines of PROTOCOL.md from the runs."""

from __future__ import annotations

import dataclasses
import statistics

from common.runs import Runs, median_line
from common.verdicts import Line, judged

from .sizes import ARMS, FULL

#: Smallest share by which `ours` reduces the waits of `direct`.
REDUCTIONS = {"deli_mnist": 0.95, "deli_cifar": 0.98}


def judge(runs: Runs) -> list[Line]:
    """Return every line in the protocol's order."""
    parts = {theme: [size.part for size in FULL if size.theme == theme] for theme in (*REDUCTIONS, "recipe")}
    lines = [_reduction(runs, part, limit) for theme, limit in REDUCTIONS.items() for part in parts[theme]]
    lines += [_over_disk(runs, part) for theme in REDUCTIONS for part in parts[theme]]
    for part in parts["recipe"]:
        missing = runs.why_missing(part, "step_s", "ours_boto3")
        found = runs.each(part, "ours_boto3", "step_s")
        lines.append(median_line(f"{part}_step_s", "s", 1.005, found, missing, below=True))
    found = runs.each("hit", "hit", "hit_over_dict_us")
    missing = runs.why_missing("hit", "hit_over_dict_us", "hit")
    lines.append(median_line("hit_us", "us", 20.0, found, missing, below=True))
    return lines + [_over_best_peer(runs, epoch) for epoch in ("first", "second")]


def _reduction(runs: Runs, part: str, limit: float) -> Line:
    found = [1 - ratio for ratio in runs.ratios(part, "ours", "direct", "waited_s")]
    missing = runs.why_missing(part, "waited_s", "ours", "direct")
    return median_line(f"{part}_waited_reduction", "share", limit, found, missing, below=False)


def _over_disk(runs: Runs, part: str) -> Line:
    """Return the line of the smallest waited time of `ours` over the largest of `disk`."""
    ours, disk = (runs.each(part, arm, "waited_s") for arm in ("ours", "disk"))
    value: float | str = runs.why_missing(part, "waited_s", "ours", "disk")
    if ours and disk:
        value = min(ours) / max(disk)
    line = judged(f"{part}_waited_over_disk", "ratio", 1.0, below=True, value=value)
    if isinstance(value, str):
        return line
    medians = f"medians {statistics.median(ours):.4g} and {statistics.median(disk):.4g} s"
    return dataclasses.replace(line, why=f"{line.why}; {medians}")


def _over_best_peer(runs: Runs, epoch: str) -> Line:
    value = f"{epoch}_epoch_s"
    peers = [arm for arm in ARMS["peers"] if not arm.startswith("ours")]
    by_repeat: dict[int, list[float]] = {}
    for arm in peers:
        for run in runs.of("peers", arm):
            if value in run.values:
                by_repeat.setdefault(run.repeat, []).append(run.values[value])
    found = [
        run.values[value] / min(by_repeat[run.repeat])
        for run in runs.of("peers", "ours")
        if value in run.values and run.repeat in by_repeat
    ]
    missing = runs.why_missing("peers", value, "ours", *peers)
    return median_line(f"peers_{epoch}_epoch_over_best", "ratio", 1.0, found, missing, below=True)
