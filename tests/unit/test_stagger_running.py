# SPDX-License-Identifier: Apache-2.0
"""What the driver of a run tells the deciders, and when it launches: jobs that are only files of steps, no process."""

from __future__ import annotations

import pathlib
import time

import pytest
from support.stagger_runs import write

from foresee import job
from foresee._steps import Meter, mark
from foresee._world import World
from foresee.jobs.already import Already
from foresee.jobs.pace import Pace
from foresee.jobs.running import Local, Runner
from foresee.jobs.timing import Timing, choose
from foresee.jobs.watched import Watched, unordered
from foresee.models.stagger import JobTimes

#: As in the job files: 40 steps of 20 ms, and 30 to wait for cold data.
TIMES = [
    JobTimes(name=name, compute=0.02, wait=0.03, wait_cached=0.0, wait_conc=0.05, steps=40) for name in "abc"
]
#: Faster than what it reads, so that it comes near.
QUICK = JobTimes(name="c", compute=0.01, wait=0.04, wait_cached=0.0, wait_conc=0.06, steps=40)


class Pretended(Watched):
    """A job without a process: its steps are what a test writes."""

    def __init__(self, of: job.Job, name: str, folder: str, *, held: bool, order: str = "one") -> None:
        super().__init__(of, name, folder)
        self._make(held=held)
        self.meter = Meter(self.folder, World(0, 1))
        self.order = mark(order) if order else 0

    def begin(self) -> None:
        """Its loader is there."""
        self.meter._gate = None
        self.release()
        self.meter.lap(steps=40, order=self.order)
        self._read()

    def step(self, begin: float, wait: float, compute: float) -> None:
        """One that began then, of ``time.monotonic()``."""
        nanos = [round(1e9 * seconds) for seconds in (begin, wait, compute)]
        self.meter._add(*nanos, 0, 0)
        self._read()

    def poll(self) -> int | None:
        self._read()
        return None

    def stop(self) -> None:
        self._abandon()


class Pretending(Local):
    """Launches such jobs, and remembers when each was to run."""

    def __init__(self) -> None:
        self.due: dict[str, float] = {}

    def start(
        self, job: job.Job, name: str, folder: str, *, held: bool, first: Watched | None, due: float
    ) -> Watched:
        self.due[name] = due
        return Pretended(job, name, folder, held=held)


def runner(
    tmp_path: pathlib.Path, times: list[JobTimes], already: Already | float | None, **more: object
) -> tuple[Runner, list[Pretended]]:
    """Whose jobs run, but for a leader that nobody sees."""
    data = tmp_path / "data"
    files = [job.read(write(tmp_path, each.name, data)) for each in times]
    elapsed = already if isinstance(already, float) else None
    chosen = choose(times, [0.0] * len(times), running=elapsed)
    ordered = [times[place] for place in chosen.order]
    made = Runner(
        [(files[place], times[place].name) for place in chosen.order],
        Timing(ordered, chosen),
        str(tmp_path),
        pace=Pace(ordered, 0.05),
        launcher=Pretending(),
        already=already,
        **more,  # type: ignore[arg-type]
    )
    jobs = []
    for part in made._parts[elapsed is not None :]:
        part.watched = Pretended(part.job, part.name, str(tmp_path), held=False)
        part.watched.begin()
        part.released = True
        jobs.append(part.watched)
    return made, jobs


def test_nobody_is_held_for_a_reader_that_does_not_read(tmp_path: pathlib.Path) -> None:
    made, jobs = runner(tmp_path, [TIMES[0], TIMES[1], QUICK], 1.0)
    made._zero = time.monotonic() - 1.0
    for follower in jobs:
        for at in range(5):
            follower.step(made._zero + 0.1 * at, 0.0, 0.02)
    made._keep_apart()
    assert [part.holds for part in made._parts] == [0, 0, 0]


def test_whoever_is_near_one_that_is_seen_to_read_is_held(tmp_path: pathlib.Path) -> None:
    made, jobs = runner(tmp_path, [TIMES[0], TIMES[1]], None)
    made._zero = time.monotonic() - 1.0
    for each in jobs:
        for at in range(5):
            each.step(made._zero + 0.1 * at, 0.0, 0.02)
    made._keep_apart()
    assert [part.holds for part in made._parts] == [0, 1]


def test_time_at_the_gate_is_no_time_of_a_followers_steps(tmp_path: pathlib.Path) -> None:
    made, (leader, follower) = runner(tmp_path, TIMES[:2], None)
    zero = made._zero = time.monotonic() - 10
    for at in range(30):
        leader.step(zero + 0.05 * at, 0.03, 0.02)
        # Held before each of them.
        follower.step(zero + 2 + 0.2 * at, 0.001, 0.02)
    for at, part in enumerate(made._parts):
        made._know(at, part)
    led, followed = made._timing.figures
    assert followed.cached_epoch() == pytest.approx(40 * 0.021)
    assert followed.cached_epoch() < led.cold_epoch()


def test_time_at_the_gate_counts_where_data_are_waited_for(tmp_path: pathlib.Path) -> None:
    # When the leader's data are in the cache is what matters, whatever it was that kept it.
    made, (leader, _) = runner(tmp_path, TIMES[:2], None)
    zero = made._zero = time.monotonic() - 10
    for at in range(30):
        leader.step(zero + 0.2 * at, 0.03, 0.02)
    made._know(0, made._parts[0])
    assert made._timing.figures[0].cold_epoch() >= 40 * (29 * 0.2 + 0.05) / 30 * 0.999


@pytest.mark.parametrize(("elapsed", "launched"), [(0.5, False), (25.0, True)])
def test_beside_a_job_that_runs_the_others_load_before_their_moment(
    tmp_path: pathlib.Path, elapsed: float, launched: bool
) -> None:
    # 40 steps of which each waits for a second: it is to start after 40 s, and nobody saw how long a job loads.
    times = [
        JobTimes(name=name, compute=0.02, wait=1.0, wait_cached=0.0, wait_conc=1.5, steps=40) for name in "ab"
    ]
    made, _ = runner(tmp_path, times, elapsed)
    part = made._parts[1]
    part.watched, part.released = None, False
    made._zero = time.monotonic() - elapsed
    assert part.start == pytest.approx(40)
    made._follow(1)
    assert (part.watched is not None) == launched
    assert not part.released
    if part.watched is not None:
        assert part.watched.held


def test_how_long_one_took_to_load_is_how_long_the_next_one_has(tmp_path: pathlib.Path) -> None:
    made, jobs = runner(tmp_path, [TIMES[0], TIMES[1], QUICK], 1.0)
    assert made._took() == 30
    jobs[0].started -= 4
    made._poll()
    jobs[1].started = time.monotonic()
    assert made._took() == pytest.approx(5, abs=0.5)


def test_an_order_that_nobody_knows_is_a_doubt(tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    made, _ = runner(tmp_path, TIMES[:2], None, tell=said.append)
    for part, order in zip(made._parts, ("one", ""), strict=True):
        part.watched = Pretended(part.job, part.name, str(tmp_path), held=False, order=order)
        assert unordered(part.watched) is None
        part.watched.begin()
    for _ in range(2):
        made._check()
    (doubt,) = made._doubts
    assert said == [doubt]
    assert doubt.startswith("b: in which order it reads is not known")
    assert "FORESEE_SEED" in doubt
