# SPDX-License-Identifier: Apache-2.0
"""Compute the acceptance lines of PROTOCOL.md from the runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from common.verdicts import Line, judged

from .job import Epoch, Result


@dataclass
class Run:
    """One run, with the measurements of its parent process."""

    result: Result
    #: Bytes and requests that the origin counted; -1 if it does not count them.
    origin_bytes: int
    origin_requests: int
    peak_pss_bytes: int
    #: Bytes of the data, and of one cold sequential read of them; 0 if that was not measured.
    data_bytes: int
    sequential_bytes: int
    #: Shortest time of one pass by the origin's limits, and compute time of one pass, in seconds.
    origin_pass_s: float
    compute_pass_s: float
    compute_step_s: float
    #: Limit of the origin in requests per second; 0 for no limit.
    requests_per_s: int
    #: Why the run is void; empty for a valid run.
    void: str
    #: Cache budgets of the arm: memory, and memory and disk together.
    ram_bytes: int
    cache_bytes: int
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def timed(self) -> list[Epoch]:
        """The timed epochs; an untimed check is the last epoch if the others were not verified."""
        epochs = self.result.epochs
        return epochs if len(epochs) < 2 or epochs[0].verified else epochs[:-1]

    @property
    def seconds(self) -> float:
        """Seconds of all timed epochs, with the first batch: a loader prefetches while the loop waits for it."""
        return sum(epoch.seconds for epoch in self.timed)

    @property
    def samples_per_s(self) -> float:
        """Samples per second over all timed epochs."""
        return sum(epoch.samples for epoch in self.timed) / max(self.seconds, 1e-9)

    @property
    def later_samples_per_s(self) -> float:
        """Samples per second from the second epoch on, when caches are filled."""
        later = self.timed[1:]
        return sum(epoch.samples for epoch in later) / sum(epoch.seconds for epoch in later)

    def bound_s(self, loop_pass_s: float) -> float:
        """Return the shortest time for these epochs if the loop alone takes ``loop_pass_s`` for one.

        The first epoch reads all bytes from the origin, and computes on the last batch after that has arrived.
        """
        later = max(self.compute_pass_s, loop_pass_s)
        first = max(self.origin_pass_s + self.compute_step_s, later)
        return first + (len(self.timed) - 1) * later


#: Data up to this size fit into the staging buffer, in addition to any cache.
_STAGING_BYTES = 64 << 20

#: Function that computes a line; a text is the reason why there is no value.
Measure = Callable[["Runs"], "float | str"]


class Runs:
    """All runs, with queries of the valid ones by workload and arm."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.all = list(runs)
        self.valid = [run for run in self.all if not run.void]

    def of(self, workload: str, arm: str) -> list[Run]:
        """Return the valid runs of an arm's best setting."""
        settings = self.best_setting(workload, arm)
        return [
            run
            for run in self.valid
            if (run.result.workload, run.result.arm) == (workload, arm) and run.result.settings == settings
        ]

    def median(self, workload: str, arm: str, value: Callable[[Run], float]) -> float | None:
        """Return the median over the runs of an arm's best setting; None without runs."""
        runs = self.of(workload, arm)
        return statistics.median(map(value, runs)) if runs else None

    def loop_pass_s(self, workload: str) -> float:
        """Return the time of an epoch of the arm `bound`; 0 without runs."""
        return self.median(workload, "bound", lambda run: run.seconds / len(run.timed)) or 0.0

    def best_setting(self, workload: str, arm: str) -> dict[str, Any] | None:
        """Return the setting with the shortest median time."""
        times: dict[str, list[float]] = {}
        settings: dict[str, dict[str, Any]] = {}
        for run in self.valid:
            if (run.result.workload, run.result.arm) == (workload, arm):
                name = str(run.result.settings)
                settings[name] = run.result.settings
                times.setdefault(name, []).append(run.seconds)
        if not times:
            return None
        return settings[min(times, key=lambda name: statistics.median(times[name]))]

    def peers(self, workload: str, *, exact: bool) -> list[str]:
        """Return the arms with valid runs, except `ours` and `bound`."""
        found = {
            run.result.arm
            for run in self.valid
            if run.result.workload == workload
            and run.result.arm not in ("ours", "bound")
            and (not exact or run.result.order == "exact")
        }
        return sorted(found)

    def why_not(self, workload: str, arm: str = "ours") -> str:
        """Return why an arm has no value."""
        for run in self.all:
            if (run.result.workload, run.result.arm) == (workload, arm) and run.void:
                return f"{arm} on {workload}: {run.void}"
        return f"{arm} was not run on {workload}; the full run does"


def over_bound(workload: str) -> Measure:
    """Measure the time of the run over its bound."""

    def measure(runs: Runs) -> float | str:
        loop = runs.loop_pass_s(workload)
        value = runs.median(workload, "ours", lambda run: run.seconds / run.bound_s(loop))
        return runs.why_not(workload) if value is None else value

    return measure


def share_of_cap(workload: str) -> Measure:
    """Measure the samples per second of the first epoch over the origin's limit of requests."""

    def measure(runs: Runs) -> float | str:
        value = runs.median(
            workload,
            "ours",
            lambda run: run.timed[0].samples / run.timed[0].seconds / run.requests_per_s,
        )
        return runs.why_not(workload) if value is None else value

    return measure


def over_best_peer(
    workload: str, value: Callable[[Run], float], *, least: bool, exact: bool = True
) -> Measure:
    """Measure our median over the best peer's; with ``least`` smaller values are better."""

    def measure(runs: Runs) -> float | str:
        ours = runs.median(workload, "ours", value)
        if ours is None:
            return runs.why_not(workload)
        theirs = [runs.median(workload, arm, value) for arm in runs.peers(workload, exact=exact)]
        known = [one for one in theirs if one is not None and one > 0]
        if not known:
            return f"no peer was run on {workload}; the full run does"
        return ours / (min(known) if least else max(known))

    return measure


def over_arm(workload: str, arm: str, value: Callable[[Run], float]) -> Measure:
    """Measure our median over that of one arm."""

    def measure(runs: Runs) -> float | str:
        ours, theirs = runs.median(workload, "ours", value), runs.median(workload, arm, value)
        if ours is None:
            return runs.why_not(workload)
        return runs.why_not(workload, arm) if theirs is None else ours / theirs

    return measure


def own(workload: str, value: Callable[[Run], float]) -> Measure:
    """Measure our median of a value that is already a ratio."""

    def measure(runs: Runs) -> float | str:
        ours = runs.median(workload, "ours", value)
        return runs.why_not(workload) if ours is None else ours

    return measure


def waited_share(run: Run) -> float:
    """Return the wait time from the second epoch on, as a share of those epochs."""
    later = run.timed[1:]
    return sum(epoch.waited_s for epoch in later) / sum(epoch.seconds for epoch in later)


def belady_bytes(run: Run) -> float:
    """Return the fewest bytes that all epochs must read with a cache of ``cache_bytes`` and samples of one size.

    With independent full permutations the hit rate of an epoch is at most the share of the data that the cache holds.
    Pinning that share reaches it, so each epoch after the first misses the rest.
    """
    rest = max(0, run.data_bytes - run.cache_bytes)
    return run.data_bytes + (len(run.timed) - 1) * rest


def later_bytes_over_belady(run: Run) -> float:
    """Return the bytes from the second epoch on over the fewest possible."""
    return (run.origin_bytes - run.data_bytes) / (belady_bytes(run) - run.data_bytes)


def half_cache(runs: Runs) -> float | str:
    """Measure later epochs' bytes over the fewest possible; no value if the data fit into the staging buffer."""
    value = own("s3-half", later_bytes_over_belady)(runs)
    if isinstance(value, float) and runs.of("s3-half", "ours")[0].data_bytes <= _STAGING_BYTES:
        return f"{value:.3g}: the data fit into the staging buffer, so an epoch reuses reads of the last one; see the full run"
    return value


def memory_apart_from_ram(run: Run) -> float:
    """Return the peak memory, without the RAM budget for arms that cache samples within it."""
    return run.peak_pss_bytes - (run.ram_bytes if run.result.arm in ("ours", "pool") else 0)


def cpu_per_gb(epochs: list[Epoch]) -> float:
    """Return the CPU seconds per gigabyte delivered."""
    return sum(epoch.cpu_s for epoch in epochs) / (sum(epoch.bytes for epoch in epochs) / 1e9)


def cpu_over_best_peer(runs: Runs) -> float | str:
    """Return the worst ratio of three: samples in RAM, and the whole runs from disk and bucket."""
    found = [
        over_best_peer("ram-110k", lambda run: cpu_per_gb(run.timed[1:]), least=True)(runs),
        over_best_peer("disk-110k", lambda run: cpu_per_gb(run.timed), least=True)(runs),
        over_best_peer("s3-1k-fast", lambda run: cpu_per_gb(run.timed), least=True)(runs),
    ]
    values = [value for value in found if not isinstance(value, str)]
    return max(values) if values else str(found[0])


#: Name, unit, limit, whether the value must be at most the limit, measure.
LINES: list[tuple[str, str, float, bool, Measure]] = [
    ("disk_110k_time_over_bound", "ratio", 1.02, True, over_bound("disk-110k")),
    ("disk_12m_time_over_bound", "ratio", 1.02, True, over_bound("disk-12m")),
    ("s3_1k_share_of_cap", "ratio", 0.95, False, share_of_cap("s3-1k-fast")),
    (
        "s3_1k_over_best_exact_peer",
        "ratio",
        0.98,
        False,
        over_best_peer("s3-1k-fast", lambda run: run.samples_per_s, least=False),
    ),
    ("later_epochs_waited_share", "ratio", 0.01, True, own("s3-1k", waited_share)),
    (
        "bucket_bytes_over_data",
        "ratio",
        1.0,
        True,
        own("s3-1k", lambda run: run.origin_bytes / run.data_bytes),
    ),
    (
        "disk_bytes_over_sequential",
        "ratio",
        1.01,
        True,
        own("disk-110k", lambda run: run.origin_bytes / run.sequential_bytes),
    ),
    ("half_cache_bytes_over_belady", "ratio", 1.02, True, half_cache),
    (
        "no_cache_time_over_plain",
        "ratio",
        1.03,
        True,
        over_arm("disk-none", "torch", lambda run: run.seconds),
    ),
    (
        "ram_1k_over_best_torch",
        "ratio",
        10.0,
        False,
        over_arm("ram-1k", "torch", lambda run: run.later_samples_per_s),
    ),
    (
        "ram_110k_share_of_memcpy",
        "ratio",
        0.70,
        False,
        own(
            "ram-110k",
            lambda run: (
                run.later_samples_per_s
                * run.data_bytes
                / run.timed[0].samples
                / run.machine["memcpy_bytes_per_s"]
            ),
        ),
    ),
    (
        "cpu_per_gb_over_best_exact_peer",
        "ratio",
        1.05,
        True,
        cpu_over_best_peer,
    ),
    (
        "memory_over_leanest_peer",
        "ratio",
        1.0,
        True,
        over_best_peer("disk-110k", memory_apart_from_ram, least=True, exact=False),
    ),
]


def judge(runs: Runs) -> list[Line]:
    """Return all lines; lines without a value have the reason."""
    return [
        judged(name, unit, limit, below=below, value=measure(runs))
        for name, unit, limit, below, measure in LINES
    ]
