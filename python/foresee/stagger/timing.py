# SPDX-License-Identifier: Apache-2.0
"""Starts of the followers: predicted before, decided again while the leader runs.

It is pure: progress in, start times out; the runner has the clock and the jobs. The rule: the leader has the rate
that it shows, in the first epoch and in later ones, instead of the predicted one, and the best starts are computed anew
from there, never before now. A slower rate is believed at once, since it only puts starts off and may be taken back; a
faster one after some steps. Cold steps of the others, and of jobs together, are taken to be longer or shorter by the
same factor: it is one storage that they wait for.

Two jobs have the exact optimum of ``foresee.stagger.model``, which may let the follower catch up. Of three and more,
of any behind a cache that coalesces, and of two whose cost of company is unknown, no job catches up: while no
job ends its first epoch before the fastest could read everything alone, no schedule ends earlier than the frontier's
does. Where that does not hold, because a cache is small, because company made jobs faster when it was measured, or
because jobs arrive late, the simulator plays the starts that might be better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.errors import ConfigError, NotMeasured
from foresee.stagger.model import STEPS_MAX, Compat, JobTimes, Played, led_by, optimum, plan, simulate
from foresee.stagger.model.times import EQUAL

__all__ = ["SLACK", "Chosen", "Timing", "best", "choose"]

SLACK = 0.005
"""Share of the makespan that measured figures leave open: of schedules within it, that with the fewest GPU-seconds is
the best. Without it the noise of a wait in company that costs nothing would start all jobs at once."""

#: Steps from which a faster rate is believed: at least so many, and at least this share of an epoch.
_LEAST = 20
_LEAST_SHARE = 0.01
#: Share of the makespan by which starts that were played have to be better: whole steps make it jagged.
_BETTER = 0.01


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Which job leads, and when the others follow. Tuples are in the order of ``order``."""

    order: tuple[int, ...]
    """Places of the jobs as they were given, the leader's first."""
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
    """Of two jobs the model's; of more, and behind a cache that coalesces, ``behind``: no job catches up, or
    ``together``: all as early as they can.
    """
    catch_up: float
    """Of two jobs, when the follower has caught up; infinite if not, or not known."""


def best(
    jobs: Sequence[JobTimes],
    arrivals: Sequence[float],
    *,
    running: float | None = None,
    read: float | None = None,
    compat: Compat = "physical",
    cache: float = 1.0,
    slack: float = 0.0,
) -> Chosen | None:
    """The best leader and starts: the earliest end, of equal ones the fewest GPU-seconds, then the order given; where
    no job catches up the fastest leader before that.

    None: the cache reaches back to a follower at no start.

    Args:
        jobs: two or more.
        arrivals: seconds before which each may not start, finite, 0 or more.
        running: seconds for which the first job has run already, 0 or more, so that it leads; the others arrive that
            much later. None: no job runs yet.
        read: seconds in which the origin delivers the data set once, behind a cache that coalesces, so that company
            costs no time; finite, > 0. None: the cache does not.
        compat: which reading.
        cache: share of the data that the cache keeps, in (0, 1].
        slack: share by which makespans that are as good may differ, in [0, 1).

    Raises:
        ConfigError: an argument outside its range.
        NotMeasured: a follower may catch up, and ``wait_conc`` of a job is None.
    """
    if len(jobs) < 2:
        raise ConfigError(f"{len(jobs)} job; two or more expected, of which one leads")
    there = [float(arrival) for arrival in arrivals]
    if running is not None:
        there = [0.0, *(running + arrival for arrival in there[1:])]
    else:
        there = [arrival - min(there) for arrival in there]
    leaders = range(len(jobs)) if running is None else range(1)
    found = [
        each
        for leader in leaders
        for each in _led(leader, jobs, there, read, compat=compat, cache=cache, slack=slack)
    ]
    if not found:
        return None
    shortest = min(each.delay + each.makespan for each in found) * (1 + max(slack, EQUAL))
    good = [each for each in found if each.delay + each.makespan <= shortest]
    fewest = min(each.gpu_seconds for each in good) * (1 + EQUAL)
    good = [each for each in good if each.gpu_seconds <= fewest]
    # As a plan has it: behind the fastest, jobs that wait for no data start at once.
    behind = all(each.case == "behind" for each in good)
    return min(good, key=lambda each: jobs[each.order[0]].cached_epoch()) if behind else good[0]


def choose(
    jobs: Sequence[JobTimes],
    arrivals: Sequence[float],
    *,
    running: float | None = None,
    read: float | None = None,
    compat: Compat = "physical",
    cache: float = 1.0,
    slack: float = 0.0,
) -> Chosen:
    """Result of :func:`best`, for the code that starts the jobs.

    Raises:
        ConfigError: the cache reaches back to a follower at no start; an argument outside its range.
        NotMeasured: as :func:`best`.
    """
    chosen = best(jobs, arrivals, running=running, read=read, compat=compat, cache=cache, slack=slack)
    if chosen is None:
        raise ConfigError(
            f"the cache reaches back to a follower at no start; cache = {cache:g} is the share of the data that it "
            "keeps"
        )
    return chosen


def _led(
    leader: int,
    jobs: Sequence[JobTimes],
    there: Sequence[float],
    read: float | None,
    *,
    compat: Compat,
    cache: float,
    slack: float,
) -> list[Chosen]:
    """Schedules behind one leader, those first that need no play."""
    order = (leader, *(at for at in range(len(jobs)) if at != leader))
    ordered = [jobs[at] for at in order]
    earliest = tuple(max(there[at] - there[leader], 0.0) for at in order)
    if len(jobs) == 2 and read is None:
        pair = optimum(*ordered, now=earliest[1], compat=compat, cache=cache, slack=slack)
        if pair is None:
            return []
        return [
            Chosen(
                order=order,
                delay=there[leader],
                earliest=earliest,
                starts=(0.0, pair.start),
                runs=(pair.leader, pair.follower),
                makespan=pair.makespan,
                gpu_seconds=pair.gpu_seconds,
                case=pair.case,
                catch_up=pair.catch_up,
            )
        ]
    made = led_by(0, ordered, earliest, read, cache=cache)
    told: dict[str, Any] = {"order": order, "delay": there[leader], "earliest": earliest, "catch_up": np.inf}
    behind = Chosen(
        starts=made.starts,
        runs=made.runs,
        makespan=made.makespan,
        gpu_seconds=made.gpu_seconds,
        case="behind",
        **told,
    )
    holds = all(made.within_cache)
    found = [behind] if holds else []
    if holds and read is not None:
        return found  # exact: nothing that is played is better
    if read is None and any(job.wait_conc is None for job in jobs):
        return found
    if sum(job.steps * job.epochs for job in jobs) > STEPS_MAX:
        return found
    # Beyond the reach of the closed form both are played; within it, starts that are played have to be much better.
    limit = made.makespan * (1 - _BETTER) if holds else np.inf
    for case, starts in (("behind", made.starts), ("together", earliest)):
        played = simulate(ordered, starts, compat=compat, cache=cache, read=read)
        if played.makespan < limit and not (holds and case == "behind"):
            found.append(
                Chosen(
                    starts=tuple(starts),
                    runs=_runs(played),
                    makespan=played.makespan,
                    gpu_seconds=played.gpu_seconds,
                    case=case,
                    **told,
                )
            )
    return found


def _runs(played: Played) -> tuple[float, ...]:
    return tuple(run.end - run.start for run in played.runs)


class Timing:
    """Starts of the jobs, on the clock that begins with the leader's first step; job 0 leads at first.

    Args:
        jobs: as predicted, in the order of ``chosen``.
        chosen: what was decided before.
        compat: which reading.
        cache: share of the data that the cache keeps.
        slack: as of :func:`choose`.
    """

    def __init__(
        self,
        jobs: Sequence[JobTimes],
        chosen: Chosen,
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
        self._seen = list(self._predicted)
        self._shown = False
        self._starts: list[float | None] = [None] * len(jobs)
        self._done = [0] * len(jobs)
        self._over = [False] * len(jobs)
        self._lead = 0
        self._lead_whole = False
        self.sure = False
        """Whether the leader has done so many steps that its rate is believed."""

    @property
    def figures(self) -> tuple[JobTimes, ...]:
        """The jobs as they have shown themselves, or else as predicted."""
        return tuple(self._seen)

    @property
    def leader(self) -> JobTimes:
        """The one that leads, likewise."""
        return self._seen[self._lead]

    def handle_start(self, who: int, at: float) -> None:
        """A job's first step has begun, or it was let go."""
        self._starts[who] = at

    def handle_progress(self, who: int, ends: NDArray[np.float64], now: float) -> None:
        """A job's steps have ended at ``ends``, seconds after its first one began, ascending; ``now`` likewise.

        Of a follower it is seconds that it was at its steps: how long its gate was closed says nothing of its rate.
        """
        self._done[who] = len(ends)
        if who == self._lead == 0:
            self._leads(ends, now)
        elif who != self._lead and len(ends) >= min(self._least(who), self._predicted[who].steps):
            job = self._predicted[who]
            step = float(ends[-1]) / len(ends)
            compute = min(job.compute, step)
            self._seen[who] = replace(self._seen[who], compute=compute, wait_cached=step - compute)

    def handle_end(self, who: int, *, whole: bool = True) -> None:
        """A job has ended; ``whole``: with all its steps, so that its data are in the cache."""
        self._over[who] = True
        if who != self._lead:
            return
        self._lead_whole |= whole
        if whole:
            return
        running = [at for at, start in enumerate(self._starts) if start is not None and not self._over[at]]
        if running:
            # The job that is furthest reads the rest; its progress shows its rate.
            self._lead = max(running, key=lambda at: self._done[at] / self._predicted[at].steps)

    def poll_start(self, who: int, now: float) -> float:
        """Return the start of a job; ``now`` or earlier means at once."""
        chosen = self._chosen
        soonest = chosen.earliest[who]
        if self._over[self._lead]:
            return soonest if self._lead_whole else self._without_leader(now)[who]
        if not self._shown and self._lead == 0:
            return chosen.starts[who]
        if chosen.case == "together":
            return soonest
        soonest = max(now, soonest)
        if len(self._seen) == 2 and self._lead == 0 and chosen.case != "behind":
            try:
                pair = optimum(
                    *self._seen, now=soonest, compat=self._compat, cache=self._cache, slack=self._slack
                )
            except NotMeasured:
                # At its rate it would be caught up with, which the plan excludes, and the cost of company is unknown.
                return self._behind(now)[who]
            # None: a leader so slow, or so fast, that the cache does not reach back any more; later is no better.
            return soonest if pair is None else pair.start
        return self._behind(now)[who]

    def _leads(self, ends: NDArray[np.float64], now: float) -> None:
        """Believe what the first leader shows; of one that took over, what it had read before says nothing."""
        leader = self._predicted[0]
        least = self._least(0)
        first, later = ends[: leader.steps], ends[leader.steps :]
        cold = float(first[-1]) / len(first) if len(first) else 0.0
        if len(first) < leader.steps:
            # One that stands still has done no more than this.
            cold = max(cold, now / (len(first) + 1))
        self.sure = len(first) >= min(least, leader.steps)
        if not self.sure and cold <= leader.compute + leader.wait:
            self._shown = False
            self._seen = list(self._predicted)
            return
        cached = leader.compute + leader.wait_cached
        if len(later) >= min(least, leader.steps):
            cached = float(later[-1] - first[-1]) / len(later)
        # A step faster than its computation: that was shorter than predicted.
        compute = min(leader.compute, cold, cached)
        wait = cold - compute
        factor = cold / (leader.compute + leader.wait)
        together = None if leader.wait_conc is None else _scaled(leader, leader.wait_conc, factor)
        self._shown = True
        self._seen[0] = replace(
            leader,
            compute=compute,
            wait=wait,
            wait_cached=cached - compute,
            wait_conc=None if together is None else max(together, wait),
        )
        for at, job in enumerate(self._predicted):
            if at != 0:
                self._seen[at] = replace(
                    self._seen[at],
                    wait=_scaled(job, job.wait, factor),
                    wait_conc=None if job.wait_conc is None else _scaled(job, job.wait_conc, factor),
                )

    def _behind(self, now: float) -> list[float]:
        """Starts behind the leader, counted from where it would have begun had it read alone all the time."""
        begin = 0.0
        if self._lead != 0:
            lead = self._seen[self._lead]
            begin = now - min(self._done[self._lead] / lead.steps, 1.0) * lead.cold_epoch()
        alive = [at for at, over in enumerate(self._over) if not over]
        earliest = [
            max(max(now, self._chosen.earliest[at]) if start is None else start, begin) - begin
            for at, start in ((at, self._starts[at]) for at in alive)
        ]
        leader = alive.index(self._lead)
        earliest[leader] = 0.0
        made = led_by(leader, [self._seen[at] for at in alive], earliest, cache=self._cache)
        return self._placed(alive, [begin + start for start in made.starts])

    def _without_leader(self, now: float) -> list[float]:
        """Starts of those who are left, of whom none runs: a plan of their own, as if nothing were in the cache."""
        alive = [at for at, over in enumerate(self._over) if not over]
        arrivals = [max(now, self._chosen.earliest[at]) for at in alive]
        made = plan([self._seen[at] for at in alive], arrivals=arrivals, cache=self._cache)
        begin = min(arrivals)
        leads = alive[made.leader]
        if begin + made.starts[made.leader] <= now:
            self._lead = leads
        return self._placed(alive, [begin + start for start in made.starts])

    def _placed(self, alive: Sequence[int], starts: Sequence[float]) -> list[float]:
        placed = list(self._chosen.earliest)
        for at, start in zip(alive, starts, strict=True):
            placed[at] = start
        return placed

    def _least(self, who: int) -> int:
        return max(_LEAST, round(_LEAST_SHARE * self._predicted[who].steps))


def _scaled(job: JobTimes, wait: float, factor: float) -> float:
    """The wait of a step that takes ``factor`` as long and computes as before."""
    return max(0.0, factor * (job.compute + wait) - job.compute)
