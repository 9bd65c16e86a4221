# SPDX-License-Identifier: Apache-2.0
"""When the follower starts: predicted before, decided again while the leader runs.

Pure: progress comes in, a moment goes out; whoever drives has the clock and the processes. The rule: the leader has the
rate that it shows, in the first epoch and in later ones, instead of the predicted one, and the best start is computed
anew from there, never before now. A slower rate is believed at once, since it only puts the start off and may be taken
back; a faster one after some steps. Cold steps of the follower, and of both together, are taken to be longer or shorter
by the same factor: it is one storage that they wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foresee.errors import ConfigError
from foresee.models.stagger import Compat, JobTimes, Optimum, optimum

__all__ = ["Chosen", "Timing", "choose"]

#: Steps from which a faster rate is believed: at least so many, and at least this share of an epoch.
_LEAST = 20
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Chosen:
    """Which job leads, and when the other follows."""

    leader: int
    """0 or 1."""
    delay: float
    """Seconds after the first arrival at which the leader starts."""
    earliest: float
    """Seconds after the leader before which the follower may not start."""
    best: Optimum
    """Its start, and what it leads to."""


def choose(
    jobs: Sequence[JobTimes], arrivals: Sequence[float], *, compat: Compat = "physical", cache: float = 1.0
) -> Chosen:
    """The better of both orders: the earlier end, of equal ones the fewer GPU-seconds, then the order given.

    Args:
        jobs: two.
        arrivals: seconds before which each may not start, finite, 0 or more.
        compat: which reading.
        cache: share of the data that the cache keeps, in (0, 1].

    Raises:
        ConfigError: the cache reaches back to a follower at no start; an argument outside its range.
        NotMeasured: a follower may catch up, and ``wait_conc`` of a job is None.
    """
    if len(jobs) != 2:
        raise ConfigError(f"{len(jobs)} jobs; two expected, one of which follows the other")
    first = min(arrivals)
    found = []
    for leader, follower in ((0, 1), (1, 0)):
        earliest = max(arrivals[follower] - arrivals[leader], 0.0)
        best = optimum(jobs[leader], jobs[follower], now=earliest, compat=compat, cache=cache)
        if best is not None:
            found.append(Chosen(leader=leader, delay=arrivals[leader] - first, earliest=earliest, best=best))
    if not found:
        raise ConfigError(
            f"the cache reaches back to the second job at no start; cache = {cache:g} is the share of the data that it "
            "keeps"
        )
    return min(found, key=lambda each: (each.delay + each.best.makespan, each.best.gpu_seconds))


class Timing:
    """The follower's start, on the clock that begins with the leader's first step."""

    def __init__(
        self,
        leader: JobTimes,
        follower: JobTimes,
        *,
        start: float,
        earliest: float = 0.0,
        compat: Compat = "physical",
        cache: float = 1.0,
    ) -> None:
        self._leader, self._follower = leader, follower
        self._earliest = earliest
        self._compat: Compat = compat
        self._cache = cache
        self._predicted = start
        self.sure = False
        """Whether the leader has done so many steps that its rate is believed."""
        self._seen: JobTimes | None = None
        self._behind = follower
        self._over = False

    def handle_progress(self, ends: NDArray[np.float64], now: float) -> None:
        """The leader's steps have ended at ``ends``, seconds, ascending; the next one has not, ``now``."""
        leader = self._leader
        least = max(_LEAST, round(_LEAST_SHARE * leader.steps))
        first, later = ends[: leader.steps], ends[leader.steps :]
        cold = float(first[-1]) / len(first) if len(first) else 0.0
        if len(first) < leader.steps:
            # One that stands still has done no more than this.
            cold = max(cold, now / (len(first) + 1))
        self.sure = len(first) >= min(least, leader.steps)
        if not self.sure and cold <= leader.compute + leader.wait:
            self._seen = None
            return
        cached = leader.compute + leader.wait_cached
        if len(later) >= min(least, leader.steps):
            cached = float(later[-1] - first[-1]) / len(later)
        # A step faster than its computation: that was shorter than predicted.
        compute = min(leader.compute, cold, cached)
        wait = cold - compute
        factor = cold / (leader.compute + leader.wait)
        together = None if leader.wait_conc is None else _scaled(leader, leader.wait_conc, factor)
        self._seen = replace(
            leader,
            compute=compute,
            wait=wait,
            wait_cached=cached - compute,
            wait_conc=None if together is None else max(together, wait),
        )
        follower = self._follower
        self._behind = replace(
            follower,
            wait=_scaled(follower, follower.wait, factor),
            wait_conc=None if follower.wait_conc is None else _scaled(follower, follower.wait_conc, factor),
        )

    def handle_end(self) -> None:
        """The leader has ended, or failed: there is nobody to wait for."""
        self._over = True

    def poll_start(self, now: float) -> float:
        """When the follower should start; ``now`` or before it: at once."""
        if self._over:
            return max(self._earliest, 0.0)
        if self._seen is None:
            return self._predicted
        best = optimum(
            self._seen,
            self._behind,
            now=max(now, self._earliest),
            compat=self._compat,
            cache=self._cache,
        )
        # None: a leader so slow, or so fast, that the cache does not reach back any more; later is no better.
        return max(now, self._earliest) if best is None else best.start

    @property
    def leader(self) -> JobTimes:
        """The leader as it has shown itself, or else as predicted."""
        return self._seen or self._leader


def _scaled(job: JobTimes, wait: float, factor: float) -> float:
    """The wait of a step that takes ``factor`` as long and computes as before."""
    return max(0.0, factor * (job.compute + wait) - job.compute)
