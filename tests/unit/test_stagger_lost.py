# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run`` of jobs that fail, hang or never begin: the others go on, and what became of each is told."""

from __future__ import annotations

import json
import pathlib
import signal

import pytest
from support.processes import processes_of
from support.stagger_runs import begun, cold_data, run, write

from foresee._steps import Meter, mark
from foresee._world import World


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    return cold_data(tmp_path)


@pytest.mark.parametrize("words", [["--dies-after", "5"], ["--dies-after", "0"]])
def test_a_leader_that_fails_lets_the_other_start_at_once(
    tmp_path: pathlib.Path, data: pathlib.Path, words: list[str]
) -> None:
    told, said = run(
        tmp_path, write(tmp_path, "a", data, *words, epochs=1), write(tmp_path, "b", data), code=1
    )
    assert [job["state"] for job in told["jobs"]] == ["failed", "done"]
    assert told["jobs"][0]["code"] == 3
    assert told["measured"] is None
    assert "a ended (exit code 3)" in said
    assert "no more memory" in said
    assert "b starts at once, alone" in said
    assert not processes_of(data)


def test_a_follower_that_fails_leaves_the_leader_alone(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    told, _ = run(
        tmp_path, write(tmp_path, "a", data), write(tmp_path, "b", data, "--dies-after", "1"), code=1
    )
    assert [job["state"] for job in told["jobs"]] == ["done", "failed"]
    assert told["jobs"][0]["steps"] == 40


def test_of_three_the_rest_go_on_when_the_leader_fails(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    alone = "wait = 0.03\nwait_cached = 0.0"
    jobs = [
        write(tmp_path, "a", data, "--dies-after", "5", stagger=alone),
        write(tmp_path, "b", data, stagger=alone),
        write(tmp_path, "c", data, stagger=alone),
    ]
    told, said = run(tmp_path, *jobs, code=1)
    assert [job["state"] for job in told["jobs"]] == ["failed", "done", "done"]
    # The first of them leads, and the other follows as far behind as the first had been planned to.
    starts = [job["start"] for job in told["jobs"]]
    assert starts[2] - starts[1] >= 1.2 * 0.8
    assert "a ended (exit code 3)" in said
    assert "b starts without a" in said
    assert {each["job"] for each in told["retimed"]} >= {"b"}


def test_a_job_that_runs_and_stops_taking_steps_is_not_waited_for(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    steps = tmp_path / "elsewhere"
    meter = Meter(str(steps), World(0, 1))
    lap = meter.lap(steps=40, order=mark("sequential 40"))
    lap.ask()
    lap.got()
    lap.end()
    jobs = write(tmp_path, "a", data), write(tmp_path, "b", data)
    told, said = run(tmp_path, *jobs, "--steps", str(steps), "--patience", "0.5", code=1)
    assert [job["state"] for job in told["jobs"]] == ["failed", "done"]
    assert "a has taken no step for 0.5 s, after 1" in said


def test_a_leader_that_takes_no_steps_keeps_nobody_back_and_is_left_alone(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    jobs = [write(tmp_path, "a", data, command='["sleep", "4"]'), write(tmp_path, "b", data)]
    told, said = run(tmp_path, *jobs, "--patience", "1", code=1)
    assert "a began no step within 1 s; it has to train with a Foresee loader" in said
    assert "the others do not wait for it any longer" in said
    # It may train all the same: nobody ended it.
    assert [(job["state"], job["code"], job["steps"]) for job in told["jobs"]] == [
        ("failed", 0, 0),
        ("done", 0, 40),
    ]
    assert "b starts without a" in said


def test_whoever_starts_with_a_job_that_takes_no_steps_goes_on_without_it(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    # As fast from the cache as the leader cold: both start at once.
    same = {"stagger": "wait = 0.0\nwait_cached = 0.0\nwait_conc = 0.0"}
    jobs = [
        write(tmp_path, "a", data, **same),
        write(tmp_path, "b", data, command='["sleep", "4"]', **same),
    ]
    told, said = run(tmp_path, *jobs, "--patience", "1", code=1)
    assert told["predicted"]["starts"] == [0, 0]
    assert "b began no step within 1 s" in said
    assert [(job["state"], job["steps"]) for job in told["jobs"]] == [("done", 40), ("failed", 0)]


def test_a_leader_that_hangs_keeps_nobody_back_for_longer_than_it_may(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    jobs = [write(tmp_path, "a", data, "--hangs-after", "5"), write(tmp_path, "b", data, start=0.2)]
    with begun(tmp_path, *jobs, "--patience", "3") as process:
        assert process.stderr is not None
        said = ""
        while "b has ended" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "a has taken no step for 3 s, after 5" in said
    told = json.loads(out)
    assert [job["state"] for job in told["jobs"]] == ["stopped", "done"]
    assert not processes_of(data)


def test_a_follower_that_cannot_be_started_leaves_the_leader_alone(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    script = tmp_path / "train"
    script.write_text("no first line says who runs this")
    script.chmod(0o755)
    told, said = run(
        tmp_path, write(tmp_path, "a", data), write(tmp_path, "b", data, command='["./train"]'), code=1
    )
    assert [job["state"] for job in told["jobs"]] == ["done", "failed"]
    assert "b cannot be started: [Errno 8] Exec format error" in said
