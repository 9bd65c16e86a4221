# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run`` in virtual time: jobs that start when predicted, that are late, held, or interrupted.

Real processes are in ``tests/process/stagger/test_runs.py``.
"""

from __future__ import annotations

import json
import pathlib
import re
import signal
import sys
from collections.abc import Iterator

import pytest
from support.fake_jobs import FakeJob
from support.house import ROOT
from support.stagger_job import CHUNK
from support.stagger_runs import FIGURES, write
from support.virtual import Virtual

from foresee.stagger.actions import TICK
from foresee.stagger.runner import Local


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the name of a file that no fake job opens."""
    return tmp_path / "chunks.bin"


@pytest.fixture
def _no_signal_is_ignored() -> Iterator[None]:
    """Handle SIGHUP as in a terminal: under ``nohup`` it is ignored, and the command retains that."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_no_signal_is_ignored")
def test_an_ignored_hangup_stays_ignored(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    virtual.clock.after(1.0, lambda: signal.raise_signal(signal.SIGHUP))
    result, _ = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data))
    assert result["interrupted"] is False


def test_the_second_job_starts_when_predicted_and_both_are_compared(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    result, errors = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data))
    assert (result["leader"], result["followers"], result["predicted"]["case"]) == ("a", ["b"], "cached")
    # Concurrent reads cost nothing by these values: 40 steps of 50 ms each.
    assert result["predicted"]["at_once"] == pytest.approx({"makespan": 2.0, "gpu_seconds": 4.0})
    assert result["predicted"]["starts"] == pytest.approx([0, 40 * 0.03])
    assert result["predicted"]["makespan"] == pytest.approx(40 * 0.05)
    assert [job["state"] for job in result["jobs"]] == ["done", "done"]
    assert [job["steps"] for job in result["jobs"]] == [40, 40]
    assert result["measured"]["starts"] == pytest.approx([0, 40 * 0.03], abs=1e-3)
    # One more step if both request the last chunk at the same time.
    assert 40 * 0.05 <= result["measured"]["makespan"] <= 41 * 0.05
    assert result["measured"]["gpu_seconds"] == pytest.approx(sum(result["measured"]["seconds"]))
    assert (result["jobs"][0]["wait"], result["jobs"][1]["wait"]) == pytest.approx((0.03, 0.0), abs=1e-3)
    assert result["retimed"] == []
    assert result["stands"] is None
    assert result == json.loads((tmp_path / "run" / "stagger.json").read_text())
    assert "this job sleeps" in (tmp_path / "run" / "a.log").read_text()
    assert "b starts at 1.2 s" in errors
    page = (ROOT / "docs/formats/stagger.md").read_text()
    keys = {*result, *result["predicted"], *result["measured"], *result["jobs"][0]}
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_a_follower_is_launched_before_its_start_by_its_load_time(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    result, _ = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data))
    leader, follower = result["jobs"]
    took = -leader["launched"]
    assert 0.5 <= took <= 0.5 + TICK
    # A quarter more than the leader's load time.
    assert follower["launched"] == pytest.approx(1.2 - 1.25 * took, abs=2 * TICK)


def test_a_leader_slower_than_predicted_moves_the_start(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    slow = write(tmp_path, "a", data, "--wait", "0.1")
    late = write(tmp_path, "b", data, start=0.2)
    result, errors = virtual.run(slow, late)
    assert result["leader"] == "a"
    assert result["retimed"][-1]["job"] == "b"
    # The delay that prevents 40 steps of 20 ms from catching up with 40 steps of 120 ms.
    assert result["retimed"][-1]["start"] == pytest.approx(40 * 0.1, rel=0.02)
    assert result["measured"]["starts"][1] == pytest.approx(result["retimed"][-1]["start"], abs=0.1)
    assert "a is not as predicted: b starts at" in errors


def test_jobs_whose_best_start_is_zero_start_together(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    quick = "wait = 0.0\nwait_cached = 0.0\nwait_conc = 0.0"
    jobs = [
        write(tmp_path, name, data, "--wait", "0", "--loads", loads, stagger=quick)
        for name, loads in (("a", "0"), ("b", "7"))
    ]
    result, _ = virtual.run(*jobs)
    assert result["predicted"]["starts"] == [0, 0]
    # Independent of their load times.
    assert result["measured"]["starts"] == pytest.approx([0, 0])


def test_followers_wait_for_a_late_leader(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    # The first job computes all the time; the second reads faster and leads.
    given = "wait_cached = 0.0"
    jobs = [
        write(
            tmp_path,
            "a",
            data,
            "--compute",
            "0.05",
            "--epochs",
            "2",
            epochs=2,
            stagger=given,
            train="compute_step = 0.05",
        ),
        write(
            tmp_path,
            "b",
            data,
            "--compute",
            "0.01",
            "--wait",
            "0",
            "--epochs",
            "9",
            epochs=9,
            start=1,
            stagger=given,
            train="compute_step = 0.01",
        ),
    ]
    began = virtual.clock.now()
    result, errors = virtual.run(*jobs, "--coalesces", "--read", "0.4 s")
    assert result["leader"] == "b"
    assert "b starts in 1.0 s" in errors
    assert virtual.launcher.jobs["b"].started == pytest.approx(began + 1)
    assert [job["state"] for job in result["jobs"]] == ["done", "done"]


def test_a_follower_with_another_order_causes_a_doubt(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    result, errors = virtual.run(
        write(tmp_path, "a", data), write(tmp_path, "b", data, "--order", "sequential 41")
    )
    (doubt,) = result["doubts"]
    assert "a and b read other data or in another order" in doubt
    assert doubt in errors
    assert [job["state"] for job in result["jobs"]] == ["done", "done"]


@pytest.mark.usefixtures("_no_signal_is_ignored")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_both_jobs_and_reports_their_steps(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, number: int
) -> None:
    jobs = [write(tmp_path, name, data, "--epochs", "50", epochs=50) for name in ("a", "b")]
    virtual.clock.after(3.0, lambda: signal.raise_signal(number))
    result, _ = virtual.run(*jobs, code=130)
    assert result["interrupted"] is True
    assert [job["state"] for job in result["jobs"]] == ["stopped", "stopped"]
    assert 0 < result["jobs"][0]["steps"] < 2000
    assert all(job.code == -15 for job in virtual.launcher.jobs.values())


@pytest.mark.usefixtures("_no_signal_is_ignored")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_during_termination_leave_no_job_running(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, number: int
) -> None:
    def more(job: FakeJob) -> None:
        job.on_stop = lambda: [signal.raise_signal(each) for each in (signal.SIGINT, signal.SIGTERM)]

    virtual.launcher.on_launch = more
    jobs = [write(tmp_path, name, data, "--hangs-after", "30") for name in ("a", "b")]
    virtual.clock.after(4.0, lambda: signal.raise_signal(number))
    result, _ = virtual.run(*jobs, code=130)
    assert [job["state"] for job in result["jobs"]] == ["stopped", "stopped"]
    assert all(job.code == -15 for job in virtual.launcher.jobs.values())


@pytest.mark.parametrize(
    ("more", "options", "expected"),
    [
        ({"command": '["no-such-program"]'}, [], "run.command = 'no-such-program'; a program expected"),
        ({"command": '["true"]', "stagger": "wait = 0.03"}, [], "wait_cached of b is not known"),
        ({}, ["--cache", "0"], "--cache 0.0: a share above 0"),
        ({}, ["--machine", "here"], "--machine 'here': there is no catalog at "),
        ({}, ["--patience", "0"], "--patience 0.0: seconds above 0 expected"),
        ({}, ["--slack", "1"], "--slack 1.0: a share of 0 or more and below 1 expected"),
        ({}, ["--running", "-1"], "--running -1.0: percent of the first job's run expected, 0 to 100"),
        ({}, ["--running", "nan"], "--running nan: percent of the first job's run expected, 0 to 100"),
        ({}, ["--running", "100.5"], "--running 100.5: percent of the first job's run expected, 0 to 100"),
        ({}, ["--running", "5", "--steps", "x"], "--running with --steps: the steps already show"),
        ({}, ["--steps", "nowhere"], "nowhere: no loader has written steps there"),
        ({}, ["--running", "5", "--slurm"], "--slurm with a first job that runs already"),
        ({}, ["--sbatch", "-t 5"], "--sbatch or --slurm-wait without --slurm"),
        ({}, ["--slurm-wait", "hold"], "--sbatch or --slurm-wait without --slurm"),
        ({"name": "other"}, [], "data sets differ"),
        ({"train": "compute_step = 0.02\nseed = 3"}, [], "orders differ"),
        ({}, ["--coalesces"], "--coalesces without --read"),
        ({}, ["--read", "soon"], "--read 'soon': a time above 0"),
    ],
)
def test_invalid_options_are_refused_before_a_job_starts(
    tmp_path: pathlib.Path,
    data: pathlib.Path,
    virtual: Virtual,
    more: dict,
    options: list[str],
    expected: str,
) -> None:
    jobs = [write(tmp_path, "a", data), write(tmp_path, "b", data, **more)]
    _, messages = virtual.run(*jobs, *options, code=2)
    assert expected in messages
    assert not (tmp_path / "run").exists()
    assert not virtual.launcher.jobs


def test_invalid_sbatch_options_are_refused_before_a_job_starts(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    # The options name the launcher.
    virtual.launch_by(None)
    jobs = [write(tmp_path, "a", data), write(tmp_path, "b", data)]
    _, messages = virtual.run(*jobs, "--slurm", "--sbatch", "'", code=2)
    assert "options in shell syntax expected" in messages
    assert not (tmp_path / "run").exists()


def test_a_leader_that_differs_from_its_job_file_is_ended(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [write(tmp_path, "a", data, "--loader-steps", "50"), write(tmp_path, "b", data)]
    _, errors = virtual.run(*jobs, code=2)
    assert "a: its loader has 50 steps per epoch, 40 by its job file" in errors
    assert {name: job.code for name, job in virtual.launcher.jobs.items()} == {"a": -15}


def test_three_jobs_start_in_turn_and_none_catches_up(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    alone, slow = "wait = 0.03\nwait_cached = 0.0", "wait = 0.01\nwait_cached = 0.0"
    words = ["--compute", "0.04", "--wait", "0.01"]
    jobs = [write(tmp_path, name, data, stagger=alone) for name in ("a", "b")]
    jobs.append(write(tmp_path, "c", data, *words, stagger=slow, train="compute_step = 0.04"))
    result, errors = virtual.run(*jobs)
    # All end with the frontier, 40 steps of 50 ms; the job with the longest computation leads.
    assert (result["leader"], result["followers"], result["predicted"]["case"]) == ("c", ["a", "b"], "behind")
    assert result["predicted"]["starts"] == pytest.approx([0, 1.2, 1.2])
    assert result["predicted"]["makespan"] == pytest.approx(2.0)
    assert [job["state"] for job in result["jobs"]] == ["done"] * 3
    assert result["measured"]["starts"] == pytest.approx([0, 1.2, 1.2], abs=1e-3)
    assert result["measured"]["makespan"] == pytest.approx(2.0, abs=1e-3)
    assert len(result["off_percent"]["seconds"]) == 3
    assert result["predicted_at_starts"]["makespan"] > 0
    assert {"a starts at", "b starts at"} <= {line[9:20] for line in errors.splitlines()}


def test_a_near_follower_is_held_and_reported(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    # It slows down when the other job already runs.
    result, _ = virtual.run(
        write(tmp_path, "a", data, "--slow-after", "20", "--slow", "0.15"),
        write(tmp_path, "b", data, "--compute", "0.04", train="compute_step = 0.04"),
    )
    leader, follower = result["jobs"]
    assert follower["holds"] >= 1
    assert follower["held"] > 0.15
    assert leader["holds"] == 0
    # Except in the last steps, in which no job is held, its data were in memory.
    assert virtual.launcher.jobs[follower["name"]].delivered <= 3 * CHUNK
    assert [job["state"] for job in result["jobs"]] == ["done", "done"]
    assert result["hold"] is True


def test_no_job_is_held_if_holding_is_disabled(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    result, _ = virtual.run(
        write(tmp_path, "a", data, "--wait", "0.03", "--slow-after", "28", "--slow", "0.1"),
        write(tmp_path, "b", data),
        "--no-hold",
    )
    assert [job["holds"] for job in result["jobs"]] == [0, 0]
    assert result["hold"] is False


def test_a_terminal_has_one_line_of_progress(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    jobs = [write(tmp_path, "a", data), write(tmp_path, "b", data)]
    out, shown = virtual.command("run", *jobs, "--folder", str(tmp_path / "run"))
    assert re.search(r"a \d+/40 \(\d+ %\), b starts in \d+ s\x1b\[K\r", shown)
    assert "a: done after 40 of 40 steps" in out
    assert re.search(r"^makespan +2\.0 s +2\.0 s +[+-]\d\.\d %$", out, flags=re.MULTILINE)
    assert "by prediction: makespan 2.0 s, GPU-seconds 4.0; only GPU-seconds are to be gained" in out


def test_jobs_with_colliding_file_names_have_separate_folders(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [
        write(tmp_path, stem, data, stagger=f'model = "{name}"\n{FIGURES}')
        for stem, name in (("a", "模型甲"), ("b", "模型乙"))
    ]
    result, _ = virtual.run(*jobs)
    assert [job["steps"] for job in result["jobs"]] == [40, 40]
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"-", "-.log", "--2", "--2.log", "stagger.json"}


def test_a_run_folder_is_not_written_twice(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.log").write_text("")
    _, errors = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data), code=2)
    assert "not empty; a run folder of its own expected" in errors


def test_the_default_run_folder_has_the_date(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    virtual.command("run", write(tmp_path, "a", data), write(tmp_path, "b", data))
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"stagger-2026\d{4}-\d{6}", folder.name)


def test_a_local_follower_is_launched_when_due() -> None:
    launcher = Local()
    assert launcher.should_launch(leader_started=False, due=0.0)
    assert not launcher.should_launch(leader_started=True, due=0.01)
