# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run`` of jobs that fail, hang or never begin, in virtual time: the others go on, and what became of each
is told.
"""

from __future__ import annotations

import pathlib

import pytest
from support.fake_jobs import FakeJob
from support.stagger_runs import write
from support.virtual import Virtual

from foresee._runtime.ranks import World
from foresee._runtime.step_times import Meter, order_hash


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """The name of a file that no fake job opens."""
    return tmp_path / "chunks.bin"


@pytest.mark.parametrize("steps", [5, 0])
def test_a_leader_that_fails_lets_the_other_start_at_once(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, steps: int
) -> None:
    jobs = write(tmp_path, "a", data, "--dies-after", str(steps)), write(tmp_path, "b", data)
    told, said = virtual.run(*jobs, code=1)
    assert [job["state"] for job in told["jobs"]] == ["failed", "done"]
    assert told["jobs"][0]["code"] == 3
    measured = told["measured"]
    assert (measured["makespan"], measured["gpu_seconds"]) == (None, None)
    assert measured["seconds"] == [None, pytest.approx(told["jobs"][1]["end"] - told["jobs"][1]["start"])]
    assert told["off_percent"]["seconds"][0] is None
    assert told["off_percent"]["seconds"][1] is not None
    assert "a ended (exit code 3)" in said
    assert "no more memory" in said
    assert "b starts at once, alone" in said
    # As soon as it has loaded.
    launched = told["jobs"][1]["launched"]
    assert told["jobs"][1]["start"] == pytest.approx(max(launched + 0.5, steps * 0.05), abs=0.11)


def test_a_follower_that_fails_leaves_the_leader_alone(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    told, _ = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data, "--dies-after", "1"), code=1)
    assert [job["state"] for job in told["jobs"]] == ["done", "failed"]
    assert told["jobs"][0]["steps"] == 40


def test_of_three_the_rest_go_on_when_the_leader_fails(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    alone = "wait = 0.03\nwait_cached = 0.0"
    jobs = [
        write(tmp_path, "a", data, "--dies-after", "5", stagger=alone),
        write(tmp_path, "b", data, stagger=alone),
        write(tmp_path, "c", data, stagger=alone),
    ]
    told, said = virtual.run(*jobs, code=1)
    assert [job["state"] for job in told["jobs"]] == ["failed", "done", "done"]
    # The first of them leads, and the other follows as far behind as the first had been planned to.
    starts = [job["start"] for job in told["jobs"]]
    assert starts[2] - starts[1] == pytest.approx(1.2, rel=0.2)
    assert "a ended (exit code 3)" in said
    assert "b starts without a" in said
    assert {each["job"] for each in told["retimed"]} >= {"b"}


def test_a_job_that_runs_and_stops_taking_steps_is_not_waited_for(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    steps = tmp_path / "elsewhere"
    meter = Meter(str(steps), World(0, 1))
    meter.timer(steps=40, order=order_hash("sequential 40"))
    meter._add(round(1e9 * virtual.clock.now()), 30_000_000, 20_000_000, 0, 0)
    jobs = write(tmp_path, "a", data), write(tmp_path, "b", data)
    told, said = virtual.run(*jobs, "--steps", str(steps), "--patience", "0.5", code=1)
    assert [job["state"] for job in told["jobs"]] == ["failed", "done"]
    assert "a has taken no step for 0.5 s, after 1" in said
    # It had loaded meanwhile.
    assert told["jobs"][1]["start"] == pytest.approx(0.5, abs=0.1)


def test_a_leader_that_takes_no_steps_keeps_nobody_back_and_is_left_alone(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [write(tmp_path, "a", data, command='["sleep", "4"]'), write(tmp_path, "b", data)]
    told, said = virtual.run(*jobs, "--patience", "1", code=1)
    assert "a began no step within 1 s; it has to train with a Foresee loader" in said
    assert "the others do not wait for it any longer" in said
    # It may train all the same: nobody ended it.
    assert [(job["state"], job["code"], job["steps"]) for job in told["jobs"]] == [
        ("failed", 0, 0),
        ("done", 0, 40),
    ]
    assert "b starts without a" in said
    # Half a second of loading after the patience.
    assert told["jobs"][1]["start"] == pytest.approx(1.5, abs=0.2)


def test_whoever_starts_with_a_job_that_takes_no_steps_goes_on_without_it(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    # As fast from the cache as the leader cold: both start at once.
    same = {"stagger": "wait = 0.0\nwait_cached = 0.0\nwait_conc = 0.0"}
    jobs = [
        write(tmp_path, "a", data, **same),
        write(tmp_path, "b", data, command='["sleep", "4"]', **same),
    ]
    told, said = virtual.run(*jobs, "--patience", "1", code=1)
    assert told["predicted"]["starts"] == [0, 0]
    assert "b began no step within 1 s" in said
    assert [(job["state"], job["steps"]) for job in told["jobs"]] == [("done", 40), ("failed", 0)]


def test_a_leader_that_hangs_keeps_nobody_back_for_longer_than_it_may(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    jobs = [write(tmp_path, "a", data, "--hangs-after", "5"), write(tmp_path, "b", data, start=0.2)]
    virtual.clock.after(9.0, interrupt)
    told, said = virtual.run(*jobs, "--patience", "3", code=130)
    assert "a has taken no step for 3 s, after 5" in said
    assert "b has ended" in said
    assert [job["state"] for job in told["jobs"]] == ["stopped", "done"]
    # Five steps of 50 ms, the patience, and what the follower takes to load.
    assert told["jobs"][1]["start"] == pytest.approx(5 * 0.05 + 3, abs=0.7)


def test_a_follower_that_cannot_be_started_leaves_the_leader_alone(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    virtual.launcher.refused["b"] = OSError(8, "Exec format error")
    told, said = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data), code=1)
    assert [job["state"] for job in told["jobs"]] == ["done", "failed"]
    assert "b cannot be started: [Errno 8] Exec format error" in said


def test_a_leader_that_cannot_be_started_ends_the_run(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    virtual.launcher.refused["a"] = OSError(8, "Exec format error")
    _, said = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data), code=3)
    assert "Exec format error" in said
    assert not virtual.launcher.jobs


def test_a_follower_whose_steps_cannot_be_read_is_ended(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    def damage(job: FakeJob) -> None:
        if job.name == "b":
            pathlib.Path(job.folder, "rank-1.steps").write_bytes(b"x" * 32)

    virtual.launcher.on_launch = damage
    told, said = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data), code=1)
    assert [job["state"] for job in told["jobs"]] == ["done", "failed"]
    assert "b was stopped, since its steps cannot be read: " in said
    assert virtual.launcher.jobs["b"].code == -15


@pytest.mark.parametrize("place", [0, 1])
def test_a_job_that_goes_on_after_its_steps_ends_the_wait(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, place: int
) -> None:
    more = [("--epochs", "900") if at == place else () for at in range(2)]
    jobs = [write(tmp_path, name, data, *words) for name, words in zip("ab", more, strict=True)]
    told, said = virtual.run(*jobs, "--patience", "5")
    states = ["done", "done"]
    states[place] = "running"
    assert [job["state"] for job in told["jobs"]] == states
    assert virtual.launcher.jobs["ab"[place]].code is None
    name = "ab"[place]
    assert "of 40 steps and has not ended within 5 s: it continues without being monitored" in said
    assert said.count(f"foresee: {name} has done ") == 1
    # What was predicted is about the steps of its file.
    assert told["measured"]["seconds"][place] == pytest.approx(
        told["jobs"][place]["end"] - told["jobs"][place]["start"]
    )
    assert told["measured"]["makespan"] < 3
    assert told["jobs"][place]["steps"] > 40
