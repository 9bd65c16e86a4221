# SPDX-License-Identifier: Apache-2.0
"""Start times of followers, updated from the leader's progress, in virtual time and without processes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foresee.cli.stagger import options
from foresee.errors import ConfigError
from foresee.stagger.model import JobTimes, optimum
from foresee.stagger.timing import SLACK, Schedule, Timing, choose_schedule

#: Table I with the waits of the worked example, and 100 steps per epoch.
RESNET = JobTimes(name="resnet", compute=0.3036, wait=0.4493, wait_cached=0.04, wait_conc=0.6, steps=100)
EFFICIENT = JobTimes(
    name="efficient", compute=0.2047, wait=0.5433, wait_cached=0.04, wait_conc=0.7, steps=100
)


def make_timing(leader: JobTimes = RESNET, earliest: float = 0.0) -> Timing:
    """Return the timing of a fixed leader, even if the other order is better."""
    best = optimum(leader, EFFICIENT, now=earliest)
    assert best is not None
    chosen = Schedule(
        order=(0, 1),
        delay=0.0,
        earliest=(0.0, earliest),
        starts=(0.0, best.start),
        runs=(best.leader, best.follower),
        makespan=best.makespan,
        gpu_seconds=best.gpu_seconds,
        case=best.case,
        catch_up=best.catch_up,
    )
    return Timing([leader, EFFICIENT], chosen)


def test_the_better_order_is_chosen_and_the_given_one_among_equals() -> None:
    # The faster pipeline leads, as its time is the makespan.
    assert choose_schedule([RESNET, EFFICIENT], [0, 0]).order == (1, 0)
    assert choose_schedule([EFFICIENT, RESNET], [0, 0]).order == (0, 1)
    assert choose_schedule([RESNET, RESNET], [0, 0]).order == (0, 1)


def test_noise_in_a_contention_without_cost_starts_no_job_early() -> None:
    # Measured: two jobs of one order and one page cache share their reads within a thousandth.
    leader = JobTimes(name="a", compute=0.3, wait=0.45, wait_cached=0.0, wait_conc=0.449, steps=1000)
    follower = JobTimes(name="b", compute=0.2, wait=0.55, wait_cached=0.0, wait_conc=0.549, steps=1000)
    assert choose_schedule([leader, follower], [0, 0]).starts == (0, 0)
    best = choose_schedule([leader, follower], [0, 0], slack=SLACK)
    assert best.starts == pytest.approx((0, 550))
    assert best.gpu_seconds == pytest.approx(950)
    timing = Timing([leader, follower], best, slack=SLACK)
    timing.handle_progress(0, np.arange(1, 101) * 0.75, 75)
    assert timing.poll_start(1, 75) == pytest.approx(550)


def test_the_command_uses_the_same_slack() -> None:
    assert options.SLACK == SLACK
    assert f"({SLACK})" in options.SLACK_HELP


def test_a_job_does_not_start_before_its_arrival() -> None:
    chosen = choose_schedule([RESNET, EFFICIENT], [0, 60])
    assert (chosen.order, chosen.earliest, chosen.delay) == ((0, 1), (0, 60), 0)
    assert chosen.starts == pytest.approx((0, 60))
    assert choose_schedule([RESNET, EFFICIENT], [10, 70]).starts == pytest.approx((0, 60))


def test_the_prediction_holds_until_there_is_progress() -> None:
    timing = make_timing()
    assert timing.poll_start(1, 0) == timing.poll_start(1, 40) == pytest.approx(50.82)
    timing.handle_progress(0, np.arange(1, 15) * 0.5, 7)
    assert timing.poll_start(1, 7) == pytest.approx(50.82)


def test_a_slow_start_of_the_leader_delays_the_follower_until_the_leader_recovers() -> None:
    timing = make_timing()
    timing.handle_progress(0, np.array([5.0]), 5)
    assert timing.poll_start(1, 5) > 400
    assert not timing.is_rate_known
    timing.handle_progress(0, 5 + np.arange(50) * 0.7, 39.5)
    assert timing.is_rate_known
    assert timing.poll_start(1, 39.5) == pytest.approx(100 * (39.3 / 50 - 0.2447))


def test_a_leader_without_progress_delays_the_follower() -> None:
    timing = make_timing()
    for now in (20, 50, 80, 110):
        timing.handle_progress(0, np.arange(1, 11) * 0.7529, now)
        assert timing.poll_start(1, now) > now
    timing.handle_progress(0, np.array([]), 3)
    assert timing.poll_start(1, 3) == pytest.approx(100 * (3 - 0.2447))


def test_a_leader_as_predicted_moves_no_start() -> None:
    timing = make_timing()
    timing.handle_progress(0, np.arange(1, 41) * 0.7529, 30.2)
    assert timing.poll_start(1, 30.2) == pytest.approx(50.82)


@pytest.mark.parametrize("step", [0.5, 0.9, 2.0])
def test_another_rate_of_the_leader_moves_the_start_by_the_closed_form(step: float) -> None:
    timing = make_timing()
    timing.handle_progress(0, np.arange(1, 31) * step, 30 * step)
    assert timing.poll_start(1, 5) == pytest.approx(100 * (step - 0.2447))
    assert timing.leader.cold_epoch() == pytest.approx(100 * step)


def test_a_start_time_in_the_past_means_now() -> None:
    timing = make_timing()
    timing.handle_progress(0, np.arange(1, 81) * 0.5, 40)
    assert timing.poll_start(1, 40) == 40


def test_an_unknown_contention_cost_is_not_needed_during_a_run() -> None:
    # By its configured times the follower is slower and never catches up, but a slow step contradicts that.
    leader = JobTimes(name="a", compute=0.1, wait=0.1, wait_cached=0.0, steps=100)
    follower = JobTimes(name="b", compute=0.3, wait=0.1, wait_cached=0.0, steps=100)
    chosen = choose_schedule([leader, follower], [0, 10], running=0)
    assert chosen.case == "never"
    timing = Timing([leader, follower], chosen)
    timing.handle_progress(0, np.array([9.0]), 9)
    # As for three jobs: it ends with the leader, and no job catches up.
    assert timing.poll_start(1, 9) == pytest.approx(900 - 30)
    timing.handle_progress(0, 9 + np.arange(60) * 0.1, 15)
    assert timing.poll_start(1, 15) == 15


def test_later_epochs_use_their_own_rate() -> None:
    leader = JobTimes(name="a", compute=0.3, wait=0.45, wait_cached=0.0, wait_conc=0.6, steps=100, epochs=4)
    timing = make_timing(leader)
    first = np.arange(1, 101) * 0.75
    timing.handle_progress(0, np.concatenate([first, 75 + np.arange(1, 51) * 0.2]), 85)
    seen = timing.leader
    assert (seen.cold_epoch(), seen.cached_epoch()) == (pytest.approx(75), pytest.approx(20))
    assert timing.poll_start(1, 85) >= 85


def test_no_job_waits_for_a_leader_that_has_ended() -> None:
    timing = make_timing()
    timing.handle_end(0)
    assert timing.poll_start(1, 3) <= 3
    held = make_timing(earliest=10.0)
    held.handle_end(0)
    assert held.poll_start(1, 3) == 10


def test_one_job_has_no_follower() -> None:
    with pytest.raises(ConfigError, match="1 job; two or more expected"):
        choose_schedule([RESNET], [0])


def test_a_running_job_leads_and_the_other_starts_no_earlier_than_now() -> None:
    chosen = choose_schedule([RESNET, EFFICIENT], [5, 0], running=20)
    assert (chosen.order, chosen.delay, chosen.earliest) == ((0, 1), 0, (0, 20))
    assert chosen.starts[1] == pytest.approx(50.82)
    late = choose_schedule([RESNET, EFFICIENT], [0, 10], running=60)
    assert late.starts[1] == pytest.approx(70)


def job(step: float, epochs: int = 1, **more: float | None) -> JobTimes:
    """Return a job of 100 steps with this compute time; the storage takes 0.75 s for a step."""
    figures = {"wait": 0.75 - step, "wait_cached": 0.0, "wait_conc": None, **more}
    return JobTimes(name=f"j{step:g}", compute=step, steps=100, epochs=epochs, **figures)


THREE = (job(0.30), job(0.25), job(0.50, 2))


def test_three_jobs_start_as_the_frontier_determines() -> None:
    chosen = choose_schedule(THREE, [0, 0, 0])
    assert chosen.order == (2, 0, 1)
    assert chosen.starts == pytest.approx((0, 95, 100))
    assert (chosen.makespan, chosen.gpu_seconds) == pytest.approx((125, 180))
    assert chosen.case == "behind"


def test_a_third_job_next_to_a_running_one() -> None:
    chosen = choose_schedule(THREE, [0, 0, 0], running=30)
    assert chosen.order == (0, 1, 2)
    assert chosen.starts == pytest.approx((0, 105, 30))
    assert chosen.makespan == pytest.approx(130)


def test_simulated_starts_are_only_used_if_much_better() -> None:
    # Contention that makes a job faster is not plausible, but inputs may contain it.
    odd = [job(0.25, wait=0.75), job(0.25, wait=0.75), job(0.25, 4, wait=0.75)]
    quick = [replace(each, wait_conc=0.05) for each in odd]
    assert choose_schedule(odd, [0, 0, 0]).case == "behind"
    assert choose_schedule([replace(each, wait_conc=0.75) for each in odd], [0, 0, 0]).case == "behind"
    together = choose_schedule(quick, [0, 0, 0])
    assert together.case == "together"
    assert together.starts == (0, 0, 0)
    assert together.makespan < choose_schedule(odd, [0, 0, 0]).makespan


def test_the_frontier_determines_the_plan_behind_a_coalescing_cache() -> None:
    for jobs, starts in ((THREE, (0, 95, 100)), (THREE[1:], (0, 100))):
        chosen = choose_schedule(jobs, [0] * len(jobs), read=75)
        assert chosen.case == "behind"
        assert chosen.order[0] == len(jobs) - 1
        assert chosen.starts == pytest.approx(starts)
        assert chosen.makespan == pytest.approx(125)
    # A contention cost that the inputs give is not used, now or later.
    costly = [replace(each, wait_conc=5.0) for each in THREE[1:]]
    chosen = choose_schedule(costly, [0, 0], read=75)
    timing = Timing([costly[1], costly[0]], chosen)
    timing.handle_progress(0, np.arange(1, 41) * 1.0, 40)
    assert timing.poll_start(1, 40) == pytest.approx(150 - 25)


def test_the_fastest_of_equal_jobs_leads_where_no_job_waits() -> None:
    jobs = [job(step, epochs, wait=0.0) for step, epochs in ((0.3, 1), (0.2, 1), (0.3, 2))]
    chosen = choose_schedule(jobs, [0, 0, 0], slack=SLACK)
    assert (chosen.order[0], chosen.starts) == (1, (0, 0, 0))


def test_starts_beyond_the_reach_of_a_cache_are_simulated() -> None:
    jobs = [replace(each, wait_conc=each.wait) for each in THREE]
    with pytest.raises(ConfigError, match="reaches back to a follower at no start"):
        choose_schedule(THREE, [0, 0, 90], running=0, cache=0.1)
    assert choose_schedule(jobs, [0, 0, 90], running=0, cache=0.1).makespan > 130


def timing_of_three() -> Timing:
    return Timing([THREE[2], THREE[0], THREE[1]], choose_schedule(THREE, [0, 0, 0]))


def test_a_slower_leader_of_three_delays_both_followers() -> None:
    timing = timing_of_three()
    assert [timing.poll_start(job_index, 0) for job_index in (1, 2)] == pytest.approx([95, 100])
    timing.handle_progress(0, np.arange(1, 41) * 1.0, 40)
    # The frontier takes 100 s, the leader 150 s.
    assert [timing.poll_start(job_index, 40) for job_index in (1, 2)] == pytest.approx([120, 125])


def test_a_follower_slower_than_predicted_gives_the_others_more_time() -> None:
    timing = timing_of_three()
    timing.handle_progress(0, np.arange(1, 76) * 0.75, 56)
    timing.handle_start(1, 60)
    timing.handle_progress(1, np.arange(1, 31) * 1.2, 96)
    assert timing.times[1].cached_epoch() == pytest.approx(120)
    assert timing.poll_start(2, 96) == pytest.approx(180 - 25)


def test_the_other_two_of_three_jobs_get_a_new_plan_when_the_leader_fails() -> None:
    timing = timing_of_three()
    timing.handle_progress(0, np.arange(1, 11) * 0.75, 8)
    timing.handle_end(0, is_complete=False)
    # Equal cold steps: the first of them leads at once, and the other ends with it.
    assert timing.poll_start(1, 10) == pytest.approx(10)
    assert timing.poll_start(2, 10) == pytest.approx(10 + 75 - 25)
    timing.handle_start(1, 12)
    timing.handle_progress(1, np.arange(1, 41) * 0.75, 42)
    assert timing.poll_start(2, 42) == pytest.approx(42 + 0.6 * 75 - 25)


def test_a_running_follower_becomes_the_leader() -> None:
    timing = timing_of_three()
    timing.handle_progress(0, np.arange(1, 51) * 0.75, 38)
    timing.handle_start(1, 30)
    timing.handle_progress(1, np.arange(1, 26) * 0.30, 38)
    timing.handle_end(0, is_complete=False)
    assert timing.leader.name == "j0.3"
    assert timing.poll_start(2, 38) == pytest.approx(38 + 0.75 * 75 - 25)


def test_a_leader_that_has_ended_delays_no_follower() -> None:
    timing = timing_of_three()
    timing.handle_end(0)
    assert [timing.poll_start(job_index, 130) for job_index in (1, 2)] == [0, 0]
