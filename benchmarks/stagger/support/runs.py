# SPDX-License-Identifier: Apache-2.0
"""What one run gave, as it stands in the raw lines; and many of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import report


@dataclass
class Run:
    """Jobs that ran together, or a calibration of them."""

    #: ``pairs``, ``command``, ``networks``, ``several`` or ``calibration``.
    part: str
    #: ``disk``, or what ``--origin`` says.
    origin: str
    #: The leader first.
    jobs: list[str]
    #: ``0``, ``10``, ... ``100`` percent, ``best``, ``sequential``, ``command``.
    arm: str
    #: Steps of an epoch.
    steps: int
    #: Seconds after the leader at which each was to start, as predicted or as asked for.
    starts: list[float] = field(default_factory=list)
    #: At which each took its first step, and seconds that each ran.
    started: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    makespan: float = 0.0
    #: What was predicted of these starts; None: nothing.
    predicted: float | None = None
    #: Of a calibration: runs that it made, and how long it took.
    runs: int = 0
    lasted: float = 0.0
    #: Likewise, predicted from it: who leads best, the makespan then, and that of both at once.
    leader: str = ""
    best: float = 0.0
    at_once: float = 0.0
    #: Why the run does not count; empty if it does.
    void: str = ""
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def error_pct(self) -> float | None:
        """Predicted less measured."""
        return None if self.predicted is None else 100 * (self.predicted - self.makespan) / self.makespan


class Runs:
    """All runs that count."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """``runs``: also those that do not count; they are told apart."""
        self.all = list(runs)
        self.valid = [run for run in self.all if not run.void]

    def of(self, part: str, *, arm: str | None = None, jobs: list[str] | None = None) -> list[Run]:
        """Of a part, of one arm, of one order."""
        return [
            run
            for run in self.valid
            if run.part == part and arm in (None, run.arm) and (jobs is None or run.jobs == jobs)
        ]

    def orders(self, part: str) -> list[list[str]]:
        """Orders that a part has, each once."""
        return [list(jobs) for jobs in dict.fromkeys(tuple(run.jobs) for run in self.of(part))]

    def arms(self, part: str, jobs: list[str]) -> list[str]:
        """Arms of an order, each once."""
        return list(dict.fromkeys(run.arm for run in self.of(part, jobs=jobs)))


def makespan(runs: list[Run]) -> float:
    """Median."""
    return statistics.median(run.makespan for run in runs)


def follower(runs: list[Run]) -> float:
    """Median of the second job's seconds."""
    return statistics.median(run.seconds[1] for run in runs)


def error_pct(runs: list[Run]) -> float | None:
    """Predicted less measured; of medians, so that one run in the way of another process does not decide."""
    predicted = [run.predicted for run in runs if run.predicted is not None]
    if not predicted:
        return None
    return 100 * (statistics.median(predicted) - makespan(runs)) / makespan(runs)


def write(path: Path, run: Run) -> None:
    """Append a run as one line."""
    report.append(path, asdict(run))


def forget(path: Path, parts: Collection[str], origin: str, pairs: Collection[frozenset[str]] = ()) -> None:
    """Drop the lines of parts that are measured anew; with ``pairs``, of these jobs alone."""
    report.forget(
        path,
        lambda line: bool(
            line["part"] in parts
            and line["origin"] == origin
            and (not pairs or frozenset(line["jobs"]) in pairs)
        ),
    )


def read(path: Path) -> Runs:
    """Runs that were written."""
    return Runs(Run(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
