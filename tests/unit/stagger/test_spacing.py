# SPDX-License-Identifier: Apache-2.0
"""Which followers are held near the reading job, in virtual time and without processes."""

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


def held_after(spacing: Spacing, *done: int, now: float = 10.0) -> tuple[bool, ...]:
    for job, steps in enumerate(done):
        spacing.handle_progress(job, steps, now)
    return spacing.poll_held(now)


def test_a_follower_near_the_reader_is_held_until_it_is_far_again() -> None:
    spacing = spacing_of()
    margin = LEAST_LEAD + 1  # at 0.2 s per step, half a step passes between two snapshots
    assert held_after(spacing, 200, 100) == (False, False)
    assert spacing.margin(1) == margin
    assert held_after(spacing, 200, 200 - margin) == (False, False)
    assert held_after(spacing, 200, 201 - margin) == (False, True)
    assert held_after(spacing, 200 + margin, 201 - margin) == (False, True)
    assert held_after(spacing, 201 + margin, 201 - margin) == (False, False)
    assert held_after(spacing, 201 + margin, 202) == (False, True)


def test_no_job_is_held_before_it_runs_or_after_all_data_are_read() -> None:
    spacing = spacing_of()
    spacing.handle_progress(0, 5, 1.0)
    assert spacing.poll_held(1.0) == (False, False)
    assert held_after(spacing, 999, 998) == (False, False)
    assert held_after(spacing, 1000, 998) == (False, False)
    near = spacing_of()
    assert held_after(near, 500, 499) == (False, True)
    assert held_after(near, 1000, 499) == (False, False)


def test_the_margin_shrinks_with_the_remaining_steps() -> None:
    spacing = spacing_of()
    held_after(spacing, 995, 980)
    assert spacing.margin(1) == 5
    assert held_after(spacing, 995, 992) == (False, False)


def test_no_job_waits_for_one_that_has_ended_or_made_no_progress() -> None:
    spacing = spacing_of()
    assert held_after(spacing, 100, 99, now=10) == (False, True)
    assert spacing.poll_held(10 + 7) == (False, True)
    assert spacing.poll_held(10 + 8) == (False, False)
    assert held_after(spacing, 101, 99, now=20) == (False, True)
    spacing.handle_end(0)
    assert spacing.poll_held(20) == (False, False)


def test_a_job_that_reads_from_the_cache_is_not_the_reader() -> None:
    spacing = spacing_of(LEADER, FOLLOWER, FOLLOWER)
    assert held_after(spacing, 300, 100, 99) == (False, False, False)
    spacing.handle_end(0)
    # Both are in the range that the leader has read, so that contention costs nothing.
    assert held_after(spacing, 300, 150, 149) == (False, False, False)
    assert held_after(spacing, 300, 299, 298) == (False, False, False)
    assert held_after(spacing, 300, 300, 299) == (False, False, True)
    assert held_after(spacing, 300, 310, 299) == (False, False, True)


def test_a_job_that_overtakes_becomes_the_reader() -> None:
    spacing = spacing_of(FOLLOWER, FOLLOWER)
    assert held_after(spacing, 100, 130) == (False, False)
    assert held_after(spacing, 125, 130) == (True, False)


def test_a_job_that_falls_behind_or_is_faster_under_contention_is_not_held() -> None:
    slow = replace(FOLLOWER, compute=0.8, wait=0.0, wait_conc=0.0)
    assert held_after(spacing_of(LEADER, slow), 100, 99) == (False, False)
    assert held_after(spacing_of(LEADER, replace(FOLLOWER, wait=0.3, wait_conc=0.3)), 100, 99) == (
        False,
        False,
    )
    unknown = replace(FOLLOWER, wait_conc=None)
    assert held_after(spacing_of(LEADER, unknown), 100, 99) == (False, True)
    spacing = spacing_of(LEADER, slow)
    spacing.handle_times([LEADER, FOLLOWER])
    assert held_after(spacing, 100, 99) == (False, True)


def test_progress_with_different_batch_sizes_is_compared_in_shares_of_the_epoch() -> None:
    spacing = spacing_of(LEADER, replace(FOLLOWER, compute=0.4, wait=1.1, wait_conc=1.4, steps=500))
    assert held_after(spacing, 400, 191) == (False, False)
    assert held_after(spacing, 400, 192) == (False, True)


@properties(soak=25)
@given(start=st.integers(0, 90), step=st.floats(0.05, 0.7), conc=st.floats(0.75, 1.5))
def test_a_follower_of_any_speed_never_passes_the_leader(start: int, step: float, conc: float) -> None:
    leader = replace(LEADER, steps=200)
    follower = replace(FOLLOWER, compute=step, wait=0.75 - step, wait_conc=conc - step, steps=200)
    spacing, poll = Spacing((leader, follower), 0.05), 0.05
    done = 0.0
    for tick in range(1, 3000):
        now = tick * poll
        ahead = int(now / 0.75)
        spacing.handle_progress(0, ahead, now)
        if now >= start:
            spacing.handle_progress(1, int(done), now)
        leads, follows = spacing.poll_held(now)
        assert not leads
        if now >= start and not follows:
            done += poll / step
        # No job is held for the last steps.
        assert done <= ahead + 2 or done > 200 - 2 * LEAST_LEAD
