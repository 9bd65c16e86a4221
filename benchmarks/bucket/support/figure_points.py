# SPDX-License-Identifier: Apache-2.0
"""The measured points of the paper's figures, from the raw lines: which belong to a figure, and their values."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from common.runs import Run, Runs

from .table import SETTING

#: Workloads of the paper, by part.
WORKLOADS = {"figures_mnist": "MNIST", "figures_cifar": "CIFAR-10"}
#: Prefix of the values that the model predicts.
PREDICTED = "predicted_"
EPOCHS = ("first", "second")


@dataclass(frozen=True)
class Point:
    """All repeats of one point."""

    runs: tuple[Run, ...]

    @property
    def part(self) -> str:
        """`figures_mnist` or `figures_cifar`."""
        return self.runs[0].part

    @property
    def arm(self) -> str:
        """The arm."""
        return self.runs[0].arm

    @property
    def cache(self) -> int:
        """Samples that the cache holds; 0: all."""
        return self._setting("cache")

    @property
    def fetch(self) -> int:
        """Samples announced at a time; 0: none."""
        return self._setting("fetch")

    @property
    def threshold(self) -> int:
        """Announced samples at which the next are announced."""
        return self._setting("threshold")

    @property
    def share_of_partition(self) -> float:
        """Capacity of the cache in samples of an epoch; 0: all."""
        return self.cache / self.runs[0].values["partition"]

    @property
    def figures(self) -> list[int]:
        """The paper's figures with this point."""
        return [figure for figure in range(3, 10) if f"figure_{figure}" in self.runs[0].values]

    @property
    def is_timed(self) -> bool:
        """Whether its times count, too."""
        return f"{PREDICTED}waited_s" in self.runs[0].values

    def each(self, value: str) -> list[float]:
        """Return a value of each repeat that has it."""
        return [run.values[value] for run in self.runs if value in run.values]

    def measured(self, value: str) -> float | None:
        """Return the median of a value; None if no repeat has it."""
        values = self.each(value)
        return statistics.median(values) if values else None

    def predicted(self, value: str) -> float | None:
        """Return the median of its predictions, which differ between runs of this program only."""
        return self.measured(PREDICTED + value)

    def _setting(self, name: str) -> int:
        return int(self.runs[0].values.get(f"{SETTING}{name}", 0))


def points(found: Runs, part: str, figure: int | None = None) -> list[Point]:
    """Return the points of a part, or of one figure of it, in the order of measuring."""
    by_settings: dict[tuple[str, int, int, int], list[Run]] = {}
    for run in found.valid:
        if run.part == part and any(f"figure_{each}" in run.values for each in range(3, 10)):
            one = Point((run,))
            by_settings.setdefault((one.arm, one.cache, one.fetch, one.threshold), []).append(run)
    made = [Point(tuple(runs)) for runs in by_settings.values()]
    return [point for point in made if figure is None or figure in point.figures]


def miss_rate(point: Point, of: Callable[[Point, str], float | None]) -> float:
    """Return the miss rate of both epochs, measured or predicted.

    Raises:
        LookupError: there is none of an epoch.
    """
    rates = [of(point, f"{epoch}_miss_rate") for epoch in EPOCHS]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        raise LookupError("the miss rate of an epoch is missing")
    # Epochs have the same number of samples.
    return statistics.mean(known)


def is_half_and_half(point: Point) -> bool:
    """Whether a window is the paper's 50/50: fetch size and threshold are half of the cache."""
    return point.fetch > 0 and point.cache == 2 * point.fetch == 2 * point.threshold


def is_full_fetch(point: Point) -> bool:
    """Whether a window fills the whole cache at once."""
    return point.fetch > 0 and point.cache == point.fetch and not point.threshold
