# SPDX-License-Identifier: Apache-2.0
"""``foresee simulate``: its table, its one object, its pictures, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from test_loading_model import SMALL

from foresee.cli import main


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(SMALL)
    return str(path)


def test_a_table_has_a_row_for_every_policy(file, capsys) -> None:
    assert main(["simulate", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line and not line.startswith(("policy", file))}
    assert set(rows) >= {"perfect", "naive", "nopfs", "foresee", "lbann_dynamic"}
    assert "no answer" in rows["lbann_dynamic"]
    assert "100.0%" in rows["foresee"]


def test_one_object_and_nothing_else(file, capsys) -> None:
    assert main(["simulate", file, "--policies", "foresee", "fifty_fifty", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [one["policy"] for one in facts["runs"]] == ["foresee", "fifty_fifty"]
    assert facts["runs"][0]["total_s"] > 0
    assert not facts["interrupted"]


def test_a_published_scenario_goes_by_its_name(capsys) -> None:
    assert main(["simulate", "--list", "--json"]) == 0
    assert "thesis_1" in json.loads(capsys.readouterr().out)
    assert main(["simulate", "thesis_1", "--policies", "perfect", "nopfs"]) == 0
    assert "nopfs" in capsys.readouterr().out


def test_two_keys_are_swept_and_drawn(file, tmp_path, capsys) -> None:
    sweep = ["--sweep", "cluster.tiers.ram.capacity=20 MB,80 MB,300 MB", "--sweep", "cluster.ranks=1,3"]
    picture = tmp_path / "heat.svg"
    assert main(["simulate", file, "--policies", "foresee", *sweep, "--plot", str(picture), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["runs"]) == 6
    assert facts["runs"][3]["at"] == {"cluster.tiers.ram.capacity": "80 MB", "cluster.ranks": "3"}
    drawn = picture.read_text()
    assert drawn.startswith("<svg")
    assert all(f">{value}</text>" in drawn for value in ("20 MB", "300 MB", "1", "3"))
    assert main(["simulate", file, *sweep, "--plot", str(picture)]) == 2
    assert "choose one of" in capsys.readouterr().err
    bars = tmp_path / "bars.svg"
    assert main(["simulate", file, "--plot", str(bars)]) == 0
    assert "stall" in bars.read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "a job file or a scenario's name is missing"),
        (["{file}", "--policies", "best"], "--policies best"),
        (["{file}", "--sweep", "train.batch"], "KEY=VALUE"),
        (["{file}", "--sweep", "train.batch="], "no values to sweep"),
        (["{file}", "--sweep", "train.bach=1"], "no key 'bach'"),
        (["{file}", "--sweep", "train.batch=1,nan"], "batch"),
        (["{file}", "--sweep", "cluster.tiers.ram.capacity=0"], "capacity"),
        (["{file}", "--threads", "0"], "--threads 0"),
        (["{file}", "--plot", "x.png"], "only .svg"),
        (["nothing.toml"], "nothing.toml"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_run(file, capsys, arguments, told) -> None:
    assert main(["simulate", *(word.format(file=file) for word in arguments)]) == 2
    assert told in capsys.readouterr().err


def test_a_goal_that_nobody_reaches_is_exit_code_1(file, capsys) -> None:
    assert main(["simulate", file, "--within", "1e9"]) == 0
    assert main(["simulate", file, "--within", "0.001"]) == 1
    capsys.readouterr()


def test_ctrl_c_prints_what_is_done(tmp_path) -> None:
    path = tmp_path / "long.toml"
    path.write_text(SMALL.replace("samples = 3000", "samples = 300000").replace("epochs = 3", "epochs = 300"))
    source = "import sys; from foresee.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [
        sys.executable,
        "-c",
        source,
        "simulate",
        str(path),
        "--policies",
        "perfect",
        "foresee",
        "nopfs",
    ]
    # Progress is drawn on a terminal alone, and tells that the runs have begun.
    terminal, end = os.openpty()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=end, text=True)
    os.close(end)
    err = b""
    while b"%" not in err:
        err += os.read(terminal, 4096)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    os.close(terminal)
    assert process.returncode == 130, err
    assert "interrupted" in out
    assert "~" in out
