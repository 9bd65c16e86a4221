# SPDX-License-Identifier: Apache-2.0
"""Ledgers of simulated runs: the same format as a run's, read by the same commands, with the simulator's own sums."""

from __future__ import annotations

import datetime as dt
import json
import resource

import numpy as np
import pytest
from support.small_job import SMALL

from foresee import jobspec, predict
from foresee.cli import main
from foresee.errors import ConfigError
from foresee.jobspec import profile
from foresee.planning import simulation
from foresee.storage import analysis
from foresee.storage.analysis import ledger


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(SMALL)
    return str(path)


def simulate(file: str, folder, *policies: str) -> None:
    assert main(["simulate", file, "--policies", *policies, "--run-dir", str(folder), "--json"]) == 0


def rows(folder) -> int:
    return sum(batch.num_rows for path, _ in ledger.files(folder) for batch in ledger.batches(path))


@pytest.mark.parametrize("policy", ["naive", "staging_buffer", "nopfs", "foresee", "deepio_ordered"])
def test_analyze_gives_the_simulators_own_sums(file, tmp_path, capsys, policy) -> None:
    folder = tmp_path / "run"
    simulate(file, folder, policy)
    (result,) = json.loads(capsys.readouterr().out)["runs"]
    assert result["run_dir"] == str(folder)
    table = analysis.ledger.read(folder)
    half_ns = 0.5e-9 * (rows(folder) + 1)
    for column, place in (("GFS-READ", "origin"), ("LFS-READ", "disk")):
        expected = sum(each["seconds"] for each in result["reads"] if each["source"] == place)
        if place == "origin":
            expected += sum(each["seconds"] for each in result["loads"])
        found = table.seconds[:, table.classes.index(column)].sum() if column in table.classes else 0.0
        assert found == pytest.approx(expected, rel=1e-12, abs=half_ns)
    assert main(["analyze", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == [str(folder)]


def test_predict_reads_a_simulated_run_and_finds_its_job(file, tmp_path, capsys) -> None:
    folder = tmp_path / "run"
    arguments = [
        "simulate",
        file,
        "--policies",
        "foresee",
        "--order",
        "distributed",
        "--run-dir",
        str(folder),
    ]
    assert main([*arguments, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["runs"]
    trace = predict.read(folder)
    assert (trace.ranks, trace.epochs, trace.steps, trace.batch, trace.samples) == (3, 3, 50, 20, 3000)
    assert (trace.order, trace.limits) == ("distributed", ())
    assert sum(trace.waits.values()) == pytest.approx(result["stall_s"], abs=1e-6)
    ends = np.diff([0.0, *(epoch["end_s"] for epoch in result["epochs"])])
    # The last step of an epoch is assumed to compute as long as the others.
    np.testing.assert_allclose(trace.epoch_s, ends, rtol=0.02)
    here = tmp_path / "profile.toml"
    figures = [
        profile.Figure(name="origin.read", at=1, value=60.0, unit="MB/s"),
        profile.Figure(name="tier.ram.read", at=1, value=10.0, unit="GB/s"),
        profile.Figure(name="tier.ram.capacity", value=60.0, unit="MB"),
    ]
    machine_profile = profile.Profile(machine="there", date=dt.date(2026, 11, 22), figure=tuple(figures))
    profile.write(machine_profile, here)
    assert main(["predict", str(folder), "--profile", str(here), "--policies", "foresee", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"][0]["policy"] == "foresee"


def test_several_policies_have_a_folder_each_and_those_without_an_answer_none(file, tmp_path, capsys) -> None:
    folder = tmp_path / "runs"
    simulate(file, folder, "perfect", "lbann_dynamic", "foresee")
    result = json.loads(capsys.readouterr().out)["runs"]
    assert [one.get("run_dir") for one in result] == [str(folder / "perfect"), None, str(folder / "foresee")]
    assert sorted(each.name for each in folder.iterdir()) == ["foresee", "perfect"]
    names = sorted(each.name for each in (folder / "foresee" / "ledger").iterdir())
    assert names == [f"rank-{rank}.arrow" for rank in range(3)]
    assert main(["analyze", str(folder / "perfect")]) == 2
    assert "no I/O" in capsys.readouterr().err


def test_ledgers_change_no_result(file, tmp_path) -> None:
    given = jobspec.read(file)
    alone = simulation.Run(given, "nopfs").finish()
    assert alone == simulation.Run(given, "nopfs", run_dir=tmp_path / "run").finish()


@pytest.mark.parametrize("existing", ["a file", "a folder with something in it"])
def test_existing_paths_are_never_overwritten(file, tmp_path, capsys, existing) -> None:
    folder = tmp_path / "run"
    if existing == "a file":
        folder.write_text("")
    else:
        folder.mkdir()
        (folder / "notes.txt").write_text("")
    assert main(["simulate", file, "--policies", "naive", "--run-dir", str(folder)]) == 2
    assert f"--run-dir {folder}: it exists" in capsys.readouterr().err


def test_an_empty_folder_is_filled(file, tmp_path, capsys) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    simulate(file, folder, "naive")
    capsys.readouterr()
    assert rows(folder) == 3 * 3 * 50 + 3 * 3000
    with pytest.raises(ConfigError, match="it has ledgers already"):
        simulation.Run(jobspec.read(file), "naive", run_dir=folder)


def test_a_sweep_with_ledgers_is_refused(file, tmp_path, capsys) -> None:
    sweep = ["--sweep", "cluster.ranks=1,2", "--run-dir", str(tmp_path / "run")]
    assert main(["simulate", file, *sweep]) == 2
    assert "--run-dir with --sweep" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_created_is_named(file, tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "run"
    assert main(["simulate", file, "--policies", "naive", "--run-dir", str(folder)]) == 3
    assert str(folder) in capsys.readouterr().err


def test_a_cancelled_run_leaves_complete_ledgers(file, tmp_path) -> None:
    given_up = simulation.Run(jobspec.read(file), "naive", run_dir=tmp_path / "run")
    assert given_up.advance()[:2] == ("training", 0)
    # At most to the end of an epoch.
    assert given_up.advance()[:2] == ("training", 50)
    given_up.close()
    given_up.close()
    assert rows(tmp_path / "run") == 3 * 50 + 3000
    assert all(
        batch is not None for path, _ in ledger.files(tmp_path / "run") for batch in ledger.batches(path)
    )


def test_more_ranks_than_open_files_are_refused(tmp_path) -> None:
    many = jobspec.loads(SMALL.replace("ranks = 3", "ranks = 400"))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="rank-"):
            simulation.Run(many, "naive", run_dir=tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
