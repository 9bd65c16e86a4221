# SPDX-License-Identifier: Apache-2.0
"""Raw lines to the table of the README."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from .job import Epoch, Result
from .lines import Run, Runs

HEAD = (
    "| workload | arm | setting | order | seconds, median (min to max) | x bound | samples/s | CPU s/GB "
    "| peak PSS, MB | origin bytes / data | requests | first batch, s | conversion, s |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)


def write(path: Path, runs: Iterable[Run]) -> None:
    """Append runs, one line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        for run in runs:
            lines.write(json.dumps(asdict(run)) + "\n")


def read(path: Path) -> Runs:
    """Runs that were written."""
    runs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        given = json.loads(line)
        result = given.pop("result")
        result["epochs"] = [Epoch(**epoch) for epoch in result["epochs"]]
        runs.append(Run(result=Result(**result), **given))
    return Runs(runs)


def markdown(runs: Runs) -> str:
    """One row per workload and arm, at the arm's best setting; void runs below, with the reason."""
    rows = []
    seen = dict.fromkeys((run.result.workload, run.result.arm) for run in runs.all)
    for workload, arm in seen:
        found = runs.of(workload, arm)
        if found:
            rows.append(_row(workload, arm, found))
    void = {f"- {run.result.arm} on {run.result.workload}: {run.void}" for run in runs.all if run.void}
    return HEAD + "".join(rows) + ("\nNot counted:\n" + "\n".join(sorted(void)) + "\n" if void else "")


def _row(workload: str, arm: str, found: list[Run]) -> str:
    first = found[0]
    seconds = [run.seconds for run in found]
    spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
    over = statistics.median(run.seconds / run.bound_s for run in found) if first.bound_s else None
    per_gb = statistics.median(
        run.result.cpu_s / (sum(epoch.bytes for epoch in run.timed) / 1e9) for run in found
    )
    counted = first.origin_bytes >= 0
    cells = [
        workload,
        arm,
        " ".join(f"{name} {value}" for name, value in first.result.settings.items() if value != ""),
        first.result.order,
        spread,
        f"{over:.2f}" if over else "",
        f"{statistics.median(run.samples_per_s for run in found):.0f}",
        f"{per_gb:.2f}",
        f"{statistics.median(run.peak_pss_bytes for run in found) / 1e6:.0f}",
        f"{statistics.median(run.origin_bytes / run.data_bytes for run in found):.3f}" if counted else "",
        f"{statistics.median(run.origin_requests for run in found):.0f}"
        if first.origin_requests >= 0
        else "",
        f"{statistics.median(run.result.start_s for run in found):.2f}",
        f"{first.result.prepare_s:.1f}" if first.result.prepare_s >= 0.05 else "",
    ]
    return "| " + " | ".join(cells) + " |\n"
