# SPDX-License-Identifier: Apache-2.0
"""A job's processes: those that it starts in sessions of their own are its own too, while it runs and when it is ended."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys

import pytest
from support.cold import cold_file
from support.processes import processes_of
from support.stagger_runs import JOB
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
#: As a launcher of ranks: one process in a session of its own, which reads a file, ignores SIGTERM and waits.
#: argv: the file, and the launcher's exit code; none: it waits for its rank.
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
#: Far longer than the watchdog of a test: who waits for it does not end.
NEVER = 1e6


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file that is not in memory."""
    return cold_file(tmp_path / "data.bin", SIZE)


def process_of(tmp_path: pathlib.Path, command: list[str]) -> LocalJob:
    """A job that was started."""
    path = tmp_path / "a.toml"
    path.write_text(TOML.format(command=json.dumps(command)))
    return LocalJob(jobspec.read(str(path)), "a", str(tmp_path))


def started(tmp_path: pathlib.Path, data: pathlib.Path, *words: str) -> LocalJob:
    """A job whose rank has read its file."""
    made = process_of(tmp_path, [sys.executable, "-c", LAUNCHER, str(data), *words])
    wait_until(pathlib.Path(f"{data}.read").exists, what="a rank that reads")
    return made


def test_ranks_in_sessions_of_their_own_end_with_their_job(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_job, "_GRACE", 0.5)
    made = started(tmp_path, data)
    made.stop()
    assert made.poll() == -signal.SIGTERM
    assert not processes_of(data)


def test_ranks_end_though_who_started_them_has_failed_before(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_job, "_GRACE", 0.5)
    made = started(tmp_path, data, "3")
    wait_until(lambda: made.poll() == 3, what="its end")
    assert processes_of(data)
    made.stop()
    assert not processes_of(data)


def test_what_a_job_that_has_done_well_leaves_behind_is_left_alone(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    made = started(tmp_path, data, "0")
    wait_until(lambda: made.poll() == 0, what="its end")
    made.stop()
    (left,) = processes_of(data)
    os.kill(int(left), signal.SIGKILL)
    wait_until(lambda: not processes_of(data), what="its end")


def test_what_ranks_in_sessions_of_their_own_read_counts(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_job, "_GRACE", 0.5)
    made = started(tmp_path, data)
    read = made.read_bytes()
    made.stop()
    # None where the kernel does not count.
    assert read is None or read >= SIZE


def test_a_job_that_ignores_the_signal_is_killed(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_job, "_GRACE", 0.5)
    made = process_of(tmp_path, [sys.executable, str(JOB), str(data), "--deaf", "--hangs-after", "1"])

    def has_taken_a_step() -> bool:
        assert made.poll() is None
        return made.done >= 1

    wait_until(has_taken_a_step, what="its first step")
    made.stop()
    made.stop()
    assert made.poll() == -signal.SIGKILL
    assert not processes_of(data)


def test_a_job_that_ends_when_it_is_told_to_is_not_waited_for_any_longer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_job, "_GRACE", NEVER)
    made = process_of(tmp_path, ["sleep", "600"])
    made.stop()
    made.stop()
    assert made.poll() == -signal.SIGTERM


def test_a_jobs_script_is_told_the_seed_of_its_file(tmp_path: pathlib.Path) -> None:
    made = process_of(tmp_path, ["sh", "-c", "echo $FORESEE_SEED $FORESEE_STEPS"])
    wait_until(lambda: made.poll() == 0, what="its end")
    assert pathlib.Path(made.log).read_text().split() == ["7", made.folder]


def test_a_job_that_is_held_begins_no_step_until_it_is_let_go(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
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


def test_a_program_that_the_kernel_cannot_run_leaves_no_gate_behind(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train"
    script.write_text("no first line says who runs this")
    script.chmod(0o755)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Exec format error"):
        process_of(tmp_path, [str(script)])
    assert set(os.listdir("/proc/self/fd")) == before
