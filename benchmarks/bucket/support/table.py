# SPDX-License-Identifier: Apache-2.0
"""Table of the raw lines."""

from __future__ import annotations

import statistics

from common.runs import Run, Runs, cell, table

HEAD = (
    "| part | arm | setting | ranks | waited, s: median (min to max) | total, s | epochs, s | CPU us per sample | requests "
    "| origin bytes / delivered | others |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|\n"
)
#: Values of single parts, and their labels.
OTHERS = {
    "gets_per_s": "GET/s",
    "compute_s": "compute per sample, s",
    "step_s": "step, s",
    "hit_us": "hit, us",
    "dict_us": "dict, us",
    "cache_misses": "misses",
    "cache_joins": "joins",
}
#: Prefix of the values that are settings.
SETTING = "setting_"


def markdown(runs: Runs) -> str:
    """Return one row per part and arm, and void runs with the reason."""
    return table(HEAD, runs, _row)


def _row(found: list[Run]) -> str:
    first = found[0]
    settings = {name: n for name, n in first.values.items() if name.startswith(SETTING)}
    epochs = [cell(found, f"{name}_epoch_s", ".2f") for name in ("first", "second")]
    cells = [
        first.part,
        first.arm,
        " ".join(f"{name.removeprefix(SETTING)} {n:g}" for name, n in settings.items()),
        str(first.ranks),
        _spread(found, "waited_s"),
        cell(found, "seconds", ".2f"),
        ", ".join(filter(None, epochs)),
        cell(found, "cpu_s_per_sample", ".0f", 1e6),
        cell(found, "requests", ".0f"),
        cell(found, "origin_over_delivered", ".3f"),
        ", ".join(f"{label} {text}" for name, label in OTHERS.items() if (text := cell(found, name, ".4g"))),
    ]
    return "| " + " | ".join(cells) + " |\n"


def _spread(found: list[Run], value: str) -> str:
    values = [run.values[value] for run in found if value in run.values]
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})" if values else ""
