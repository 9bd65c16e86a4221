# SPDX-License-Identifier: Apache-2.0
"""Processes of a local job, including those that it starts in separate sessions: their reads, and their end."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys

import pytest
from support.processes import processes_of
from support.stagger_runs import JOB
from support.uncached import uncached_file
from support.waiting import wait_until

from foresee import jobspec
from foresee.stagger import local_job
from foresee.stagger.local_job import LocalJob

TOML = """
version = 1
[data]
name = "sleepy"
[train]
batch = 4
epochs = 1
steps_per_epoch = 40
seed = 7
[run]
command = {command}
"""
#: Like a launcher of ranks: it starts a process in a separate session that reads a file, ignores SIGTERM and waits.
#: argv: the file, and the exit code of the launcher; without one it waits for its rank.
LAUNCHER = """
import subprocess, sys
rank = '''
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "rb").read()
open(sys.argv[1] + ".read", "w").close()
print("has read", flush=True)
while True:
    signal.pause()
'''
started = subprocess.Popen(
    [sys.executable, "-c", rank, sys.argv[1]], start_new_session=True, stdout=subprocess.PIPE
)
started.stdout.readline()
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
started.wait()
"""
SIZE = 1 << 20
#: A grace period far above the watchdog of a test.
NEVER = 1e6


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file without a page in memory."""
    return uncached_file(tmp_path / "data.bin", SIZE)


def start_job(tmp_path: pathlib.Path, command: list[str]) -> LocalJob:
    """Start a job."""
    path = tmp_path / "a.toml"
    path.write_text(TOML.format(command=json.dumps(command)))
    return LocalJob(jobspec.read(str(path)), "a", str(tmp_path))


def started(tmp_path: pathlib.Path, data: pathlib.Path, *words: str) -> LocalJob:
    """Start a job, and wait until its rank has read the file."""
    made = start_job(tmp_path, [sys.executable, "-c", LAUNCHER, str(data), *words])
    wait_until(pathlib.Path(f"{data}.read").exists, what="a rank that reads")
    return made


def test_ranks_in_separate_sessions_end_with_their_job(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_job, "_GRACE", 0.5)
    made = started(tmp_path, data)
    made.stop()
    assert made.poll() == -signal.SIGTERM
    assert not processes_of(data)


def test_ranks_end_although_their_launcher_has_failed(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_job, "_GRACE", 0.5)
    made = started(tmp_path, data, "3")
    wait_until(lambda: made.poll() == 3, what="its end")
    assert processes_of(data)
    made.stop()
    assert not processes_of(data)


def test_processes_left_by_a_successful_job_are_not_killed(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    made = started(tmp_path, data, "0")
    wait_until(lambda: made.poll() == 0, what="its end")
    made.stop()
    (left,) = processes_of(data)
    os.kill(int(left), signal.SIGKILL)
    wait_until(lambda: not processes_of(data), what="its end")


def test_reads_of_ranks_in_separate_sessions_are_counted(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_job, "_GRACE", 0.5)
    made = started(tmp_path, data)
    read = made.read_bytes()
    made.stop()
    # None if the kernel does not count reads.
    assert read is None or read >= SIZE


def test_a_job_that_ignores_the_signal_is_killed(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_job, "_GRACE", 0.5)
    made = start_job(
        tmp_path, [sys.executable, str(JOB), str(data), "--ignore-sigterm", "--hangs-after", "1"]
    )

    def has_taken_a_step() -> bool:
        assert made.poll() is None
        return made.done >= 1

    wait_until(has_taken_a_step, what="its first step")
    made.stop()
    made.stop()
    assert made.poll() == -signal.SIGKILL
    assert not processes_of(data)


def test_a_job_that_obeys_the_signal_ends_the_grace_period(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_job, "_GRACE", NEVER)
    made = start_job(tmp_path, ["sleep", "600"])
    made.stop()
    made.stop()
    assert made.poll() == -signal.SIGTERM


def test_a_script_gets_the_seed_of_its_job_file(tmp_path: pathlib.Path) -> None:
    made = start_job(tmp_path, ["sh", "-c", "echo $FORESEE_SEED $FORESEE_STEPS"])
    wait_until(lambda: made.poll() == 0, what="its end")
    assert pathlib.Path(made.log).read_text().split() == ["7", made.folder]


def test_a_held_job_begins_no_step_until_its_release(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    path = tmp_path / "a.toml"
    command = [sys.executable, str(JOB), str(data), "--compute", "0", "--wait", "0", "--steps", "16"]
    path.write_text(TOML.format(command=json.dumps(command)))
    made = LocalJob(jobspec.read(str(path)), "a", str(tmp_path), held=True)

    def has_loaded() -> bool:
        assert made.poll() is None
        return made.head is not None

    wait_until(has_loaded, what="its loader")
    assert (made.poll(), made.done) == (None, 0)
    made.release()
    wait_until(lambda: made.poll() == 0, what="its end")
    assert made.done == 16


def test_a_program_that_the_kernel_cannot_run_leaves_no_open_gate(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train"
    script.write_text("no first line says who runs this")
    script.chmod(0o755)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Exec format error"):
        start_job(tmp_path, [str(script)])
    assert set(os.listdir("/proc/self/fd")) == before
