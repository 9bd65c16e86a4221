# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run``: real processes that start when predicted, dawdle, are held, and are interrupted."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from house import ROOT
from support.processes import processes_of
from support.stagger_runs import FIGURES, JOB, begun, cold_data, run, write

from foresee.cli import _stagger_run
from foresee.jobs import Catalog, Entry, Key
from foresee.jobs.entry import Used


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    return cold_data(tmp_path)


def test_the_second_job_starts_when_predicted_and_both_are_compared(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    told, said = run(tmp_path, write(tmp_path, "a", data), write(tmp_path, "b", data))
    assert (told["leader"], told["followers"], told["predicted"]["case"]) == ("a", ["b"], "cached")
    # Company costs nothing by these figures: 40 steps of 50 ms each.
    assert told["predicted"]["at_once"] == pytest.approx({"makespan": 2.0, "gpu_seconds": 4.0})
    assert told["predicted"]["starts"] == pytest.approx([0, 40 * 0.03])
    assert told["predicted"]["makespan"] == pytest.approx(40 * 0.05)
    assert [job["state"] for job in told["jobs"]] == ["done", "done"]
    assert [job["steps"] for job in told["jobs"]] == [40, 40]
    # However slow the machine is: not before what the leader's own rate says.
    assert told["measured"]["starts"][1] >= 40 * 0.03 * 0.95
    assert told["measured"]["makespan"] >= 40 * 0.05
    assert told["measured"]["gpu_seconds"] == pytest.approx(sum(told["measured"]["seconds"]))
    assert told["jobs"][1]["wait"] < told["jobs"][0]["wait"]
    assert told["stands"] is None
    assert told == json.loads((tmp_path / "run" / "stagger.json").read_text())
    assert "this job sleeps" in (tmp_path / "run" / "a.log").read_text()
    assert "b starts at" in said
    assert not processes_of(data)
    page = (ROOT / "docs/formats/stagger.md").read_text()
    keys = {*told, *told["predicted"], *told["measured"], *told["jobs"][0]}
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_a_leader_slower_than_predicted_moves_the_start(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    slow = write(tmp_path, "a", data, "--wait", "0.1")
    late = write(tmp_path, "b", data, start=0.2)
    told, said = run(tmp_path, slow, late)
    assert told["leader"] == "a"
    assert told["retimed"]
    assert told["retimed"][-1]["job"] == "b"
    assert told["retimed"][-1]["start"] > told["predicted"]["starts"][1]
    assert told["measured"]["starts"][1] > 1.5 * told["predicted"]["starts"][1]
    assert "a is not as predicted: b starts at" in said


def test_jobs_whose_best_start_is_at_once_are_let_go_together(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    quick = "wait = 0.0\nwait_cached = 0.0\nwait_conc = 0.0"
    told, _ = run(
        tmp_path, *(write(tmp_path, name, data, "--wait", "0", stagger=quick) for name in ("a", "b"))
    )
    assert told["predicted"]["starts"] == [0, 0]
    assert abs(told["measured"]["starts"][1]) < 0.5


def test_a_follower_in_another_order_runs_with_a_doubt(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    told, said = run(
        tmp_path, write(tmp_path, "a", data), write(tmp_path, "b", data, "--order", "sequential 41")
    )
    (doubt,) = told["doubts"]
    assert "a and b read other data or in another order" in doubt
    assert doubt in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_both_and_says_what_was_done(
    tmp_path: pathlib.Path, data: pathlib.Path, number: int
) -> None:
    jobs = [write(tmp_path, name, data, "--epochs", "50", epochs=50) for name in ("a", "b")]
    with begun(tmp_path, *jobs) as process:
        deadline = time.monotonic() + 30
        steps = tmp_path / "run" / "a" / "rank-0.steps"
        while not (steps.exists() and steps.stat().st_size > 300) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    told = json.loads(out)
    assert told["interrupted"] is True
    assert told["jobs"][0]["state"] == "stopped"
    assert 0 < told["jobs"][0]["steps"] < 2000
    assert told["jobs"][1]["state"] in {"stopped", "not started"}
    assert not processes_of(data)


def figures(path: pathlib.Path, seconds: float) -> list[Key]:
    """A catalog in which both jobs compute and wait for as long."""
    keys = [Key(machine="here", data="sleepy", model=name, batch=4, loader="default") for name in ("a", "b")]
    with Catalog.open(path, write=True) as catalog:
        for key, beside in zip(keys, reversed(keys), strict=True):
            for name in ("compute", "wait", "wait_cached", "wait_conc"):
                value = 0.0 if name == "wait_cached" else seconds
                entry = Entry(seconds=value, steps=9, date=dt.date(2026, 11, 22), program="0")
                catalog.put(key, name, entry, beside=beside if name == "wait_conc" else None)
    return keys


def test_figures_that_reality_contradicts_are_marked_stale(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    path = tmp_path / "jobs.db"
    one, other = figures(path, 1.0)
    jobs = [write(tmp_path, name, data, train="", stagger="") for name in ("a", "b")]
    told, said = run(tmp_path, *jobs, "--catalog", str(path), "--machine", "here")
    assert told["stands"] is False
    assert told["predicted"]["makespan"] == pytest.approx(80)
    assert "marked stale" in said
    with Catalog.open(path) as catalog:
        assert set(catalog.stale(one, beside=other)) == {"compute", "wait", "wait_cached", "wait_conc"}


def test_figures_that_the_job_file_gave_condemn_nobody_else(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    path = tmp_path / "jobs.db"
    one, other = figures(path, 1.0)
    # Of the catalog only company is used.
    wrong = "wait = 1.0\nwait_cached = 1.0"
    jobs = [write(tmp_path, name, data, train="compute_step = 1.0", stagger=wrong) for name in ("a", "b")]
    told, said = run(tmp_path, *jobs, "--catalog", str(path), "--machine", "here")
    assert told["stands"] is False
    assert "marked stale" in said
    with Catalog.open(path) as catalog:
        assert set(catalog.stale(one, beside=other)) == {"wait_conc"}


def test_figures_of_the_job_file_alone_are_not_judged(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    path = tmp_path / "jobs.db"
    one, other = figures(path, 0.03)
    wrong = "wait = 1.0\nwait_cached = 1.0\nwait_conc = 1.0"
    jobs = [write(tmp_path, name, data, train="compute_step = 1.0", stagger=wrong) for name in ("a", "b")]
    told, _ = run(tmp_path, *jobs, "--catalog", str(path), "--machine", "here")
    assert told["predicted"]["makespan"] == pytest.approx(80)
    assert told["stands"] is None
    with Catalog.open(path) as catalog:
        assert not catalog.stale(one, beside=other)


def test_a_second_run_that_finds_its_data_in_memory_marks_nothing(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    path = tmp_path / "jobs.db"
    one, other = figures(path, 1.0)
    with Catalog.open(path, write=True) as catalog:
        catalog.put_places("here", "sleepy", [str(data)])
    data.read_bytes()
    jobs = [write(tmp_path, name, data, train="", stagger="") for name in ("a", "b")]
    told, said = run(tmp_path, *jobs, "--catalog", str(path), "--machine", "here")
    (doubt,) = told["doubts"]
    assert doubt.startswith("100 % of the data are in memory already")
    assert doubt in said
    assert told["stands"] is None
    with Catalog.open(path) as catalog:
        assert not catalog.stale(one, beside=other)


def judged(**more: object) -> argparse.Namespace:
    return argparse.Namespace(**{"slurm": False, "running": None, "steps": None, **more})


def test_figures_within_ten_percent_stand(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"
    one, other = figures(path, 1.0)
    monkeypatch.setattr(_stagger_run, "_read_nothing", lambda places: False)
    used = [Used(one, "wait"), Used(other, "wait")]
    options = judged(catalog=str(path))
    told = {"measured": {"makespan": 100.0}, "predicted_at_starts": {"makespan": 92.0}, "doubts": []}
    assert _stagger_run._judged(options, used, [], told) is True
    # What was not about these jobs, or did not end, says nothing.
    assert _stagger_run._judged(options, used, [], {**told, "doubts": ["another order"]}) is None
    assert _stagger_run._judged(options, used, [], {**told, "measured": None}) is None
    assert _stagger_run._judged(options, used, [], {**told, "predicted_at_starts": None}) is None
    with Catalog.open(path) as catalog:
        assert not catalog.stale(one, beside=other)


def test_jobs_that_had_the_storage_read_nothing_judge_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    one, other = figures(path, 1.0)
    used = [Used(one, "wait"), Used(other, "wait")]
    far = {"measured": {"makespan": 100.0}, "predicted_at_starts": {"makespan": 50.0}, "doubts": []}
    chunks = tmp_path / "chunks.bin"
    chunks.write_bytes(bytes(40 * 512))

    def read(blocks: int) -> None:
        monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_inblock=blocks))

    read(0)
    assert _stagger_run._judged(judged(catalog=str(path)), used, [], far) is None
    read(2)
    assert _stagger_run._judged(judged(catalog=str(path)), used, [str(chunks)], far) is None
    with Catalog.open(path) as catalog:
        assert not catalog.stale(one, beside=other)
    # Jobs elsewhere read where nobody counts.
    read(0)
    assert _stagger_run._judged(judged(catalog=str(path), slurm=True), used, [], far) is False
    read(3)
    assert _stagger_run._judged(judged(catalog=str(path)), used, [str(chunks)], far) is False


@pytest.mark.parametrize(
    ("more", "options", "said"),
    [
        ({"command": '["no-such-program"]'}, [], "run.command = 'no-such-program'; a program expected"),
        ({"command": '["true"]', "stagger": "wait = 0.03"}, [], "wait_cached of b is not known"),
        ({}, ["--cache", "0"], "--cache 0.0: a share above 0"),
        ({}, ["--machine", "here"], "--machine 'here': there is no catalog at "),
        ({}, ["--patience", "0"], "--patience 0.0: seconds above 0 expected"),
        ({}, ["--slack", "1"], "--slack 1.0: a share of 0 or more and below 1 expected"),
        ({}, ["--running", "-1"], "--running -1.0: percent expected, 0 or more"),
        ({}, ["--running", "nan"], "--running nan: percent expected, 0 or more"),
        ({}, ["--running", "5", "--steps", "x"], "--running with --steps: the steps say how far"),
        ({}, ["--steps", "nowhere"], "nowhere: no loader has written steps there"),
        ({}, ["--running", "5", "--slurm"], "--slurm with a first job that runs already"),
        ({}, ["--sbatch", "-t 5"], "--sbatch or --slurm-wait without --slurm"),
        ({}, ["--slurm-wait", "hold"], "--sbatch or --slurm-wait without --slurm"),
        ({}, ["--slurm", "--sbatch", "'"], "options as a shell has them expected"),
        ({"name": "other"}, [], "data sets differ"),
        ({"train": "compute_step = 0.02\nseed = 3"}, [], "orders differ"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_starts(
    tmp_path: pathlib.Path, data: pathlib.Path, more: dict, options: list[str], said: str
) -> None:
    jobs = [write(tmp_path, "a", data), write(tmp_path, "b", data, **more)]
    _, heard = run(tmp_path, *jobs, *options, code=2)
    assert said in heard
    assert not (tmp_path / "run").exists()


def test_a_leader_that_is_not_its_job_file_is_ended(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    jobs = [write(tmp_path, "a", data, "--loader-steps", "50"), write(tmp_path, "b", data)]
    _, said = run(tmp_path, *jobs, code=2)
    assert "a: its loader has 50 steps per epoch, 40 by its job file" in said
    assert not processes_of(data)


def test_three_jobs_start_in_turn_and_nobody_catches_up(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    slow = "wait = 0.01\nwait_cached = 0.0"
    jobs = [
        write(tmp_path, "a", data, stagger="wait = 0.03\nwait_cached = 0.0"),
        write(tmp_path, "b", data, stagger="wait = 0.03\nwait_cached = 0.0"),
        write(
            tmp_path,
            "c",
            data,
            "--compute",
            "0.04",
            "--wait",
            "0.01",
            stagger=slow,
            train="compute_step = 0.04",
        ),
    ]
    told, said = run(tmp_path, *jobs)
    # All end with the frontier, 40 steps of 50 ms; who computes for longest leads.
    assert (told["leader"], told["followers"], told["predicted"]["case"]) == ("c", ["a", "b"], "behind")
    assert told["predicted"]["starts"] == pytest.approx([0, 1.2, 1.2])
    assert told["predicted"]["makespan"] == pytest.approx(2.0)
    assert [job["state"] for job in told["jobs"]] == ["done"] * 3
    assert all(start >= 1.2 * 0.95 for start in told["measured"]["starts"][1:])
    assert len(told["off_percent"]["seconds"]) == 3
    assert told["predicted_at_starts"]["makespan"] > 0
    assert {"a starts at", "b starts at"} <= {line[9:20] for line in said.splitlines()}


@pytest.fixture
def running(tmp_path: pathlib.Path, data: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """A job that somebody else has started: its file, and its folder of steps."""
    steps = tmp_path / "elsewhere" / "a"
    command = [sys.executable, str(JOB), str(data), "--compute", "0.02", "--wait", "0.03"]
    with subprocess.Popen(command, env={**os.environ, "FORESEE_STEPS": str(steps)}) as process:
        deadline = time.monotonic() + 30
        while not (steps / "rank-0.steps").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield write(tmp_path, "a", data), steps
        process.wait(30)


def test_a_job_beside_one_that_runs_follows_its_steps(
    tmp_path: pathlib.Path, data: pathlib.Path, running: tuple[str, pathlib.Path]
) -> None:
    told, said = run(tmp_path, running[0], write(tmp_path, "b", data), "--steps", str(running[1]))
    assert (told["leader"], told["followers"]) == ("a", ["b"])
    assert told["running_seconds"] >= 0
    assert [job["state"] for job in told["jobs"]] == ["done", "done"]
    assert [job["steps"] for job in told["jobs"]] == [40, 40]
    assert told["jobs"][0]["launched"] is None
    assert told["measured"]["starts"][1] >= 40 * 0.03 * 0.95
    assert "a runs already, b" in said


def test_a_job_beside_one_whose_steps_nobody_sees(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    told, _ = run(tmp_path, write(tmp_path, "a", data), write(tmp_path, "b", data), "--running", "40")
    assert told["running_seconds"] == pytest.approx(0.8)
    assert told["predicted"]["starts"] == pytest.approx([0, 1.2])
    assert [job["state"] for job in told["jobs"]] == ["running", "done"]
    assert told["measured"] is None
    assert told["jobs"][1]["start"] >= 1.2 * 0.95


def test_a_job_that_comes_near_is_held_and_that_is_told(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    # It slows down when the other one runs already.
    told, _ = run(
        tmp_path,
        write(tmp_path, "a", data, "--slow-after", "20", "--slow", "0.15"),
        write(tmp_path, "b", data, "--compute", "0.04", train="compute_step = 0.04"),
    )
    # A launcher that gets no core for many steps may let it pass; then the other one comes near to it, and is held too.
    _, follower = told["jobs"]
    assert follower["holds"] >= 1
    assert follower["held"] > 0
    assert [job["state"] for job in told["jobs"]] == ["done", "done"]
    assert told["hold"] is True


def test_nobody_is_held_who_is_not_to_be(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    told, _ = run(
        tmp_path,
        write(tmp_path, "a", data, "--wait", "0.03", "--slow-after", "28", "--slow", "0.1"),
        write(tmp_path, "b", data),
        "--no-hold",
    )
    assert [job["holds"] for job in told["jobs"]] == [0, 0]
    assert told["hold"] is False


def test_a_terminal_has_one_line_of_progress(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    master, slave = os.openpty()
    jobs = [write(tmp_path, "a", data), write(tmp_path, "b", data)]
    command = [sys.executable, "-m", "foresee", "stagger", "run", *jobs, "--folder", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, text=True) as process:
        out, _ = process.communicate(timeout=60)
    os.close(slave)
    shown = os.read(master, 1 << 16).decode()
    os.close(master)
    assert process.returncode == 0
    assert re.search(r"a \d+/40 \(\d+ %\), b starts in \d+ s\x1b\[K\r", shown)
    assert "a: done after 40 of 40 steps" in out
    assert re.search(r"^makespan +2\.0 s +\d+\.\d s +[+-]\d+\.\d %$", out, flags=re.MULTILINE)
    assert "by prediction: makespan 2.0 s, GPU-seconds 4.0; only GPU-seconds are to be gained" in out


def test_jobs_whose_names_are_one_as_files_have_folders_of_their_own(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    jobs = [
        write(tmp_path, stem, data, stagger=f'model = "{name}"\n{FIGURES}')
        for stem, name in (("a", "模型甲"), ("b", "模型乙"))
    ]
    told, _ = run(tmp_path, *jobs)
    assert [job["steps"] for job in told["jobs"]] == [40, 40]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "-",
        "-.log",
        "--2",
        "--2.log",
        "stagger.json",
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_while_jobs_are_ended_leave_nobody_behind(
    tmp_path: pathlib.Path, data: pathlib.Path, number: signal.Signals
) -> None:
    jobs = [write(tmp_path, name, data, "--deaf", "--hangs-after", "2") for name in ("a", "b")]
    with begun(tmp_path, *jobs) as process:
        while len(list((tmp_path / "run").glob("*/rank-0.steps"))) < 1:
            time.sleep(0.05)
        process.send_signal(number)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not processes_of(data)


def test_a_report_is_written_though_the_catalog_has_gone(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    catalog = tmp_path / "jobs.db"
    figures(catalog, 0.03)
    jobs = [write(tmp_path, name, data, train="", stagger="") for name in ("a", "b")]
    with begun(tmp_path, *jobs, "--catalog", str(catalog), "--machine", "here") as process:
        while not (tmp_path / "run" / "a" / "rank-0.steps").exists():
            time.sleep(0.05)
        catalog.write_bytes(b"no catalog any more, and long enough to be looked at as one")
        out, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "the catalog is not told: " in said
    assert json.loads(out)["stands"] is None
    assert (tmp_path / "run" / "stagger.json").exists()


def test_a_run_folder_is_not_written_twice(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.log").write_text("")
    _, said = run(tmp_path, write(tmp_path, "a", data), write(tmp_path, "b", data), code=2)
    assert "not empty; a run folder of its own expected" in said
