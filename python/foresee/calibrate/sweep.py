# SPDX-License-Identifier: Apache-2.0
"""A sweep: one measurement with 1, 2, 4, ... threads or readers, until more of them bring no gain.

A point is the median of several short repeats; its spread is half the distance between their quartiles.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from foresee.jobspec import Figure

#: Of each point, after one more that warms up connections, threads and caches.
REPEATS = 5
#: A sweep continues while twice the threads increase the rate by this factor.
GAIN = 1.05
#: A sweep whose operations take longer than its repeats ends before this multiple of its share of the time.
OVERTIME = 1.5

#: Threads and seconds to bytes moved, seconds taken, and the median seconds of one operation.
Measure: TypeAlias = Callable[[int, float], tuple[int, float, float]]


@dataclass(frozen=True)
class Point:
    """The measurement with one count of threads."""

    at: int
    rates: tuple[float, ...]
    """Bytes per second of each repeat."""
    latencies: tuple[float, ...] = ()
    """Seconds of one small operation of each repeat, if they were measured."""


@dataclass(frozen=True)
class Sweep:
    """A curve; ``cut``: whether the time ended before it was complete."""

    points: tuple[Point, ...]
    cut: bool = False


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def counts(most: int) -> tuple[int, ...]:
    """Return the powers of two below ``most``, and ``most``.

    >>> counts(1), counts(6), counts(8)
    ((1,), (1, 2, 4, 6), (1, 2, 4, 8))
    """
    powers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return (*powers, most)


def sweep(
    measure: Measure,
    at: Sequence[int],
    seconds: float,
    on_progress: Callable[[int], None],
    *,
    small: Measure | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Sweep:
    """Measure with each count of ``at``, ascending, in about ``seconds``, until one brings less than 5 % more.

    ``on_progress`` gets each count. ``small``: measurement of the latency, as the time of one small operation.
    """
    began = clock()
    each = seconds / len(at) / (REPEATS + 1)
    points: list[Point] = []
    best = last = 0.0
    for count in at:
        # A point takes at least as long as the one before it.
        now = clock()
        if points and now + last - began > OVERTIME * seconds:
            return Sweep(tuple(points), cut=True)
        on_progress(count)
        share = each if small is None else 0.7 * each
        rates = [moved / took for moved, took, _ in _repeats(measure, count, share)]
        latencies = [] if small is None else [each_ for *_, each_ in _repeats(small, count, each - share)]
        points.append(Point(count, tuple(rates), tuple(latencies)))
        last = clock() - now
        median = statistics.median(rates)
        if median < GAIN * best:
            break
        best = median
    return Sweep(tuple(points))


def _repeats(measure: Measure, count: int, seconds: float) -> list[tuple[int, float, float]]:
    return [measure(count, seconds) for _ in range(REPEATS + 1)][1:]


def spread(values: Sequence[float]) -> float:
    """Return half the distance between the first and the last quartile; 0 for a single value.

    >>> spread([1.0, 2.0, 3.0, 4.0, 9.0])
    1.0
    """
    if len(values) < 2:
        return 0.0
    first, _, last = statistics.quantiles(values, n=4, method="inclusive")
    return (last - first) / 2


def rate(name: str, at: int | None, rates: Sequence[float], conditions: str) -> Figure:
    """Make a figure of repeats in bytes per second."""
    return _figure(name, at, [each / 1e6 for each in rates], "MB/s", conditions)


def time_of(name: str, at: int | None, times: Sequence[float], conditions: str) -> Figure:
    """Make a figure of repeats in seconds."""
    return _figure(name, at, [each * 1e6 for each in times], "us", conditions)


def frequency(name: str, values: Sequence[float], conditions: str) -> Figure:
    """Make a figure of repeats in events per second."""
    return _figure(name, None, values, "/s", conditions)


def _figure(name: str, at: int | None, values: Sequence[float], unit: str, conditions: str) -> Figure:
    return Figure(
        name=name,
        at=at,
        value=_digits(statistics.median(values)),
        unit=unit,
        spread=_digits(spread(values)),
        conditions=conditions,
    )


def _digits(value: float) -> float:
    """Round to four significant digits, the precision of a repeat."""
    return float(f"{value:.4g}")
