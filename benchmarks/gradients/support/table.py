# SPDX-License-Identifier: Apache-2.0
"""Raw lines to a table."""

from __future__ import annotations

import statistics

from .runs import Run, Runs

HEAD = (
    "| workload | hosts | links | arm | t_iter, ms, median (min to max) | x oracle | x model | CPU s/GB, ranks | servers |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)


def markdown(runs: Runs) -> str:
    """One row per workload, cluster, rate and arm; void runs below, with the reason."""
    seen = dict.fromkeys((run.workload, run.cluster, run.rate, run.arm) for run in runs.valid)
    rows = "".join(_row(runs, *key) for key in seen)
    void = sorted({f"- {run.arm} on {run.workload}, {run.rate}: {run.void}" for run in runs.all if run.void})
    return HEAD + rows + ("\nNot counted:\n" + "\n".join(void) + "\n" if void else "")


def _row(runs: Runs, workload: str, cluster: str, rate: str, arm: str) -> str:
    found = runs.of(workload, arm, cluster, rate)
    times = [1e3 * run.t_iter_s for run in found]
    oracle = runs.median((workload, cluster, rate), "oracle")
    model = found[0].model_s.get(arm)
    cells = [
        workload,
        cluster,
        rate,
        arm + (f", {found[0].connections} connections" if found[0].connections else ""),
        f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})",
        f"{statistics.median(times) / 1e3 / oracle:.3f}" if oracle else "",
        f"{statistics.median(times) / 1e3 / model:.3f}" if model else "",
        _per_gb(found, [run.rank_cpu_s for run in found]),
        _per_gb(found, [run.server_cpu_s for run in found]),
    ]
    return "| " + " | ".join(cells) + " |\n"


def _per_gb(found: list[Run], seconds: list[float]) -> str:
    values = [
        used / run.pushed_bytes * 1e9 for used, run in zip(seconds, found, strict=True) if run.pushed_bytes
    ]
    return f"{statistics.median(values):.1f}" if values else ""
