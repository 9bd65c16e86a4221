# SPDX-License-Identifier: Apache-2.0
"""The scheduler of a staggered run in virtual time: it gets snapshots of the jobs and returns actions one at a time."""

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

#: As in the job files: 40 steps with 20 ms of computing and 30 ms of waiting for cold data.
TIMES = [
    JobTimes(name=name, compute=0.02, wait=0.03, wait_cached=0.0, wait_conc=0.05, steps=40) for name in "abc"
]
#: Faster than the job whose cached data it reads, so that it catches up.
QUICK = JobTimes(name="c", compute=0.01, wait=0.04, wait_cached=0.0, wait_conc=0.06, steps=40)
HEAD = StepsHeader(rank=0, ranks=1, steps=40, order=order_hash("one"))
#: Start of the runs, by an arbitrary clock.
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
        f"foresee.stagger.{name}"
        for name in ("clock", "external_job", "job_monitor", "local_job", "runner", "slurm")
    }
    assert not imported & {"fcntl", "os", "pathlib", "signal", "subprocess", "threading", "time", *drivers}


def test_the_examples_in_the_docstrings_are_true() -> None:
    result = doctest.testmod(scheduler)
    assert result.attempted
    assert not result.failed


def make_scheduler(
    tmp_path: pathlib.Path,
    times: Sequence[JobTimes] = TIMES[:2],
    *,
    joined: bool = False,
    elapsed: float | None = None,
    **more: object,
) -> Scheduler:
    """Return the scheduler of a run that begins now."""
    files = [jobspec.read(write(tmp_path, each.name, tmp_path / "data")) for each in times]
    chosen = choose_schedule(
        times, [0.0] * len(times), running=elapsed if elapsed is not None else 0.0 if joined else None
    )
    ordered = [times[place] for place in chosen.order]
    scheduled = Scheduler(
        [(files[place], times[place].name) for place in chosen.order],
        Timing(ordered, chosen),
        should_launch=Local().should_launch,
        spacing=Spacing(ordered, TICK),
        is_leader_running=joined or elapsed is not None,
        elapsed=elapsed,
        **more,  # type: ignore[arg-type]
    )
    scheduled.handle_start(BEGIN)
    return scheduled


def snapshot(
    done: int = 0, *, head: StepsHeader | None = HEAD, started: float = BEGIN, **more: object
) -> Snapshot:
    """Return a snapshot of a running job."""
    facts = {"code": None, "last_step": started, "queued": False, **more}
    return Snapshot(head=head, done=done, started=started, **facts)  # type: ignore[arg-type]


def rows(first: float, count: int, every: float, wait: float = 0.03, compute: float = 0.02) -> np.ndarray:
    """Return steps that begin every ``every`` seconds."""
    begins = first + every * np.arange(count)
    return np.stack([begins, np.full(count, wait), np.full(count, compute)], axis=1)


def actions(
    scheduled: Scheduler,
    now: float,
    snapshots: Sequence[Snapshot | None],
    steps: dict[int, np.ndarray] | None = None,
) -> list[Action]:
    """Return all actions after one snapshot; each is acknowledged, and gates open and close as requested."""
    scheduled.handle_snapshots(snapshots, now)
    found: list[Action] = []
    while (action := scheduled.poll_action(now)) is not None:
        if isinstance(action, Launch):
            scheduled.handle_launch(action.index, snapshot(head=None, started=now), now)
            scheduled.handle_gate(action.index, action.held, now)
        elif isinstance(action, Read):
            scheduled.handle_steps(action.index, (steps or {}).get(action.index, np.zeros((0, 3))), now)
        elif isinstance(action, Hold | Release | GiveUp):
            scheduled.handle_gate(action.index, isinstance(action, Hold), now)
        found.append(action)
    return [each for each in found if not isinstance(each, Read | Progress)]


def begin(scheduled: Scheduler) -> None:
    """Launch the leader, let it load for a second and take its first step; the follower is launched."""
    assert actions(scheduled, BEGIN, [None, None]) == [Launch(0, False, 0.0, True)]
    assert actions(scheduled, BEGIN + TICK, [snapshot(head=None), None]) == []
    assert actions(scheduled, BEGIN + 1.0, [snapshot(), None]) == [Release(0), Launch(1, True, 0.0, False)]


def test_a_follower_is_launched_one_load_time_before_its_start_and_released_at_it(
    tmp_path: pathlib.Path,
) -> None:
    scheduled = make_scheduler(tmp_path)
    actions(scheduled, BEGIN, [None, None])
    zero = BEGIN + 0.4
    assert actions(scheduled, zero, [snapshot(), None]) == [Release(0)]
    # It should start 1.2 s after the first step. Its leader loaded for 0.4 s, and a quarter is added.
    steps = {0: rows(zero, 13, 0.05)}
    assert actions(scheduled, zero + 0.69, [snapshot(13), None], steps) == []
    assert actions(scheduled, zero + 0.71, [snapshot(14), None], steps) == [Launch(1, True, 0.0, False)]
    waits = snapshot(head=None, started=zero + 0.71)
    assert actions(scheduled, zero + 0.76, [snapshot(15), waits], steps) == [
        Move(1, pytest.approx(0.7 - 0.76))
    ]
    assert scheduled.poll_next_snapshot(zero + 0.76) == TICK
    assert scheduled.poll_next_snapshot(zero + 1.18) == pytest.approx(0.02)
    steps = {0: rows(zero, 23, 0.05)}
    assert actions(scheduled, zero + 1.19, [snapshot(23), waits], steps) == [
        Move(1, pytest.approx(0.7 - 1.19))
    ]
    found = actions(scheduled, zero + 1.2, [snapshot(24), snapshot(started=zero + 0.71)], steps)
    assert found == [Release(1), Message("b starts at 1.2 s")]


def test_a_leader_with_a_delay_is_launched_after_it(tmp_path: pathlib.Path) -> None:
    scheduled = make_scheduler(tmp_path, delay=7.0)
    assert actions(scheduled, BEGIN, [None, None]) == [Message("a starts in 7.0 s")]
    assert scheduled.poll_next_snapshot(BEGIN) == 7.0
    assert actions(scheduled, BEGIN + 7.0, [None, None]) == [Launch(0, False, 0.0, True)]


def test_jobs_that_start_together_are_released_when_the_last_of_them_has_loaded(
    tmp_path: pathlib.Path,
) -> None:
    same = [JobTimes(name=name, compute=0.02, wait=0, wait_cached=0, wait_conc=0, steps=40) for name in "ab"]
    scheduled = make_scheduler(tmp_path, same)
    launched = [Launch(0, True, 0.0, True), Launch(1, True, 0.0, True)]
    assert actions(scheduled, BEGIN, [None, None]) == launched
    assert actions(scheduled, BEGIN + 1, [snapshot(), snapshot(head=None)]) == []
    assert actions(scheduled, BEGIN + 9, [snapshot(), snapshot()]) == [Release(0), Release(1)]


def test_no_job_is_held_while_the_reader_does_not_read(tmp_path: pathlib.Path) -> None:
    scheduled = make_scheduler(tmp_path, [TIMES[0], TIMES[1], QUICK], elapsed=1.5)
    assert all(isinstance(each, Launch) for each in actions(scheduled, BEGIN, [None, None, None]))
    for at in range(1, 60):
        found = actions(scheduled, BEGIN + 0.05 * at, [None, snapshot(5), snapshot(5)])
        assert not any(isinstance(each, Hold) for each in found)
    assert [outcome.holds for outcome in scheduled.outcomes()] == [0, 0, 0]


def test_a_follower_close_to_a_reading_job_is_held_and_released(tmp_path: pathlib.Path) -> None:
    scheduled = make_scheduler(tmp_path)
    begin(scheduled)
    steps = {0: rows(BEGIN + 1.0, 24, 0.05)}
    actions(scheduled, BEGIN + 2.2, [snapshot(24), snapshot()], steps)
    assert actions(scheduled, BEGIN + 2.3, [snapshot(24), snapshot(20)], steps) == [Hold(1)]
    assert actions(scheduled, BEGIN + 2.35, [snapshot(29), snapshot(20)], steps) == []
    assert actions(scheduled, BEGIN + 2.8, [snapshot(40), snapshot(20)], steps) == [Release(1)]
    _, follower = scheduled.outcomes()
    assert (follower.holds, follower.held) == (1, pytest.approx(0.5))


def test_a_gate_that_a_rank_is_passing_is_closed_at_the_next_snapshot(tmp_path: pathlib.Path) -> None:
    scheduled = make_scheduler(tmp_path)
    begin(scheduled)
    steps = {0: rows(BEGIN + 1.0, 24, 0.05)}
    actions(scheduled, BEGIN + 2.2, [snapshot(24), snapshot()], steps)
    scheduled.handle_snapshots([snapshot(24), snapshot(20)], BEGIN + 2.3)
    while (action := scheduled.poll_action(BEGIN + 2.3)) is not None:
        if action == Hold(1):
            scheduled.handle_gate(1, False, BEGIN + 2.3)
    assert scheduled.outcomes()[1].holds == 0
    assert actions(scheduled, BEGIN + 2.35, [snapshot(24), snapshot(20)], steps) == [Hold(1)]


def test_time_at_the_gate_does_not_count_for_steps_of_a_follower(tmp_path: pathlib.Path) -> None:
    decided = observed_timing(tmp_path, {0: rows(BEGIN, 30, 0.05), 1: rows(BEGIN + 2, 30, 0.2, wait=0.001)})
    led, followed = decided.times
    # Held before each of its steps.
    assert followed.cached_epoch() == pytest.approx(40 * 0.021)
    assert followed.cached_epoch() < led.cold_epoch()


def test_time_at_the_gate_counts_for_the_job_that_loads_the_data(tmp_path: pathlib.Path) -> None:
    # Only the time at which the leader's data are in the cache matters, not the cause of a delay.
    decided = observed_timing(tmp_path, {0: rows(BEGIN, 30, 0.2)})
    assert decided.times[0].cold_epoch() == pytest.approx(40 * 10 / 31, rel=1e-6)


def observed_timing(tmp_path: pathlib.Path, steps: dict[int, np.ndarray]) -> Timing:
    """Return the timing after ten seconds of such steps."""
    files = [jobspec.read(write(tmp_path, each.name, tmp_path / "data")) for each in TIMES[:2]]
    decided = Timing(TIMES[:2], choose_schedule(TIMES[:2], [0.0, 0.0]))
    scheduled = Scheduler(
        [(file, each.name) for file, each in zip(files, TIMES, strict=False)],
        decided,
        should_launch=Local().should_launch,
    )
    scheduled.handle_start(BEGIN - 1)
    actions(scheduled, BEGIN - 1, [None, None])
    actions(scheduled, BEGIN, [snapshot(), None])
    for now in (BEGIN + 2, BEGIN + 2 + TICK, BEGIN + 10):
        at = {index: rows[rows[:, 0] < now - 0.1] for index, rows in steps.items()}
        actions(scheduled, now, [snapshot(30), snapshot(30)], at)
    return decided


@pytest.mark.parametrize(("elapsed", "launched"), [(0.5, False), (25.0, True)])
def test_jobs_that_join_a_running_job_load_before_their_start(
    tmp_path: pathlib.Path, elapsed: float, launched: bool
) -> None:
    # 40 steps that each wait for a second: it should start after 40 s, and no load time is known.
    times = [
        JobTimes(name=name, compute=0.02, wait=1.0, wait_cached=0.0, wait_conc=1.5, steps=40) for name in "ab"
    ]
    scheduled = make_scheduler(tmp_path, times, elapsed=elapsed)
    expected = [Launch(1, True, 0.0, False)] if launched else []
    assert actions(scheduled, BEGIN, [None, None]) == expected
    if launched:
        # Its planned start is the same.
        assert actions(scheduled, BEGIN + 14.9, [None, snapshot()]) == [
            Move(1, pytest.approx(0.1 - 1.25 * 14.9))
        ]
        assert actions(scheduled, BEGIN + 15.0, [None, snapshot()])[0] == Release(1)


def test_the_load_time_of_one_job_determines_the_launch_of_the_next(tmp_path: pathlib.Path) -> None:
    late = JobTimes(name="c", compute=0.01, wait=1.0, wait_cached=0.0, wait_conc=1.5, steps=40)
    times = [
        JobTimes(name="a", compute=0.02, wait=2.0, wait_cached=0.0, wait_conc=2.5, steps=40),
        JobTimes(name="b", compute=2.02, wait=0.0, wait_cached=0.0, wait_conc=0.5, steps=40),
        late,
    ]
    scheduled = make_scheduler(tmp_path, times, elapsed=1.0)
    (first,) = actions(scheduled, BEGIN, [None, None, None])
    assert isinstance(first, Launch)
    index = first.index
    other = 3 - index
    seen: list[Snapshot | None] = [None, None, None]
    seen[index] = snapshot(head=None)
    actions(scheduled, BEGIN + 1, seen)
    seen[index] = snapshot()
    # It loaded for four seconds. The next job gets a quarter more: it starts 5 s early, not 30 s.
    moments = [BEGIN + 4 + TICK * at for at in range(2000)]
    when = next(
        now
        for now in moments
        if any(isinstance(each, Launch) and each.index == other for each in actions(scheduled, now, seen))
    )
    start = scheduled.starts[other]
    assert when == pytest.approx(BEGIN - 1.0 + start - 5.0, abs=2 * TICK)


def test_an_unknown_order_is_reported_as_a_doubt(tmp_path: pathlib.Path) -> None:
    scheduled = make_scheduler(tmp_path)
    begin(scheduled)
    unknown = StepsHeader(rank=0, ranks=1, steps=40, order=None)
    (message,) = actions(scheduled, BEGIN + 1.1, [snapshot(), snapshot(head=unknown)])[1:]
    assert actions(scheduled, BEGIN + 1.15, [snapshot(), snapshot(head=unknown)])[1:] == []
    (doubt,) = scheduled.doubts
    assert message == Message(doubt)
    assert doubt.startswith("b: its order is unknown")
    assert "FORESEE_SEED" in doubt


def test_a_leader_that_contradicts_its_job_file_is_refused(tmp_path: pathlib.Path) -> None:
    scheduled = make_scheduler(tmp_path)
    actions(scheduled, BEGIN, [None, None])
    with pytest.raises(ConfigError, match="a: its loader has 50 steps per epoch, 40 by its job file"):
        actions(
            scheduled, BEGIN + 1, [snapshot(head=StepsHeader(rank=0, ranks=1, steps=50, order=None)), None]
        )


def test_the_follower_of_a_failed_leader_starts_when_it_has_loaded(tmp_path: pathlib.Path) -> None:
    scheduled = make_scheduler(tmp_path)
    begin(scheduled)
    found = actions(scheduled, BEGIN + 1.3, [snapshot(5, code=3), snapshot(head=None, started=BEGIN + 1.0)])
    assert found[0] == ReportEnd(0, 3)
    assert found[-2:] == [Release(1), Message("b starts at 0.3 s")]


def test_a_leader_without_steps_is_given_up_once_and_a_queued_one_is_not(
    tmp_path: pathlib.Path,
) -> None:
    scheduled = make_scheduler(tmp_path, patience=10.0)
    actions(scheduled, BEGIN, [None, None])
    assert actions(scheduled, BEGIN + 10.1, [snapshot(head=None, queued=True), None]) == []
    found = actions(scheduled, BEGIN + 10.2, [snapshot(head=None), None])
    assert found[0] == GiveUp(0)
    assert Launch(1, True, 0.0, False) in found
    assert GiveUp(0) not in actions(scheduled, BEGIN + 10.3, [snapshot(head=None), snapshot(head=None)])


def test_a_follower_whose_steps_cannot_be_read_is_stopped(tmp_path: pathlib.Path) -> None:
    scheduled = make_scheduler(tmp_path)
    begin(scheduled)
    scheduled.handle_unreadable(1, "no file of steps", BEGIN + 1.1)
    found = actions(scheduled, BEGIN + 1.1, [snapshot(), None])
    assert found == [Stop(1), Message("b was stopped, since its steps cannot be read: no file of steps")]
    assert scheduled.is_job_over(1)
    assert not scheduled.is_over
    actions(scheduled, BEGIN + 3.1, [snapshot(40, code=0), None])
    assert scheduled.is_over


def test_a_follower_that_cannot_be_launched_is_not_launched_again(tmp_path: pathlib.Path) -> None:
    scheduled = make_scheduler(tmp_path)
    actions(scheduled, BEGIN, [None, None])
    scheduled.handle_snapshots([snapshot(), None], BEGIN + 1.1)
    found = []
    while (action := scheduled.poll_action(BEGIN + 1.1)) is not None:
        if isinstance(action, Launch):
            scheduled.handle_launch_failure(action.index, "no such program", BEGIN + 1.1)
        found.append(action)
    assert found[-1] == Message("b cannot be started: no such program")
    assert actions(scheduled, BEGIN + 1.2, [snapshot(), None]) == []
