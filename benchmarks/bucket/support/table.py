# SPDX-License-Identifier: Apache-2.0
"""Table of the raw lines."""

from __future__ import annotations

import statistics

from common.runs import Run, Runs

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
    rows = "".join(_row(runs.of(part, arm)) for part, arm in runs.arms())
    void = sorted({f"- {run.part}, {run.arm}: {run.void}" for run in runs.all if run.void})
    return HEAD + rows + ("\nNot counted:\n" + "\n".join(void) + "\n" if void else "")


def _row(found: list[Run]) -> str:
    first = found[0]
    settings = {name: n for name, n in first.values.items() if name.startswith(SETTING)}
    epochs = [_cell(found, f"{name}_epoch_s", ".2f") for name in ("first", "second")]
    cells = [
        first.part,
        first.arm,
        " ".join(f"{name.removeprefix(SETTING)} {n:g}" for name, n in settings.items()),
        str(first.ranks),
        _spread(found, "waited_s"),
        _cell(found, "seconds", ".2f"),
        ", ".join(filter(None, epochs)),
        _cell(found, "cpu_s_per_sample", ".0f", 1e6),
        _cell(found, "requests", ".0f"),
        _cell(found, "origin_over_delivered", ".3f"),
        ", ".join(f"{label} {cell}" for name, label in OTHERS.items() if (cell := _cell(found, name, ".4g"))),
    ]
    return "| " + " | ".join(cells) + " |\n"


def _spread(found: list[Run], value: str) -> str:
    values = [run.values[value] for run in found if value in run.values]
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})" if values else ""


def _cell(found: list[Run], value: str, form: str, factor: float = 1.0) -> str:
    """Return the median of a value, empty where no run has it."""
    values = [run.values[value] for run in found if value in run.values]
    return f"{factor * statistics.median(values):{form}}" if values else ""
