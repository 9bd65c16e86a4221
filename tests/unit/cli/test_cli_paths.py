# SPDX-License-Identifier: Apache-2.0
"""Paths of the command line and of job files: ``~`` everywhere, and hints for missing files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from support.small_job import SMALL
from support.table_one import write

from foresee import jobspec
from foresee.cli import _parser, _paths, main
from foresee.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a job and a profile."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "job.toml").write_text(SMALL)
    (tmp_path / "profile.toml").write_text('version = 1\nmachine = "a"\ndate = 2026-11-22\n')
    return tmp_path


def test_a_tilde_is_the_home_folder_in_every_argument(home: Path, capsys) -> None:
    arguments = ["simulate", "~/job.toml", "--policies", "naive", "--plot=~/a.svg", "--json"]
    assert main(arguments) == 0
    assert (home / "a.svg").exists()
    assert json.loads(capsys.readouterr().out)
    given = argparse.Namespace(one="~/x", words=["0.5=~/a", "gfs=~/b", "c"], tilde="a~b", number=3)
    _paths.expand(given)
    assert vars(given) == {
        "one": f"{home}/x",
        "words": [f"0.5={home}/a", f"gfs={home}/b", "c"],
        "tilde": "a~b",
        "number": 3,
    }


def test_a_tilde_is_the_home_folder_in_every_path_of_a_job_file(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    text = """
    version = 1
    data = {index = "~/data.fidx"}
    cluster = {profile = "~/profile.toml"}
    gradients = {model = "~/model.json"}
    run = {folder = "~/run"}
    """
    (folder / "job.toml").write_text(text)
    read = jobspec.read("~/jobs/job.toml")
    result = (read.data.index, read.cluster.profile, read.gradients.model, read.run.folder)
    assert result == tuple(f"{home}/{name}" for name in ("data.fidx", "profile.toml", "model.json", "run"))


def test_a_missing_file_is_reported_with_candidates_and_remedy(home: Path, capsys) -> None:
    def errors(*arguments: str) -> str:
        assert main(arguments) == 2
        return capsys.readouterr().err

    assert f"{home}/jbo.toml: no such file; {home} has job.toml, profile.toml" in errors(
        "simulate", "~/jbo.toml"
    )
    assert f"no such file, nor a folder {home}/no" in errors("cost", "~/no/job.toml")
    assert "no such file, and no published scenario; did you mean thesis_" in errors("simulate", "thesis_")
    gone = FileNotFoundError(2, "No such file", str(home / "none" / ".." / "gone" / "profile.toml"))
    (home / "none").mkdir()
    (home / "gone").mkdir()
    assert _paths.describe_missing(gone).endswith("; `foresee calibrate` measures a machine profile")
    index = FileNotFoundError(2, "No such file", str(home / "data.fidx"))
    assert _paths.describe_missing(index).endswith("data.fidx: no such file; `foresee index` makes one")
    pair = [write(home, "resnet"), write(home, "efficientnet")]
    catalog = str(home / "none.db")
    assert (
        f"{catalog}: there is no catalog; `foresee stagger calibrate --catalog {catalog}` measures jobs"
        in errors("stagger", "predict", *pair, "--catalog", catalog)
    )


def test_all_faults_of_a_job_file_and_its_profile_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        'version = 1\nmachine = "a"\ndate = 2026-11-22\n[[figure]]\nname = "x"\n'
    )
    text = '[train]\nbatch = 0\nepoch = 3\n[cluster]\nprofile = "p.toml"\n'
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        jobspec.read(tmp_path / "job.toml")
    result = str(caught.value)
    for fault in (
        "version is missing",
        "train.batch = 0",
        "did you mean epochs",
        "p.toml: figure[0].value is missing",
    ):
        assert result.count(fault) == 1, (fault, result)
    (tmp_path / "job.toml").write_text(text.replace("p.toml", "none.toml"))
    with pytest.raises(ConfigError, match="`foresee calibrate` measures one") as caught:
        jobspec.read(tmp_path / "job.toml")
    assert "train.batch = 0" in str(caught.value)


def test_faults_of_several_job_files_are_reported_at_once(tmp_path: Path, capsys) -> None:
    files = []
    for name, fault in (("a", "batch = 0"), ("b", "epochs = 0")):
        files.append(str(tmp_path / f"{name}.toml"))
        Path(files[-1]).write_text(f"version = 1\n[train]\n{fault}\n")
    assert main(["stagger", "predict", *files]) == 2
    errors = capsys.readouterr().err
    assert "a.toml: train.batch = 0" in errors
    assert "b.toml: train.epochs = 0" in errors


def test_all_missing_price_keys_are_named_at_once(home: Path, capsys) -> None:
    assert main(["cost", "~/job.toml"]) == 2
    errors = capsys.readouterr().err
    for key in ("provider", "region", "vm", "bucket"):
        assert f"cost.{key} is missing" in errors


def leaves(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Return all commands without subcommands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [leaf for action in below for each in action.choices.values() for leaf in leaves(each)] or [parser]


def test_every_command_has_its_figures_as_json() -> None:
    without = [
        leaf.prog
        for leaf in leaves(_parser())
        if not any("--json" in action.option_strings for action in leaf._actions)
    ]
    assert without == []
