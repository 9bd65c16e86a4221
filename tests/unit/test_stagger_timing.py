# SPDX-License-Identifier: Apache-2.0
"""When the follower starts, decided again from what the leader shows: stepped time, no process."""

from __future__ import annotations

import numpy as np
import pytest

from foresee.errors import ConfigError
from foresee.jobs.timing import Timing, choose
from foresee.models.stagger import JobTimes

#: Table I with the waits of the worked example, and 100 steps per epoch.
RESNET = JobTimes(name="resnet", compute=0.3036, wait=0.4493, wait_cached=0.04, wait_conc=0.6, steps=100)
EFFICIENT = JobTimes(
    name="efficient", compute=0.2047, wait=0.5433, wait_cached=0.04, wait_conc=0.7, steps=100
)


def timing(leader: JobTimes = RESNET, **more: float) -> Timing:
    best = choose([leader, EFFICIENT], [0, 0]).best if leader is not RESNET else None
    start = 100 * (0.7529 - 0.2447) if best is None else best.start
    return Timing(leader, EFFICIENT, start=start, **more)


def test_the_better_order_leads_and_of_equal_ones_the_first() -> None:
    # A faster pipeline leads: what it takes is the makespan.
    assert choose([RESNET, EFFICIENT], [0, 0]).leader == 1
    assert choose([EFFICIENT, RESNET], [0, 0]).leader == 0
    assert choose([RESNET, RESNET], [0, 0]).leader == 0


def test_a_job_that_arrives_later_follows_no_earlier() -> None:
    chosen = choose([RESNET, EFFICIENT], [0, 60])
    assert (chosen.leader, chosen.earliest, chosen.delay) == (0, 60, 0)
    assert chosen.best.start == pytest.approx(60)
    assert choose([RESNET, EFFICIENT], [10, 70]).best.start == pytest.approx(60)


def test_without_progress_the_prediction_stands() -> None:
    decider = timing()
    assert decider.poll_start(0) == decider.poll_start(40) == pytest.approx(50.82)
    decider.handle_progress(np.arange(1, 15) * 0.5, 7)
    assert decider.poll_start(7) == pytest.approx(50.82)


def test_a_slow_start_puts_it_off_and_is_taken_back() -> None:
    decider = timing()
    decider.handle_progress(np.array([5.0]), 5)
    assert decider.poll_start(5) > 400
    assert not decider.sure
    decider.handle_progress(5 + np.arange(50) * 0.7, 39.5)
    assert decider.sure
    assert decider.poll_start(39.5) == pytest.approx(100 * (39.3 / 50 - 0.2447))


def test_a_leader_that_stands_still_keeps_the_follower_back() -> None:
    decider = timing()
    for now in (20, 50, 80, 110):
        decider.handle_progress(np.arange(1, 11) * 0.7529, now)
        assert decider.poll_start(now) > now
    decider.handle_progress(np.array([]), 3)
    assert decider.poll_start(3) == pytest.approx(100 * (3 - 0.2447))


def test_a_leader_as_predicted_moves_nothing() -> None:
    decider = timing()
    decider.handle_progress(np.arange(1, 41) * 0.7529, 30.2)
    assert decider.poll_start(30.2) == pytest.approx(50.82)


@pytest.mark.parametrize("step", [0.5, 0.9, 2.0])
def test_another_rate_of_the_leader_moves_the_start_as_the_closed_form_has_it(step: float) -> None:
    decider = timing()
    decider.handle_progress(np.arange(1, 31) * step, 30 * step)
    assert decider.poll_start(5) == pytest.approx(100 * (step - 0.2447))
    assert decider.leader.cold_epoch() == pytest.approx(100 * step)


def test_a_moment_that_has_passed_is_now() -> None:
    decider = timing()
    decider.handle_progress(np.arange(1, 81) * 0.5, 40)
    assert decider.poll_start(40) == 40


def test_later_epochs_count_with_their_own_rate() -> None:
    leader = JobTimes(name="a", compute=0.3, wait=0.45, wait_cached=0.0, wait_conc=0.6, steps=100, epochs=4)
    decider = timing(leader)
    first = np.arange(1, 101) * 0.75
    decider.handle_progress(np.concatenate([first, 75 + np.arange(1, 51) * 0.2]), 85)
    seen = decider.leader
    assert (seen.cold_epoch(), seen.cached_epoch()) == (pytest.approx(75), pytest.approx(20))
    assert decider.poll_start(85) >= 85


def test_nobody_waits_for_a_leader_that_has_ended() -> None:
    decider = timing()
    decider.handle_end()
    assert decider.poll_start(3) <= 3
    held = timing(earliest=10)
    held.handle_end()
    assert held.poll_start(3) == 10


def test_one_job_or_three_have_no_leader_and_follower() -> None:
    with pytest.raises(ConfigError, match="3 jobs; two expected"):
        choose([RESNET] * 3, [0, 0, 0])
