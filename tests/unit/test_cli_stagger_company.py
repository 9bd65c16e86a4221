# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run`` in other company than two jobs and a cache for all: beside one that runs, three, small caches,
caches that coalesce, loaders of which nobody knows the order, and logs instead of terminals.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support.processes import processes_of
from support.stagger_runs import JOB, cold_data, run, write

from foresee.cli import _stagger_run

#: A job whose loader says nothing of its order, and which prints the seed.
UNORDERED = """
import os, time
from foresee._steps import Meter
print("seed", os.environ["FORESEE_SEED"], flush=True)
lap = Meter(os.environ["FORESEE_STEPS"]).lap(steps=40)
for _ in range(40):
    lap.ask()
    lap.got()
    time.sleep(0.02)
lap.end()
"""


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    return cold_data(tmp_path)


@pytest.fixture
def running(tmp_path: pathlib.Path, data: pathlib.Path) -> Iterator[pathlib.Path]:
    """The folder of steps of a job that somebody else has started."""
    steps = tmp_path / "elsewhere" / "a"
    command = [sys.executable, str(JOB), str(data), "--compute", "0.02", "--wait", "0.03"]
    with subprocess.Popen(command, env={**os.environ, "FORESEE_STEPS": str(steps)}) as process:
        deadline = time.monotonic() + 30
        while not (steps / "rank-0.steps").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield steps
        process.wait(30)


def test_a_job_beside_one_that_runs_is_ready_at_its_moment(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    figures = "wait = 0.15\nwait_cached = 0.0\nwait_conc = 0.15"
    # It loads for longer than a second and a half, as one with torch does; in front of it are more than three.
    slow = ["sh", "-c", f"sleep 1.5; exec {sys.executable} {JOB} {data} --compute 0.02 --wait 0.15"]
    jobs = [
        write(tmp_path, "a", data, stagger=figures),
        write(tmp_path, "b", data, stagger=figures, command=json.dumps(slow)),
    ]
    told, _ = run(tmp_path, *jobs, "--running", "40")
    assert told["predicted"]["starts"] == pytest.approx([0, 6.0])
    _, follower = told["jobs"]
    assert follower["state"] == "done"
    assert follower["launched"] < 6.0 - 1.5
    # Ten times what it is late on a machine that has time for it, and less than it loads.
    assert 6.0 <= follower["start"] < 6.0 + 1.4


def test_two_beside_one_whose_steps_nobody_sees_are_held_for_nobody(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    alone, quick = "wait = 0.03\nwait_cached = 0.0", "wait = 0.045\nwait_cached = 0.0"
    jobs = [write(tmp_path, name, data, stagger=alone) for name in "ab"]
    words = ["--compute", "0.005", "--wait", "0.045"]
    jobs.append(write(tmp_path, "c", data, *words, stagger=quick, train="compute_step = 0.005"))
    told, _ = run(tmp_path, *jobs, "--running", "40")
    assert [job["state"] for job in told["jobs"]] == ["running", "done", "done"]
    assert told["predicted"]["case"] == "behind"
    assert told["predicted"]["starts"] == pytest.approx([0, 1.2, 1.8])
    assert all(job["start"] >= at * 0.95 for job, at in zip(told["jobs"][1:], (1.2, 1.8), strict=True))
    # Both read from the cache: neither is anybody's reader.
    assert [(job["holds"], job["held"]) for job in told["jobs"]] == [(0, 0)] * 3
    assert told["hold"] is False
    assert not processes_of(data)


def test_two_beside_one_that_is_followed_start_behind_it(
    tmp_path: pathlib.Path, data: pathlib.Path, running: pathlib.Path
) -> None:
    jobs = [write(tmp_path, name, data) for name in "abc"]
    told, said = run(tmp_path, *jobs, "--steps", str(running))
    assert (told["leader"], told["followers"]) == ("a", ["b", "c"])
    assert [job["state"] for job in told["jobs"]] == ["done"] * 3
    assert [job["steps"] for job in told["jobs"]] == [40] * 3
    assert all(start >= 1.2 * 0.95 for start in told["measured"]["starts"][1:]), (told, said)
    assert told["jobs"][0]["launched"] is None
    assert told["hold"] is True
    assert {"b starts at", "c starts at"} <= {line[9:20] for line in said.splitlines()}


def test_a_small_cache_has_the_follower_start_within_its_reach(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    told, _ = run(
        tmp_path, write(tmp_path, "a", data), write(tmp_path, "b", data), "--cache", "0.5", "--slack", "0"
    )
    assert told["cache"] == 0.5
    # Half of the leader's 40 steps of 50 ms, whereas the whole cache would reach back to 1.2 s.
    assert told["predicted"]["starts"] == pytest.approx([0, 1.0])
    assert told["predicted"]["case"] == "catch"
    assert [job["state"] for job in told["jobs"]] == ["done", "done"]
    assert told["measured"]["starts"][1] >= 1.0 * 0.95
    assert told["predicted_at_starts"]["makespan"] >= 2.0


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_behind_a_cache_that_coalesces_the_plan_that_is_predicted_is_run(
    tmp_path: pathlib.Path, data: pathlib.Path, names: str
) -> None:
    jobs = [write(tmp_path, name, data, stagger="wait_cached = 0.0") for name in names]
    told, said = run(tmp_path, *jobs, "--coalesces", "--read", "2 s")
    assert (told["coalesces"], told["read_seconds"], told["hold"]) == (True, 2.0, False)
    assert told["predicted"]["case"] == "behind"
    assert told["predicted"]["starts"] == pytest.approx([0] + [1.2] * (len(names) - 1))
    assert told["predicted"]["makespan"] == pytest.approx(2.0)
    assert told["predicted"]["at_once"]["makespan"] == pytest.approx(2.0)
    assert all(start >= 1.2 * 0.95 for start in told["measured"]["starts"][1:]), (told, said)
    assert told["predicted_at_starts"]["makespan"] > 0
    predicted = [sys.executable, "-m", "foresee", "stagger", "predict", *jobs]
    out = subprocess.run(
        [*predicted, "--coalesces", "--read", "2 s", "--json"], capture_output=True, check=True, timeout=60
    ).stdout
    assert json.loads(out)["plan"]["starts"] == pytest.approx(told["predicted"]["starts"])


def test_what_the_storage_delivers_gives_the_figures_that_nobody_measured(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    jobs = [write(tmp_path, name, data, stagger="wait_cached = 0.0") for name in "ab"]
    told, _ = run(tmp_path, *jobs, "--read", "2")
    assert (told["coalesces"], told["read_seconds"], told["hold"]) == (False, 2.0, True)
    assert told["predicted"]["starts"] == pytest.approx([0, 1.2])
    assert told["predicted"]["makespan"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--coalesces"], "--coalesces without --read"), (["--read", "soon"], "--read 'soon': a time above 0")],
)
def test_a_storage_that_cannot_be_is_said_before_anything_starts(
    tmp_path: pathlib.Path, data: pathlib.Path, options: list[str], said: str
) -> None:
    jobs = [write(tmp_path, name, data) for name in "ab"]
    _, heard = run(tmp_path, *jobs, *options, code=2)
    assert said in heard
    assert not (tmp_path / "run").exists()


def test_a_job_is_told_the_seed_and_one_whose_order_nobody_knows_is_doubted(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNORDERED)
    seeded = "compute_step = 0.02\nseed = 7"
    command = json.dumps([sys.executable, str(script)])
    jobs = [
        write(tmp_path, "a", data, train=seeded),
        write(tmp_path, "b", data, train=seeded, command=command),
    ]
    told, said = run(tmp_path, *jobs)
    (doubt,) = told["doubts"]
    assert doubt.startswith("b: in which order it reads is not known")
    assert doubt in said
    assert (tmp_path / "run" / "b.log").read_text() == "seed 7\n"


def test_a_log_has_a_line_of_progress_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    show = _stagger_run._shown(lambda: now)
    for now in (101.0, 129.0, 130.0, 131.0, 159.0, 161.0):
        show(f"a {now:.0f}/400")
    now = 1000.0
    show("")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["foresee: a 130/400", "foresee: a 161/400"]
