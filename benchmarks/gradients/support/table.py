# SPDX-License-Identifier: Apache-2.0
"""Tables of the raw lines."""

from __future__ import annotations

import statistics

from .runs import Run, Runs

HEAD = (
    "| workload | hosts | links | arm | t_iter, ms, median (min to max) | x oracle | x model | CPU s/GB, ranks | servers |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)


URGENT_HEAD = (
    "\n| 30 KB first of all, behind bulk | connections | links | wait, ms: median | 95 % | longest |\n"
    "|---|---|---|---|---|---|\n"
)


#: Rows of the README: cluster and rate of part `ranks`, and the condition.
SUMMARY = [
    ("2+0", "200mbit", "2 hosts, 200 Mbit/s"),
    ("4+0", "200mbit", "4 hosts, 200 Mbit/s"),
    ("2+0", "1gbit", "2 hosts, 1 Gbit/s"),
]


def markdown(runs: Runs) -> str:
    """Return one row per workload, cluster, rate and arm; then urgent tensors, hosts, and void runs with the reason."""
    timed = [run for run in runs.valid if run.workload != "urgent"]
    seen = dict.fromkeys((run.workload, run.cluster, run.rate, run.arm) for run in timed)
    rows = "".join(_row(runs, *key) for key in seen) + _urgent(runs)
    void = sorted({f"- {run.arm} on {run.workload}, {run.rate}: {run.void}" for run in runs.all if run.void})
    return HEAD + rows + _hosts_text(runs) + ("\nNot counted:\n" + "\n".join(void) + "\n" if void else "")


def summary(runs: Runs) -> str:
    """Return the README's rows: colocated servers, DDP with its best bucket size, and the closed form."""
    rows = ""
    for cluster, rate, name in SUMMARY:
        ours = runs.of("blocks", "foresee", cluster, rate)
        arms = {
            run.arm
            for run in runs.valid
            if (run.workload, run.cluster, run.rate) == ("blocks", cluster, rate)
        }
        ddp = [
            statistics.median(run.t_iter_s for run in runs.of("blocks", arm, cluster, rate))
            for arm in arms
            if arm.startswith("ddp")
        ]
        step, limit = statistics.median(run.t_iter_s for run in ours), ours[0].model_s.get("foresee")
        shown = "" if limit is None else f"{1e3 * limit:,.0f}"
        rows += f"| 11.7 M parameters, {name} | ms/step | {1e3 * step:,.0f} | {1e3 * min(ddp):,.0f} (DDP) | {shown} |\n"
    return rows


def _row(runs: Runs, workload: str, cluster: str, rate: str, arm: str) -> str:
    found = runs.of(workload, arm, cluster, rate)
    times = [1e3 * run.t_iter_s for run in found]
    oracle = runs.median((workload, cluster, rate), "oracle")
    model = found[0].model_s.get(arm)
    cells = [
        workload,
        cluster,
        rate,
        arm,
        f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})",
        f"{statistics.median(times) / 1e3 / oracle:.3f}" if oracle else "",
        f"{statistics.median(times) / 1e3 / model:.3f}" if model else "",
        _per_gb(found, [run.rank_cpu_s for run in found]),
        _per_gb(found, [run.server_cpu_s for run in found]),
    ]
    return "| " + " | ".join(cells) + " |\n"


def _urgent(runs: Runs) -> str:
    urgent = runs.of_all("urgent")
    rows = ""
    for arm, connections, rate in dict.fromkeys((run.arm, run.connections, run.rate) for run in urgent):
        same = [run for run in urgent if (run.arm, run.connections, run.rate) == (arm, connections, rate)]
        waits = sorted(wait for run in same for wait in run.urgent_ms)
        if waits:
            late = waits[int(0.95 * (len(waits) - 1))]
            rows += f"| {arm} | {connections} | {rate} | {statistics.median(waits):.2f} | {late:.2f} | {waits[-1]:.2f} |\n"
    return URGENT_HEAD + rows if rows else ""


def _per_gb(found: list[Run], seconds: list[float]) -> str:
    values = [
        used / run.pushed_bytes * 1e9 for used, run in zip(seconds, found, strict=True) if run.pushed_bytes
    ]
    return f"{statistics.median(values):.1f}" if values else ""


def _hosts_text(runs: Runs) -> str:
    """Return which parts were measured on which processor, because absolute times are not comparable."""
    parts: dict[str, dict[str, None]] = {}
    for run in runs.valid:
        if run.machine:
            where = f"{run.machine['cores']} cores of {run.machine['cpu']}"
            parts.setdefault(where, {})[run.part.partition(",")[0]] = None
    places = [f"{where} ({', '.join(names)})" for where, names in parts.items()]
    return f"\nMeasured on {'; '.join(places)}.\n" if places else ""
