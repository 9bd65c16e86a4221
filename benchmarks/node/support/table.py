# SPDX-License-Identifier: Apache-2.0
"""Table of the raw lines."""

from __future__ import annotations

import statistics

from common.runs import Run, Runs, cell, table

HEAD = (
    "| part | arm | ranks | seconds, median (min to max) | x bound | samples/s | CPU us per sample | memory, MB "
    "| origin bytes / data | requests | listings | refused | first batch, s | others |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)
#: Values of single parts, and their labels.
OTHERS = {
    "first_job_s": "first job, s",
    "second_behind_first_s": "steps behind the first job, s",
    "refused_share": "refused share",
    "used_share": "of the cap",
    "raised_used_share": "of the raised cap",
}


def markdown(runs: Runs) -> str:
    """Return one row per part and arm, and void runs with the reason."""
    return table(HEAD, runs, _row)


def _row(found: list[Run]) -> str:
    first = found[0]
    seconds = [run.values["seconds"] for run in found]
    over = statistics.median(run.values["seconds"] / run.bound_s for run in found) if first.bound_s else None
    cells = [
        first.part,
        first.arm,
        str(first.ranks),
        f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})",
        "" if over is None else f"{over:.2f}",
        cell(found, "samples_per_s", ".0f"),
        cell(found, "cpu_s_per_sample", ".1f", 1e6),
        cell(found, "memory_bytes", ".0f", 1e-6),
        cell(found, "origin_over_data", ".3f"),
        cell(found, "requests", ".0f"),
        cell(found, "listings", ".0f"),
        cell(found, "refused", ".0f"),
        cell(found, "first_batch_s", ".2f"),
        ", ".join(f"{label} {text}" for name, label in OTHERS.items() if (text := cell(found, name, ".3f"))),
    ]
    return "| " + " | ".join(cells) + " |\n"
