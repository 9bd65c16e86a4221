# SPDX-License-Identifier: Apache-2.0
"""The result of one run as the raw lines store it, collections of runs, and their lines and tables."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import report
from common.verdicts import Line, judged


@dataclass
class Run:
    """One arm of one part, once."""

    part: str
    arm: str
    repeat: int
    #: Ranks of all jobs together.
    ranks: int
    data_bytes: int
    #: The closed form of the benchmark's protocol; 0 without one.
    bound_s: float = 0.0
    #: Values by name: seconds, CPU seconds, delivered samples, bytes and requests at the origin, those of the part.
    values: dict[str, float] = field(default_factory=dict)
    #: Why the run is void; empty for a valid run.
    void: str = ""
    machine: dict[str, Any] = field(default_factory=dict)


class Runs:
    """All runs, with queries of the valid ones."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """``runs`` may contain void runs."""
        self.all = list(runs)
        self.valid = [run for run in self.all if not run.void]

    def of(self, part: str, arm: str) -> list[Run]:
        """Return the valid runs of an arm."""
        return [run for run in self.valid if (run.part, run.arm) == (part, arm)]

    def why_missing(self, part: str, value: str, *arms: str) -> str:
        """Return why no repeat has a value of ``arms``."""
        for arm in arms:
            if void := self.why_void(part, arm):
                return f"{arm}: {void}"
            if not self.of(part, arm):
                return f"{arm} was not run in part {part}; the full run does"
        return f"no repeat of part {part} has {value} of {' and '.join(arms)}"

    def arms(self) -> list[tuple[str, str]]:
        """Return the distinct parts and arms of valid runs."""
        return list(dict.fromkeys((run.part, run.arm) for run in self.valid))

    def why_void(self, part: str, arm: str) -> str:
        """Return why an arm has no valid run; empty if it was not run."""
        return next((run.void for run in self.all if (run.part, run.arm) == (part, arm) and run.void), "")

    def each(self, part: str, arm: str, value: str) -> list[float]:
        """Return a value of each repeat that has it."""
        return [run.values[value] for run in self.of(part, arm) if value in run.values]

    def ratios(self, part: str, arm: str, other: str, value: str) -> list[float]:
        """Return an arm's value over that of another arm, for each repeat that has both."""
        divisors = {run.repeat: run.values[value] for run in self.of(part, other) if run.values.get(value)}
        return [
            run.values[value] / divisors[run.repeat]
            for run in self.of(part, arm)
            if value in run.values and run.repeat in divisors
        ]


def median_line(
    name: str, unit: str, limit: float | None, found: Sequence[float], missing: str, *, below: bool
) -> Line:
    """Return the line of the median of all repeats, with their spread; ``missing`` is the reason if there are none."""
    if not found:
        return judged(name, unit, limit, below=below, value=missing)
    line = judged(name, unit, limit, below=below, value=statistics.median(found))
    spread = f"{min(found):.4g} to {max(found):.4g} in {len(found)} repeats"
    return dataclasses.replace(line, why=f"{line.why}; {spread}") if len(found) > 1 else line


def cell(found: Iterable[Run], value: str, form: str, factor: float = 1.0) -> str:
    """Return the median of a value for a table; empty where no run has it."""
    values = [run.values[value] for run in found if value in run.values]
    return f"{factor * statistics.median(values):{form}}" if values else ""


def table(head: str, runs: Runs, row: Callable[[list[Run]], str]) -> str:
    """Return a table of one row per part and arm, and void runs with the reason."""
    rows = "".join(row(runs.of(part, arm)) for part, arm in runs.arms())
    void = sorted({f"- {run.part}, {run.arm}: {run.void}" for run in runs.all if run.void})
    return head + rows + ("\nNot counted:\n" + "\n".join(void) + "\n" if void else "")


def write(path: Path, run: Run) -> None:
    """Append a run as one line."""
    report.append(path, asdict(run))


def read(path: Path) -> Runs:
    """Read runs from raw lines."""
    return Runs(Run(**line) for line in report.read(path))
