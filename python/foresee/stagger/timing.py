# SPDX-License-Identifier: Apache-2.0
"""Starts of the followers: predicted before the run, and decided again while the leader runs.

Pure: progress in, starts out. The measured rate of the leader replaces the predicted one, in the first epoch and in
later ones, and the best starts are computed again from there, never before now. A slower rate counts at once, since it
only delays starts and can be taken back; a faster one counts after some steps. All cold waits change by the same
factor, since all jobs wait for one storage.

Two jobs have the exact optimum of ``foresee.stagger.model``, which may let the follower catch up. No job catches up
with three or more jobs, behind a cache that coalesces, or if the cost of company is unknown: while no job ends its
first epoch before the fastest could read everything alone, no schedule ends earlier than the frontier's. That fails for
a small cache, for company that makes jobs faster, and for jobs that arrive late. Then the simulator plays other starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from foresee.errors import ConfigError, NotMeasured
from foresee.stagger.model import STEPS_MAX, Compat, JobTimes, Played, led_by, optimum, plan, simulate
from foresee.stagger.model.times import EQUAL

__all__ = ["SLACK", "Schedule", "Timing", "choose_schedule", "find_schedule"]

SLACK = 0.005
"""Makespans that differ by this share are equal, and the fewest GPU-seconds decide. Without it the noise of a measured
wait in company would start all jobs at once."""

#: A faster rate counts from so many steps, and from this share of an epoch.
_MIN_STEPS = 20
_MIN_SHARE = 0.01
#: Starts that were played have to be better by this share of the makespan, which whole steps make jagged.
_MIN_GAIN = 0.01


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The leader and the starts of the others; tuples are in the order of ``order``."""

    order: tuple[int, ...]
    """Indices of the jobs as given, the leader's first."""
    delay: float
    """Seconds after the first arrival at which the leader starts."""
    earliest: tuple[float, ...]
    """Seconds after the leader's start before which a job may not start; the leader's is 0."""
    starts: tuple[float, ...]
    """Seconds after the leader's start; the leader's is 0."""
    runs: tuple[float, ...]
    """Seconds of each job, from its own start."""
    makespan: float
    """From the leader's start until all have ended."""
    gpu_seconds: float
    """All runs together."""
    case: str
    """The model's case for two jobs; else ``behind``: no job catches up, or ``together``: all as early as they can."""
    catch_up: float
    """Time at which the follower of two jobs has caught up; infinite if never, or unknown."""


def find_schedule(
    jobs: Sequence[JobTimes],
    arrivals: Sequence[float],
    *,
    running: float | None = None,
    read: float | None = None,
    compat: Compat = "physical",
    cache: float = 1.0,
    slack: float = 0.0,
) -> Schedule | None:
    """Return the schedule with the earliest end; of equal ones the fewest GPU-seconds, then the order given.

    The fastest leader comes before the order given if no job catches up. None: no start is within the cache's reach.

    Args:
        jobs: two or more.
        arrivals: seconds before which each may not start, finite, 0 or more.
        running: seconds that the first job has run, 0 or more; it then leads, and the others arrive that much later.
            None: no job runs.
        read: seconds in which the origin delivers the data set once, behind a cache that coalesces, so that company
            costs no time; finite, > 0. None: the cache does not.
        compat: the reading of the paper.
        cache: share of the data that the cache keeps, in (0, 1].
        slack: share by which equal makespans may differ, in [0, 1).

    Raises:
        ConfigError: an argument outside its range.
        NotMeasured: a follower may catch up, and ``wait_conc`` of a job is None.
    """
    if len(jobs) < 2:
        raise ConfigError(f"{len(jobs)} job; two or more expected, of which one leads")
    arrivals = [float(arrival) for arrival in arrivals]
    if running is not None:
        arrivals = [0.0, *(running + arrival for arrival in arrivals[1:])]
    else:
        arrivals = [arrival - min(arrivals) for arrival in arrivals]
    leaders = range(len(jobs)) if running is None else range(1)
    found = [
        each
        for leader in leaders
        for each in _schedules_behind(leader, jobs, arrivals, read, compat=compat, cache=cache, slack=slack)
    ]
    if not found:
        return None
    shortest = min(each.delay + each.makespan for each in found) * (1 + max(slack, EQUAL))
    good = [each for each in found if each.delay + each.makespan <= shortest]
    fewest = min(each.gpu_seconds for each in good) * (1 + EQUAL)
    good = [each for each in good if each.gpu_seconds <= fewest]
    # As in a plan: jobs that do not wait for data start at once behind the fastest.
    behind = all(each.case == "behind" for each in good)
    return min(good, key=lambda each: jobs[each.order[0]].cached_epoch()) if behind else good[0]


def choose_schedule(
    jobs: Sequence[JobTimes],
    arrivals: Sequence[float],
    *,
    running: float | None = None,
    read: float | None = None,
    compat: Compat = "physical",
    cache: float = 1.0,
    slack: float = 0.0,
) -> Schedule:
    """Return the schedule of :func:`find_schedule`, or raise an error.

    Raises:
        ConfigError: no start is within the cache's reach, or an argument is outside its range.
        NotMeasured: as :func:`find_schedule`.
    """
    chosen = find_schedule(
        jobs, arrivals, running=running, read=read, compat=compat, cache=cache, slack=slack
    )
    if chosen is None:
        raise ConfigError(
            f"cache = {cache:g}: a cache with this share of the data reaches back to a follower at no start; enlarge it"
        )
    return chosen


def _schedules_behind(
    leader: int,
    jobs: Sequence[JobTimes],
    arrivals: Sequence[float],
    read: float | None,
    *,
    compat: Compat,
    cache: float,
    slack: float,
) -> list[Schedule]:
    """Return the schedules behind one leader, closed forms before played ones."""
    order = (leader, *(at for at in range(len(jobs)) if at != leader))
    ordered = [jobs[at] for at in order]
    earliest = tuple(max(arrivals[at] - arrivals[leader], 0.0) for at in order)
    schedule = partial(Schedule, order=order, delay=arrivals[leader], earliest=earliest)
    if len(jobs) == 2 and read is None:
        pair = optimum(*ordered, now=earliest[1], compat=compat, cache=cache, slack=slack)
        if pair is None:
            return []
        return [
            schedule(
                starts=(0.0, pair.start),
                runs=(pair.leader, pair.follower),
                makespan=pair.makespan,
                gpu_seconds=pair.gpu_seconds,
                case=pair.case,
                catch_up=pair.catch_up,
            )
        ]
    frontier = led_by(0, ordered, earliest, read, cache=cache)
    behind = schedule(
        starts=frontier.starts,
        runs=frontier.runs,
        makespan=frontier.makespan,
        gpu_seconds=frontier.gpu_seconds,
        case="behind",
        catch_up=np.inf,
    )
    holds = all(frontier.within_cache)
    found = [behind] if holds else []
    if holds and read is not None:
        return found  # exact
    if read is None and any(job.wait_conc is None for job in jobs):
        return found
    if sum(job.steps * job.epochs for job in jobs) > STEPS_MAX:
        return found
    # Outside the range of the closed form both are played; within it a played schedule has to be much better.
    limit = frontier.makespan * (1 - _MIN_GAIN) if holds else np.inf
    for case, starts in (("behind", frontier.starts), ("together", earliest)):
        played = simulate(ordered, starts, compat=compat, cache=cache, read=read)
        if played.makespan < limit and not (holds and case == "behind"):
            found.append(
                schedule(
                    starts=tuple(starts),
                    runs=_runs(played),
                    makespan=played.makespan,
                    gpu_seconds=played.gpu_seconds,
                    case=case,
                    catch_up=np.inf,
                )
            )
    return found


def _runs(played: Played) -> tuple[float, ...]:
    return tuple(run.end - run.start for run in played.runs)


class Timing:
    """Starts of the jobs, in seconds after the leader's first step; job 0 leads at first.

    Args:
        jobs: as predicted, in the order of ``chosen``.
        chosen: the schedule before the run.
        compat: the reading of the paper.
        cache: share of the data that the cache keeps.
        slack: as of :func:`choose_schedule`.
    """

    def __init__(
        self,
        jobs: Sequence[JobTimes],
        chosen: Schedule,
        *,
        compat: Compat = "physical",
        cache: float = 1.0,
        slack: float = 0.0,
    ) -> None:
        self._predicted = tuple(jobs)
        self._chosen = chosen
        self._compat: Compat = compat
        self._cache = cache
        self._slack = slack
        self._observed = list(self._predicted)
        self._has_observation = False
        self._starts: list[float | None] = [None] * len(jobs)
        self._done = [0] * len(jobs)
        self._is_over = [False] * len(jobs)
        self._leader = 0
        self._is_leader_complete = False
        self.is_rate_known = False
        """Whether the leader has done enough steps for its rate to count."""

    @property
    def times(self) -> tuple[JobTimes, ...]:
        """Times of the jobs: measured, or else predicted."""
        return tuple(self._observed)

    @property
    def leader(self) -> JobTimes:
        """The leader's times, likewise."""
        return self._observed[self._leader]

    def handle_start(self, index: int, at: float) -> None:
        """Handle a job's first step or release."""
        self._starts[index] = at

    def handle_progress(self, index: int, ends: NDArray[np.float64], now: float) -> None:
        """Handle steps that have ended at ``ends``, seconds after the job's first step, ascending; ``now`` likewise.

        A follower's seconds do not include the time at a closed gate.
        """
        self._done[index] = len(ends)
        if index == self._leader == 0:
            self._observe_leader(ends, now)
        elif index != self._leader and len(ends) >= min(self._min_steps(index), self._predicted[index].steps):
            job = self._predicted[index]
            step = float(ends[-1]) / len(ends)
            compute = min(job.compute, step)
            self._observed[index] = replace(
                self._observed[index], compute=compute, wait_cached=step - compute
            )

    def handle_end(self, index: int, *, is_complete: bool = True) -> None:
        """Handle a job's end; ``is_complete``: with all its steps, so that its data are in the cache."""
        self._is_over[index] = True
        if index != self._leader:
            return
        self._is_leader_complete |= is_complete
        if is_complete:
            return
        running = [at for at, start in enumerate(self._starts) if start is not None and not self._is_over[at]]
        if running:
            # The job that is furthest reads the rest.
            self._leader = max(running, key=lambda at: self._done[at] / self._predicted[at].steps)

    def poll_start(self, index: int, now: float) -> float:
        """Return the start of a job; ``now`` or earlier means at once."""
        chosen = self._chosen
        soonest = chosen.earliest[index]
        if self._is_over[self._leader]:
            return soonest if self._is_leader_complete else self._replanned_starts(now)[index]
        if not self._has_observation and self._leader == 0:
            return chosen.starts[index]
        if chosen.case == "together":
            return soonest
        soonest = max(now, soonest)
        if len(self._observed) == 2 and self._leader == 0 and chosen.case != "behind":
            try:
                pair = optimum(
                    *self._observed, now=soonest, compat=self._compat, cache=self._cache, slack=self._slack
                )
            except NotMeasured:
                # At this rate the follower would catch up, and the cost of company is unknown.
                return self._frontier_starts(now)[index]
            # None: the cache no longer reaches back at this rate; a later start is no better.
            return soonest if pair is None else pair.start
        return self._frontier_starts(now)[index]

    def _observe_leader(self, ends: NDArray[np.float64], now: float) -> None:
        """Update the times by the first leader; the rate of a later one depends on what was read before."""
        leader = self._predicted[0]
        least = self._min_steps(0)
        first, later = ends[: leader.steps], ends[leader.steps :]
        cold = float(first[-1]) / len(first) if len(first) else 0.0
        if len(first) < leader.steps:
            # A step in progress takes at least until now.
            cold = max(cold, now / (len(first) + 1))
        self.is_rate_known = len(first) >= min(least, leader.steps)
        if not self.is_rate_known and cold <= leader.compute + leader.wait:
            self._has_observation = False
            self._observed = list(self._predicted)
            return
        cached = leader.compute + leader.wait_cached
        if len(later) >= min(least, leader.steps):
            cached = float(later[-1] - first[-1]) / len(later)
        # A step shorter than the predicted computation.
        compute = min(leader.compute, cold, cached)
        wait = cold - compute
        factor = cold / (leader.compute + leader.wait)
        together = None if leader.wait_conc is None else _scaled(leader, leader.wait_conc, factor)
        self._has_observation = True
        self._observed[0] = replace(
            leader,
            compute=compute,
            wait=wait,
            wait_cached=cached - compute,
            wait_conc=None if together is None else max(together, wait),
        )
        for at, job in enumerate(self._predicted):
            if at != 0:
                self._observed[at] = replace(
                    self._observed[at],
                    wait=_scaled(job, job.wait, factor),
                    wait_conc=None if job.wait_conc is None else _scaled(job, job.wait_conc, factor),
                )

    def _frontier_starts(self, now: float) -> list[float]:
        """Return starts behind the leader, from the start that it would have had, reading alone all the time."""
        begin = 0.0
        if self._leader != 0:
            lead = self._observed[self._leader]
            begin = now - min(self._done[self._leader] / lead.steps, 1.0) * lead.cold_epoch()
        alive = [at for at, over in enumerate(self._is_over) if not over]
        earliest = [
            max(max(now, self._chosen.earliest[at]) if start is None else start, begin) - begin
            for at, start in ((at, self._starts[at]) for at in alive)
        ]
        leader = alive.index(self._leader)
        earliest[leader] = 0.0
        frontier = led_by(leader, [self._observed[at] for at in alive], earliest, cache=self._cache)
        return self._place_starts(alive, [begin + start for start in frontier.starts])

    def _replanned_starts(self, now: float) -> list[float]:
        """Starts of those index are left, of whom none runs: a plan of their own, as if nothing were in the cache."""
        alive = [at for at, over in enumerate(self._is_over) if not over]
        arrivals = [max(now, self._chosen.earliest[at]) for at in alive]
        frontier = plan([self._observed[at] for at in alive], arrivals=arrivals, cache=self._cache)
        begin = min(arrivals)
        leads = alive[frontier.leader]
        if begin + frontier.starts[frontier.leader] <= now:
            self._leader = leads
        return self._place_starts(alive, [begin + start for start in frontier.starts])

    def _place_starts(self, alive: Sequence[int], starts: Sequence[float]) -> list[float]:
        placed = list(self._chosen.earliest)
        for at, start in zip(alive, starts, strict=True):
            placed[at] = start
        return placed

    def _min_steps(self, index: int) -> int:
        return max(_MIN_STEPS, round(_MIN_SHARE * self._predicted[index].steps))


def _scaled(job: JobTimes, wait: float, factor: float) -> float:
    """Return the wait of a step that takes ``factor`` as long with the same computation."""
    return max(0.0, factor * (job.compute + wait) - job.compute)
