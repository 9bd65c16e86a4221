# SPDX-License-Identifier: Apache-2.0
"""Tables of the raw lines for the benchmark page and the README."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path

from common import report

from .job import Epoch, Result
from .lines import Run, Runs, cpu_per_gb

HEAD = (
    "| workload | arm | setting | order | seconds, median (min to max) | x bound | samples/s | CPU s/GB "
    "| peak PSS, MB | origin bytes / data | requests | first batch, s | conversion, s |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)

#: Names of the arms in the README.
PEERS = {"pool": "thread pool", "torch": "DataLoader", "grain": "Grain", "spdl": "SPDL"}
#: Rows of the README by workload: the condition, and the unit that is compared.
SUMMARY = {
    "ram-1k": ("1 KB samples in memory", "samples/s"),
    "disk-110k": ("110 KB files, disk of 60 MB/s, 3 epochs", "s"),
    "disk-12m": ("12 MiB files, the same disk, 3 epochs", "s"),
    "disk-none": ("110 KB files, the same disk, 1 epoch, no cache", "s"),
    "s3-1k": ("1 KB objects, S3 of 1000 requests/s, 3 epochs", "s"),
}


def write(path: Path, run: Run) -> None:
    """Append a run as one line."""
    report.append(path, asdict(run))


def remove_lines(path: Path, workload: str) -> None:
    """Remove the lines of a workload that is measured again."""
    report.remove_lines(path, lambda line: bool(line["result"]["workload"] == workload))


def read(path: Path) -> Runs:
    """Read runs from raw lines."""
    runs = []
    for given in report.read(path):
        result = given.pop("result")
        result["epochs"] = [Epoch(**epoch) for epoch in result["epochs"]]
        runs.append(Run(result=Result(**result), **given))
    return Runs(runs)


def markdown(runs: Runs) -> str:
    """Return one row per workload and arm at its best setting, and void runs with the reason."""
    rows = []
    seen = dict.fromkeys((run.result.workload, run.result.arm) for run in runs.all)
    for workload, arm in seen:
        found = runs.of(workload, arm)
        if found:
            rows.append(_row(workload, arm, found, runs.loop_pass_s(workload)))
    void = {f"- {run.result.arm} on {run.result.workload}: {run.void}" for run in runs.all if run.void}
    return HEAD + "".join(rows) + ("\nNot counted:\n" + "\n".join(sorted(void)) + "\n" if void else "")


def summary(runs: Runs) -> str:
    """Return the README's rows: Foresee, the best peer with exact order, and the limit."""
    return "".join(_summary_row(runs, *each) for each in SUMMARY.items())


def _summary_row(runs: Runs, workload: str, condition: tuple[str, str]) -> str:
    name, unit = condition
    is_rate = unit != "s"

    def value(run: Run) -> float:
        return run.later_samples_per_s if is_rate else run.seconds

    def median(arm: str) -> float:
        found = runs.median(workload, arm, value)
        assert found is not None, f"{arm} was not run on {workload}"
        return found

    best = (max if is_rate else min)(runs.peers(workload, exact=True), key=median)
    first = runs.of(workload, "ours")[0]
    ours, peer = (f"{median(arm):,.0f}" if is_rate else f"{median(arm):.1f}" for arm in ("ours", best))
    # Samples in memory have no origin with a limit.
    limit = "" if is_rate else f"{first.bound_s(runs.loop_pass_s(workload)):.1f}"
    return f"| {name} | {unit} | {ours} | {peer} ({PEERS.get(best, best)}) | {limit} |\n"


def _row(workload: str, arm: str, found: list[Run], loop_pass_s: float) -> str:
    first = found[0]
    seconds = [run.seconds for run in found]
    spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
    # Without limits and compute there is no bound.
    is_bounded = first.origin_pass_s + first.compute_pass_s > 0
    over = statistics.median(run.seconds / run.bound_s(loop_pass_s) for run in found) if is_bounded else None
    per_gb = statistics.median(cpu_per_gb(run.timed) for run in found)
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
