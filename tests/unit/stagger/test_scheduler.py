# SPDX-License-Identifier: Apache-2.0
"""Decisions of a staggered run in stepped time: what is seen of the jobs goes in, one action after the other comes out."""

from __future__ import annotations

import ast
import doctest
import inspect
import pathlib
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytest
from support.stagger_runs import write

from foresee import jobspec
from foresee._runtime.step_times import StepsHeader, order_hash
from foresee.errors import ConfigError
from foresee.stagger import actions as actions_
from foresee.stagger import managed_job, outcome, scheduler, spacing, timing
from foresee.stagger.actions import (
    TICK,
    Action,
    GiveUp,
    Hold,
    Launch,
    Message,
    Move,
    Progress,
    Read,
    Release,
    ReportEnd,
    Stop,
)
from foresee.stagger.managed_job import Snapshot
from foresee.stagger.model import JobTimes
from foresee.stagger.runner import Local
from foresee.stagger.scheduler import Scheduler
from foresee.stagger.spacing import Spacing
from foresee.stagger.timing import Timing, choose_schedule

#: As in the job files: 40 steps of 20 ms, and 30 to wait for cold data.
TIMES = [
    JobTimes(name=name, compute=0.02, wait=0.03, wait_cached=0.0, wait_conc=0.05, steps=40) for name in "abc"
]
#: Faster than what it reads, so that it comes near.
QUICK = JobTimes(name="c", compute=0.01, wait=0.04, wait_cached=0.0, wait_conc=0.06, steps=40)
HEAD = StepsHeader(rank=0, ranks=1, steps=40, order=order_hash("one"))
#: When runs begin, of a clock of anybody's.
BEGIN = 500.0


@pytest.mark.parametrize("module", [actions_, outcome, spacing, managed_job, scheduler, timing])
def test_scheduler_modules_import_no_clock_process_or_file(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
        )
    }
    drivers = {
        f"foresee.stagger.{name}" for name in ("already", "clock", "process", "running", "slurm", "watched")
    }
    assert not imported & {"fcntl", "os", "pathlib", "signal", "subprocess", "threading", "time", *drivers}


def test_two_times_that_are_told_apart_look_apart() -> None:
    result = doctest.testmod(scheduler)
    assert result.attempted
    assert not result.failed


def decider(
    tmp_path: pathlib.Path,
    times: Sequence[JobTimes] = TIMES[:2],
    *,
    joined: bool = False,
    elapsed: float | None = None,
    **more: object,
) -> Scheduler:
    """Of a run that begins now."""
    files = [jobspec.read(write(tmp_path, each.name, tmp_path / "data")) for each in times]
    chosen = choose_schedule(
        times, [0.0] * len(times), running=elapsed if elapsed is not None else 0.0 if joined else None
    )
    ordered = [times[place] for place in chosen.order]
    made = Scheduler(
        [(files[place], times[place].name) for place in chosen.order],
        Timing(ordered, chosen),
        should_launch=Local().should_launch,
        spacing=Spacing(ordered, TICK),
        is_leader_running=joined or elapsed is not None,
        elapsed=elapsed,
        **more,  # type: ignore[arg-type]
    )
    made.handle_start(BEGIN)
    return made


def snapshot(
    done: int = 0, *, head: StepsHeader | None = HEAD, started: float = BEGIN, **more: object
) -> Snapshot:
    """What is seen of a job that runs."""
    facts = {"code": None, "last_step": started, "queued": False, **more}
    return Snapshot(head=head, done=done, started=started, **facts)  # type: ignore[arg-type]


def rows(first: float, count: int, every: float, wait: float = 0.03, compute: float = 0.02) -> np.ndarray:
    """Steps that begin ``every`` seconds."""
    begins = first + every * np.arange(count)
    return np.stack([begins, np.full(count, wait), np.full(count, compute)], axis=1)


def actions(
    made: Scheduler,
    now: float,
    snapshots: Sequence[Snapshot | None],
    steps: dict[int, np.ndarray] | None = None,
) -> list[Action]:
    """All of one look; what a driver answers is answered, and a gate does what it is asked to."""
    made.handle_snapshots(snapshots, now)
    found: list[Action] = []
    while (action := made.poll_action(now)) is not None:
        if isinstance(action, Launch):
            made.handle_launch(action.index, snapshot(head=None, started=now), now)
            made.handle_gate(action.index, action.held, now)
        elif isinstance(action, Read):
            made.handle_steps(action.index, (steps or {}).get(action.index, np.zeros((0, 3))), now)
        elif isinstance(action, Hold | Release | GiveUp):
            made.handle_gate(action.index, isinstance(action, Hold), now)
        found.append(action)
    return [each for each in found if not isinstance(each, Read | Progress)]


def begun(made: Scheduler) -> None:
    """The leader is launched, has loaded for a second, and takes its first step then; the follower is launched."""
    assert actions(made, BEGIN, [None, None]) == [Launch(0, False, 0.0, True)]
    assert actions(made, BEGIN + TICK, [snapshot(head=None), None]) == []
    assert actions(made, BEGIN + 1.0, [snapshot(), None]) == [Release(0), Launch(1, True, 0.0, False)]


def test_a_follower_is_launched_a_load_before_its_moment_and_let_go_at_it(tmp_path: pathlib.Path) -> None:
    made = decider(tmp_path)
    actions(made, BEGIN, [None, None])
    zero = BEGIN + 0.4
    assert actions(made, zero, [snapshot(), None]) == [Release(0)]
    # It is to start 1.2 s after the first step, and its leader has loaded for 0.4 s: a quarter more.
    steps = {0: rows(zero, 13, 0.05)}
    assert actions(made, zero + 0.69, [snapshot(13), None], steps) == []
    assert actions(made, zero + 0.71, [snapshot(14), None], steps) == [Launch(1, True, 0.0, False)]
    waits = snapshot(head=None, started=zero + 0.71)
    assert actions(made, zero + 0.76, [snapshot(15), waits], steps) == [Move(1, pytest.approx(0.7 - 0.76))]
    assert made.poll_next_snapshot(zero + 0.76) == TICK
    assert made.poll_next_snapshot(zero + 1.18) == pytest.approx(0.02)
    steps = {0: rows(zero, 23, 0.05)}
    assert actions(made, zero + 1.19, [snapshot(23), waits], steps) == [Move(1, pytest.approx(0.7 - 1.19))]
    found = actions(made, zero + 1.2, [snapshot(24), snapshot(started=zero + 0.71)], steps)
    assert found == [Release(1), Message("b starts at 1.2 s")]


def test_a_leader_that_waits_for_its_moment_is_launched_at_it(tmp_path: pathlib.Path) -> None:
    made = decider(tmp_path, delay=7.0)
    assert actions(made, BEGIN, [None, None]) == [Message("a starts in 7.0 s")]
    assert made.poll_next_snapshot(BEGIN) == 7.0
    assert actions(made, BEGIN + 7.0, [None, None]) == [Launch(0, False, 0.0, True)]


def test_jobs_that_start_together_are_let_go_when_the_last_of_them_has_loaded(tmp_path: pathlib.Path) -> None:
    same = [JobTimes(name=name, compute=0.02, wait=0, wait_cached=0, wait_conc=0, steps=40) for name in "ab"]
    made = decider(tmp_path, same)
    launched = [Launch(0, True, 0.0, True), Launch(1, True, 0.0, True)]
    assert actions(made, BEGIN, [None, None]) == launched
    assert actions(made, BEGIN + 1, [snapshot(), snapshot(head=None)]) == []
    assert actions(made, BEGIN + 9, [snapshot(), snapshot()]) == [Release(0), Release(1)]


def test_nobody_is_held_for_a_reader_that_does_not_read(tmp_path: pathlib.Path) -> None:
    made = decider(tmp_path, [TIMES[0], TIMES[1], QUICK], elapsed=1.5)
    assert all(isinstance(each, Launch) for each in actions(made, BEGIN, [None, None, None]))
    for at in range(1, 60):
        found = actions(made, BEGIN + 0.05 * at, [None, snapshot(5), snapshot(5)])
        assert not any(isinstance(each, Hold) for each in found)
    assert [outcome.holds for outcome in made.outcomes()] == [0, 0, 0]


def test_whoever_is_near_one_that_is_seen_to_read_is_held_and_let_go(tmp_path: pathlib.Path) -> None:
    made = decider(tmp_path)
    begun(made)
    steps = {0: rows(BEGIN + 1.0, 24, 0.05)}
    actions(made, BEGIN + 2.2, [snapshot(24), snapshot()], steps)
    assert actions(made, BEGIN + 2.3, [snapshot(24), snapshot(20)], steps) == [Hold(1)]
    assert actions(made, BEGIN + 2.35, [snapshot(29), snapshot(20)], steps) == []
    assert actions(made, BEGIN + 2.8, [snapshot(40), snapshot(20)], steps) == [Release(1)]
    _, follower = made.outcomes()
    assert (follower.holds, follower.held) == (1, pytest.approx(0.5))


def test_a_gate_that_a_rank_passes_right_now_is_closed_at_the_next_snapshot(tmp_path: pathlib.Path) -> None:
    made = decider(tmp_path)
    begun(made)
    steps = {0: rows(BEGIN + 1.0, 24, 0.05)}
    actions(made, BEGIN + 2.2, [snapshot(24), snapshot()], steps)
    made.handle_snapshots([snapshot(24), snapshot(20)], BEGIN + 2.3)
    while (action := made.poll_action(BEGIN + 2.3)) is not None:
        if action == Hold(1):
            made.handle_gate(1, False, BEGIN + 2.3)
    assert made.outcomes()[1].holds == 0
    assert actions(made, BEGIN + 2.35, [snapshot(24), snapshot(20)], steps) == [Hold(1)]


def test_time_at_the_gate_is_no_time_of_a_followers_steps(tmp_path: pathlib.Path) -> None:
    decided = watched_timing(tmp_path, {0: rows(BEGIN, 30, 0.05), 1: rows(BEGIN + 2, 30, 0.2, wait=0.001)})
    led, followed = decided.times
    # Held before each of its steps.
    assert followed.cached_epoch() == pytest.approx(40 * 0.021)
    assert followed.cached_epoch() < led.cold_epoch()


def test_time_at_the_gate_counts_where_data_are_waited_for(tmp_path: pathlib.Path) -> None:
    # When the leader's data are in the cache is what matters, whatever it was that kept it.
    decided = watched_timing(tmp_path, {0: rows(BEGIN, 30, 0.2)})
    assert decided.times[0].cold_epoch() == pytest.approx(40 * 10 / 31, rel=1e-6)


def watched_timing(tmp_path: pathlib.Path, steps: dict[int, np.ndarray]) -> Timing:
    """What ten seconds of such steps make of the figures."""
    files = [jobspec.read(write(tmp_path, each.name, tmp_path / "data")) for each in TIMES[:2]]
    decided = Timing(TIMES[:2], choose_schedule(TIMES[:2], [0.0, 0.0]))
    made = Scheduler(
        [(file, each.name) for file, each in zip(files, TIMES, strict=False)],
        decided,
        should_launch=Local().should_launch,
    )
    made.handle_start(BEGIN - 1)
    actions(made, BEGIN - 1, [None, None])
    actions(made, BEGIN, [snapshot(), None])
    for now in (BEGIN + 2, BEGIN + 2 + TICK, BEGIN + 10):
        at = {who: rows[rows[:, 0] < now - 0.1] for who, rows in steps.items()}
        actions(made, now, [snapshot(30), snapshot(30)], at)
    return decided


@pytest.mark.parametrize(("elapsed", "launched"), [(0.5, False), (25.0, True)])
def test_beside_a_job_that_runs_the_others_load_before_their_moment(
    tmp_path: pathlib.Path, elapsed: float, launched: bool
) -> None:
    # 40 steps of which each waits for a second: it is to start after 40 s, and nobody saw how long a job loads.
    times = [
        JobTimes(name=name, compute=0.02, wait=1.0, wait_cached=0.0, wait_conc=1.5, steps=40) for name in "ab"
    ]
    made = decider(tmp_path, times, elapsed=elapsed)
    expected = [Launch(1, True, 0.0, False)] if launched else []
    assert actions(made, BEGIN, [None, None]) == expected
    if launched:
        # Its own moment is the same.
        assert actions(made, BEGIN + 14.9, [None, snapshot()]) == [Move(1, pytest.approx(0.1 - 1.25 * 14.9))]
        assert actions(made, BEGIN + 15.0, [None, snapshot()])[0] == Release(1)


def test_the_load_time_of_one_job_sets_the_launch_of_the_next(tmp_path: pathlib.Path) -> None:
    late = JobTimes(name="c", compute=0.01, wait=1.0, wait_cached=0.0, wait_conc=1.5, steps=40)
    times = [
        JobTimes(name="a", compute=0.02, wait=2.0, wait_cached=0.0, wait_conc=2.5, steps=40),
        JobTimes(name="b", compute=2.02, wait=0.0, wait_cached=0.0, wait_conc=0.5, steps=40),
        late,
    ]
    made = decider(tmp_path, times, elapsed=1.0)
    (first,) = actions(made, BEGIN, [None, None, None])
    assert isinstance(first, Launch)
    who = first.index
    other = 3 - who
    seen: list[Snapshot | None] = [None, None, None]
    seen[who] = snapshot(head=None)
    actions(made, BEGIN + 1, seen)
    seen[who] = snapshot()
    # It has loaded for four seconds, of which the next one has a quarter more: five before its moment, not thirty.
    moments = [BEGIN + 4 + TICK * at for at in range(2000)]
    when = next(
        now
        for now in moments
        if any(isinstance(each, Launch) and each.index == other for each in actions(made, now, seen))
    )
    start = made.starts[other]
    assert when == pytest.approx(BEGIN - 1.0 + start - 5.0, abs=2 * TICK)


def test_an_order_that_nobody_knows_is_a_doubt(tmp_path: pathlib.Path) -> None:
    made = decider(tmp_path)
    begun(made)
    unknown = StepsHeader(rank=0, ranks=1, steps=40, order=None)
    (message,) = actions(made, BEGIN + 1.1, [snapshot(), snapshot(head=unknown)])[1:]
    assert actions(made, BEGIN + 1.15, [snapshot(), snapshot(head=unknown)])[1:] == []
    (doubt,) = made.doubts
    assert message == Message(doubt)
    assert doubt.startswith("b: its order is unknown")
    assert "FORESEE_SEED" in doubt


def test_a_leader_that_is_not_as_its_file_says_is_refused(tmp_path: pathlib.Path) -> None:
    made = decider(tmp_path)
    actions(made, BEGIN, [None, None])
    with pytest.raises(ConfigError, match="a: its loader has 50 steps per epoch, 40 by its job file"):
        actions(made, BEGIN + 1, [snapshot(head=StepsHeader(rank=0, ranks=1, steps=50, order=None)), None])


def test_a_leader_that_fails_has_the_other_start_when_it_has_loaded(tmp_path: pathlib.Path) -> None:
    made = decider(tmp_path)
    begun(made)
    found = actions(made, BEGIN + 1.3, [snapshot(5, code=3), snapshot(head=None, started=BEGIN + 1.0)])
    assert found[0] == ReportEnd(0, 3)
    assert found[-2:] == [Release(1), Message("b starts at 0.3 s")]


def test_a_leader_that_begins_no_step_is_given_up_once_and_a_queued_one_is_not(
    tmp_path: pathlib.Path,
) -> None:
    made = decider(tmp_path, patience=10.0)
    actions(made, BEGIN, [None, None])
    assert actions(made, BEGIN + 10.1, [snapshot(head=None, queued=True), None]) == []
    found = actions(made, BEGIN + 10.2, [snapshot(head=None), None])
    assert found[0] == GiveUp(0)
    assert Launch(1, True, 0.0, False) in found
    assert GiveUp(0) not in actions(made, BEGIN + 10.3, [snapshot(head=None), snapshot(head=None)])


def test_a_follower_whose_steps_cannot_be_read_is_stopped(tmp_path: pathlib.Path) -> None:
    made = decider(tmp_path)
    begun(made)
    made.handle_unreadable(1, "no file of steps", BEGIN + 1.1)
    found = actions(made, BEGIN + 1.1, [snapshot(), None])
    assert found == [Stop(1), Message("b was stopped, since its steps cannot be read: no file of steps")]
    assert made.is_job_over(1)
    assert not made.is_over
    actions(made, BEGIN + 3.1, [snapshot(40, code=0), None])
    assert made.is_over


def test_a_follower_that_cannot_be_launched_is_not_tried_again(tmp_path: pathlib.Path) -> None:
    made = decider(tmp_path)
    actions(made, BEGIN, [None, None])
    made.handle_snapshots([snapshot(), None], BEGIN + 1.1)
    found = []
    while (action := made.poll_action(BEGIN + 1.1)) is not None:
        if isinstance(action, Launch):
            made.handle_launch_failure(action.index, "no such program", BEGIN + 1.1)
        found.append(action)
    assert found[-1] == Message("b cannot be started: no such program")
    assert actions(made, BEGIN + 1.2, [snapshot(), None]) == []
