# SPDX-License-Identifier: Apache-2.0
"""Table of the raw lines."""

from __future__ import annotations

import statistics

from common.runs import Run, Runs, cell, table

HEAD = (
    "| part | arm | nodes | seconds, median (min to max) | x bound | epochs, s | waited, s | waited after the first epoch "
    "| origin bytes / data | requests | link bytes / data, per later epoch | samples from origin, by epoch | from peers | missing, late, silent "
    "| hedges, retries | met after, s | CPU us per sample |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)


def markdown(runs: Runs) -> str:
    """Return one row per part and arm, and void runs with the reason."""
    return table(HEAD, runs, _row)


def _row(found: list[Run]) -> str:
    first = found[0]
    seconds = [run.values["seconds"] for run in found]
    epochs = [name for name in first.values if name.startswith("epoch_")]
    cells = [
        first.part,
        first.arm,
        str(first.ranks),
        f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})",
        cell(found, "run_over_bound", ".3f"),
        ", ".join(cell(found, name, ".2f") for name in epochs),
        cell(found, "waited_s", ".2f"),
        cell(found, "later_wait_share", ".1%"),
        cell(found, "origin_over_data", ".4f"),
        cell(found, "requests", ".0f"),
        cell(found, "link_over_data", ".3f"),
        _cells(found, *(name for name in first.values if name.startswith("origin_samples_"))),
        cell(found, "from_peer", ".0f"),
        _cells(found, "peers_missing", "peers_late", "peers_silent"),
        _cells(found, "hedges", "retries"),
        cell(found, "met_s", ".2f"),
        cell(found, "cpu_s_per_sample", ".0f", 1e6),
    ]
    return "| " + " | ".join(cells) + " |\n"


def _cells(found: list[Run], *values: str) -> str:
    return ", ".join(filter(None, (cell(found, value, ".0f") for value in values)))
