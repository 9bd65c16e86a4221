# SPDX-License-Identifier: Apache-2.0
"""The result of one run as the raw lines store it, and collections of runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import report


@dataclass
class Run:
    """One arm on one workload."""

    workload: str
    #: Hosts and their links: for example ``two`` or ``four``, and the rate in the notation of ``tc``.
    cluster: str
    rate: str
    arm: str
    #: The policy of ranks and servers, with its settings.
    policy: str
    #: Seconds of the measured steps, by rank.
    steps_s: list[list[float]]
    #: Bytes that one rank pushes in a step.
    step_bytes: int
    #: Modelled step of each arm that the network model covers, in seconds.
    model_s: dict[str, float] = field(default_factory=dict)
    #: CPU seconds of all ranks and of all servers, and the bytes pushed in that time.
    rank_cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    pushed_bytes: int = 0
    #: Milliseconds from the push of an urgent tensor to its arrival, by round.
    urgent_ms: list[float] = field(default_factory=list)
    connections: int = 0
    #: If the links changed: the start of each step of rank 0, and of each stretch with its share of the rate.
    began_s: list[float] = field(default_factory=list)
    stretches: list[tuple[float, float]] = field(default_factory=list)
    #: Why the run is void; empty for a valid run.
    void: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    #: Part of the benchmark; measuring a part again replaces its lines.
    part: str = ""
    #: Whether compute that sleeps had real-time priority.
    as_a_device: bool = False
    #: Idle share of the cores; None if it was not measured.
    idle: float | None = None

    @property
    def t_iter_s(self) -> float:
        """Median step of the slowest rank, in seconds."""
        return max(statistics.median(times) for times in self.steps_s)

    @property
    def mean_iter_s(self) -> float:
        """Mean step of the slowest rank, in seconds: overlapping steps alternate between short and long."""
        return max(statistics.mean(times) for times in self.steps_s)

    def stretch_medians_s(self) -> list[float]:
        """Return the median step of each stretch of one rate.

        Steps across two stretches are left out. A stretch without a complete step counts as infinitely slow.
        """
        ends = [began for began, _ in self.stretches[1:]] + [self.began_s[-1]]
        times = list(zip(self.began_s, self.began_s[1:], strict=False))
        found = []
        for (start, _), end in zip(self.stretches, ends, strict=True):
            inside = [after - before for before, after in times if before >= start and after <= end]
            found.append(statistics.median(inside) if inside else math.inf)
        return found

    def changing_rounds_per_s(self) -> float:
        """Return the steps per second while the links changed, without those after the last stretch."""
        (first, _), (last, _) = self.stretches[0], self.stretches[-1]
        end = last + (last - first) / (len(self.stretches) - 1)
        ended = [ended for ended in self.began_s[1:] if ended <= end]
        return len(ended) / (ended[-1] - self.began_s[0])

    @property
    def goodput(self) -> float:
        """Bytes per second of one direction, for runs without compute."""
        return self.step_bytes / self.t_iter_s


class Runs:
    """All runs, with queries of the valid ones."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """``runs`` may contain void runs."""
        self.all = list(runs)
        self.valid = [run for run in self.all if not run.void]

    def of(self, workload: str, arm: str, cluster: str | None = None, rate: str | None = None) -> list[Run]:
        """Return the valid runs of one arm on one workload."""
        return [
            run
            for run in self.valid
            if (run.workload, run.arm) == (workload, arm)
            and cluster in (None, run.cluster)
            and rate in (None, run.rate)
        ]

    def of_all(self, workload: str) -> list[Run]:
        """Return the valid runs of every arm on one workload."""
        return [run for run in self.valid if run.workload == workload]

    def places(self, workload_is: Callable[[Run], bool]) -> list[tuple[str, str, str]]:
        """Return the distinct workloads, clusters and rates of the selected runs."""
        return list(
            dict.fromkeys((run.workload, run.cluster, run.rate) for run in self.valid if workload_is(run))
        )

    def median(
        self, place: tuple[str, str, str], arm: str, value: Callable[[Run], float] = lambda run: run.t_iter_s
    ) -> float | None:
        """Return the median over the repeats of an arm at a place; None without runs."""
        workload, cluster, rate = place
        found = self.of(workload, arm, cluster, rate)
        return statistics.median(map(value, found)) if found else None


def write(path: Path, run: Run) -> None:
    """Append a run as one line."""
    report.append(path, asdict(run))


def read(path: Path) -> Runs:
    """Read runs from raw lines."""
    return Runs(Run(**line) for line in report.read(path))
