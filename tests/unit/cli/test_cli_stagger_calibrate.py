# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger calibrate`` in virtual time: measured and derived values, and jobs that cannot be calibrated.

Real processes and a real page cache are in ``tests/process/stagger/test_calibration.py``.
"""

from __future__ import annotations

import json
import pathlib
import sqlite3
from types import SimpleNamespace

import numpy as np
import pytest
from support.calibrations import calibrate, figures, kinds, refuse, write
from support.virtual import Virtual

from foresee.cli.stagger import calibrate as command
from foresee.errors import ConfigError
from foresee.stagger import Catalog
from foresee.stagger.calibrate import Calibration, CalibrationOptions
from foresee.stagger.catalog_entry import UsedValue


def test_cold_jobs_wait_warm_jobs_do_not_and_concurrent_jobs_wait_longer(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    result = calibrate(virtual, data, *pair)
    assert [(ran["kind"], ran["job"], ran["beside"]) for ran in result["runs"]] == [
        ("cold", "a", None),
        ("warm", "a", None),
        ("cold", "b", None),
        ("warm", "b", None),
        ("pair", "a", "b"),
        ("pair", "b", "a"),
    ]
    assert {ran["steps"] for ran in result["runs"]} == {12}
    stored = figures(result)
    assert len(stored) == 8
    for name, compute in (("a", 0.004), ("b", 0.006)):
        assert stored[name, "compute"]["seconds"] == pytest.approx(compute)
        assert stored[name, "wait"]["seconds"] == pytest.approx(0.008)
        assert stored[name, "wait_cached"]["seconds"] == pytest.approx(0, abs=1e-6)
        assert stored[name, "wait"]["sd"] == pytest.approx(0, abs=1e-6)
        assert stored[name, "wait"]["steps"] == 12
    # Each finds the chunks that the other has read, so together they wait for one chunk per step.
    assert max(stored[name, "wait_conc"]["seconds"] for name in "ab") > 0.004
    # All have ended, and the next run starts as cold as these.
    assert all(job.code is not None for job in virtual.calibrated)
    assert not virtual.storage.memory
    again = calibrate(virtual, data, *pair)
    assert again["runs"] == []
    assert again["jobs"] == result["jobs"]
    # A prediction needs nothing else.
    virtual.command("predict", *pair, "--catalog", str(tmp_path / "jobs.db"), "--machine", "here")


def test_only_stale_values_are_measured_again(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    calibrate(virtual, data, *pair)
    with Catalog.open(tmp_path / "jobs.db", write=True) as catalog:
        a, b = catalog.keys()
        catalog.mark_stale(a, "a makespan", beside=b)
    assert kinds(calibrate(virtual, data, *pair)) == [("pair", "a"), ("pair", "b")]
    with Catalog.open(tmp_path / "jobs.db") as catalog:
        assert not catalog.stale(a, beside=b)


def test_the_short_calibration_measures_one_job_cold_and_derives_the_rest(
    data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    result = calibrate(virtual, data, *pair, "--short")
    assert kinds(result) == [("cold", "a"), ("warm", "a"), ("warm", "b")]
    stored = figures(result)
    assert {key for key, each in stored.items() if each["estimated"]} == {
        ("a", "wait_conc"),
        ("b", "wait"),
        ("b", "wait_conc"),
    }
    step = stored["a", "compute"]["seconds"] + stored["a", "wait"]["seconds"]
    assert stored["b", "wait"]["seconds"] == pytest.approx(step - stored["b", "compute"]["seconds"])
    # Files are in one page cache for all.
    for name in "ab":
        assert stored[name, "wait_conc"]["seconds"] == stored[name, "wait"]["seconds"]


def test_the_short_calibration_handles_storage_that_does_not_coalesce(
    data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    stored = figures(calibrate(virtual, data, *pair, "--short", "--no-coalesces"))
    compute = stored["a", "compute"]["seconds"]
    step = compute + stored["a", "wait"]["seconds"]
    assert stored["a", "wait_conc"]["seconds"] == pytest.approx(2 * step - compute)


def test_three_jobs_are_measured_in_pairs(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    jobs = [*pair, write(tmp_path, "c", data)]
    result = calibrate(virtual, data, *jobs, "--short", "--coalesces")
    assert kinds(result) == [("cold", "a"), *(("warm", name) for name in "abc")]
    beside = {(job["name"], each["beside"]) for job in result["jobs"] for each in job["figures"]}
    assert {each for each in beside if each[1]} == {(a, b) for a in "abc" for b in "abc" if a != b}


def test_the_short_form_has_half_the_steps_and_fewer_warm_ones(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    words = ("--steps", "60", "--compute", "0.01")
    jobs = [write(tmp_path, name, data, *words, steps=60) for name in ("a", "b")]
    result = virtual.calibrate(*jobs, "--short", "--data", str(data))
    assert (result["steps"], result["warmup"]) == (50, 10)
    first, *warm = result["runs"]
    assert (first["kind"], first["steps"]) == ("cold", 50)
    # Equal steps count as settled after twenty of them, and the next check is at most a step later.
    assert all(20 <= ran["steps"] <= 21 for ran in warm)
    assert (
        CalibrationOptions().counted,
        CalibrationOptions(short=True).counted,
        CalibrationOptions(short=True, steps=9).counted,
    ) == (100, 50, 9)


def test_a_warm_run_ends_when_more_steps_change_nothing() -> None:
    def is_settled(seconds: list[float]) -> bool:
        of = SimpleNamespace(_options=CalibrationOptions(short=True, warmup=2))
        steps = np.stack([np.zeros(len(seconds)), np.zeros(len(seconds)), np.array(seconds)], axis=1)
        return Calibration._is_settled(of, SimpleNamespace(done=len(seconds), steps=lambda: steps))  # type: ignore[arg-type]

    assert not is_settled([9.0, 9.0] + 19 * [1.0])
    assert is_settled([9.0, 9.0] + 20 * [1.0])
    # Steps that differ or change run to the last one.
    assert not is_settled(2 * [9.0] + 15 * [0.9, 1.1])
    assert not is_settled(2 * [9.0] + 15 * [1.0] + 15 * [1.02])
    assert is_settled(2 * [9.0] + 25 * [0.5, 1.5])


def test_the_storage_rate_comes_from_a_job_that_waits(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [
        write(tmp_path, "a", data, "--compute", "0.06", "--wait", "0"),
        write(tmp_path, "b", data, "--compute", "0.004", "--wait", "0.02"),
        write(tmp_path, "c", data, "--compute", "0.006", "--wait", "0.02"),
    ]
    result = calibrate(virtual, data, *jobs, "--short")
    assert kinds(result) == [("cold", "a"), ("warm", "a"), ("cold", "b"), ("warm", "b"), ("warm", "c")]
    stored = figures(result)
    step = stored["b", "compute"]["seconds"] + stored["b", "wait"]["seconds"]
    # The rate of the job that hardly waits would make the other wait as long as that job computes.
    assert stored["c", "wait"]["seconds"] == pytest.approx(step - stored["c", "compute"]["seconds"])
    assert [name for name in "abc" if stored[name, "wait"]["estimated"]] == ["c"]


def test_nothing_is_derived_from_jobs_that_hardly_wait(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [write(tmp_path, name, data, "--compute", "0.06", "--wait", "0") for name in ("a", "b")]
    result = calibrate(virtual, data, *jobs, "--short")
    assert [kind for kind, _ in kinds(result)] == ["cold", "warm", "cold", "warm", "pair", "pair"]
    assert not any(each["estimated"] for each in figures(result).values())
    # Measured values are not measured again.
    assert calibrate(virtual, data, *jobs, "--short")["runs"] == []


def test_a_long_calibration_measures_derived_values(
    data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    short = calibrate(virtual, data, *pair, "--short")
    assert calibrate(virtual, data, *pair, "--short")["runs"] == []
    derived = {which: each["seconds"] for which, each in figures(short).items() if each["estimated"]}
    result = calibrate(virtual, data, *pair)
    assert kinds(result) == [("cold", "b"), ("pair", "a"), ("pair", "b")]
    stored = figures(result)
    was = {
        which: each["derived_seconds"]
        for which, each in stored.items()
        if each["derived_seconds"] is not None
    }
    assert was == derived
    assert not any(each["estimated"] for each in stored.values())
    # Both are shown.
    assert f", {1e3 * derived['b', 'wait']:.3f} ms derived before" in command._report(result)
    again = calibrate(virtual, data, *pair)
    assert again["runs"] == []
    assert "derived before" not in command._report(again)


def test_the_storage_rate_comes_from_the_catalog(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    calibrate(virtual, data, *pair, "--short")
    third = write(tmp_path, "c", data)
    # The first one, whose batch is as large, is complete.
    assert kinds(calibrate(virtual, data, pair[0], third, "--short")) == [("cold", "c"), ("warm", "c")]
    with Catalog.open(tmp_path / "jobs.db", write=True) as catalog:
        _, b, _ = catalog.keys()
        catalog.judge([UsedValue(b, "wait")], predicted=1.0, measured=2.0)
    again = calibrate(virtual, data, *pair, "--short")
    assert again["runs"] == []
    stored = figures(again)
    step = stored["a", "compute"]["seconds"] + stored["a", "wait"]["seconds"]
    assert stored["b", "wait"]["seconds"] == pytest.approx(step - stored["b", "compute"]["seconds"])


def test_concurrent_waits_are_derived_for_jobs_with_one_order(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    calibrate(virtual, data, *pair, "--short")
    other = write(tmp_path, "c", data, "--order", "sequential 41")
    errors = refuse(virtual, data, pair[0], other, "--short")
    assert "order: a, no step" in errors
    assert "c and a read other data or in another order" in errors
    assert all(job.code is not None for job in virtual.calibrated)


@pytest.mark.parametrize(
    ("words", "more", "expected"),
    [
        (["--dies-after", "5"], {}, "b ended (exit code 3) after 5 steps; the end of"),
        (["--hangs-after", "5"], {}, "b has taken no step for 2 s, after 5"),
        (["--loader-steps", "50"], {}, "b: its loader has 50 steps per epoch, 40 by its job file"),
        (["--order", "sequential 41"], {}, "a and b read other data or in another order"),
        ([], {"seed": 1}, "orders differ: 1 in"),
        ([], {"steps": 13}, "14 steps (2 before 12 that count), but an epoch of b has 13"),
        ([], {"command": '["no-such-program"]'}, "run.command = 'no-such-program'; a program expected"),
        ([], {"command": '["./train.sh"]'}, "run.command = './train.sh'; a program expected"),
        ([], {"command": '["true"]'}, "b ended (exit code 0) before a loader began a step"),
        (
            [],
            {"command": '["sleep", "60"]'},
            "b began no step within 2 s; it has to train with a Foresee loader",
        ),
    ],
)
def test_jobs_that_cannot_be_calibrated(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, words: list[str], more: dict, expected: str
) -> None:
    jobs = [write(tmp_path, "b", data, *words, **more), write(tmp_path, "a", data)]
    names = sorted(jobs) if "a and b" in expected else jobs
    assert expected in refuse(virtual, data, *names, "--patience", "2")
    assert all(job.code is not None for job in virtual.calibrated)


def test_a_failed_job_without_output_is_reported_as_such(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [write(tmp_path, "b", data, command='["true"]'), write(tmp_path, "a", data)]
    assert "b.log is empty" in refuse(virtual, data, *jobs)


def test_a_job_with_other_data_is_refused(data: pathlib.Path, pair: list[str], virtual: Virtual) -> None:
    other = pathlib.Path(pair[1])
    other.write_text(other.read_text().replace("sleepy", "other"))
    assert "data sets differ" in refuse(virtual, data, *pair)


def test_two_files_of_one_name_are_two_models(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    for name in ("resnet", "vgg"):
        (tmp_path / name).mkdir()
    pair = [write(tmp_path / name, "job", data) for name in ("resnet", "vgg")]
    errors = refuse(virtual, data, *pair)
    assert "would be one model, 'job', in the catalog; write [stagger] model in both" in errors
    # One file, twice, is one model.
    assert len(calibrate(virtual, data, pair[0], pair[0])["runs"]) == 4


def test_the_folder_is_relative_to_the_working_directory(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    pair = [write(tmp_path / "jobs", name, data) for name in ("a", "b")]
    monkeypatch.chdir(tmp_path)
    assert len(calibrate(virtual, data, *pair, "--folder", "logs")["runs"]) == 6
    assert (tmp_path / "logs" / "1-cold" / "a" / "rank-0.steps").exists()


def test_a_concurrent_job_that_ended_early_is_refused(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [
        write(tmp_path, "a", data, "--compute", "0.3", "--epochs", "9", epochs=9),
        write(tmp_path, "b", data, "--compute", "0.001", "--wait", "0", "--epochs", "9", epochs=9),
    ]
    errors = refuse(virtual, data, *jobs)
    assert "before the end of the other job's first epoch" in errors


def test_without_a_name_the_users_catalog_is_used(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    steps = ["--steps", "6", "--warmup", "1", "--short", "--data", str(data), "--json"]
    result = json.loads(virtual.command("calibrate", *pair, *steps)[0])
    assert result["catalog"] == str(tmp_path / "of this user" / "foresee" / "catalog.db")
    out, _ = virtual.command("calibrate", *pair, *steps[:-1])
    assert f"nothing was missing in {result['catalog']}" in out
    virtual.command("predict", *pair)


def test_a_locked_catalog_is_refused_before_a_job_runs(
    tmp_path: pathlib.Path,
    data: pathlib.Path,
    pair: list[str],
    virtual: Virtual,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Catalog.open
    monkeypatch.setattr(Catalog, "open", lambda path, **more: opened(path, **more, wait=0.0))
    locker = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    try:
        errors = refuse(virtual, data, *pair, code=3)
    finally:
        locker.close()
    assert "locked by another program" in errors
    assert not virtual.calibrated


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"steps": 1}, "steps is 1; a whole number of 2 or more expected"),
        ({"warmup": -1}, "warmup is -1; a whole number of 0 or more expected"),
        ({"patience": 0}, "patience is 0; seconds above 0 expected"),
        ({"patience": float("nan")}, "patience is nan"),
        ({"coalesces": False}, "coalesces without short"),
    ],
)
def test_an_invalid_plan_is_refused(wrong: dict, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        CalibrationOptions(**wrong)
