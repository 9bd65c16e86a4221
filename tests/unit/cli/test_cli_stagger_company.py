# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run`` in other company than two jobs and a cache for all, in virtual time: beside one that runs,
three, small caches, caches that coalesce, loaders of which nobody knows the order, and logs instead of terminals.
"""

from __future__ import annotations

import json
import pathlib

import pytest
from support.fake_clock import FakeClock
from support.fake_jobs import FakeJob
from support.stagger_runs import write
from support.virtual import Virtual

from foresee import jobspec
from foresee.cli.stagger import run


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """The name of a file that no fake job opens."""
    return tmp_path / "chunks.bin"


@pytest.fixture
def running(tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual) -> FakeJob:
    """A job that somebody else has started, and that has taken some steps."""
    (tmp_path / "elsewhere").mkdir()
    made = FakeJob(
        jobspec.read(write(tmp_path, "a", data)),
        "a",
        str(tmp_path / "elsewhere"),
        virtual.storage,
        clock=virtual.clock,
    )
    virtual.clock.sleep(0.12)
    return made


def test_a_job_beside_one_that_runs_follows_its_steps(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, running: FakeJob
) -> None:
    jobs = write(tmp_path, "a", data), write(tmp_path, "b", data)
    told, said = virtual.run(*jobs, "--steps", running.folder)
    assert (told["leader"], told["followers"]) == ("a", ["b"])
    assert told["running_seconds"] == pytest.approx(0.12)
    assert [job["state"] for job in told["jobs"]] == ["done", "done"]
    assert [job["steps"] for job in told["jobs"]] == [40, 40]
    assert told["jobs"][0]["launched"] is None
    assert told["measured"]["starts"][1] == pytest.approx(40 * 0.03, abs=0.01)
    assert "a runs already, b" in said


def test_an_interrupt_leaves_a_job_alone_that_ran_already(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, running: FakeJob
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    virtual.clock.after(1.5, interrupt)
    jobs = write(tmp_path, "a", data), write(tmp_path, "b", data)
    told, _ = virtual.run(*jobs, "--steps", running.folder, code=130)
    assert [job["state"] for job in told["jobs"]] == ["running", "stopped"]
    assert running.code is None


def test_a_job_beside_one_whose_steps_nobody_sees(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    told, _ = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data), "--running", "40")
    assert told["running_seconds"] == pytest.approx(0.8)
    assert told["predicted"]["starts"] == pytest.approx([0, 1.2])
    assert [job["state"] for job in told["jobs"]] == ["running", "done"]
    assert told["measured"]["makespan"] is None
    assert told["measured"]["seconds"][0] is None
    assert told["measured"]["seconds"][1] > 0
    # At its moment, but that it loads for 0.1 s longer than until then.
    assert 1.2 <= told["jobs"][1]["start"] <= 1.31


def test_a_job_beside_one_that_runs_is_ready_at_its_moment(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    figures = "wait = 0.15\nwait_cached = 0.0\nwait_conc = 0.15"
    # It loads for longer than a second and a half, as one with torch does; in front of it are more than three.
    jobs = [
        write(tmp_path, "a", data, stagger=figures),
        write(tmp_path, "b", data, "--loads", "1.5", "--wait", "0.15", stagger=figures),
    ]
    told, _ = virtual.run(*jobs, "--running", "40")
    assert told["predicted"]["starts"] == pytest.approx([0, 6.0])
    _, follower = told["jobs"]
    assert follower["state"] == "done"
    assert follower["launched"] < 6.0 - 1.5
    assert follower["start"] == pytest.approx(6.0, abs=1e-3)


def test_two_beside_one_whose_steps_nobody_sees_are_held_for_nobody(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    alone, quick = "wait = 0.03\nwait_cached = 0.0", "wait = 0.045\nwait_cached = 0.0"
    jobs = [write(tmp_path, name, data, stagger=alone) for name in "ab"]
    words = ["--compute", "0.005", "--wait", "0.045"]
    jobs.append(write(tmp_path, "c", data, *words, stagger=quick, train="compute_step = 0.005"))
    told, _ = virtual.run(*jobs, "--running", "20")
    assert [job["state"] for job in told["jobs"]] == ["running", "done", "done"]
    assert told["predicted"]["case"] == "behind"
    assert told["predicted"]["starts"] == pytest.approx([0, 1.2, 1.8])
    assert [job["start"] for job in told["jobs"][1:]] == pytest.approx([1.2, 1.8], abs=1e-3)
    # Both read from the cache: neither is anybody's reader.
    assert [(job["holds"], job["held"]) for job in told["jobs"]] == [(0, 0)] * 3
    assert told["hold"] is False


def test_two_beside_one_that_is_followed_start_behind_it(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, running: FakeJob
) -> None:
    jobs = [write(tmp_path, name, data) for name in "abc"]
    told, said = virtual.run(*jobs, "--steps", running.folder)
    assert (told["leader"], told["followers"]) == ("a", ["b", "c"])
    assert [job["state"] for job in told["jobs"]] == ["done"] * 3
    assert [job["steps"] for job in told["jobs"]] == [40] * 3
    assert told["measured"]["starts"][1:] == pytest.approx([1.2, 1.2], abs=0.01)
    assert told["jobs"][0]["launched"] is None
    assert told["hold"] is True
    assert {"b starts at", "c starts at"} <= {line[9:20] for line in said.splitlines()}


def test_a_small_cache_has_the_follower_start_within_its_reach(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = write(tmp_path, "a", data), write(tmp_path, "b", data)
    told, _ = virtual.run(*jobs, "--cache", "0.5", "--slack", "0")
    assert told["cache"] == 0.5
    # Half of the leader's 40 steps of 50 ms, whereas the whole cache would reach back to 1.2 s.
    assert told["predicted"]["starts"] == pytest.approx([0, 1.0])
    assert told["predicted"]["case"] == "catch"
    assert [job["state"] for job in told["jobs"]] == ["done", "done"]
    assert told["measured"]["starts"][1] == pytest.approx(1.0, abs=1e-3)
    assert told["predicted_at_starts"]["makespan"] >= 2.0


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_behind_a_cache_that_coalesces_the_plan_that_is_predicted_is_run(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, names: str
) -> None:
    jobs = [write(tmp_path, name, data, stagger="wait_cached = 0.0") for name in names]
    told, _ = virtual.run(*jobs, "--coalesces", "--read", "2 s")
    assert (told["coalesces"], told["read_seconds"], told["hold"]) == (True, 2.0, False)
    assert told["predicted"]["case"] == "behind"
    assert told["predicted"]["starts"] == pytest.approx([0] + [1.2] * (len(names) - 1))
    assert told["predicted"]["makespan"] == pytest.approx(2.0)
    assert told["predicted"]["at_once"]["makespan"] == pytest.approx(2.0)
    assert told["measured"]["starts"] == pytest.approx(told["predicted"]["starts"], abs=1e-3)
    assert told["predicted_at_starts"]["makespan"] > 0
    out, _ = virtual.command("predict", *jobs, "--coalesces", "--read", "2 s", "--json")
    assert json.loads(out)["plan"]["starts"] == pytest.approx(told["predicted"]["starts"])


def test_what_the_storage_delivers_gives_the_figures_that_nobody_measured(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [write(tmp_path, name, data, stagger="wait_cached = 0.0") for name in "ab"]
    told, _ = virtual.run(*jobs, "--read", "2")
    assert (told["coalesces"], told["read_seconds"], told["hold"]) == (False, 2.0, True)
    assert told["predicted"]["starts"] == pytest.approx([0, 1.2])
    assert told["predicted"]["makespan"] == pytest.approx(2.0)


def test_a_job_is_told_the_seed_and_one_whose_order_nobody_knows_is_doubted(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    seeded = "compute_step = 0.02\nseed = 7"
    jobs = [
        write(tmp_path, "a", data, train=seeded),
        write(tmp_path, "b", data, "--order", "", train=seeded),
    ]
    told, said = virtual.run(*jobs)
    (doubt,) = told["doubts"]
    assert doubt.startswith("b: in which order it reads is not known")
    assert doubt in said
    assert "seed 7\n" in (tmp_path / "run" / "b.log").read_text()


def test_a_log_has_a_line_of_progress_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    show = run._progress(clock)
    for seconds in (1, 28, 1, 1, 28, 2):
        clock.sleep(seconds)
        show(f"a {clock.passed():.0f}/400")
    clock.sleep(900)
    show("")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["foresee: a 30/400", "foresee: a 61/400"]
