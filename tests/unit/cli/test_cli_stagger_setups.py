# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run`` in virtual time with other setups than two jobs and a cache of all data.

They have an external job, three jobs, small or coalescing caches, loaders of unknown order, and logs instead of
terminals.
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
    """Return the name of a file that no fake job opens."""
    return tmp_path / "chunks.bin"


@pytest.fixture
def running(tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual) -> FakeJob:
    """An external job that has taken some steps."""
    (tmp_path / "elsewhere").mkdir()
    job = FakeJob(
        jobspec.read(write(tmp_path, "a", data)),
        "a",
        str(tmp_path / "elsewhere"),
        virtual.storage,
        clock=virtual.clock,
    )
    virtual.clock.sleep(0.12)
    return job


def test_a_follower_of_an_external_job_follows_its_steps(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, running: FakeJob
) -> None:
    jobs = write(tmp_path, "a", data), write(tmp_path, "b", data)
    result, errors = virtual.run(*jobs, "--steps", running.folder)
    assert (result["leader"], result["followers"]) == ("a", ["b"])
    assert result["running_seconds"] == pytest.approx(0.12)
    assert [job["state"] for job in result["jobs"]] == ["done", "done"]
    assert [job["steps"] for job in result["jobs"]] == [40, 40]
    assert result["jobs"][0]["launched"] is None
    assert result["measured"]["starts"][1] == pytest.approx(40 * 0.03, abs=0.01)
    assert "a runs already, b" in errors


def test_an_interrupt_does_not_end_an_external_job(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, running: FakeJob
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    virtual.clock.after(1.5, interrupt)
    jobs = write(tmp_path, "a", data), write(tmp_path, "b", data)
    result, _ = virtual.run(*jobs, "--steps", running.folder, code=130)
    assert [job["state"] for job in result["jobs"]] == ["running", "stopped"]
    assert running.code is None


def test_a_follower_of_an_external_job_without_steps(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    result, _ = virtual.run(write(tmp_path, "a", data), write(tmp_path, "b", data), "--running", "40")
    assert result["running_seconds"] == pytest.approx(0.8)
    assert result["predicted"]["starts"] == pytest.approx([0, 1.2])
    assert [job["state"] for job in result["jobs"]] == ["running", "done"]
    assert result["measured"]["makespan"] is None
    assert result["measured"]["seconds"][0] is None
    assert result["measured"]["seconds"][1] > 0
    # At its start, except that it loads for 0.1 s longer.
    assert 1.2 <= result["jobs"][1]["start"] <= 1.31


def test_a_follower_of_an_external_job_is_loaded_at_its_start(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    figures = "wait = 0.15\nwait_cached = 0.0\nwait_conc = 0.15"
    # It loads for more than 1.5 s, as with torch; its start is more than 3 s away.
    jobs = [
        write(tmp_path, "a", data, stagger=figures),
        write(tmp_path, "b", data, "--loads", "1.5", "--wait", "0.15", stagger=figures),
    ]
    result, _ = virtual.run(*jobs, "--running", "40")
    assert result["predicted"]["starts"] == pytest.approx([0, 6.0])
    _, follower = result["jobs"]
    assert follower["state"] == "done"
    assert follower["launched"] < 6.0 - 1.5
    assert follower["start"] == pytest.approx(6.0, abs=1e-3)


def test_followers_of_an_external_job_without_steps_are_not_held(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    alone, quick = "wait = 0.03\nwait_cached = 0.0", "wait = 0.045\nwait_cached = 0.0"
    jobs = [write(tmp_path, name, data, stagger=alone) for name in "ab"]
    words = ["--compute", "0.005", "--wait", "0.045"]
    jobs.append(write(tmp_path, "c", data, *words, stagger=quick, train="compute_step = 0.005"))
    result, _ = virtual.run(*jobs, "--running", "20")
    assert [job["state"] for job in result["jobs"]] == ["running", "done", "done"]
    assert result["predicted"]["case"] == "behind"
    assert result["predicted"]["starts"] == pytest.approx([0, 1.2, 1.8])
    assert [job["start"] for job in result["jobs"][1:]] == pytest.approx([1.2, 1.8], abs=1e-3)
    # Both read from the cache: no job depends on them.
    assert [(job["holds"], job["held"]) for job in result["jobs"]] == [(0, 0)] * 3
    assert result["hold"] is False


def test_two_followers_start_behind_an_external_job(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, running: FakeJob
) -> None:
    jobs = [write(tmp_path, name, data) for name in "abc"]
    result, errors = virtual.run(*jobs, "--steps", running.folder)
    assert (result["leader"], result["followers"]) == ("a", ["b", "c"])
    assert [job["state"] for job in result["jobs"]] == ["done"] * 3
    assert [job["steps"] for job in result["jobs"]] == [40] * 3
    assert result["measured"]["starts"][1:] == pytest.approx([1.2, 1.2], abs=0.01)
    assert result["jobs"][0]["launched"] is None
    assert result["hold"] is True
    assert {"b starts at", "c starts at"} <= {line[9:20] for line in errors.splitlines()}


def test_a_small_cache_has_the_follower_start_within_its_reach(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = write(tmp_path, "a", data), write(tmp_path, "b", data)
    result, _ = virtual.run(*jobs, "--cache", "0.5", "--slack", "0")
    assert result["cache"] == 0.5
    # Half of the leader's 40 steps of 50 ms, whereas the whole cache would reach back to 1.2 s.
    assert result["predicted"]["starts"] == pytest.approx([0, 1.0])
    assert result["predicted"]["case"] == "catch"
    assert [job["state"] for job in result["jobs"]] == ["done", "done"]
    assert result["measured"]["starts"][1] == pytest.approx(1.0, abs=1e-3)
    assert result["predicted_at_starts"]["makespan"] >= 2.0


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_the_predicted_plan_is_run_behind_a_coalescing_cache(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, names: str
) -> None:
    jobs = [write(tmp_path, name, data, stagger="wait_cached = 0.0") for name in names]
    result, _ = virtual.run(*jobs, "--coalesces", "--read", "2 s")
    assert (result["coalesces"], result["read_seconds"], result["hold"]) == (True, 2.0, False)
    assert result["predicted"]["case"] == "behind"
    assert result["predicted"]["starts"] == pytest.approx([0] + [1.2] * (len(names) - 1))
    assert result["predicted"]["makespan"] == pytest.approx(2.0)
    assert result["predicted"]["at_once"]["makespan"] == pytest.approx(2.0)
    assert result["measured"]["starts"] == pytest.approx(result["predicted"]["starts"], abs=1e-3)
    assert result["predicted_at_starts"]["makespan"] > 0
    out, _ = virtual.command("predict", *jobs, "--coalesces", "--read", "2 s", "--json")
    assert json.loads(out)["plan"]["starts"] == pytest.approx(result["predicted"]["starts"])


def test_missing_values_follow_from_the_storage_rate(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [write(tmp_path, name, data, stagger="wait_cached = 0.0") for name in "ab"]
    result, _ = virtual.run(*jobs, "--read", "2")
    assert (result["coalesces"], result["read_seconds"], result["hold"]) == (False, 2.0, True)
    assert result["predicted"]["starts"] == pytest.approx([0, 1.2])
    assert result["predicted"]["makespan"] == pytest.approx(2.0)


def test_jobs_receive_the_seed_and_an_unknown_order_causes_a_doubt(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    seeded = "compute_step = 0.02\nseed = 7"
    jobs = [
        write(tmp_path, "a", data, train=seeded),
        write(tmp_path, "b", data, "--order", "", train=seeded),
    ]
    result, errors = virtual.run(*jobs)
    (doubt,) = result["doubts"]
    assert doubt.startswith("b: its order is unknown")
    assert doubt in errors
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
