# SPDX-License-Identifier: Apache-2.0
"""Who is held near the one who reads: stepped time, no process."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support.properties import properties

from foresee.stagger.model import JobTimes
from foresee.stagger.spacing import LEAST_LEAD, Spacing

LEADER = JobTimes(name="a", compute=0.3, wait=0.45, wait_cached=0.0, wait_conc=0.6, steps=1000)
FOLLOWER = JobTimes(name="b", compute=0.2, wait=0.55, wait_cached=0.0, wait_conc=0.7, steps=1000)


def spacing_of(*jobs: JobTimes) -> Spacing:
    return Spacing(jobs or (LEADER, FOLLOWER), 0.05)


def at(decider: Spacing, *done: int, now: float = 10.0) -> tuple[bool, ...]:
    for who, steps in enumerate(done):
        decider.handle_progress(who, steps, now)
    return decider.poll_held(now)


def test_a_follower_far_behind_runs_and_one_that_comes_near_is_held_until_it_is_far_again() -> None:
    decider = spacing_of()
    margin = LEAST_LEAD + 1  # at 0.2 s a step, half a one passes between two looks
    assert at(decider, 200, 100) == (False, False)
    assert decider.margin(1) == margin
    assert at(decider, 200, 200 - margin) == (False, False)
    assert at(decider, 200, 201 - margin) == (False, True)
    assert at(decider, 200 + margin, 201 - margin) == (False, True)
    assert at(decider, 201 + margin, 201 - margin) == (False, False)
    assert at(decider, 201 + margin, 202) == (False, True)


def test_nobody_is_held_before_it_runs_or_when_all_is_read() -> None:
    decider = spacing_of()
    decider.handle_progress(0, 5, 1.0)
    assert decider.poll_held(1.0) == (False, False)
    assert at(decider, 999, 998) == (False, False)
    assert at(decider, 1000, 998) == (False, False)
    near = spacing_of()
    assert at(near, 500, 499) == (False, True)
    assert at(near, 1000, 499) == (False, False)


def test_the_distance_shrinks_with_what_is_left() -> None:
    decider = spacing_of()
    at(decider, 995, 980)
    assert decider.margin(1) == 5
    assert at(decider, 995, 992) == (False, False)


def test_nobody_waits_for_one_who_has_ended_or_stands_still() -> None:
    decider = spacing_of()
    assert at(decider, 100, 99, now=10) == (False, True)
    assert decider.poll_held(10 + 7) == (False, True)
    assert decider.poll_held(10 + 8) == (False, False)
    assert at(decider, 101, 99, now=20) == (False, True)
    decider.handle_end(0)
    assert decider.poll_held(20) == (False, False)


def test_who_finds_in_the_cache_what_a_job_has_left_there_is_nobodys_reader() -> None:
    decider = spacing_of(LEADER, FOLLOWER, FOLLOWER)
    assert at(decider, 300, 100, 99) == (False, False, False)
    decider.handle_end(0)
    # Both are inside what the leader had read: company costs nothing there.
    assert at(decider, 300, 150, 149) == (False, False, False)
    assert at(decider, 300, 299, 298) == (False, False, False)
    assert at(decider, 300, 300, 299) == (False, False, True)
    assert at(decider, 300, 310, 299) == (False, False, True)


def test_one_that_overtakes_is_the_one_who_reads() -> None:
    decider = spacing_of(FOLLOWER, FOLLOWER)
    assert at(decider, 100, 130) == (False, False)
    assert at(decider, 125, 130) == (True, False)


def test_who_drops_behind_or_is_faster_in_company_is_not_held() -> None:
    slow = replace(FOLLOWER, compute=0.8, wait=0.0, wait_conc=0.0)
    assert at(spacing_of(LEADER, slow), 100, 99) == (False, False)
    assert at(spacing_of(LEADER, replace(FOLLOWER, wait=0.3, wait_conc=0.3)), 100, 99) == (False, False)
    unknown = replace(FOLLOWER, wait_conc=None)
    assert at(spacing_of(LEADER, unknown), 100, 99) == (False, True)
    decider = spacing_of(LEADER, slow)
    decider.handle_times([LEADER, FOLLOWER])
    assert at(decider, 100, 99) == (False, True)


def test_other_batches_count_in_shares_of_the_epoch() -> None:
    decider = spacing_of(LEADER, replace(FOLLOWER, compute=0.4, wait=1.1, wait_conc=1.4, steps=500))
    assert at(decider, 400, 191) == (False, False)
    assert at(decider, 400, 192) == (False, True)


@properties(soak=25)
@given(start=st.integers(0, 90), step=st.floats(0.05, 0.7), conc=st.floats(0.75, 1.5))
def test_a_follower_never_passes_whatever_its_pace(start: int, step: float, conc: float) -> None:
    leader = replace(LEADER, steps=200)
    follower = replace(FOLLOWER, compute=step, wait=0.75 - step, wait_conc=conc - step, steps=200)
    decider, poll = Spacing((leader, follower), 0.05), 0.05
    done = 0.0
    for tick in range(1, 3000):
        now = tick * poll
        ahead = int(now / 0.75)
        decider.handle_progress(0, ahead, now)
        if now >= start:
            decider.handle_progress(1, int(done), now)
        leads, follows = decider.poll_held(now)
        assert not leads
        if now >= start and not follows:
            done += poll / step
        # For the last steps nobody is held.
        assert done <= ahead + 2 or done > 200 - 2 * LEAST_LEAD
