# SPDX-License-Identifier: Apache-2.0
"""The result of one run as the raw lines store it, and collections of runs."""

from __future__ import annotations

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
    #: ``disk``, or the value of ``--origin``.
    origin: str
    #: The leader first.
    jobs: list[str]
    #: ``0``, ``10``, ... ``100`` percent, ``best``, ``sequential``, ``command``.
    arm: str
    #: Steps of an epoch.
    steps: int
    #: Scheduled start of each job, in seconds after the leader.
    starts: list[float] = field(default_factory=list)
    #: Time of each job's first step, and its duration, in seconds.
    started: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    makespan: float = 0.0
    #: Predicted makespan of these starts; None without a prediction.
    predicted: float | None = None
    #: For a calibration: the number of its runs, and its duration in seconds.
    runs: int = 0
    lasted: float = 0.0
    #: Predicted from the calibration: the best leader, the makespan with it, and that of a simultaneous start.
    leader: str = ""
    best: float = 0.0
    at_once: float = 0.0
    #: Why the run is void; empty for a valid run.
    void: str = ""
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def error_pct(self) -> float | None:
        """Error of the prediction in percent of the measured makespan."""
        return None if self.predicted is None else 100 * (self.predicted - self.makespan) / self.makespan


class Runs:
    """All runs, with queries of the valid ones."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """``runs`` may contain void runs."""
        self.all = list(runs)
        self.valid = [run for run in self.all if not run.void]

    def of(self, part: str, *, arm: str | None = None, jobs: list[str] | None = None) -> list[Run]:
        """Return valid runs of a part, optionally of one arm and one order."""
        return [
            run
            for run in self.valid
            if run.part == part and arm in (None, run.arm) and (jobs is None or run.jobs == jobs)
        ]

    def orders(self, part: str) -> list[list[str]]:
        """Return the distinct orders of a part."""
        return [list(jobs) for jobs in dict.fromkeys(tuple(run.jobs) for run in self.of(part))]

    def arms(self, part: str, jobs: list[str]) -> list[str]:
        """Return the distinct arms of an order."""
        return list(dict.fromkeys(run.arm for run in self.of(part, jobs=jobs)))


def makespan(runs: list[Run]) -> float:
    """Return the median makespan."""
    return statistics.median(run.makespan for run in runs)


def follower(runs: list[Run]) -> float:
    """Return the median duration of the second job."""
    return statistics.median(run.seconds[1] for run in runs)


def error_pct(runs: list[Run]) -> float | None:
    """Return the error of the prediction in percent, of medians, so that one disturbed run does not decide."""
    predicted = [run.predicted for run in runs if run.predicted is not None]
    if not predicted:
        return None
    return 100 * (statistics.median(predicted) - makespan(runs)) / makespan(runs)


def write(path: Path, run: Run) -> None:
    """Append a run as one line."""
    report.append(path, asdict(run))


def remove_lines(
    path: Path, parts: Collection[str], origin: str, pairs: Collection[frozenset[str]] = ()
) -> None:
    """Remove the lines of parts that are measured again; with ``pairs``, only of these jobs."""
    report.remove_lines(
        path,
        lambda line: bool(
            line["part"] in parts
            and line["origin"] == origin
            and (not pairs or frozenset(line["jobs"]) in pairs)
        ),
    )


def read(path: Path) -> Runs:
    """Read runs from raw lines."""
    return Runs(Run(**line) for line in report.read(path))
