# SPDX-License-Identifier: Apache-2.0
"""What Slurm is asked, and how its answers are read: a fake of its commands, after sbatch(1) and scontrol(1).

The real Slurm is in ``tests/systems/test_slurm.py``.
"""

from __future__ import annotations

import doctest
import json
import math
import os
import pathlib
import threading
import time

import pytest

from foresee import job
from foresee._steps import Meter
from foresee._world import World
from foresee.errors import ConfigError, SlurmUnreachable
from foresee.jobs import slurm
from foresee.jobs.slurm import Slurm, SlurmJob, submission

TOML = """
version = 1
[data]
name = "sleepy"
[train]
batch = 4
epochs = 1
steps_per_epoch = 40
[run]
command = "true --lr '0.1 2'"
cores = 3
gpus = 2
"""
#: Writes down how it is called, and answers from a file of its name.
FAKE = """#!/bin/sh
printf '%s\\n' "$0 $*" >> {folder}/asked
if [ -f {folder}/$(basename $0).fails ]; then cat {folder}/$(basename $0).fails >&2; exit 1; fi
cat {folder}/$(basename $0).$1 2>/dev/null || cat {folder}/$(basename $0).says
"""


@pytest.fixture
def fake(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder with the fake's answers."""
    folder = tmp_path / "fake"
    folder.mkdir()
    for name in ("sbatch", "scontrol", "scancel"):
        program = folder / name
        program.write_text(FAKE.format(folder=folder))
        program.chmod(0o755)
        (folder / f"{name}.says").write_text("")
    (folder / "sbatch.says").write_text("17;here\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def asked(tmp_path: pathlib.Path) -> job.Job:
    path = tmp_path / "a.toml"
    path.write_text(TOML)
    return job.read(str(path))


def calls(fake: pathlib.Path) -> list[str]:
    return [line.removeprefix(f"{fake}/") for line in (fake / "asked").read_text().splitlines()]


def heard(made: SlurmJob) -> int | None:
    """What it says of itself once the controller has answered all that it was asked."""
    code = made.poll()
    while made._asking is not None or made._moving is not None:
        time.sleep(0.01)
        code = made.poll()
    return code


def moved(launcher: Slurm, made: SlurmJob, due: float) -> None:
    """Asked for another moment, and answered."""
    launcher.move(made, due)
    if made._moving is not None:
        made._moving[0]._thread.join()


def test_the_examples_in_the_docstrings_are_true() -> None:
    assert not doctest.testmod(slurm).failed


def test_a_submission_names_all_that_the_job_needs(asked: job.Job) -> None:
    words = submission(
        ["true", "--lr", "0.1 2"],
        asked,
        "a",
        "/data/jobs",
        "/runs/a.log",
        begin=7.9,
        depends="after:17+2",
        options=["--partition=p"],
    )
    assert words == [
        "sbatch",
        "--parsable",
        "--job-name=a",
        "--chdir=/data/jobs",
        "--output=/runs/a.log",
        "--open-mode=append",
        "--export=ALL",
        "--cpus-per-task=3",
        "--gpus=2",
        "--begin=now+7",
        "--dependency=after:17+2",
        "--partition=p",
        "--wrap=exec true --lr '0.1 2'",
    ]


@pytest.mark.parametrize(
    ("way", "longest", "due", "expected"),
    [
        ("auto", 60.0, 50.0, "--dependency=after:17 "),
        ("auto", 61.0, 50.0, "--begin=now+47 "),
        ("hold", 500.0, 400.0, "--dependency=after:17 "),
        ("begin", 5.0, 5.0, "--begin=now+2 "),
        ("dependency", 500.0, 400.0, "--dependency=after:17+6 "),
        ("dependency", 500.0, 62.0, "--dependency=after:17 "),
    ],
)
def test_a_follower_waits_as_asked(
    tmp_path: pathlib.Path,
    fake: pathlib.Path,
    asked: job.Job,
    way: slurm.Way,
    longest: float,
    due: float,
    expected: str,
) -> None:
    launcher = Slurm(way, longest=longest)
    leader = launcher.start(asked, "a", str(tmp_path), held=False, first=None, due=0)
    assert leader.id == "17"
    launcher.start(asked, "b", str(tmp_path), held=True, first=leader, due=due)
    ping, first, second = calls(fake)
    assert ping == "scontrol ping"
    assert "--begin" not in first
    assert "--dependency" not in first
    assert expected in second
    assert launcher.wants(begun=True, due=due)
    assert launcher.wants(begun=False, due=due) == (launcher.way != "begin")


def test_a_moment_that_moves_is_told_once(tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job) -> None:
    launcher = Slurm("begin")
    leader = launcher.start(asked, "a", str(tmp_path), held=False, first=None, due=0)
    other = launcher.start(asked, "b", str(tmp_path), held=True, first=leader, due=50)
    for due in (50, 49, 90, 90, 89):
        moved(launcher, other, due)
    assert calls(fake)[3:] == ["scontrol update JobId=17 StartTime=now+87"]
    other.queued = False
    launcher.move(other, 200)
    assert len(calls(fake)) == 4


def test_whole_minutes_move_once_the_leader_has_begun(
    tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job
) -> None:
    launcher = Slurm("dependency")
    leader = launcher.start(asked, "a", str(tmp_path), held=False, first=None, due=0)
    other = launcher.start(asked, "b", str(tmp_path), held=True, first=leader, due=130)
    launcher.move(other, 400)
    assert len(calls(fake)) == 3
    leader.queued, leader.started = False, time.monotonic()
    moved(launcher, other, 400)
    assert calls(fake)[3:] == ["scontrol update JobId=17 Dependency=after:17+6"]


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ("JobState=PENDING ExitCode=0:0", None),
        ("JobState=RUNNING ExitCode=0:0", None),
        ("JobState=COMPLETING ExitCode=0:0", None),
        ("JobState=COMPLETED ExitCode=0:0", 0),
        ("JobState=FAILED ExitCode=3:0", 3),
        ("JobState=CANCELLED ExitCode=0:15", -15),
        ("JobState=TIMEOUT ExitCode=0:0", 1),
        ("JobState=NODE_FAIL ExitCode=1:0", 1),
    ],
)
def test_how_a_job_is_doing(
    tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job, told: str, code: int | None
) -> None:
    (fake / "scontrol.--oneliner").write_text(f"JobId=17 JobName=a {told} Reason=None")
    made = SlurmJob(asked, "a", str(tmp_path))
    assert heard(made) == code
    assert made.queued == ("PENDING" in told)
    assert "scontrol --oneliner show job 17" in calls(fake)


def test_a_job_runs_since_slurm_started_it_not_since_it_was_submitted(
    tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job
) -> None:
    (fake / "scontrol.--oneliner").write_text("JobState=PENDING ExitCode=0:0 StartTime=Unknown")
    made = SlurmJob(asked, "a", str(tmp_path))
    made.started -= 1000
    assert heard(made) is None
    assert made.queued
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 7))
    (fake / "scontrol.--oneliner").write_text(f"JobState=RUNNING ExitCode=0:0 StartTime={since}")
    # Its loader is there, so it runs, whenever Slurm was asked last.
    Meter(made.folder, World(0, 1)).lap(steps=40)
    assert heard(made) is None
    assert not made.queued
    assert time.monotonic() - made.started == pytest.approx(7, abs=1.5)


def test_a_job_that_slurm_forgets_has_ended_as_it_was_seen(
    tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job
) -> None:
    made = SlurmJob(asked, "a", str(tmp_path))
    (fake / "scontrol.fails").write_text("slurm_load_jobs error: Invalid job id specified\n")
    assert heard(made) == 1


def test_a_controller_that_restarts_ends_nothing(
    tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job
) -> None:
    made = SlurmJob(asked, "a", str(tmp_path))
    (fake / "scontrol.fails").write_text(
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
    )
    assert heard(made) is None


def test_a_controller_that_has_others_to_answer_ends_nothing_and_is_asked_again(
    tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job
) -> None:
    made = SlurmJob(asked, "a", str(tmp_path))
    (fake / "scontrol.fails").write_text("slurm_load_jobs error: Socket timed out on send/recv operation\n")
    assert heard(made) is None
    (fake / "scontrol.fails").write_text("slurm_load_jobs error: Zero Bytes were transmitted or received\n")
    made._asked = -math.inf
    assert heard(made) is None
    (fake / "scontrol.fails").unlink()
    (fake / "scontrol.--oneliner").write_text("JobId=17 JobState=RUNNING ExitCode=0:0")
    (fake / "scancel.fails").write_text("scancel: error: Kill job error: Socket timed out\n")

    def goes() -> None:
        time.sleep(0.5)
        (fake / "scontrol.--oneliner").write_text("JobId=17 JobState=CANCELLED ExitCode=0:15")
        (fake / "scancel.fails").unlink()

    later = threading.Thread(target=goes)
    later.start()
    made.stop()
    later.join()
    assert heard(made) == -15
    assert sum(call.startswith("scancel") for call in calls(fake)) > 1


def test_a_controller_that_is_slow_keeps_nobody_waiting(
    tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job
) -> None:
    launcher = Slurm("begin")
    leader = launcher.start(asked, "a", str(tmp_path), held=False, first=None, due=0)
    other = launcher.start(asked, "b", str(tmp_path), held=True, first=leader, due=50)
    answer = "JobState=RUNNING ExitCode=0:0"
    (fake / "scontrol").write_text(f"#!/bin/sh\nsleep 4; echo {answer}\n")
    Meter(leader.folder, World(0, 1)).lap(steps=40)
    before = time.monotonic()
    for _ in range(10):
        assert leader.poll() is None
        launcher.move(other, 500)
    # Its loader is there, whatever the controller says.
    assert not leader.queued
    assert time.monotonic() - before < 2
    assert heard(leader) is None
    assert leader._ran


def test_a_node_that_cannot_write_the_log_is_told_as_that(
    tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job
) -> None:
    (fake / "scontrol.--oneliner").write_text("JobId=17 JobState=FAILED ExitCode=0:53")
    made = SlurmJob(asked, "a", str(tmp_path))
    assert heard(made) == -53
    assert "the run folder has to be on a file system that all nodes share" in str(made.ended(-53))
    # A number that has no name, as of real-time signals.
    assert "signal 50)" in str(made.ended(-50))


def test_a_follower_that_may_start_is_told_so_until_slurm_has_heard_it(
    tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_ASK", 0.0)
    launcher = Slurm("begin")
    leader = launcher.start(asked, "a", str(tmp_path), held=False, first=None, due=0)
    other = launcher.start(asked, "b", str(tmp_path), held=True, first=leader, due=3600)
    (fake / "scontrol.fails").write_text("Socket timed out on send/recv operation\n")
    moved(launcher, other, 0)
    (fake / "scontrol.fails").unlink()
    moved(launcher, other, 0)
    moved(launcher, other, 0)
    assert calls(fake)[3:] == ["scontrol update JobId=17 StartTime=now+0"] * 2


def test_the_environment_names_the_steps(tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job) -> None:
    (fake / "sbatch").write_text(f'#!/bin/sh\necho "$FORESEE_STEPS" > {fake}/steps; echo 17\n')
    made = SlurmJob(asked, "a", str(tmp_path))
    assert (fake / "steps").read_text().strip() == made.folder == str(tmp_path / "a")


def test_a_clock_of_another_machine_is_set_by_ours(
    tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job
) -> None:
    (fake / "scontrol.--oneliner").write_text("JobId=17 JobState=RUNNING ExitCode=0:0")
    made = SlurmJob(asked, "a", str(tmp_path))
    meter = Meter(made.folder, World(0, 1))
    meter.lap(steps=40)
    began = time.monotonic_ns()
    meter._add(began - 10**12, 10**6, 2 * 10**6, 0, 0)
    made.poll()
    assert made.steps()[0, 0] == pytest.approx(time.monotonic(), abs=1)
    here = SlurmJob(asked, "b", str(tmp_path))
    meter = Meter(here.folder, World(0, 1))
    meter.lap(steps=40)
    meter._add(began, 10**6, 2 * 10**6, 0, 0)
    time.sleep(0.01)
    here.poll()
    assert here.steps()[0, 0] == pytest.approx(began / 1e9, abs=1e-6)


def test_what_slurm_refuses_and_a_slurm_that_is_not_there(
    tmp_path: pathlib.Path, fake: pathlib.Path, asked: job.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake / "sbatch.fails").write_text("sbatch: error: invalid partition specified: nowhere\n")
    with pytest.raises(ConfigError, match="sbatch: error: invalid partition"):
        SlurmJob(asked, "a", str(tmp_path))
    (fake / "scontrol.fails").write_text("Slurmctld(primary) at here is DOWN\n")
    with pytest.raises(SlurmUnreachable, match="is slurmctld running"):
        Slurm()
    with pytest.raises(ConfigError, match="way is 'later'; one of auto, begin"):
        Slurm("later")  # type: ignore[arg-type]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmUnreachable, match="scontrol: there is no such program here"):
        Slurm()


def test_an_answer_without_a_state_is_not_guessed_at() -> None:
    with pytest.raises(ConfigError, match="says nothing of the job's state"):
        slurm.state(json.dumps({"jobs": []}))
