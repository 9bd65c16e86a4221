# SPDX-License-Identifier: Apache-2.0
"""Properties of the closed forms of staggering, for any two jobs and for several."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.properties import properties

from foresee import stagger
from foresee.stagger.model import JobTimes

seconds = st.floats(0, 10, allow_subnormal=False)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[JobTimes, JobTimes]:
    """Draw two plausible jobs: a warm cache helps, contention does not."""
    steps = draw(st.integers(1, 3000))

    def job(name: str) -> JobTimes:
        wait = draw(seconds)
        return JobTimes(
            name=name,
            compute=draw(st.floats(0.01, 10)),
            wait=wait,
            wait_cached=wait * draw(st.floats(0, 1)),
            wait_conc=wait + draw(seconds),
            steps=steps,
            epochs=draw(st.integers(1, 5)),
        )

    return job("a"), job("b")


laws = properties(soak=200, ordinary=100)
compats = st.sampled_from(["physical", "paper"])


@laws
@given(pairs(), compats)
def test_the_makespan_is_continuous(pair: tuple[JobTimes, JobTimes], compat: stagger.Compat) -> None:
    a, b = pair
    threshold = a.cold_epoch() - b.cached_epoch()
    assume(threshold > 1e-3)
    sides = stagger.predict(a, b, threshold * np.array([1 - 1e-10, 1, 1 + 1e-10]), compat=compat)
    assert sides.case[0] == "catch"
    assert sides.case[2] != "catch"
    for field in ("leader_first", "follower_first", "leader", "follower", "makespan", "gpu_seconds"):
        values = getattr(sides, field)
        np.testing.assert_allclose(
            values, values[1], rtol=1e-9, atol=1e-9 * (a.conc_epoch() + b.conc_epoch())
        )
    assert sides.catch_up[0] == pytest.approx(a.cold_epoch())


@laws
@given(pairs(), compats)
def test_the_optimum_is_never_above_a_baseline_or_a_search(
    pair: tuple[JobTimes, JobTimes], compat: stagger.Compat
) -> None:
    a, b = pair
    best = stagger.optimum(a, b, compat=compat)
    assert best is not None
    grid = np.linspace(0, 1.2 * a.alone(), 401)
    searched = stagger.predict(a, b, grid, compat=compat).makespan
    bound = best.makespan * (1 - 1e-9)
    assert bound <= searched[0], "simultaneous"
    assert bound <= stagger.sequential(a, b)
    assert bound <= searched.min()
    again = stagger.predict(a, b, best.start, compat=compat)
    assert best.makespan == float(again.makespan)
    # Among equal makespans the latest start is the optimum, so that every later start is longer.
    later = grid[grid > best.start + 1e-6 * a.alone()]
    assert (stagger.predict(a, b, later, compat=compat).makespan > best.makespan).all()


@laws
@given(pairs(), compats, st.floats(1e-3, 0.2))
def test_with_slack_a_follower_only_waits_if_that_saves_more_than_the_slack(
    pair: tuple[JobTimes, JobTimes], compat: stagger.Compat, slack: float
) -> None:
    a, b = pair
    exact, loose = (stagger.optimum(a, b, compat=compat, slack=each) for each in (0.0, slack))
    assert exact is not None
    assert loose is not None
    at_once = stagger.predict(a, b, 0, compat=compat)
    if loose.start > 0:
        # The wait saves more than the slack, or a simultaneous start takes longer than that.
        spared = float(at_once.gpu_seconds) > loose.gpu_seconds * (1 + slack)
        assert spared or float(at_once.makespan) > exact.makespan * (1 + slack) * (1 - 1e-11)


def test_a_job_without_waits_starts_late_without_slack_and_at_once_with_slack() -> None:
    jobs = [JobTimes(compute=0.1, wait=0, wait_cached=0, steps=100, epochs=epochs) for epochs in (3, 1)]
    starts = [stagger.optimum(*jobs, slack=slack) for slack in (0.0, 0.005)]
    assert [best.start for best in starts if best is not None] == pytest.approx([20, 0])


@laws
@given(pairs(), compats, st.floats(0, 1.5))
def test_the_optimum_from_now_on_is_the_best_of_the_remaining_starts(
    pair: tuple[JobTimes, JobTimes], compat: stagger.Compat, share: float
) -> None:
    a, b = pair
    now = share * a.alone()
    best = stagger.optimum(a, b, now=now, compat=compat)
    assert best is not None
    assert best.start >= now
    grid = now + np.linspace(0, 1.2 * a.alone(), 201)
    assert best.makespan <= stagger.predict(a, b, grid, compat=compat).makespan.min() * (1 + 1e-9)


@laws
@given(pairs(), st.floats(0.05, 1))
def test_the_optimum_of_a_small_cache_is_the_best_start_within_its_reach(
    pair: tuple[JobTimes, JobTimes], cache: float
) -> None:
    a, b = pair
    best = stagger.optimum(a, b, cache=cache)
    predictions = stagger.predict(a, b, np.linspace(0, 1.2 * a.alone(cache), 201), cache=cache)
    reached = predictions.makespan[predictions.within_cache]
    if best is None:
        assert reached.size == 0
        return
    assert reached.size
    assert best.makespan <= reached.min() * (1 + 1e-9)


@laws
@given(pairs(), compats)
def test_the_optimum_for_one_epoch_each_is_where_the_follower_never_waits(
    pair: tuple[JobTimes, JobTimes], compat: stagger.Compat
) -> None:
    a, b = (dataclasses.replace(job, epochs=1) for job in pair)
    threshold = a.cold_epoch() - b.cached_epoch()
    assert a.wait_conc is not None
    assert b.wait_conc is not None
    assume(threshold > 1e-3)
    # A step of two concurrent jobs is not faster than the leader's alone.
    assume(compat == "paper" or b.compute + b.wait_conc >= a.compute + a.wait)
    best = stagger.optimum(a, b, compat=compat)
    assert best is not None
    assert best.start == pytest.approx(threshold)
    assert best.makespan == pytest.approx(a.cold_epoch())


@laws
@given(pairs(), compats, st.sampled_from([1e-3, 0.5, 3.0, 1e3]), st.floats(0, 2))
def test_predictions_scale_with_the_unit_of_time(
    pair: tuple[JobTimes, JobTimes], compat: stagger.Compat, unit: float, share: float
) -> None:
    a, b = pair
    scaled = [
        dataclasses.replace(job, **{figure: unit * getattr(job, figure) for figure in stagger.FIGURES})
        for job in pair
    ]
    start = share * a.alone()
    one = stagger.predict(a, b, start, compat=compat)
    other = stagger.predict(*scaled, unit * start, compat=compat)
    for field in ("catch_up", "leader", "follower", "makespan", "gpu_seconds"):
        np.testing.assert_allclose(unit * getattr(one, field), getattr(other, field), rtol=1e-6, atol=1e-300)


@laws
@given(st.lists(pairs(), min_size=1, max_size=3), st.floats(0.1, 5000), st.floats(0.05, 1))
def test_a_plan_meets_its_lower_bound_and_contention_costs_no_time(
    job_pairs: list[tuple[JobTimes, JobTimes]], read: float, cache: float
) -> None:
    jobs = [job for pair in job_pairs for job in pair]
    for cached_share in (1.0, cache):
        plan = stagger.plan(jobs, read, cache=cached_share)
        ends = [start + run for start, run in zip(plan.starts, plan.runs, strict=True)]
        assert max(ends) <= plan.makespan * (1 + 1e-12)
        assert plan.starts[plan.leader] == 0
        assert plan.gpu_seconds <= plan.gpu_seconds_simultaneous * (1 + 1e-12)
        bounds = [
            max(read, job.cached_epoch()) + (job.epochs - 1) * job.later_epoch(cached_share) for job in jobs
        ]
        assert plan.makespan == pytest.approx(max(bounds))
        for job, run in zip(jobs, plan.runs, strict=True):
            assert run >= (job.cached_epoch() + (job.epochs - 1) * job.later_epoch(cached_share)) * (
                1 - 1e-12
            )


@laws
@given(st.lists(pairs(), min_size=1, max_size=3))
def test_without_coalescing_no_follower_catches_up(job_pairs: list[tuple[JobTimes, JobTimes]]) -> None:
    jobs = [job for pair in job_pairs for job in pair]
    plan = stagger.plan(jobs)
    leader = jobs[plan.leader]
    assert plan.gpu_seconds_simultaneous is None
    assert plan.makespan <= plan.sequential * (1 + 1e-12)
    for i, (job, start, run) in enumerate(zip(jobs, plan.starts, plan.runs, strict=True)):
        assert start + run <= plan.makespan * (1 + 1e-12)
        if i != plan.leader:
            # After the start by more than rounding: a start of nearly 0 is the difference of two nearly equal epochs.
            predictions = stagger.predict(leader, job, start + 1e-12 * leader.cold_epoch())
            # If a follower is hardly faster than its leader, the last digit of its start moves the catch-up by much.
            own, followed = job.cached_epoch(), leader.cold_epoch()
            slack = 1e-9 + 1e-11 * followed / max(followed - own, 1e-300)
            assert float(predictions.catch_up) >= leader.cold_epoch() * (1 - slack)
            assert run == pytest.approx(float(predictions.follower))


@laws
@given(st.lists(pairs(), min_size=1, max_size=3), st.floats(0.05, 1))
def test_the_plan_uses_the_best_leader(job_pairs: list[tuple[JobTimes, JobTimes]], cache: float) -> None:
    jobs = [job for pair in job_pairs for job in pair]
    plan = stagger.plan(jobs, cache=cache)
    plans = [stagger.led_by(leader, jobs, [0.0] * len(jobs), cache=cache) for leader in range(len(jobs))]
    assert plan == plans[plan.leader]
    assert plan.makespan <= min(each.makespan for each in plans) * (1 + 1e-9)


def test_no_simulated_schedule_of_three_jobs_ends_before_the_plan() -> None:
    # While contention makes no job faster: runs of three and more jobs rely on this.
    jobs = [
        JobTimes(
            compute=step, wait=0.75 - step, wait_cached=0.0, wait_conc=0.9 - step, steps=40, epochs=epochs
        )
        for step, epochs in ((0.30, 1), (0.25, 2), (0.50, 1))
    ]
    plan = stagger.plan(jobs)
    steps = 2 * max(job.compute for job in jobs)
    for one, other, third in itertools.product(range(0, 41, 5), repeat=3):
        simulated = stagger.simulate(jobs, [float(one), float(other), float(third)])
        first = min(one, other, third)
        assert max(run.end for run in simulated.runs) - first >= plan.makespan - steps


@laws
@given(pairs(), compats, st.floats(0, 0.2))
def test_slack_starts_the_follower_later_and_costs_at_most_the_slack(
    pair: tuple[JobTimes, JobTimes], compat: stagger.Compat, slack: float
) -> None:
    exact, loose = (stagger.optimum(*pair, compat=compat, slack=each) for each in (0.0, slack))
    assert exact is not None
    assert loose is not None
    at_once = float(stagger.predict(*pair, 0, compat=compat).gpu_seconds)
    # Except where the gain is so small that both start at once.
    assert loose.start >= exact.start or (
        loose.start == 0 and at_once <= exact.gpu_seconds * (1 + slack) * (1 + 1e-11)
    )
    assert loose.makespan <= exact.makespan * (1 + slack) * (1 + 1e-11)


@laws
@given(pairs())
def test_the_plan_of_two_jobs_is_the_better_order_where_contention_costs_time(
    pair: tuple[JobTimes, JobTimes],
) -> None:
    slowest = max(job.compute + job.wait for job in pair)
    jobs = [dataclasses.replace(job, epochs=1, wait_conc=slowest - min(job.compute, slowest)) for job in pair]
    assume(all(job.compute + job.wait_conc >= slowest for job in jobs if job.wait_conc is not None))
    orders = [stagger.optimum(*jobs), stagger.optimum(*reversed(jobs))]
    assert stagger.plan(jobs).makespan == pytest.approx(
        min(best.makespan for best in orders if best is not None)
    )


@laws
@given(st.lists(st.tuples(st.floats(0.01, 3), st.integers(1, 3)), min_size=1, max_size=6), st.floats(0.1, 2))
def test_the_slowest_job_leads_where_all_keep_up(jobs: list[tuple[float, int]], step_read: float) -> None:
    steps = [(min(step, step_read), epochs) for step, epochs in jobs]
    job_times = [
        JobTimes(compute=step, wait=0, wait_cached=0, steps=100, epochs=epochs) for step, epochs in steps
    ]
    plan = stagger.plan(job_times, 100 * step_read)
    slowest = max(job.compute for job in job_times)
    assert job_times[plan.leader].compute == pytest.approx(slowest)
    wasted = plan.gpu_seconds - sum(job.epochs * job.cached_epoch() for job in job_times)
    assert wasted == pytest.approx(100 * (step_read - slowest), abs=1e-6 * plan.makespan)


@laws
@given(
    st.lists(st.tuples(pairs(), st.floats(0, 5000)), min_size=1, max_size=3), st.none() | st.floats(0.1, 5000)
)
def test_no_job_starts_before_its_arrival(
    job_pairs: list[tuple[tuple[JobTimes, JobTimes], float]], read: float | None
) -> None:
    jobs = [job for pair, _ in job_pairs for job in pair]
    arrivals = [arrival * share for _, arrival in job_pairs for share in (1.0, 0.3)]
    plan = stagger.plan(jobs, read, arrivals=arrivals)
    first = min(arrivals)
    begin = plan.starts[plan.leader]
    assert begin == arrivals[plan.leader] - first
    for start, run, arrival in zip(plan.starts, plan.runs, arrivals, strict=True):
        assert start >= max(arrival - first, begin)
        assert start + run <= plan.makespan * (1 + 1e-12)
    assert plan.makespan <= plan.sequential * (1 + 1e-12)
    late = stagger.plan(jobs, read, arrivals=[arrival + 7 for arrival in arrivals])
    assert late.makespan == pytest.approx(plan.makespan)
