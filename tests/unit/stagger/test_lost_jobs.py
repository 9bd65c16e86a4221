# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run`` of jobs that fail, hang or never begin, in virtual time.

The other jobs continue, and the outcome of each job is reported.
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
    """Return the name of a file that no fake job opens."""
    return tmp_path / "chunks.bin"


@pytest.mark.parametrize("steps", [5, 0])
def test_a_leader_that_fails_lets_the_other_start_at_once(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, steps: int
) -> None:
    jobs = write(tmp_path, "a", data, "--dies-after", str(steps)), write(tmp_path, "b", data)
    result, output = virtual.run(*jobs, code=1)
    assert [job["state"] for job in result["jobs"]] == ["failed", "done"]
    assert result["jobs"][0]["code"] == 3
    measured = result["measured"]
    assert (measured["makespan"], measured["gpu_seconds"]) == (None, None)
    assert measured["seconds"] == [None, pytest.approx(result["jobs"][1]["end"] - result["jobs"][1]["start"])]
    assert result["off_percent"]["seconds"][0] is None
    assert result["off_percent"]["seconds"][1] is not None
    assert "a ended (exit code 3)" in output
    assert "no more memory" in output
    assert "b starts at once, alone" in output
    # As soon as it has loaded.
    launched = result["jobs"][1]["launched"]
    assert result["jobs"][1]["start"] == pytest.approx(max(launched + 0.5, steps * 0.05), abs=0.11)


def test_a_failed_follower_does_not_affect_the_leader(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    result, _ = virtual.run(
        write(tmp_path, "a", data), write(tmp_path, "b", data, "--dies-after", "1"), code=1
    )
    assert [job["state"] for job in result["jobs"]] == ["done", "failed"]
    assert result["jobs"][0]["steps"] == 40


def test_the_other_two_of_three_jobs_continue_when_the_leader_fails(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    alone = "wait = 0.03\nwait_cached = 0.0"
    jobs = [
        write(tmp_path, "a", data, "--dies-after", "5", stagger=alone),
        write(tmp_path, "b", data, stagger=alone),
        write(tmp_path, "c", data, stagger=alone),
    ]
    result, output = virtual.run(*jobs, code=1)
    assert [job["state"] for job in result["jobs"]] == ["failed", "done", "done"]
    # The first of them leads, and the other follows at the planned distance of the first follower.
    starts = [job["start"] for job in result["jobs"]]
    assert starts[2] - starts[1] == pytest.approx(1.2, rel=0.2)
    assert "a ended (exit code 3)" in output
    assert "b starts without a" in output
    assert {each["job"] for each in result["retimed"]} >= {"b"}


def test_a_running_job_that_stops_taking_steps_delays_no_other_job(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    steps = tmp_path / "elsewhere"
    meter = Meter(str(steps), World(0, 1))
    meter.timer(steps=40, order=order_hash("sequential 40"))
    meter._add(round(1e9 * virtual.clock.now()), 30_000_000, 20_000_000, 0, 0)
    jobs = write(tmp_path, "a", data), write(tmp_path, "b", data)
    result, output = virtual.run(*jobs, "--steps", str(steps), "--patience", "0.5", code=1)
    assert [job["state"] for job in result["jobs"]] == ["failed", "done"]
    assert "a has taken no step for 0.5 s, after 1" in output
    # It had loaded in the meantime.
    assert result["jobs"][1]["start"] == pytest.approx(0.5, abs=0.1)


def test_a_leader_without_steps_delays_no_other_job_and_is_not_stopped(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [write(tmp_path, "a", data, command='["sleep", "4"]'), write(tmp_path, "b", data)]
    result, output = virtual.run(*jobs, "--patience", "1", code=1)
    assert "a began no step within 1 s; it has to train with a Foresee loader" in output
    assert "the others do not wait for it any longer" in output
    # It may still be training, so it was not stopped.
    assert [(job["state"], job["code"], job["steps"]) for job in result["jobs"]] == [
        ("failed", 0, 0),
        ("done", 0, 40),
    ]
    assert "b starts without a" in output
    # The patience, and half a second of loading.
    assert result["jobs"][1]["start"] == pytest.approx(1.5, abs=0.2)


def test_a_job_that_starts_together_with_one_without_steps_continues_alone(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    # As fast from the cache as the leader from cold storage: both start at once.
    same = {"stagger": "wait = 0.0\nwait_cached = 0.0\nwait_conc = 0.0"}
    jobs = [
        write(tmp_path, "a", data, **same),
        write(tmp_path, "b", data, command='["sleep", "4"]', **same),
    ]
    result, output = virtual.run(*jobs, "--patience", "1", code=1)
    assert result["predicted"]["starts"] == [0, 0]
    assert "b began no step within 1 s" in output
    assert [(job["state"], job["steps"]) for job in result["jobs"]] == [("done", 40), ("failed", 0)]


def test_a_hanging_leader_delays_the_others_by_its_patience_at_most(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    jobs = [write(tmp_path, "a", data, "--hangs-after", "5"), write(tmp_path, "b", data, start=0.2)]
    virtual.clock.after(9.0, interrupt)
    result, output = virtual.run(*jobs, "--patience", "3", code=130)
    assert "a has taken no step for 3 s, after 5" in output
    assert "b has ended" in output
    assert [job["state"] for job in result["jobs"]] == ["stopped", "done"]
    # Five steps of 50 ms, the patience, and the load time of the follower.
    assert result["jobs"][1]["start"] == pytest.approx(5 * 0.05 + 3, abs=0.7)


def test_a_follower_that_cannot_be_started_does_not_affect_the_leader(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    virtual.launcher.refused["b"] = OSError(8, "Exec format error")
    result, output = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data), code=1)
    assert [job["state"] for job in result["jobs"]] == ["done", "failed"]
    assert "b cannot be started: [Errno 8] Exec format error" in output


def test_a_leader_that_cannot_be_started_ends_the_run(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    virtual.launcher.refused["a"] = OSError(8, "Exec format error")
    _, output = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data), code=3)
    assert "Exec format error" in output
    assert not virtual.launcher.jobs


def test_a_follower_whose_steps_cannot_be_read_is_stopped(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    def damage(job: FakeJob) -> None:
        if job.name == "b":
            pathlib.Path(job.folder, "rank-1.steps").write_bytes(b"x" * 32)

    virtual.launcher.on_launch = damage
    result, output = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data), code=1)
    assert [job["state"] for job in result["jobs"]] == ["done", "failed"]
    assert "b was stopped, since its steps cannot be read: " in output
    assert virtual.launcher.jobs["b"].code == -15


@pytest.mark.parametrize("place", [0, 1])
def test_a_job_that_continues_after_its_steps_is_no_longer_waited_for(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, place: int
) -> None:
    more = [("--epochs", "900") if at == place else () for at in range(2)]
    jobs = [write(tmp_path, name, data, *words) for name, words in zip("ab", more, strict=True)]
    result, output = virtual.run(*jobs, "--patience", "5")
    states = ["done", "done"]
    states[place] = "running"
    assert [job["state"] for job in result["jobs"]] == states
    assert virtual.launcher.jobs["ab"[place]].code is None
    name = "ab"[place]
    assert "of 40 steps and has not ended within 5 s: it continues without being monitored" in output
    assert output.count(f"foresee: {name} has done ") == 1
    # The prediction covers only the steps of its file.
    assert result["measured"]["seconds"][place] == pytest.approx(
        result["jobs"][place]["end"] - result["jobs"][place]["start"]
    )
    assert result["measured"]["makespan"] < 3
    assert result["jobs"][place]["steps"] > 40
