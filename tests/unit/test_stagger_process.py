# SPDX-License-Identifier: Apache-2.0
"""A job's processes: those that it starts in sessions of their own are its own too, while it runs and when it is ended."""

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
from support.processes import processes_of
from support.waiting import wait_until

from foresee import job
from foresee.jobs import process
from foresee.jobs.process import Process

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
#: As a launcher of ranks: one process in a session of its own, which reads a file, ignores SIGTERM and sleeps.
#: argv: the file, and the launcher's exit code; none: it waits for its rank.
LAUNCHER = """
import subprocess, sys, time
rank = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
    "open(sys.argv[1], 'rb').read(); open(sys.argv[1] + '.read', 'w').close(); time.sleep(600)"
started = subprocess.Popen([sys.executable, "-c", rank, sys.argv[1]], start_new_session=True)
while len(sys.argv) > 2:
    try:
        open(sys.argv[1] + ".read").close()
        sys.exit(int(sys.argv[2]))
    except FileNotFoundError:
        time.sleep(0.01)
started.wait()
"""
SIZE = 1 << 20


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file that is not in memory."""
    return cold_file(tmp_path / "data.bin", SIZE)


def started(tmp_path: pathlib.Path, data: pathlib.Path, *words: str) -> Process:
    """A job whose rank has read its file."""
    command = [sys.executable, "-c", LAUNCHER, str(data), *words]
    path = tmp_path / "a.toml"
    path.write_text(TOML.format(command=json.dumps(command)))
    made = Process(job.read(str(path)), "a", str(tmp_path))
    wait_until(pathlib.Path(f"{data}.read").exists, what="a rank that reads")
    return made


def test_ranks_in_sessions_of_their_own_end_with_their_job(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE", 0.5)
    made = started(tmp_path, data)
    made.stop()
    assert made.poll() == -signal.SIGTERM
    assert not processes_of(data)


def test_ranks_end_though_who_started_them_has_failed_before(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE", 0.5)
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


def test_what_ranks_in_sessions_of_their_own_read_counts(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    made = started(tmp_path, data)
    read = made.read_bytes()
    made.stop()
    if read is None:
        pytest.skip("the kernel does not count")
    assert read >= SIZE


def test_stopping_takes_no_longer_than_the_job(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(TOML.format(command='["sleep", "600"]'))
    made = Process(job.read(str(path)), "a", str(tmp_path))
    before = time.monotonic()
    made.stop()
    made.stop()
    assert time.monotonic() - before < 5
    assert made.poll() == -signal.SIGTERM


def test_a_number_that_is_another_ones_by_now_is_not_the_jobs() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as leader:
        table = process._processes()
        first = table[leader.pid].member
        assert process._family(table, first, None) == {first}
        assert not process._family(table, first._replace(began=first.began + 1), None)
        leader.kill()


def test_a_jobs_script_is_told_the_seed_of_its_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(TOML.format(command='["sh", "-c", "echo $FORESEE_SEED $FORESEE_STEPS"]'))
    made = Process(job.read(str(path)), "a", str(tmp_path))
    wait_until(lambda: made.poll() == 0, what="its end")
    assert pathlib.Path(made.log).read_text().split() == ["7", made.folder]
