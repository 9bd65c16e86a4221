# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger predict``: its table, JSON object and exit codes."""

from __future__ import annotations

import datetime as dt
import doctest
import importlib
import json
import platform
import sqlite3
from pathlib import Path

import pytest
from support.table_one import MODELS, TOML, facts, write

from foresee import jobspec, stagger
from foresee.cli import main
from foresee.cli.stagger import catalog_path
from foresee.stagger import Catalog, Entry, Key, inputs
from foresee.stagger.timing import SLACK, choose_schedule


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    return [write(tmp_path, "resnet"), write(tmp_path, "efficientnet")]


@pytest.mark.parametrize("module", ["foresee.cli.stagger.report"])
def test_the_examples_in_the_docstrings_are_true(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed


def test_json_has_the_worked_example_in_both_orders(pair: list[str], capsys) -> None:
    result = facts(capsys, *pair)
    assert (result["data"], result["compat"], result["doubts"], result["running_percent"]) == (
        "TinyImageNet",
        "physical",
        [],
        None,
    )
    assert result["jobs"][0]["alone_seconds"] == pytest.approx(1174.524)
    assert result["jobs"][0]["wait_conc_seconds"] == 0.6
    first, second = result["orders"]
    assert (first["leader"], first["follower"]) == ("resnet", "efficientnet")
    assert (second["leader"], second["follower"]) == ("efficientnet", "resnet")
    assert first["best"]["start"] == pytest.approx(792.792)
    assert first["best"]["percent"] == pytest.approx(67.499, abs=5e-4)
    assert first["best"]["makespan"] == pytest.approx(1174.524)
    assert (first["best"]["case"], first["best"]["catch_up"]) == ("cached", None)
    assert first["simultaneous"]["makespan"] == pytest.approx(1410.080, abs=5e-4)
    assert first["sequential"]["makespan"] == pytest.approx(1556.256)
    rows = {round(row["percent"]): row for row in first["table"]}
    assert list(rows) == list(range(0, 101, 10))
    assert rows[20]["makespan"] == pytest.approx(1340.285, abs=5e-4)
    assert rows[40]["catch_up"] == pytest.approx(696.024, abs=5e-4)
    assert rows[100]["case"] == "serial"
    assert rows[80]["follower_wait_seconds"] == pytest.approx(0.04)
    assert first["best_of_table"] == rows[60]
    # A faster pipeline leads: its duration is the makespan.
    assert (result["best"]["leader"], result["best"]["makespan"]) == ("efficientnet", pytest.approx(1166.88))


def test_the_papers_model_retains_the_rate_of_the_slower_job(pair: list[str], capsys) -> None:
    result = facts(capsys, *pair, "--compat", "paper")
    assert result["orders"][0]["simultaneous"]["makespan"] == pytest.approx(1411.332, abs=5e-4)


def test_an_external_job_always_leads(pair: list[str], capsys) -> None:
    result = facts(capsys, *pair, "--running", "75")
    (order,) = result["orders"]
    assert order["leader"] == "resnet"
    assert order["earliest"] == pytest.approx(0.75 * 1174.524)
    assert order["best"]["start"] == order["earliest"] == order["table"][0]["start"]
    assert order["simultaneous"] is order["sequential"] is None
    assert [round(row["percent"]) for row in order["table"]] == [75, 80, 90, 100]
    assert facts(capsys, *pair, "--running", "30")["best"]["start"] == pytest.approx(792.792)


def test_late_jobs_start_late(tmp_path: Path, capsys) -> None:
    files = [write(tmp_path, "resnet"), write(tmp_path, "efficientnet", start=900)]
    first, second = facts(capsys, *files)["orders"]
    assert first["best"]["start"] == first["earliest"] == 900
    assert second["leader_start"] == 900
    assert second["best"]["end"] == pytest.approx(900 + second["best"]["makespan"])
    assert second["earliest"] == 0


def test_a_small_cache_limits_the_start(pair: list[str], capsys) -> None:
    result = facts(capsys, *pair, "--cache", "0.5")
    order = result["orders"][0]
    assert order["best"]["percent"] == pytest.approx(50)
    assert [row["within_cache"] for row in order["table"]] == [True] * 6 + [False] * 5
    facts(capsys, *pair, "--cache", "0.5", "--running", "60", code=1)
    assert main(["stagger", "predict", *pair, "--cache", "0.5", "--running", "60"]) == 1
    assert "too small for the second job at any start" in capsys.readouterr().out


def test_a_start_may_be_simulated_step_by_step(pair: list[str], capsys) -> None:
    result = facts(capsys, *pair, "--simulate")
    for order in result["orders"]:
        for row in (*order["table"], order["best"]):
            assert row["played"]["makespan"] == pytest.approx(row["makespan"], abs=4)
    assert result["best_played"]["leader"] == result["best"]["leader"]
    held = facts(capsys, *pair, "--simulate", "--hold", "0.02")["orders"][0]["simultaneous"]
    assert held["played"]["held_seconds"] > 0
    assert held["played"]["data_sets_read"] == 1
    assert held["played"]["makespan"] < held["makespan"]
    assert main(["stagger", "predict", *pair, "--simulate"]) == 0
    text = capsys.readouterr().out
    # A start has one line with the results of the model and the simulation.
    assert "best of those played" not in text
    assert (
        "best: resnet 630.9 s after efficientnet, makespan 1,166.9 s by the model; played step by step 1,1"
        in text
    )


def test_a_start_has_one_row_and_no_gain_is_stated(tmp_path: Path, capsys) -> None:
    files = []
    for name in "ab":
        path = tmp_path / f"{name}.toml"
        values = {"data": "d", "epochs": 1, "seed": 0, "start": 0, "compute": 300}
        path.write_text(TOML.format(stagger="wait = 0\nwait_cached = 0\nwait_conc = 0", **values))
        files.append(str(path))
    assert main(["stagger", "predict", *files]) == 0
    text = capsys.readouterr().out
    assert text.count("0 s     0.0 %") == text.count("best, at once") == 2
    assert "0.0 % fewer GPU-seconds of b; there is nothing to gain" in text
    assert main(["stagger", "predict", *files, "--coalesces", "--read", "100s"]) == 0
    assert "0.0 % less than all at once; there is nothing to gain" in capsys.readouterr().out


def test_with_an_external_job_starts_also_count_from_now(pair: list[str], capsys) -> None:
    best = facts(capsys, *pair, "--running", "30")["best"]
    assert best["from_now"] == pytest.approx(792.792 - 0.3 * 1174.524)
    assert main(["stagger", "predict", *pair, "--running", "30"]) == 0
    assert "best: efficientnet 792.8 s after resnet (440.4 s from now), makespan" in capsys.readouterr().out
    plan = facts(capsys, *pair, "--running", "30", "--coalesces", "--read", "700s")["plan"]
    assert plan["from_now"][1] == pytest.approx(plan["starts"][1] - 0.3 * 1174.524)
    assert main(["stagger", "predict", *pair, "--running", "30", "--coalesces", "--read", "700s"]) == 0
    assert "from now" in capsys.readouterr().out


def test_starts_beyond_the_reach_of_the_cache_are_simulated(pair: list[str], capsys) -> None:
    arguments = [*pair, "--cache", "0.5", "--running", "60"]
    facts(capsys, *arguments, code=1)
    result = facts(capsys, *arguments, "--simulate")
    assert result["best"] is None
    assert result["best_played"]["played"]["data_sets_read"] > 1
    assert main(["stagger", "predict", *arguments, "--simulate"]) == 0
    out = capsys.readouterr().out
    assert "too small for the second job at any start" in out
    assert "best of those played" in out


def test_the_catalog_supplies_values_that_files_lack(tmp_path: Path, capsys) -> None:
    path = tmp_path / "catalog.db"
    keys = {
        model: Key(machine="m", data="TinyImageNet", model=model, batch=64, loader="default")
        for model in MODELS
    }
    with Catalog.open(path, write=True) as catalog:
        for model, other in (("resnet", "efficientnet"), ("efficientnet", "resnet")):
            _, wait, conc = MODELS[model]
            figures = {"wait": wait / 1e3, "wait_cached": 0.04, "wait_conc": conc / 1e3}
            for name, seconds in figures.items():
                entry = Entry(
                    seconds=seconds,
                    steps=100,
                    date=dt.date(2026, 11, 22),
                    program="0.1.0",
                    stale="it was slower" if (model, name) == ("resnet", "wait") else None,
                )
                beside = keys[other] if name == "wait_conc" else None
                catalog.put(keys[model], name, entry, beside=beside)
    files = [write(tmp_path, model, "") for model in MODELS]
    assert main(["stagger", "predict", *files, "--catalog", str(path), "--machine", "m", "--json"]) == 0
    out, err = capsys.readouterr()
    best = json.loads(out)["orders"][0]["best"]
    assert best["start"] == pytest.approx(792.792)
    # T_A1 and T_B1 of table S-1.
    assert best["leader_first_epoch_seconds"] == pytest.approx(1174.524)
    assert best["follower_first_epoch_seconds"] == pytest.approx(381.732)
    assert "resnet: wait of 2026-11-22 is stale: it was slower" in err
    assert main(["stagger", "predict", *files, "--catalog", str(path)]) == 2
    assert "wait of resnet is not known" in capsys.readouterr().err
    assert platform.node() != "m"


@pytest.mark.parametrize("of", ["variable", "folder"])
def test_the_users_catalog_is_read_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str, capsys
) -> None:
    files = [write(tmp_path, model, "") for model in MODELS]
    assert main(["stagger", "predict", *files]) == 2
    assert "measure it by `foresee stagger calibrate JOB.toml ...`" in capsys.readouterr().err
    path = tmp_path / "data" / "foresee" / "catalog.db"
    path.parent.mkdir(parents=True)
    if of == "folder":
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    else:
        monkeypatch.setenv("FORESEE_CATALOG", str(path))
    assert catalog_path.user_catalog() == str(path)
    keys = {
        model: Key(machine=platform.node(), data="TinyImageNet", model=model, batch=64, loader="default")
        for model in MODELS
    }
    with Catalog.open(path, write=True) as catalog:
        for model, key in keys.items():
            for name, seconds in (("wait", MODELS[model][1] / 1e3), ("wait_cached", 0.04)):
                entry = Entry(seconds=seconds, steps=100, date=dt.date(2026, 11, 22), program="0.1.0")
                catalog.put(key, name, entry)
    files.append(write(tmp_path, "resnet2", "wait = 0.45\nwait_cached = 0.04"))
    assert facts(capsys, *files)["jobs"][0]["wait_seconds"] == pytest.approx(0.4493)


def test_concurrent_waits_of_pairs_add_up_for_more_jobs(tmp_path: Path) -> None:
    names = ("a", "b", "c")
    keys = {name: Key(machine="m", data="d", model=name, batch=64, loader="default") for name in names}
    jobs = []
    for name in names:
        path = tmp_path / f"{name}.toml"
        path.write_text(
            TOML.format(data="d", epochs=1, seed=0, start=0, compute=300, stagger="wait_cached = 0.0")
        )
        jobs.append(jobspec.read(str(path)))
    with Catalog.open(tmp_path / "catalog.db", write=True) as catalog:

        def put(name: str, figure: stagger.Figure, seconds: float, beside: str | None = None) -> None:
            entry = Entry(seconds=seconds, steps=100, date=dt.date(2026, 11, 24), program="0.1.0")
            catalog.put(keys[name], figure, entry, beside=None if beside is None else keys[beside])

        for name in names:
            put(name, "wait", 0.4)
        for name, beside, seconds in (("a", "b", 1.0), ("a", "c", 0.7), ("b", "a", 0.39), ("b", "c", 0.4)):
            put(name, "wait_conc", seconds, beside)
        put("c", "wait_conc", 0.8, "a")
        found = inputs.times(jobs, catalog=catalog, machine="m").jobs
    assert [each.wait_conc for each in found] == [pytest.approx(1.3), pytest.approx(0.4), None]
    assert ["wait_conc" in each.estimated for each in found] == [True, True, False]


def test_the_report_has_both_orders_and_an_advice(pair: list[str], capsys) -> None:
    assert main(["stagger", "predict", *pair]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert "resnet first, then efficientnet" in lines
    assert "efficientnet first, then resnet" in lines
    (best,) = [line for line in lines if line.startswith("best") and "792.8 s" in line]
    assert "67.5 %" in best
    assert "1,174.5 s" in best
    assert lines[-3] == "best: resnet 630.9 s after efficientnet, makespan 1,166.9 s"
    assert "17.2 % shorter than simultaneous" in lines[-2]
    assert max(map(len, lines)) <= 120


#: Three jobs whose pipelines are equal within the noise of a measurement.
NOISY = ((303.6, 446.2, 1), (304.7, 443.3, 2), (305.0, 445.0, 1))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("options", [{}, {"running": 30.0}, {"slack": 0.0}, {"cache": 0.7}])
def test_predict_shows_the_starts_that_run_would_choose(
    tmp_path: Path, count: int, options: dict[str, float], capsys
) -> None:
    files = []
    for i, (compute, wait, epochs) in enumerate(NOISY[:count]):
        path = tmp_path / f"{'abc'[i]}.toml"
        given = f'wait = "{wait} ms"\nwait_cached = 0\nwait_conc = "{wait + 20 * i} ms"'
        values = {"data": "d", "epochs": epochs, "seed": 0, "start": 7 * i, "compute": compute}
        path.write_text(TOML.format(stagger=given, **values))
        files.append(str(path))
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    result = facts(capsys, *files, *words)
    jobs = [jobspec.read(path) for path in files]
    times = inputs.times(jobs).jobs
    running = options.get("running")
    chosen = choose_schedule(
        times,
        [each.run.start for each in jobs],
        running=None if running is None else running / 100 * times[0].alone(options.get("cache", 1.0)),
        cache=options.get("cache", 1.0),
        slack=options.get("slack", SLACK),
    )
    leader = times[chosen.order[0]].name
    starts = dict(zip(chosen.order, chosen.starts, strict=True))
    if count == 2:
        best = result["best"]
        assert (best["leader"], best["start"]) == (leader, pytest.approx(chosen.starts[1]))
        assert best["gpu_seconds"] == pytest.approx(chosen.gpu_seconds)
        return
    plan = result["plan"]
    assert (plan["leader"], plan["case"]) == (leader, chosen.case)
    assert plan["starts"] == pytest.approx([chosen.delay + starts[at] for at in range(count)])
    assert plan["makespan"] == pytest.approx(chosen.delay + chosen.makespan)
    assert plan["gpu_seconds"] == pytest.approx(chosen.gpu_seconds)


def test_a_prediction_is_that_of_the_model(pair: list[str], capsys) -> None:
    result = facts(capsys, *pair, "--cache", "0.9")
    jobs = [
        stagger.JobTimes(
            name=name,
            compute=compute / 1e3,
            wait=wait / 1e3,
            wait_cached=0.04,
            wait_conc=conc / 1e3,
            steps=1560,
        )
        for name, (compute, wait, conc) in MODELS.items()
    ]
    best = stagger.optimum(*jobs, cache=0.9)
    assert best is not None
    assert result["orders"][0]["best"]["start"] == pytest.approx(best.start)
    assert result["orders"][0]["best"]["gpu_seconds"] == pytest.approx(best.gpu_seconds)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{a}"], "1 job; two or more"),
        (["{a}", "{folder}/nowhere.toml"], "nowhere.toml"),
        (["{a}", "{folder}/other.toml"], "data sets differ"),
        (["{a}", "{folder}/order.toml"], "orders differ"),
        (["{a}", "{folder}/bare.toml"], "wait of bare is not known"),
        (["{a}", "{b}", "--coalesces"], "--coalesces without --read"),
        (["{a}", "{b}", "--hold", "0.1"], "--hold 0.1 without --simulate"),
        (["{a}", "{b}", "--simulate", "--hold", "2"], "--hold 2.0: a share from 0 to 1"),
        (
            ["{a}", "{b}", "--simulate", "--hold", "0", "--coalesces", "--read", "9s"],
            "--hold 0.0 with --coalesces",
        ),
        (["{a}", "{b}", "{c}", "--simulate"], "wait_conc"),
        (["{a}", "{b}", "--read", "soon"], "--read 'soon': a time above 0 expected"),
        (["{a}", "{b}", "--read", "0"], "--read '0'"),
        (["{a}", "{b}", "--read", "nan"], "--read 'nan'"),
        (["{a}", "{b}", "--cache", "0"], "--cache 0.0"),
        (["{a}", "{b}", "--cache", "nan"], "--cache nan"),
        (["{a}", "{b}", "--running", "-1"], "--running -1.0"),
        (["{a}", "{b}", "--running", "inf"], "--running inf"),
        (
            ["{a}", "{b}", "--running", "101"],
            "--running 101.0: percent of the first job's run expected, 0 to 100",
        ),
        (["{a}", "{b}", "--machine", "m"], "--machine 'm': there is no catalog at "),
        (["{a}", "{b}", "--catalog", "{folder}/nowhere.db"], "nowhere.db"),
        (["{a}", "{b}", "--catalog", "{a}"], "no SQLite file"),
        (["{a}", "{b}", "--plot", "curves.gif"], "one of the suffixes .svg, .png, .pdf expected"),
        (["{a}", "{b}", "--plot", "{folder}/nowhere/curves.svg"], "nowhere"),
        (["{a}", "{b}", "--compat", "other"], "invalid choice"),
    ],
)
def test_bad_input_has_exit_code_2_and_a_message(
    tmp_path: Path, pair: list[str], capsys, arguments: list[str], expected: str
) -> None:
    third = write(tmp_path, "resnet2", "wait = 0.5\nwait_cached = 0")
    for name, more in (
        ("other", {"data": "CIFAR"}),
        ("order", {"seed": 1}),
        ("bare", {"given": ""}),
    ):
        (tmp_path / "efficientnet2.toml").unlink(missing_ok=True)
        Path(write(tmp_path, "efficientnet2", **more)).rename(tmp_path / f"{name}.toml")
    names = {"a": pair[0], "b": pair[1], "c": third, "folder": str(tmp_path)}
    try:
        code = main(["stagger", "predict", *(argument.format(**names) for argument in arguments)])
    except SystemExit as left:  # argparse refuses the option
        code = int(str(left.code))
    assert code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err


def test_a_locked_catalog_has_exit_code_3(tmp_path: Path, pair: list[str], capsys, monkeypatch) -> None:
    path = tmp_path / "catalog.db"
    Catalog.open(path, write=True).close()
    opened = Catalog.open
    monkeypatch.setattr(Catalog, "open", lambda path: opened(path, wait=0.0))
    locker = sqlite3.connect(path, isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    try:
        assert main(["stagger", "predict", *pair, "--catalog", str(path)]) == 3
    finally:
        locker.close()
    assert "locked by another program" in capsys.readouterr().err


def test_an_action_is_required(capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main(["stagger"])
    assert left.value.code == 2
    assert "ACTION" in capsys.readouterr().err
