# SPDX-License-Identifier: Apache-2.0
"""The command line: its output streams and exit codes."""

from __future__ import annotations

import json

import pytest

import foresee
from foresee.cli import main


def test_version_prints_the_package_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"foresee {foresee.__version__}\n"


def test_no_command_is_bad_input_and_shows_help_on_stderr(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "index" in err


def test_index_writes_a_file_that_opens(folder, tmp_path, capsys):
    path = tmp_path / "train.fidx"
    assert main(["index", str(folder), "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "23 samples" in out
    assert "layout: folder" in err
    index = foresee.Index.open(path)
    assert (len(index), index.classes) == (23, ["a", "b", "c"])


def test_json_is_one_object_on_stdout(folder, tmp_path, capsys):
    path = tmp_path / "train.fidx"
    assert main(["index", str(folder), "-o", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["samples"] == 23
    assert facts["bytes"] == 23 * 8
    assert facts["layout"] == "folder"
    assert facts["fingerprint"] == foresee.Index.open(path).fingerprint


def test_update_reports_changes(folder, tmp_path, capsys):
    path = tmp_path / "train.fidx"
    main(["index", str(folder), "-o", str(path)])
    (folder / "c" / "new.jpg").write_bytes(b"new")
    (folder / "a" / "0000.jpg").unlink()
    capsys.readouterr()
    assert main(["index", str(folder), "-o", str(path), "--update", "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert changes == {"added": 1, "removed": 1, "changed": 0, "kept": 22}
    assert len(foresee.Index.open(path)) == 23


def test_dump_shows_an_index(folder, tmp_path, capsys):
    path = tmp_path / "train.fidx"
    main(["index", str(folder), "-o", str(path)])
    capsys.readouterr()
    assert main(["index", str(path), "--dump", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 23


@pytest.mark.parametrize(
    "arguments",
    [
        ["index", "{data}"],
        ["index", "{data}/nowhere", "-o", "x.fidx"],
        ["index", "{data}/a/0000.jpg", "-o", "x.fidx"],
        ["index", "{data}", "-o", "x.fidx", "--option", "region"],
        ["index", "{data}", "-o", "{data}/no.fidx", "--update"],
        ["index", "{data}/a/0000.jpg", "--dump"],
    ],
)
def test_bad_input_has_exit_code_2_and_a_message_on_stderr(folder, arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([argument.format(data=folder) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("foresee: ")
    assert not (tmp_path / "x.fidx").exists()


def test_an_unwritable_output_has_exit_code_3(folder, capsys):
    assert main(["index", str(folder), "-o", "/proc/nowhere/x.fidx"]) in (2, 3)
    assert "/proc/nowhere" in capsys.readouterr().err


def test_a_wrong_option_is_argparse_exit_code_2(folder):
    with pytest.raises(SystemExit) as caught:
        main(["index", str(folder), "--layout", "tar"])
    assert caught.value.code == 2
