# SPDX-License-Identifier: Apache-2.0
"""``foresee bench storage``: arguments that are refused before a process starts, and its progress line."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys

import pytest
from support.bench_places import empty

from foresee.cli import main


@pytest.mark.parametrize(
    ("more", "code", "expected"),
    [
        (["--processes", "0"], 2, "--processes 0: a whole number from 1"),
        (["--rates", "nan"], 2, "--rates 'nan': cache rates from 0 to 1"),
        (["--goal", "nan"], 2, "--goal 'nan': seconds above 0 expected"),
        (["--goal", "0"], 2, "--goal '0': seconds above 0 expected"),
        (["--what-if", "gfs-read=-100"], 2, "--what-if gfs-read=-100: CLASS=+N expected"),
        (["--what-if", "ram=+3"], 2, "--what-if ram=+3: classes are GFS-READ"),
        (["--files", "1PB:1000"], 2, "fewer files by --files"),
    ],
)
def test_bad_input_is_refused_before_a_file_is_created(
    capsys, tmp_path: pathlib.Path, places: list[str], more: list[str], code: int, expected: str
) -> None:
    assert main(["bench", "storage", *places, *more]) == code
    out, err = capsys.readouterr()
    assert (out, expected in err) == ("", True), err
    assert empty(tmp_path)


def test_a_folder_that_is_not_empty_is_refused(capsys, tmp_path: pathlib.Path, places: list[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("stays")
    assert main(["bench", "storage", *places]) == 2
    assert re.search(r"run: not empty; .* name another with --folder", capsys.readouterr().err)


def test_missing_pyarrow_is_reported_before_the_measurement(
    capsys, tmp_path: pathlib.Path, places: list[str], monkeypatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name))
    assert main(["bench", "storage", *places]) == 3
    assert "install it, or foresee[ledger]" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_progress_on_a_terminal_shows_the_remaining_time(capsys, monkeypatch) -> None:
    from foresee.cli.bench import storage

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = storage._Progress(3)
    progress("making files: 0 of 4")
    progress("case 1 of 1 (a), cache rate 0, epoch 1 of 2")
    progress.done = 1
    progress("case 1 of 1 (a), cache rate 1, epoch 1 of 2")
    progress.end()
    err = capsys.readouterr().err
    assert "making files: 0 of 4" in err
    assert re.search(r"cache rate 1, epoch 1 of 2, about \d+ s left", err)
