# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger calibrate``: real processes, a real page cache, and what can be wrong with both."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from support.calibrations import CHUNK, calibrate, run, write
from support.processes import processes_of

from foresee import job
from foresee.cli import _stagger_calibrate, main
from foresee.errors import ConfigError
from foresee.jobs import Catalog, cold, process
from foresee.jobs.calibrate import Plan, _Calibration
from foresee.jobs.entry import Used

pytestmark = pytest.mark.usefixtures("kept_here")


def test_cold_waits_warm_does_not_and_company_waits_longer(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    told = json.loads(calibrate(tmp_path, data, *pair))
    assert [(ran["kind"], ran["job"], ran["beside"]) for ran in told["runs"]] == [
        ("cold", "a", None),
        ("warm", "a", None),
        ("cold", "b", None),
        ("warm", "b", None),
        ("pair", "a", "b"),
        ("pair", "b", "a"),
    ]
    assert {ran["steps"] for ran in told["runs"]} == {12}
    kept = {(job["name"], figure["name"]): figure for job in told["jobs"] for figure in job["figures"]}
    assert len(kept) == 8
    for name, compute in (("a", 0.004), ("b", 0.006)):
        assert kept[name, "compute"]["seconds"] >= compute
        assert kept[name, "wait"]["seconds"] >= 0.008
        assert kept[name, "wait_cached"]["seconds"] < 0.008
        assert kept[name, "wait"]["sd"] >= 0
        assert kept[name, "wait"]["steps"] == 12
    # What one has read the other finds, so that together they wait for one chunk a step.
    assert max(kept[name, "wait_conc"]["seconds"] for name in "ab") > 0.004
    assert not processes_of(data / "chunks.bin")
    # Whatever runs next begins as cold as these did.
    assert cold.resident([str(data / "chunks.bin")])[0] == 0
    again = json.loads(calibrate(tmp_path, data, *pair))
    assert again["runs"] == []
    assert again["jobs"] == told["jobs"]
    # A prediction needs nothing else.
    arguments = [*pair, "--catalog", str(tmp_path / "jobs.db"), "--machine", "here"]
    assert main(["stagger", "predict", *arguments]) == 0


def test_only_what_is_stale_is_measured_again(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    calibrate(tmp_path, data, *pair)
    with Catalog.open(tmp_path / "jobs.db", write=True) as catalog:
        a, b = catalog.keys()
        catalog.mark_stale(a, "a makespan", beside=b)
    told = json.loads(calibrate(tmp_path, data, *pair))
    assert [ran["kind"] for ran in told["runs"]] == ["pair", "pair"]
    with Catalog.open(tmp_path / "jobs.db") as catalog:
        assert not catalog.stale(a, beside=b)


def test_the_short_calibration_measures_one_job_cold_and_derives_the_rest(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    told = json.loads(calibrate(tmp_path, data, *pair, "--short"))
    assert [(ran["kind"], ran["job"]) for ran in told["runs"]] == [
        ("cold", "a"),
        ("warm", "a"),
        ("warm", "b"),
    ]
    figures = {(job["name"], each["name"]): each for job in told["jobs"] for each in job["figures"]}
    assert {key for key, each in figures.items() if each["estimated"]} == {
        ("a", "wait_conc"),
        ("b", "wait"),
        ("b", "wait_conc"),
    }
    step = figures["a", "compute"]["seconds"] + figures["a", "wait"]["seconds"]
    assert figures["b", "wait"]["seconds"] == pytest.approx(step - figures["b", "compute"]["seconds"])
    # Files are in one page cache for all.
    for name in "ab":
        assert figures[name, "wait_conc"]["seconds"] == figures[name, "wait"]["seconds"]


def test_the_short_calibration_knows_a_place_where_each_reads_by_itself(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    told = json.loads(calibrate(tmp_path, data, *pair, "--short", "--no-coalesces"))
    figures = {
        (job["name"], each["name"]): each["seconds"] for job in told["jobs"] for each in job["figures"]
    }
    step = figures["a", "compute"] + figures["a", "wait"]
    assert figures["a", "wait_conc"] == pytest.approx(2 * step - figures["a", "compute"])


def test_of_three_jobs_each_pair_is_known(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    jobs = [*pair, write(tmp_path, "c", data)]
    told = json.loads(calibrate(tmp_path, data, *jobs, "--short", "--coalesces"))
    assert [(ran["kind"], ran["job"]) for ran in told["runs"]] == [
        ("cold", "a"),
        *(("warm", name) for name in "abc"),
    ]
    beside = {(job["name"], each["beside"]) for job in told["jobs"] for each in job["figures"]}
    assert {each for each in beside if each[1]} == {(a, b) for a in "abc" for b in "abc" if a != b}


def test_a_stock_loader_of_torch_is_calibrated(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time, torch\nimport foresee.torch as ft\n"
        "from torch.utils.data import DataLoader, DistributedSampler\n"
        f"class Data(torch.utils.data.Dataset):\n    def __len__(self): return 40\n"
        f"    def __getitem__(self, i): open({str(data / 'chunks.bin')!r}, 'rb').read(9); return i\n"
        "order = DistributedSampler(Data(), num_replicas=1, rank=0, seed=int(sys.argv[1]))\n"
        "for batch in ft.measure(DataLoader(Data(), 1, sampler=order)):\n    time.sleep(0.005)\n"
    )
    jobs = [
        write(tmp_path, name, data, command=json.dumps([sys.executable, "train.py", seed]))
        for name, seed in (("a", "0"), ("b", "0"), ("c", "1"))
    ]
    short = ("--short", "--coalesces")
    told = json.loads(calibrate(tmp_path, data, *jobs[:2], *short))
    assert told["runs"][0]["compute_seconds"] >= 0.005
    said = calibrate(tmp_path, data, jobs[0], jobs[2], *short, code=2)
    assert "c and a read other data or in another order" in said


def test_the_short_form_has_half_the_steps_and_fewer_warm_where_they_are_alike(
    tmp_path: pathlib.Path,
) -> None:
    chunks = tmp_path / "chunks.bin"
    chunks.write_bytes(os.urandom(60 * CHUNK))
    words = ("--steps", "60", "--compute", "0.01")
    jobs = [write(tmp_path, name, tmp_path, *words, steps=60) for name in ("a", "b")]
    told = json.loads(run(tmp_path, *jobs, "--short", "--data", str(chunks)))
    assert (told["steps"], told["warmup"]) == (50, 10)
    first, *warm = told["runs"]
    assert (first["kind"], first["steps"]) == ("cold", 50)
    assert all(20 <= ran["steps"] <= 50 for ran in warm)
    assert (Plan().counted, Plan(short=True).counted, Plan(short=True, steps=9).counted) == (100, 50, 9)


def test_a_warm_run_ends_where_more_steps_would_say_the_same(tmp_path: pathlib.Path) -> None:
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
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    jobs = [
        write(tmp_path, "a", data, "--compute", "0.06", "--wait", "0"),
        write(tmp_path, "b", data, "--compute", "0.004", "--wait", "0.02"),
        write(tmp_path, "c", data, "--compute", "0.006", "--wait", "0.02"),
    ]
    told = json.loads(calibrate(tmp_path, data, *jobs, "--short"))
    assert [(ran["kind"], ran["job"]) for ran in told["runs"]] == [
        ("cold", "a"),
        ("warm", "a"),
        ("cold", "b"),
        ("warm", "b"),
        ("warm", "c"),
    ]
    figures = {(job["name"], each["name"]): each for job in told["jobs"] for each in job["figures"]}
    step = figures["b", "compute"]["seconds"] + figures["b", "wait"]["seconds"]
    # That of the one that hardly waits would have it wait for as long as that computes.
    assert figures["c", "wait"]["seconds"] == pytest.approx(step - figures["c", "compute"]["seconds"])
    assert [name for name in "abc" if figures[name, "wait"]["estimated"]] == ["c"]


def test_of_jobs_that_hardly_wait_nothing_is_derived(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    jobs = [write(tmp_path, name, data, "--compute", "0.06", "--wait", "0") for name in ("a", "b")]
    told = json.loads(calibrate(tmp_path, data, *jobs, "--short"))
    kinds = ["cold", "warm", "cold", "warm", "pair", "pair"]
    assert [ran["kind"] for ran in told["runs"]] == kinds
    assert not any(figure["estimated"] for job in told["jobs"] for figure in job["figures"])
    # What has been measured is not measured again.
    assert json.loads(calibrate(tmp_path, data, *jobs, "--short"))["runs"] == []


def test_what_was_derived_is_measured_where_it_is_not_to_be_short(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    short = json.loads(calibrate(tmp_path, data, *pair, "--short"))
    assert json.loads(calibrate(tmp_path, data, *pair, "--short"))["runs"] == []
    derived = {
        (job["name"], each["name"]): each["seconds"]
        for job in short["jobs"]
        for each in job["figures"]
        if each["estimated"]
    }
    told = json.loads(calibrate(tmp_path, data, *pair))
    assert [(ran["kind"], ran["job"]) for ran in told["runs"]] == [
        ("cold", "b"),
        ("pair", "a"),
        ("pair", "b"),
    ]
    figures = {(job["name"], each["name"]): each for job in told["jobs"] for each in job["figures"]}
    was = {
        which: each["derived_seconds"]
        for which, each in figures.items()
        if each["derived_seconds"] is not None
    }
    assert was == derived
    assert not any(each["estimated"] for each in figures.values())
    # Both are shown.
    assert f", {1e3 * derived['b', 'wait']:.3f} ms derived before" in _stagger_calibrate._report(told)
    again = json.loads(calibrate(tmp_path, data, *pair))
    assert again["runs"] == []
    assert "derived before" not in _stagger_calibrate._report(again)


def test_the_storages_rate_is_taken_from_what_the_catalog_holds(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    calibrate(tmp_path, data, *pair, "--short")
    third = write(tmp_path, "c", data)
    # The first one, whose batch is as large, is complete.
    told = json.loads(calibrate(tmp_path, data, pair[0], third, "--short"))
    assert [(ran["kind"], ran["job"]) for ran in told["runs"]] == [("cold", "c"), ("warm", "c")]
    with Catalog.open(tmp_path / "jobs.db", write=True) as catalog:
        _, b, _ = catalog.keys()
        catalog.judge([Used(b, "wait")], predicted=1.0, measured=2.0)
    again = json.loads(calibrate(tmp_path, data, *pair, "--short"))
    assert again["runs"] == []
    figures = {
        (job["name"], each["name"]): each["seconds"] for job in again["jobs"] for each in job["figures"]
    }
    step = figures["a", "compute"] + figures["a", "wait"]
    assert figures["b", "wait"] == pytest.approx(step - figures["b", "compute"])


def test_company_is_derived_of_jobs_that_were_seen_to_read_in_one_order(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    calibrate(tmp_path, data, *pair, "--short")
    other = write(tmp_path, "c", data, "--order", "sequential 41")
    said = calibrate(tmp_path, data, pair[0], other, "--short", code=2)
    assert "order: a, no step" in said
    assert "c and a read other data or in another order" in said
    assert not processes_of(data / "chunks.bin")


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
    tmp_path: pathlib.Path, data: pathlib.Path, words: list[str], more: dict, said: str
) -> None:
    jobs = [write(tmp_path, "b", data, *words, **more), write(tmp_path, "a", data)]
    names = sorted(jobs) if "a and b" in said else jobs
    assert said in calibrate(tmp_path, data, *names, "--patience", "2", code=2)
    assert not processes_of(data / "chunks.bin")


def test_a_job_that_prints_nothing_is_said_to(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    jobs = [write(tmp_path, "b", data, command='["true"]'), write(tmp_path, "a", data)]
    assert "b.log is empty" in calibrate(tmp_path, data, *jobs, code=2)


def test_a_job_of_another_data_set_is_none_of_these(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    other = pathlib.Path(pair[1])
    other.write_text(other.read_text().replace("sleepy", "other"))
    assert "data sets differ" in calibrate(tmp_path, data, *pair, code=2)


def test_a_job_that_ignores_the_signal_is_killed(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE", 0.5)
    one = process.Process(
        job.read(write(tmp_path, "a", data, "--deaf", "--hangs-after", "1")), "a", str(tmp_path)
    )
    deadline = time.monotonic() + 20
    while one.done < 1 and time.monotonic() < deadline:
        assert one.poll() is None
        time.sleep(0.02)
    one.stop()
    one.stop()
    assert one.poll() == -signal.SIGKILL
    assert not processes_of(data / "chunks.bin")


def test_two_files_of_one_name_are_not_taken_for_one_model(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    for name in ("resnet", "vgg"):
        (tmp_path / name).mkdir()
    pair = [write(tmp_path / name, "job", data) for name in ("resnet", "vgg")]
    said = calibrate(tmp_path, data, *pair, code=2)
    assert "would be one model, 'job', in the catalog; write [stagger] model in both" in said
    # One file, twice, is one model.
    assert len(json.loads(calibrate(tmp_path, data, pair[0], pair[0]))["runs"]) == 4


def test_a_folder_is_where_it_was_said_however_the_job_files_lie(
    tmp_path: pathlib.Path, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    pair = [write(tmp_path / "jobs", name, data) for name in ("a", "b")]
    monkeypatch.chdir(tmp_path)
    assert len(json.loads(calibrate(tmp_path, data, *pair, "--folder", "logs"))["runs"]) == 6
    assert (tmp_path / "logs" / "1-cold" / "a" / "rank-0.steps").exists()


def test_company_that_has_read_everything_is_none(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    jobs = [
        write(tmp_path, "a", data, "--compute", "0.3", "--epochs", "9", epochs=9),
        write(tmp_path, "b", data, "--compute", "0", "--wait", "0", "--epochs", "999", epochs=999),
    ]
    said = calibrate(tmp_path, data, *jobs, code=2)
    assert "before the first epoch of a job beside it was over" in said


def test_a_job_of_two_ranks_is_as_far_as_the_slower_and_takes_their_mean(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        "import os\nfrom foresee._steps import Meter\nfrom foresee._world import World\n"
        "for rank in (0, 1):\n    lap = Meter(os.environ['FORESEE_STEPS'], World(rank, 2)).lap(steps=40)\n"
        "    for _ in range(3 - rank):\n"
        "        lap._asked, lap._got = 10**9, (2 + 2 * rank) * 10**9\n        lap.end()\n"
    )
    command = json.dumps([sys.executable, "ranks.py"])
    one = process.Process(job.read(write(tmp_path, "a", data, command=command)), "a", str(tmp_path))
    deadline = time.monotonic() + 20
    while one.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    one.poll()
    assert one.done == 2
    assert one.steps()[:, :2].tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert one.head is not None
    assert (one.head.rank, one.head.ranks) == (0, 2)
    one.stop()


def test_a_catalog_that_nobody_named_is_this_users_own(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ["--steps", "6", "--warmup", "1", "--short", "--data", str(data), "--json"]
    assert main(["stagger", "calibrate", *pair, *steps]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["catalog"] == str(tmp_path / "of this user" / "foresee" / "catalog.db")
    assert main(["stagger", "calibrate", *pair, *steps[:-1]]) == 0
    assert f"nothing was missing in {told['catalog']}" in capsys.readouterr().out
    assert main(["stagger", "predict", *pair]) == 0


def test_a_catalog_that_is_locked_is_said_before_anything_runs(
    tmp_path: pathlib.Path, data: pathlib.Path, pair: list[str]
) -> None:
    holder = (
        "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('BEGIN EXCLUSIVE')\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "jobs.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as held:
        assert held.stdout is not None
        held.stdout.readline()
        said = calibrate(tmp_path, data, *pair, code=3)
        assert held.stdin is not None
        held.stdin.close()
    assert "locked by another program" in said
    assert "cold:" not in said


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
