# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run --slurm`` on a real Slurm of one host."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from support.slurm import Slurm
from support.uncached import uncached_file

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
        uncached_file(data, STEPS * CHUNK)
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
        out, messages = process.communicate(timeout=110)
    assert process.returncode == code, messages
    return json.loads(out) if out else {}, messages


def queue(slurm: Slurm) -> str:
    return slurm.run("squeue", "-h", "-t", "pending,running")


@pytest.mark.parametrize("method", ["hold", "begin", "dependency"])
def test_the_second_job_starts_when_predicted(tmp_path: pathlib.Path, slurm: Slurm, method: str) -> None:
    jobs = [write(tmp_path, name) for name in ("a", "b")]
    result, messages = run(tmp_path, slurm, *jobs, "--slurm-wait", method)
    assert result["slurm"] == method
    assert [job["state"] for job in result["jobs"]] == ["done", "done"], messages
    assert result["predicted"]["starts"] == pytest.approx([0, STEPS * 0.15])
    assert abs(result["measured"]["starts"][1] - result["predicted"]["starts"][1]) <= 2
    assert [job["code"] for job in result["jobs"]] == [0, 0]
    assert "this job sleeps" in (tmp_path / "run" / "b.log").read_text()
    assert not queue(slurm)


def test_a_short_delay_holds_the_allocation(tmp_path: pathlib.Path, slurm: Slurm) -> None:
    jobs = [write(tmp_path, name) for name in ("a", "b")]
    result, _ = run(tmp_path, slurm, *jobs)
    assert result["slurm"] == "hold"
    # Its process existed long before its first step.
    assert result["jobs"][1]["launched"] < result["jobs"][1]["start"] - 2


def test_a_changed_start_time_reaches_the_queue(tmp_path: pathlib.Path, slurm: Slurm) -> None:
    # Late enough for a follower that is submitted seconds before it has to load, even on a busy host.
    slow = write(tmp_path, "a", "--slow-after", "2", "--slow", "0.6", wait=0.3)
    result, _ = run(tmp_path, slurm, slow, write(tmp_path, "b", wait=0.3), "--slurm-wait", "begin")
    assert result["retimed"]
    assert result["measured"]["starts"][1] > result["predicted"]["starts"][1] + 2
    assert abs(result["measured"]["starts"][1] - result["retimed"][-1]["start"]) <= 2
    # Delayed in the queue, not only at the gate.
    assert result["jobs"][1]["launched"] > result["predicted"]["starts"][1]


def test_a_delay_in_minutes_after_the_leader_is_a_slurm_dependency(
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
        assert f"after:{leader.id}+6(" in slurm.run("scontrol", "show", "job", follower.id)
        launcher.move(follower, 200)
        deadline = time.monotonic() + 30
        while f"after:{leader.id}+3(" not in slurm.run("scontrol", "show", "job", follower.id):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # The leader has started and the minutes have not passed: it still waits.
        assert follower.poll() is None
        assert follower.queued
    finally:
        for each in (follower, leader):
            each.stop()
    assert not queue(slurm)


def test_the_follower_starts_after_a_failed_leader(tmp_path: pathlib.Path, slurm: Slurm) -> None:
    jobs = [write(tmp_path, "a", "--dies-after", "3"), write(tmp_path, "b")]
    result, messages = run(tmp_path, slurm, *jobs, "--slurm-wait", "begin", code=1)
    assert [job["state"] for job in result["jobs"]] == ["failed", "done"]
    assert result["jobs"][0]["code"] == 3
    assert "no more memory" in messages
    assert not queue(slurm)


def test_an_interrupt_cancels_both_jobs(tmp_path: pathlib.Path, slurm: Slurm) -> None:
    jobs = [write(tmp_path, name, epochs=50) for name in ("a", "b")]
    with begun(tmp_path, slurm, *jobs) as process:
        deadline = time.monotonic() + 60
        steps = tmp_path / "run" / "a" / "rank-0.steps"
        while not (steps.exists() and steps.stat().st_size > 200) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    result = json.loads(out)
    assert result["jobs"][0]["state"] == "stopped"
    assert not queue(slurm)


def test_a_refusal_of_slurm_is_reported(tmp_path: pathlib.Path, slurm: Slurm) -> None:
    jobs = [write(tmp_path, name) for name in ("a", "b")]
    _, messages = run(tmp_path, slurm, *jobs, "--sbatch=--partition=nowhere", code=2)
    assert "sbatch: " in messages
    assert "partition" in messages


def test_ranks_are_the_tasks_of_srun_and_not_the_batch_script(tmp_path: pathlib.Path, slurm: Slurm) -> None:
    code = (
        "from foresee._runtime.ranks import detect; made = detect(); print(made.rank, made.size, flush=True)"
    )
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\n{sys.executable} -c '{code}'\nsrun -l {sys.executable} -c '{code}'\n")
    result = slurm.run("sbatch", "--wait", "-n", "2", "-o", str(tmp_path / "out"), str(script))
    assert "Submitted" in result
    first, *others = (tmp_path / "out").read_text().splitlines()
    assert first == "0 1"
    assert sorted(others) == ["0: 0 2", "1: 1 2"]


def test_a_stopped_controller_is_named(
    tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    jobs = [write(tmp_path, name) for name in ("a", "b")]
    with Slurm(tmp_path_factory.mktemp("down")) as slurm:
        slurm.stop_controller()
        _, messages = run(tmp_path, slurm, *jobs, code=3)
    assert "is slurmctld running" in messages
    assert not (tmp_path / "run").exists()
