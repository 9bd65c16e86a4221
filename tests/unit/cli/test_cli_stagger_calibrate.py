# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger calibrate`` in virtual time: what is measured, what is derived, and what cannot be calibrated.

Real processes and a real page cache are in ``tests/process/test_stagger_calibrate_real.py``.
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
from foresee.stagger.calibrate import Plan, _Calibration
from foresee.stagger.catalog_entry import UsedValue


def test_cold_waits_warm_does_not_and_company_waits_longer(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    told = calibrate(virtual, data, *pair)
    assert [(ran["kind"], ran["job"], ran["beside"]) for ran in told["runs"]] == [
        ("cold", "a", None),
        ("warm", "a", None),
        ("cold", "b", None),
        ("warm", "b", None),
        ("pair", "a", "b"),
        ("pair", "b", "a"),
    ]
    assert {ran["steps"] for ran in told["runs"]} == {12}
    kept = figures(told)
    assert len(kept) == 8
    for name, compute in (("a", 0.004), ("b", 0.006)):
        assert kept[name, "compute"]["seconds"] == pytest.approx(compute)
        assert kept[name, "wait"]["seconds"] == pytest.approx(0.008)
        assert kept[name, "wait_cached"]["seconds"] == pytest.approx(0, abs=1e-6)
        assert kept[name, "wait"]["sd"] == pytest.approx(0, abs=1e-6)
        assert kept[name, "wait"]["steps"] == 12
    # What one has read the other finds, so that together they wait for one chunk a step.
    assert max(kept[name, "wait_conc"]["seconds"] for name in "ab") > 0.004
    # All were ended, and whatever runs next begins as cold as these did.
    assert all(job.code is not None for job in virtual.calibrated)
    assert not virtual.storage.memory
    again = calibrate(virtual, data, *pair)
    assert again["runs"] == []
    assert again["jobs"] == told["jobs"]
    # A prediction needs nothing else.
    virtual.command("predict", *pair, "--catalog", str(tmp_path / "jobs.db"), "--machine", "here")


def test_only_what_is_stale_is_measured_again(
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
    told = calibrate(virtual, data, *pair, "--short")
    assert kinds(told) == [("cold", "a"), ("warm", "a"), ("warm", "b")]
    kept = figures(told)
    assert {key for key, each in kept.items() if each["estimated"]} == {
        ("a", "wait_conc"),
        ("b", "wait"),
        ("b", "wait_conc"),
    }
    step = kept["a", "compute"]["seconds"] + kept["a", "wait"]["seconds"]
    assert kept["b", "wait"]["seconds"] == pytest.approx(step - kept["b", "compute"]["seconds"])
    # Files are in one page cache for all.
    for name in "ab":
        assert kept[name, "wait_conc"]["seconds"] == kept[name, "wait"]["seconds"]


def test_the_short_calibration_knows_a_place_where_each_reads_by_itself(
    data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    kept = figures(calibrate(virtual, data, *pair, "--short", "--no-coalesces"))
    compute = kept["a", "compute"]["seconds"]
    step = compute + kept["a", "wait"]["seconds"]
    assert kept["a", "wait_conc"]["seconds"] == pytest.approx(2 * step - compute)


def test_of_three_jobs_each_pair_is_known(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    jobs = [*pair, write(tmp_path, "c", data)]
    told = calibrate(virtual, data, *jobs, "--short", "--coalesces")
    assert kinds(told) == [("cold", "a"), *(("warm", name) for name in "abc")]
    beside = {(job["name"], each["beside"]) for job in told["jobs"] for each in job["figures"]}
    assert {each for each in beside if each[1]} == {(a, b) for a in "abc" for b in "abc" if a != b}


def test_the_short_form_has_half_the_steps_and_fewer_warm_where_they_are_alike(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    words = ("--steps", "60", "--compute", "0.01")
    jobs = [write(tmp_path, name, data, *words, steps=60) for name in ("a", "b")]
    told = virtual.calibrate(*jobs, "--short", "--data", str(data))
    assert (told["steps"], told["warmup"]) == (50, 10)
    first, *warm = told["runs"]
    assert (first["kind"], first["steps"]) == ("cold", 50)
    # Equal steps are alike after twenty of them; the look that sees it comes a step later at most.
    assert all(20 <= ran["steps"] <= 21 for ran in warm)
    assert (Plan().counted, Plan(short=True).counted, Plan(short=True, steps=9).counted) == (100, 50, 9)


def test_a_warm_run_ends_where_more_steps_would_say_the_same() -> None:
    def settled(seconds: list[float]) -> bool:
        of = SimpleNamespace(_plan=Plan(short=True, warmup=2))
        steps = np.stack([np.zeros(len(seconds)), np.zeros(len(seconds)), np.array(seconds)], axis=1)
        return _Calibration._settled(of, SimpleNamespace(done=len(seconds), steps=lambda: steps))  # type: ignore[arg-type]

    assert not settled([9.0, 9.0] + 19 * [1.0])
    assert settled([9.0, 9.0] + 20 * [1.0])
    # Steps that are not alike, or that change, go on to the last one.
    assert not settled(2 * [9.0] + 15 * [0.9, 1.1])
    assert not settled(2 * [9.0] + 15 * [1.0] + 15 * [1.02])
    assert settled(2 * [9.0] + 25 * [0.5, 1.5])


def test_the_storages_rate_is_that_of_a_job_that_waits_for_it(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [
        write(tmp_path, "a", data, "--compute", "0.06", "--wait", "0"),
        write(tmp_path, "b", data, "--compute", "0.004", "--wait", "0.02"),
        write(tmp_path, "c", data, "--compute", "0.006", "--wait", "0.02"),
    ]
    told = calibrate(virtual, data, *jobs, "--short")
    assert kinds(told) == [("cold", "a"), ("warm", "a"), ("cold", "b"), ("warm", "b"), ("warm", "c")]
    kept = figures(told)
    step = kept["b", "compute"]["seconds"] + kept["b", "wait"]["seconds"]
    # That of the one that hardly waits would have it wait for as long as that computes.
    assert kept["c", "wait"]["seconds"] == pytest.approx(step - kept["c", "compute"]["seconds"])
    assert [name for name in "abc" if kept[name, "wait"]["estimated"]] == ["c"]


def test_of_jobs_that_hardly_wait_nothing_is_derived(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [write(tmp_path, name, data, "--compute", "0.06", "--wait", "0") for name in ("a", "b")]
    told = calibrate(virtual, data, *jobs, "--short")
    assert [kind for kind, _ in kinds(told)] == ["cold", "warm", "cold", "warm", "pair", "pair"]
    assert not any(each["estimated"] for each in figures(told).values())
    # What has been measured is not measured again.
    assert calibrate(virtual, data, *jobs, "--short")["runs"] == []


def test_what_was_derived_is_measured_where_it_is_not_to_be_short(
    data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    short = calibrate(virtual, data, *pair, "--short")
    assert calibrate(virtual, data, *pair, "--short")["runs"] == []
    derived = {which: each["seconds"] for which, each in figures(short).items() if each["estimated"]}
    told = calibrate(virtual, data, *pair)
    assert kinds(told) == [("cold", "b"), ("pair", "a"), ("pair", "b")]
    kept = figures(told)
    was = {
        which: each["derived_seconds"] for which, each in kept.items() if each["derived_seconds"] is not None
    }
    assert was == derived
    assert not any(each["estimated"] for each in kept.values())
    # Both are shown.
    assert f", {1e3 * derived['b', 'wait']:.3f} ms derived before" in command._report(told)
    again = calibrate(virtual, data, *pair)
    assert again["runs"] == []
    assert "derived before" not in command._report(again)


def test_the_storages_rate_is_taken_from_what_the_catalog_holds(
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
    kept = figures(again)
    step = kept["a", "compute"]["seconds"] + kept["a", "wait"]["seconds"]
    assert kept["b", "wait"]["seconds"] == pytest.approx(step - kept["b", "compute"]["seconds"])


def test_company_is_derived_of_jobs_that_were_seen_to_read_in_one_order(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    calibrate(virtual, data, *pair, "--short")
    other = write(tmp_path, "c", data, "--order", "sequential 41")
    said = refuse(virtual, data, pair[0], other, "--short")
    assert "order: a, no step" in said
    assert "c and a read other data or in another order" in said
    assert all(job.code is not None for job in virtual.calibrated)


@pytest.mark.parametrize(
    ("words", "more", "said"),
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
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, words: list[str], more: dict, said: str
) -> None:
    jobs = [write(tmp_path, "b", data, *words, **more), write(tmp_path, "a", data)]
    names = sorted(jobs) if "a and b" in said else jobs
    assert said in refuse(virtual, data, *names, "--patience", "2")
    assert all(job.code is not None for job in virtual.calibrated)


def test_a_job_that_prints_nothing_is_said_to(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [write(tmp_path, "b", data, command='["true"]'), write(tmp_path, "a", data)]
    assert "b.log is empty" in refuse(virtual, data, *jobs)


def test_a_job_of_another_data_set_is_none_of_these(
    data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    other = pathlib.Path(pair[1])
    other.write_text(other.read_text().replace("sleepy", "other"))
    assert "data sets differ" in refuse(virtual, data, *pair)


def test_two_files_of_one_name_are_not_taken_for_one_model(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    for name in ("resnet", "vgg"):
        (tmp_path / name).mkdir()
    pair = [write(tmp_path / name, "job", data) for name in ("resnet", "vgg")]
    said = refuse(virtual, data, *pair)
    assert "would be one model, 'job', in the catalog; write [stagger] model in both" in said
    # One file, twice, is one model.
    assert len(calibrate(virtual, data, pair[0], pair[0])["runs"]) == 4


def test_a_folder_is_where_it_was_said_however_the_job_files_lie(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    pair = [write(tmp_path / "jobs", name, data) for name in ("a", "b")]
    monkeypatch.chdir(tmp_path)
    assert len(calibrate(virtual, data, *pair, "--folder", "logs")["runs"]) == 6
    assert (tmp_path / "logs" / "1-cold" / "a" / "rank-0.steps").exists()


def test_company_that_has_read_everything_is_none(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    jobs = [
        write(tmp_path, "a", data, "--compute", "0.3", "--epochs", "9", epochs=9),
        write(tmp_path, "b", data, "--compute", "0.001", "--wait", "0", "--epochs", "9", epochs=9),
    ]
    said = refuse(virtual, data, *jobs)
    assert "before the first epoch of a job beside it was over" in said


def test_a_catalog_that_nobody_named_is_this_users_own(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], virtual: Virtual
) -> None:
    steps = ["--steps", "6", "--warmup", "1", "--short", "--data", str(data), "--json"]
    told = json.loads(virtual.command("calibrate", *pair, *steps)[0])
    assert told["catalog"] == str(tmp_path / "of this user" / "foresee" / "catalog.db")
    out, _ = virtual.command("calibrate", *pair, *steps[:-1])
    assert f"nothing was missing in {told['catalog']}" in out
    virtual.command("predict", *pair)


def test_a_catalog_that_is_locked_is_said_before_anything_runs(
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
        said = refuse(virtual, data, *pair, code=3)
    finally:
        locker.close()
    assert "locked by another program" in said
    assert not virtual.calibrated


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 1}, "steps is 1; a whole number of 2 or more expected"),
        ({"warmup": -1}, "warmup is -1; a whole number of 0 or more expected"),
        ({"patience": 0}, "patience is 0; seconds above 0 expected"),
        ({"patience": float("nan")}, "patience is nan"),
        ({"coalesces": False}, "coalesces without short"),
    ],
)
def test_a_plan_that_makes_no_sense(wrong: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Plan(**wrong)
