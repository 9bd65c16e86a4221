# SPDX-License-Identifier: Apache-2.0
"""What one run gave, as it stands in the raw lines; and many of them."""

from __future__ import annotations

import json
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
    #: Hosts and their links: ``two`` or ``four``, and the rate as ``tc`` spells it.
    cluster: str
    rate: str
    arm: str
    #: The policy with its settings, as ranks and servers were told.
    policy: str
    #: Of each rank the measured steps, in seconds.
    steps_s: list[list[float]]
    #: Bytes of a step, one way, of one rank.
    step_bytes: int
    #: What the network's model says about the workload; an arm is missing where it says nothing.
    model_s: dict[str, float] = field(default_factory=dict)
    #: CPU seconds of all ranks and of all servers, and how many bytes were pushed meanwhile.
    rank_cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    pushed_bytes: int = 0
    #: Milliseconds from an urgent packet's offer to its arrival, by round.
    urgent_ms: list[float] = field(default_factory=list)
    connections: int = 0
    #: Where the links changed meanwhile: when each step of rank 0 began, and each stretch with its share of the rate.
    began_s: list[float] = field(default_factory=list)
    stretches: list[tuple[float, float]] = field(default_factory=list)
    #: Why the run does not count; empty if it does.
    void: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    #: What it was measured for: a part that is measured again replaces its lines.
    part: str = ""
    #: Whether compute that sleeps went on whatever the cores did.
    as_a_device: bool = False
    #: The share of the cores that had nothing to do, where it was looked at.
    idle: float | None = None

    @property
    def t_iter_s(self) -> float:
        """Median step of the slowest rank."""
        return max(statistics.median(times) for times in self.steps_s)

    @property
    def mean_iter_s(self) -> float:
        """Mean step of the slowest rank. Where steps overlap, a short one follows a long one: their mean is the training's pace."""
        return max(statistics.mean(times) for times in self.steps_s)

    def stretch_medians_s(self) -> list[float]:
        """Median step of each stretch of one rate; steps across two stretches are left out, and where none was whole it took
        longer than a stretch.
        """
        ends = [began for began, _ in self.stretches[1:]] + [self.began_s[-1]]
        times = list(zip(self.began_s, self.began_s[1:], strict=False))
        found = []
        for (start, _), end in zip(self.stretches, ends, strict=True):
            inside = [after - before for before, after in times if before >= start and after <= end]
            found.append(statistics.median(inside) if inside else math.inf)
        return found

    def changing_rounds_per_s(self) -> float:
        """Steps per second while the links changed; a run goes on at the full rate after its last stretch."""
        (first, _), (last, _) = self.stretches[0], self.stretches[-1]
        end = last + (last - first) / (len(self.stretches) - 1)
        ended = [ended for ended in self.began_s[1:] if ended <= end]
        return len(ended) / (ended[-1] - self.began_s[0])

    @property
    def goodput(self) -> float:
        """Bytes per second of one direction, where a round is nothing but its bytes."""
        return self.step_bytes / self.t_iter_s


class Runs:
    """All runs that count."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """``runs``: also those that do not count; they are told apart."""
        self.all = list(runs)
        self.valid = [run for run in self.all if not run.void]

    def of(self, workload: str, arm: str, cluster: str | None = None, rate: str | None = None) -> list[Run]:
        """Of one arm on one workload."""
        return [
            run
            for run in self.valid
            if (run.workload, run.arm) == (workload, arm)
            and cluster in (None, run.cluster)
            and rate in (None, run.rate)
        ]

    def of_all(self, workload: str) -> list[Run]:
        """Of every arm on one workload."""
        return [run for run in self.valid if run.workload == workload]

    def places(self, workload_is: Callable[[Run], bool]) -> list[tuple[str, str, str]]:
        """Workload, cluster and rate of runs of interest, each once."""
        return list(
            dict.fromkeys((run.workload, run.cluster, run.rate) for run in self.valid if workload_is(run))
        )

    def median(
        self, place: tuple[str, str, str], arm: str, value: Callable[[Run], float] = lambda run: run.t_iter_s
    ) -> float | None:
        """Over the repeats of an arm at a place; None without runs."""
        workload, cluster, rate = place
        found = self.of(workload, arm, cluster, rate)
        return statistics.median(map(value, found)) if found else None


def write(path: Path, run: Run) -> None:
    """Append a run as one line."""
    report.append(path, asdict(run))


def remove_lines(path: Path, part: str) -> None:
    """Drop the lines of a part that is measured anew."""
    report.remove_lines(path, lambda line: bool(line["part"] == part))


def read(path: Path) -> Runs:
    """Runs that were written."""
    return Runs(Run(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
