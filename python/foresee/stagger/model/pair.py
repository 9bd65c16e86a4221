# SPDX-License-Identifier: Apache-2.0
"""Two jobs, one data set, one cache: the times for each start of the second job, and its best start.

The leader starts at 0, the follower at ``start``. While the follower is behind it reads from the cache; it catches up
at ``catch_up``, and from then on both wait for the origin. There are four cases:

=========== ==========================================================================================================
``never``   the follower's cached step is no faster than the leader's cold one: it always stays behind
``catch``   it catches up within the leader's first epoch
``cached``  it starts so late that the leader has read everything before
``serial``  it starts at the leader's end
=========== ==========================================================================================================

``compat="physical"``, the default, lets the slower job find everything in the cache after the faster one's first epoch.
``compat="paper"`` keeps it at its concurrent rate to the end of its own, as equation (2) does.

A cache with a share of the data serves a follower that is not further behind than that, and serves that share of each
batch in later epochs. Outside its reach no closed form holds; ``steps`` simulates it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foresee._schema.compat import Compat
from foresee.errors import ConfigError
from foresee.stagger.model.times import EQUAL, JobTimes, cache_faults, seconds_fault

__all__ = [
    "CASES",
    "Case",
    "Compat",
    "Optimum",
    "Prediction",
    "Waits",
    "optimum",
    "predict",
    "sequential",
    "waits",
]

Case = Literal["never", "catch", "cached", "serial"]

CASES: tuple[Case, ...] = ("never", "catch", "cached", "serial")

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Times for each start; every array has the shape of ``start``, every time is in seconds."""

    start: Floats
    """Start of the follower, after the leader's."""
    case: NDArray[np.str_]
    """One of :data:`CASES`."""
    catch_up: Floats
    """t_C: when the follower has done as much as the leader; infinite if not within the leader's first epoch."""
    caught_steps: Floats
    """N: the leader's steps by then; infinite likewise."""
    leader_first: Floats
    """The leader's first epoch."""
    follower_first: Floats
    """The follower's first epoch, from its start."""
    leader: Floats
    """The leader's whole run."""
    follower: Floats
    """The follower's whole run, from its start."""
    makespan: Floats
    """From the leader's start to the end of both."""
    gpu_seconds: Floats
    """Both runs together."""
    within_cache: NDArray[np.bool_]
    """Whether the cache reaches from the leader back to the follower; no value holds otherwise."""


@dataclass(frozen=True)
class Optimum:
    """The best start of the follower, in seconds."""

    start: float
    """Its start, after the leader's."""
    share: float
    """The same as a share of the leader's run alone."""
    case: Case
    catch_up: float
    """Time at which it catches up; infinite if not within the leader's first epoch."""
    leader: float
    """The leader's run."""
    follower: float
    """The follower's run, from its start."""
    makespan: float
    """Until both have ended."""
    gpu_seconds: float
    """Both runs together."""


@dataclass(frozen=True, eq=False)
class Waits:
    """Wait of a job for data, step by step, over its run."""

    edges: Floats
    """Seconds since the leader's start at which the wait changes, ascending; shape (spans + 1,)."""
    wait: Floats
    """Seconds per step between two edges; shape (spans,)."""


def predict(
    leader: JobTimes,
    follower: JobTimes,
    start: ArrayLike,
    *,
    compat: Compat = "physical",
    cache: float = 1.0,
) -> Prediction:
    """Predict the times for each start of the follower (equations 1 to 4, with the cases that they omit).

    Args:
        leader: the job that starts at 0.
        follower: the job that starts at ``start``.
        start: seconds after the leader, finite, 0 or more; any shape. Not kept.
        compat: the reading of the paper.
        cache: share of the data that the cache keeps, in (0, 1].

    Raises:
        ConfigError: an argument outside its range.
        NotMeasured: the follower catches up, and ``wait_conc`` of a job is None.

    >>> a = JobTimes(name="a", compute=1, wait=7, wait_cached=2, wait_conc=7, steps=10, epochs=4)
    >>> b = JobTimes(name="b", compute=1, wait=7, wait_cached=1, wait_conc=3, steps=10)
    >>> predict(a, b, [0, 30, 60, 170]).makespan.tolist()
    [145.0, 157.5, 170.0, 190.0]
    """
    return _Rates(leader, follower, compat, cache).predict(_starts(start))


def sequential(leader: JobTimes, follower: JobTimes, *, cache: float = 1.0) -> float:
    """Return the seconds until both have ended if the follower waits for the leader's end.

    Raises:
        ConfigError: ``cache`` outside (0, 1].
    """
    if faults := cache_faults(cache):
        raise ConfigError(faults)
    return leader.alone(cache) + follower.epochs * follower.later_epoch(cache)


def optimum(
    leader: JobTimes,
    follower: JobTimes,
    *,
    now: float = 0.0,
    compat: Compat = "physical",
    cache: float = 1.0,
    slack: float = 0.0,
) -> Optimum | None:
    """Return the follower's start with the smallest makespan; among equal makespans the latest one.

    A later start occupies the GPU for less time. With ``slack`` it is the earliest start if a later one saves no time
    compared with both at once. The result is exact: a makespan has at most four straight pieces, whose ends are
    compared. None: the cache does not reach back to the follower at any start.

    Args:
        leader: the job that starts at 0.
        follower: the job that waits.
        now: earliest start of the follower, seconds after the leader's. Finite, 0 or more.
        compat: the reading of the paper.
        cache: share of the data that the cache keeps, in (0, 1].
        slack: share by which an equal makespan may be longer, in [0, 1): measured times are uncertain by some
            thousandths, and an earlier start for less costs GPU time. A start that saves a smaller share of
            GPU-seconds is not waited for. At 0 the latest of equal starts is the best.

    Raises:
        ConfigError: an argument outside its range.
        NotMeasured: the follower may catch up, and ``wait_conc`` of a job is None.

    >>> a = JobTimes(name="a", compute=1, wait=7, wait_cached=2, wait_conc=7, steps=10, epochs=4)
    >>> b = JobTimes(name="b", compute=1, wait=7, wait_cached=1, wait_conc=3, steps=10)
    >>> optimum(a, b).start, optimum(a, b, compat="paper").start
    (0.0, 150.0)
    """
    fault = seconds_fault("now", now)
    if fault:
        raise ConfigError(fault)
    if isinstance(slack, bool) or not isinstance(slack, (int, float)) or not 0 <= slack < 1:
        raise ConfigError(f"slack is {slack!r}; a share of the makespan expected, 0 or more and below 1")
    rates = _Rates(leader, follower, compat, cache)
    earliest, latest = float(now), rates.reach()
    if latest < earliest:
        return None
    inside = [start for start in rates.corners() if earliest < start < latest]
    ends = [earliest] if np.isinf(latest) else [earliest, latest]
    predicted = rates.predict(np.array([*inside, *ends]))
    least = float(predicted.makespan.min())
    as_good = 1 + max(slack, EQUAL)
    equal = predicted.makespan <= least * as_good
    at = int(np.argmax(np.where(equal, predicted.start, -1.0)))
    soonest = len(inside)
    at_once = float(rates.predict(np.zeros(1)).gpu_seconds[0])
    if slack > 0 and equal[soonest] and at_once <= predicted.gpu_seconds[at] * as_good:
        at = soonest
    case: Case = CASES[CASES.index(predicted.case[at].item())]
    names = ("start", "catch_up", "leader", "follower", "makespan", "gpu_seconds")
    times = {name: float(getattr(predicted, name)[at]) for name in names}
    return Optimum(share=times["start"] / leader.alone(cache), case=case, **times)


def waits(
    leader: JobTimes, follower: JobTimes, start: float, *, compat: Compat = "physical", cache: float = 1.0
) -> tuple[Waits, Waits]:
    """Return the waits of leader and follower per step, over time, if the follower starts at ``start``.

    Arguments and errors are those of :func:`predict`.

    >>> a = JobTimes(name="a", compute=1, wait=7, wait_cached=2, wait_conc=7, steps=10, epochs=4)
    >>> b = JobTimes(name="b", compute=1, wait=7, wait_cached=1, wait_conc=3, steps=10)
    >>> for each in waits(a, b, 30):
    ...     print(each.edges.tolist(), each.wait.tolist())
    [0.0, 60.0, 157.5] [7.0, 2.0]
    [30.0, 40.0, 60.0] [1.0, 3.0]
    """
    rates = _Rates(leader, follower, compat, cache)
    one = rates.predict(_starts([float(start)]))
    catch_up, begun = float(one.catch_up[0]), float(one.start[0])
    met = None
    if np.isfinite(catch_up):
        met = catch_up, catch_up + rates.apart(float(one.caught_steps[0]) / leader.steps)
    spans = [
        _spans(leader, 0.0, float(one.leader_first[0]), met, behind=leader.wait),
        _spans(follower, begun, begun + float(one.follower_first[0]), met, behind=follower.wait_cached),
    ]
    found = []
    for job, (edges, levels), whole in zip(
        (leader, follower), spans, (one.leader[0], begun + one.follower[0]), strict=True
    ):
        if job.epochs > 1:
            edges.append(float(whole))
            levels.append(cache * job.wait_cached + (1 - cache) * job.wait)
        found.append(_joined(edges, levels))
    return found[0], found[1]


def _spans(
    job: JobTimes, begin: float, end: float, met: tuple[float, float] | None, *, behind: float
) -> tuple[list[float], list[float]]:
    """Return the spans of the first epoch: before the jobs meet, while they compete, after one epoch has ended."""
    if met is None:
        return [begin, end], [behind]
    together, apart = met
    assert job.wait_conc is not None, "checked for jobs that meet"
    return [begin, together, min(apart, end), end], [behind, job.wait_conc, job.wait_cached]


def _joined(edges: list[float], levels: list[float]) -> Waits:
    """Join spans: drop empty ones and merge equal neighbours."""
    kept_edges, kept_levels = [edges[0]], list[float]()
    for end, level in zip(edges[1:], levels, strict=True):
        if end <= kept_edges[-1]:
            continue
        if kept_levels and kept_levels[-1] == level:
            kept_edges[-1] = end
            continue
        kept_edges.append(end)
        kept_levels.append(level)
    return Waits(edges=np.array(kept_edges, np.float64), wait=np.array(kept_levels, np.float64))


class _Rates:
    """Rates of both jobs in seconds per epoch, so that unequal batches compare.

    ``a``, ``b``: an epoch of the leader cold and of the follower cached; ``a1``, ``b1``: both cold; ``ac``, ``bc``:
    what is left once all is cached; ``a2``, ``b2``: later epochs.
    """

    def __init__(self, leader: JobTimes, follower: JobTimes, compat: Compat, cache: float) -> None:
        if compat not in {"physical", "paper"}:
            raise ConfigError(f"compat is {compat!r}; physical or paper expected")
        if faults := cache_faults(cache):
            raise ConfigError(faults)
        self.leader, self.follower = leader, follower
        self.compat, self.cache = compat, cache
        self.a, self.b = leader.cold_epoch(), follower.cached_epoch()
        self.ac = leader.cached_epoch()
        self.a2, self.b2 = leader.later_epoch(cache), follower.later_epoch(cache)
        self.meets = self.b < self.a

    def threshold(self) -> float:
        """Return t*, the first start with all data in the cache; 0 if the follower never catches up."""
        return self.a - self.b if self.meets else 0.0

    def reach(self) -> float:
        """Return the latest start within the cache's reach; below 0 if there is none."""
        if self.cache == 1:
            return np.inf
        if self.meets:  # it is furthest behind when it starts
            return self.cache * self.a
        return self.a - (1 - self.cache) * self.b  # when the leader's epoch ends

    def apart(self, done: float) -> float:
        """Return the seconds from the catch-up, at the share ``done`` of the epoch, to the first end of an epoch."""
        return (1 - done) * min(self.leader.conc_epoch(), self.follower.conc_epoch())

    def predict(self, start: Floats) -> Prediction:
        threshold = self.threshold()
        catch = start < threshold
        done = np.divide(start, threshold, out=np.ones_like(start), where=catch)
        catch_up = np.where(catch, done * self.a, np.inf)
        first_a = np.full_like(start, self.a)
        first_b = np.full_like(start, self.b)
        if catch.any():
            after_a, after_b = self._after(1 - done[catch])
            first_a[catch] = done[catch] * self.a + after_a
            first_b[catch] = done[catch] * self.b + after_b
        run_a = first_a + (self.leader.epochs - 1) * self.a2
        run_b = first_b + (self.follower.epochs - 1) * self.b2
        case = np.where(catch, "catch", "cached" if self.meets else "never")
        return Prediction(
            start=start,
            case=np.where(start >= self.leader.alone(self.cache), "serial", case),
            catch_up=catch_up,
            caught_steps=np.where(catch, done * self.leader.steps, np.inf),
            leader_first=first_a,
            follower_first=first_b,
            leader=run_a,
            follower=run_b,
            makespan=np.maximum(run_a, start + run_b),
            gpu_seconds=run_a + run_b,
            within_cache=start <= self.reach(),
        )

    def _after(self, left: Floats) -> tuple[Floats, Floats]:
        """Return the seconds of both for the share ``left`` of the epoch after the catch-up."""
        a1, b1 = self.leader.conc_epoch(), self.follower.conc_epoch()
        if self.compat == "paper":
            return left * a1, left * b1
        if a1 > b1:  # the follower ends its epoch first, and the leader finds the rest in the cache
            return left * b1 + left * (1 - b1 / a1) * self.ac, left * b1
        return left * a1, left * a1 + left * (1 - a1 / b1) * self.b

    def corners(self) -> list[float]:
        """Return the starts at which the slope of the makespan may change."""
        threshold = self.threshold()
        ends = self.predict(np.array([0.0, threshold]))
        # How much earlier the follower ends than the leader, at both ends of the first piece.
        early = ends.leader - ends.start - ends.follower
        found = [0.0, threshold]
        if early[0] * early[1] < 0:
            found.append(threshold * float(early[0] / (early[0] - early[1])))
        if early[1] > 0:
            found.append(threshold + float(early[1]))
        return found


def _starts(start: ArrayLike) -> Floats:
    try:
        starts = np.array(start, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"start is {start!r}; seconds expected, finite and 0 or more") from None
    wrong = ~(np.isfinite(starts) & (starts >= 0))
    if wrong.any():
        raise ConfigError(f"start is {starts[wrong].flat[0]}; seconds expected, finite and 0 or more")
    return starts
