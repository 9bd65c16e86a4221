# SPDX-License-Identifier: Apache-2.0
"""Requests to Slurm and parsed answers, in virtual time.

``tests/process/stagger/test_slurm_commands.py`` tests how the commands run, ``tests/systems/test_slurm.py`` a real Slurm.
"""

from __future__ import annotations

import datetime as dt
import doctest
import fcntl
import json
import pathlib

import pytest
from support.fake_clock import FakeClock
from support.fake_slurm import FakeController

from foresee import jobspec
from foresee._runtime.ranks import World
from foresee._runtime.step_times import GATE, Meter
from foresee.errors import ConfigError, SlurmUnreachable
from foresee.stagger import slurm_commands
from foresee.stagger.slurm import Slurm, SlurmJob, WaitMode
from foresee.stagger.slurm_commands import submission

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
RUNS = "JobState=RUNNING ExitCode=0:0"


@pytest.fixture
def clock() -> FakeClock:
    """Virtual time."""
    return FakeClock()


@pytest.fixture
def fake(clock: FakeClock) -> FakeController:
    """A controller that answers at once."""
    return FakeController(clock)


@pytest.fixture
def job(tmp_path: pathlib.Path) -> jobspec.Job:
    """Return a job that needs cores and GPUs."""
    path = tmp_path / "a.toml"
    path.write_text(TOML)
    return jobspec.read(str(path))


@pytest.fixture
def submitted(tmp_path: pathlib.Path, job: jobspec.Job, fake: FakeController, clock: FakeClock) -> SlurmJob:
    """Return a submitted job."""
    return SlurmJob(job, "a", str(tmp_path), fake, clock=clock)


def pair(tmp_path: pathlib.Path, job: jobspec.Job, launcher: Slurm, due: float) -> tuple[SlurmJob, SlurmJob]:
    """Submit a leader, and a follower that is due in ``due`` seconds."""
    leader = launcher.start(job, "a", str(tmp_path), held=False, first=None, due=0)
    return leader, launcher.start(job, "b", str(tmp_path), held=True, first=leader, due=due)


def exit_code_of(submitted: SlurmJob) -> int | None:
    """Return the exit code after the controller has answered all present requests."""
    submitted.poll()
    submitted.clock.sleep(0.5)
    return submitted.poll()


def test_the_examples_in_the_docstrings_are_true() -> None:
    result = doctest.testmod(slurm_commands)
    assert result.attempted
    assert not result.failed


def test_a_submission_requests_all_resources_of_the_job(job: jobspec.Job) -> None:
    words = submission(
        ["true", "--lr", "0.1 2"],
        job,
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
    ("mode", "longest", "due", "expected"),
    [
        ("auto", 60.0, 50.0, "--dependency=after:17 "),
        ("auto", 61.0, 50.0, "--begin=now+47 "),
        ("hold", 500.0, 400.0, "--dependency=after:17 "),
        ("begin", 5.0, 5.0, "--begin=now+2 "),
        ("dependency", 500.0, 400.0, "--dependency=after:17+6 "),
        ("dependency", 500.0, 62.0, "--dependency=after:17 "),
    ],
)
def test_a_follower_waits_in_the_chosen_mode(
    tmp_path: pathlib.Path,
    fake: FakeController,
    clock: FakeClock,
    job: jobspec.Job,
    mode: WaitMode,
    longest: float,
    due: float,
    expected: str,
) -> None:
    launcher = Slurm(mode, longest=longest, controller=fake, clock=clock)
    leader, _ = pair(tmp_path, job, launcher, due)
    assert leader.id == "17"
    ping, first, second = fake.calls
    assert ping == "scontrol ping"
    assert "--begin" not in first
    assert "--dependency" not in first
    assert expected in second
    assert launcher.should_launch(leader_started=True, due=due)
    assert launcher.should_launch(leader_started=False, due=due) == (launcher.way != "begin")


def test_a_moved_start_is_sent_once(
    tmp_path: pathlib.Path, fake: FakeController, clock: FakeClock, job: jobspec.Job
) -> None:
    launcher = Slurm("begin", controller=fake, clock=clock)
    _, other = pair(tmp_path, job, launcher, 50)
    for due in (50, 49, 90, 90, 89):
        launcher.move(other, due)
    assert fake.calls[3:] == ["scontrol update JobId=17 StartTime=now+87"]
    other.queued = False
    clock.sleep(5)
    launcher.move(other, 200)
    assert len(fake.calls) == 4


def test_delays_in_whole_minutes_move_after_the_leader_has_started(
    tmp_path: pathlib.Path, fake: FakeController, clock: FakeClock, job: jobspec.Job
) -> None:
    launcher = Slurm("dependency", controller=fake, clock=clock)
    leader, other = pair(tmp_path, job, launcher, 130)
    launcher.move(other, 400)
    assert len(fake.calls) == 3
    leader.queued, leader.started = False, clock.now()
    for _ in range(3):
        launcher.move(other, 400)
    assert fake.calls[3:] == ["scontrol update JobId=17 Dependency=after:17+6"]


@pytest.mark.parametrize(
    ("answer", "code"),
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
def test_the_job_state_gives_the_exit_code(
    submitted: SlurmJob, fake: FakeController, answer: str, code: int | None
) -> None:
    fake.job = f"JobId=17 JobName=a {answer} Reason=None"
    assert exit_code_of(submitted) == code
    assert submitted.queued == ("PENDING" in answer)
    assert "scontrol --oneliner show job 17" in fake.calls


def test_a_job_is_polled_once_a_second(submitted: SlurmJob, fake: FakeController, clock: FakeClock) -> None:
    fake.job = RUNS
    for _ in range(200):
        submitted.poll()
        clock.sleep(0.05)
    assert 9 <= sum("show" in call for call in fake.calls) <= 10


def test_the_start_time_of_a_job_is_that_of_its_start_by_slurm_and_not_of_its_submission(
    submitted: SlurmJob, fake: FakeController, clock: FakeClock
) -> None:
    fake.job = "JobState=PENDING ExitCode=0:0 StartTime=Unknown"
    clock.sleep(1000)
    assert exit_code_of(submitted) is None
    assert submitted.queued
    since = dt.datetime.fromtimestamp(clock.wall() - 7).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    fake.job = f"JobState=RUNNING ExitCode=0:0 StartTime={since}"
    # Its loader has reported, so that it runs, whenever the last request to Slurm was.
    Meter(submitted.folder, World(0, 1)).timer(steps=40)
    submitted.poll()
    assert not submitted.queued
    assert submitted.started == clock.now()
    assert exit_code_of(submitted) is None
    # Half a second later, by a clock of whole seconds.
    assert clock.now() - submitted.started == pytest.approx(7.5, abs=1.0)


def test_a_job_unknown_to_slurm_has_ended_with_its_last_state(
    submitted: SlurmJob, fake: FakeController
) -> None:
    fake.fails["scontrol"] = "slurm_load_jobs error: Invalid job id specified"
    assert exit_code_of(submitted) == 1


def test_a_job_unknown_to_slurm_after_its_completion_has_succeeded(
    submitted: SlurmJob, fake: FakeController
) -> None:
    # Its completion was observed, and the poll that should report its end failed.
    submitted._state = "COMPLETED"
    fake.fails["scontrol"] = "slurm_load_jobs error: Invalid job id specified"
    assert exit_code_of(submitted) == 0


def test_a_restart_of_the_controller_ends_no_job(submitted: SlurmJob, fake: FakeController) -> None:
    fake.fails["scontrol"] = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    assert exit_code_of(submitted) is None


def test_a_busy_controller_ends_no_job_and_is_polled_again(
    submitted: SlurmJob, fake: FakeController, clock: FakeClock
) -> None:
    fake.fails["scontrol"] = "slurm_load_jobs error: Socket timed out on send/recv operation"
    assert exit_code_of(submitted) is None
    clock.sleep(1)
    fake.fails["scontrol"] = "slurm_load_jobs error: Zero Bytes were transmitted or received"
    assert exit_code_of(submitted) is None
    del fake.fails["scontrol"]
    fake.job = f"JobId=17 {RUNS}"
    fake.fails["scancel"] = "scancel: error: Kill job error: Socket timed out"

    def goes() -> None:
        fake.job = "JobId=17 JobState=CANCELLED ExitCode=0:15"
        del fake.fails["scancel"]

    clock.after(0.5, goes)
    before = clock.now()
    submitted.stop()
    assert clock.now() - before <= 1.0
    assert exit_code_of(submitted) == -15
    assert sum(call.startswith("scancel") for call in fake.calls) > 1


def test_a_job_that_slurm_never_ends_is_waited_for_one_minute(
    submitted: SlurmJob, fake: FakeController, clock: FakeClock
) -> None:
    fake.job = RUNS
    before = clock.now()
    submitted.stop()
    assert clock.now() - before == pytest.approx(60, abs=0.3)
    assert sum(call.startswith("scancel") for call in fake.calls) == 1


def test_a_slow_controller_does_not_block_the_runner(
    tmp_path: pathlib.Path, fake: FakeController, clock: FakeClock, job: jobspec.Job
) -> None:
    launcher = Slurm("begin", controller=fake, clock=clock)
    leader, other = pair(tmp_path, job, launcher, 50)
    fake.job, fake.takes = RUNS, 4.0
    Meter(leader.folder, World(0, 1)).timer(steps=40)
    before = clock.now()
    for _ in range(10):
        assert leader.poll() is None
        launcher.move(other, 500)
    # Its loader has reported, independent of the controller's answers.
    assert not leader.queued
    assert clock.now() == before
    # Each request is sent once.
    update = "scontrol update JobId=17 StartTime=now+497"
    assert fake.calls[3:] == ["scontrol --oneliner show job 17", update]
    assert not leader._has_run
    clock.sleep(4.0)
    assert leader.poll() is None
    assert leader._has_run


def test_the_error_names_a_node_that_cannot_write_the_log(submitted: SlurmJob, fake: FakeController) -> None:
    fake.job = "JobId=17 JobState=FAILED ExitCode=0:53"
    assert exit_code_of(submitted) == -53
    assert "the run folder has to be on a file system that all nodes share" in str(submitted.exit_error(-53))
    # A number without a name, such as a real-time signal.
    assert "signal 50)" in str(submitted.exit_error(-50))


def test_the_release_of_a_follower_is_repeated_until_slurm_has_received_it(
    tmp_path: pathlib.Path, fake: FakeController, clock: FakeClock, job: jobspec.Job
) -> None:
    launcher = Slurm("begin", controller=fake, clock=clock)
    _, other = pair(tmp_path, job, launcher, 3600)
    fake.fails["scontrol"] = "Socket timed out on send/recv operation"
    launcher.move(other, 0)
    clock.sleep(0.5)
    launcher.move(other, 0)
    del fake.fails["scontrol"]
    for _ in range(40):
        clock.sleep(0.1)
        launcher.move(other, 0)
    assert fake.calls[3:] == ["scontrol update JobId=17 StartTime=now+0"] * 2


def test_the_environment_names_the_folder_of_steps(
    submitted: SlurmJob, fake: FakeController, tmp_path: pathlib.Path
) -> None:
    assert fake.environment["FORESEE_STEPS"] == submitted.folder == str(tmp_path / "a")


def test_times_of_another_nodes_clock_are_shifted_to_ours(
    tmp_path: pathlib.Path, fake: FakeController, clock: FakeClock, job: jobspec.Job
) -> None:
    fake.job = f"JobId=17 {RUNS}"
    for name, behind in (("a", 1000.0), ("b", 0.0)):
        submitted = SlurmJob(job, name, str(tmp_path), fake, clock=clock)
        meter = Meter(submitted.folder, World(0, 1))
        meter.timer(steps=40)
        began = clock.now()
        meter._add(round(1e9 * (began - behind)), 10**6, 2 * 10**6, 0, 0)
        clock.sleep(0.01)
        submitted.poll()
        # The steps were written right before they are read; times of this node's own clock are not shifted.
        late = 0.01 - 0.003 if behind else 0.0
        assert submitted.steps()[0, 0] == pytest.approx(began + late, abs=1e-5)


def test_a_submission_that_slurm_refuses_is_an_error_and_opens_the_gate(
    tmp_path: pathlib.Path, fake: FakeController, clock: FakeClock, job: jobspec.Job
) -> None:
    fake.fails["sbatch"] = "sbatch: error: invalid partition specified: nowhere"
    with pytest.raises(ConfigError, match="sbatch: error: invalid partition"):
        SlurmJob(job, "a", str(tmp_path), fake, held=True, clock=clock)
    with (tmp_path / "a" / GATE).open("rb") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_slurm_that_is_down_and_an_unknown_mode_are_refused(fake: FakeController, clock: FakeClock) -> None:
    fake.fails["scontrol"] = "Slurmctld(primary) at here is DOWN"
    with pytest.raises(SlurmUnreachable, match="is slurmctld running"):
        Slurm(controller=fake, clock=clock)
    with pytest.raises(ConfigError, match="way is 'later'; one of auto, begin"):
        Slurm("later", controller=fake)  # type: ignore[arg-type]


def test_an_answer_without_a_state_is_refused() -> None:
    with pytest.raises(ConfigError, match="printed no JobState"):
        slurm_commands.state(json.dumps({"jobs": []}))
