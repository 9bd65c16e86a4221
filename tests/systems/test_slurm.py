# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run --slurm`` on a real Slurm of one machine."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from support.cold import cold_file
from support.slurm import Slurm

from foresee import jobspec
from foresee.stagger.slurm import Slurm as Launcher

pytestmark = pytest.mark.systems

JOB = pathlib.Path(__file__).resolve().parents[1] / "support" / "stagger_job.py"
STEPS = 40
CHUNK = 1 << 16
TOML = """
version = 1
[data]
name = "sleepy"
[train]
batch = 4
epochs = {epochs}
steps_per_epoch = 40
compute_step = {compute}
[stagger]
wait = {wait}
wait_cached = 0.0
wait_conc = {wait}
[run]
command = {command}
cores = 1
"""


def write(
    folder: pathlib.Path,
    stem: str,
    *words: str,
    compute: float = 0.05,
    wait: float = 0.15,
    epochs: int = 1,
    command: list[str] | None = None,
) -> str:
    data = folder / "chunks.bin"
    if not data.exists():
        cold_file(data, STEPS * CHUNK)
    times = ["--compute", str(compute), "--wait", str(wait), "--epochs", str(epochs)]
    command = command or [sys.executable, str(JOB), str(data), *times, *words]
    path = folder / f"{stem}.toml"
    path.write_text(TOML.format(compute=compute, wait=wait, epochs=epochs, command=json.dumps(command)))
    return str(path)


def begun(folder: pathlib.Path, slurm: Slurm, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "foresee", "stagger", "run", "--slurm", *arguments]
    return subprocess.Popen(
        [*command, "--folder", str(folder / "run"), "--json"],
        env={**os.environ, **slurm.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: pathlib.Path, slurm: Slurm, *arguments: str, code: int = 0) -> tuple[dict, str]:
    with begun(folder, slurm, *arguments) as process:
        out, said = process.communicate(timeout=110)
    assert process.returncode == code, said
    return json.loads(out) if out else {}, said


def left(slurm: Slurm) -> str:
    return slurm.ask("squeue", "-h", "-t", "pending,running")


@pytest.mark.parametrize("way", ["hold", "begin", "dependency"])
def test_the_second_job_starts_when_predicted(tmp_path: pathlib.Path, slurm: Slurm, way: str) -> None:
    jobs = [write(tmp_path, name) for name in ("a", "b")]
    told, said = run(tmp_path, slurm, *jobs, "--slurm-wait", way)
    assert told["slurm"] == way
    assert [job["state"] for job in told["jobs"]] == ["done", "done"], said
    assert told["predicted"]["starts"] == pytest.approx([0, STEPS * 0.15])
    assert abs(told["measured"]["starts"][1] - told["predicted"]["starts"][1]) <= 2
    assert [job["code"] for job in told["jobs"]] == [0, 0]
    assert "this job sleeps" in (tmp_path / "run" / "b.log").read_text()
    assert not left(slurm)


def test_a_short_delay_holds_the_allocation(tmp_path: pathlib.Path, slurm: Slurm) -> None:
    jobs = [write(tmp_path, name) for name in ("a", "b")]
    told, _ = run(tmp_path, slurm, *jobs)
    assert told["slurm"] == "hold"
    # Its process was there long before its first step.
    assert told["jobs"][1]["launched"] < told["jobs"][1]["start"] - 2


def test_another_moment_reaches_the_queue(tmp_path: pathlib.Path, slurm: Slurm) -> None:
    # Far enough away for a follower that is handed over seconds before it has to load, on a machine that is busy.
    slow = write(tmp_path, "a", "--slow-after", "2", "--slow", "0.6", wait=0.3)
    told, _ = run(tmp_path, slurm, slow, write(tmp_path, "b", wait=0.3), "--slurm-wait", "begin")
    assert told["retimed"]
    assert told["measured"]["starts"][1] > told["predicted"]["starts"][1] + 2
    assert abs(told["measured"]["starts"][1] - told["retimed"][-1]["start"]) <= 2
    # Put off in the queue, not only at the gate.
    assert told["jobs"][1]["launched"] > told["predicted"]["starts"][1]


def test_minutes_after_the_leader_are_slurms_own(
    tmp_path: pathlib.Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    launcher = Launcher("dependency")
    one, other = (jobspec.read(write(tmp_path, name, epochs=50)) for name in ("a", "b"))
    leader = launcher.start(one, "a", str(tmp_path), held=False, first=None, due=0)
    follower = launcher.start(other, "b", str(tmp_path), held=True, first=leader, due=400)
    try:
        deadline = time.monotonic() + 30
        while leader.queued and time.monotonic() < deadline:
            assert leader.poll() is None
            time.sleep(0.1)
        assert f"after:{leader.id}+6(" in slurm.ask("scontrol", "show", "job", follower.id)
        launcher.move(follower, 200)
        deadline = time.monotonic() + 30
        while f"after:{leader.id}+3(" not in slurm.ask("scontrol", "show", "job", follower.id):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # The leader's start has been and the minutes have not: it still waits.
        assert follower.poll() is None
        assert follower.queued
    finally:
        for each in (follower, leader):
            each.stop()
    assert not left(slurm)


def test_a_leader_that_fails_lets_the_other_start(tmp_path: pathlib.Path, slurm: Slurm) -> None:
    jobs = [write(tmp_path, "a", "--dies-after", "3"), write(tmp_path, "b")]
    told, said = run(tmp_path, slurm, *jobs, "--slurm-wait", "begin", code=1)
    assert [job["state"] for job in told["jobs"]] == ["failed", "done"]
    assert told["jobs"][0]["code"] == 3
    assert "no more memory" in said
    assert not left(slurm)


def test_an_interrupt_cancels_both(tmp_path: pathlib.Path, slurm: Slurm) -> None:
    jobs = [write(tmp_path, name, epochs=50) for name in ("a", "b")]
    with begun(tmp_path, slurm, *jobs) as process:
        deadline = time.monotonic() + 60
        steps = tmp_path / "run" / "a" / "rank-0.steps"
        while not (steps.exists() and steps.stat().st_size > 200) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    told = json.loads(out)
    assert told["jobs"][0]["state"] == "stopped"
    assert not left(slurm)


def test_what_slurm_refuses_is_said(tmp_path: pathlib.Path, slurm: Slurm) -> None:
    jobs = [write(tmp_path, name) for name in ("a", "b")]
    _, said = run(tmp_path, slurm, *jobs, "--sbatch=--partition=nowhere", code=2)
    assert "sbatch: " in said
    assert "partition" in said


def test_ranks_are_those_that_srun_started_and_a_batch_script_is_none(
    tmp_path: pathlib.Path, slurm: Slurm
) -> None:
    code = (
        "from foresee._runtime.ranks import detect; made = detect(); print(made.rank, made.size, flush=True)"
    )
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\n{sys.executable} -c '{code}'\nsrun -l {sys.executable} -c '{code}'\n")
    told = slurm.ask("sbatch", "--wait", "-n", "2", "-o", str(tmp_path / "out"), str(script))
    assert "Submitted" in told
    first, *others = (tmp_path / "out").read_text().splitlines()
    assert first == "0 1"
    assert sorted(others) == ["0: 0 2", "1: 1 2"]


def test_a_controller_that_does_not_run_is_named(
    tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    jobs = [write(tmp_path, name) for name in ("a", "b")]
    with Slurm(tmp_path_factory.mktemp("down")) as slurm:
        slurm.stop_controller()
        _, said = run(tmp_path, slurm, *jobs, code=3)
    assert "is slurmctld running" in said
    assert not (tmp_path / "run").exists()
