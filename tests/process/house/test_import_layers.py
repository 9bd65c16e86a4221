# SPDX-License-Identifier: Apache-2.0
"""The Python layers of `pyproject.toml` refuse forbidden imports, planted in a copy of the package."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sysconfig

import pytest
from support.house import ROOT

LINTER = pathlib.Path(sysconfig.get_path("scripts")) / "lint-imports"


#: Lines that break a layer, by the module that gets them, and their text in the report.
PLANTED = {
    "_loading/session.py": ("import torch", "foresee._loading.session -> torch"),
    "cli/index.py": ("import foresee.torch", "foresee.cli.index -> foresee.torch"),
    "_runtime/ranks.py": ("import foresee.loader", "foresee._runtime.ranks -> foresee.loader"),
    "storage/model.py": ("import sqlite3", "foresee.storage.model -> sqlite3"),
    "torch/data/folder.py": (
        "import foresee.torch.data.plans",
        "foresee.torch.data.folder -> foresee.torch.data.plans",
    ),
}


def lint(folder: pathlib.Path, plants: dict[str, str]) -> tuple[int, str]:
    """Check a copy of the package with lines added to some modules; returns status and report."""
    leave = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "python" / "foresee", folder / "foresee", ignore=leave)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for module, line in plants.items():
        with (folder / "foresee" / module).open("a") as file:
            file.write(f"\n{line}\n")
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    command = [LINTER, "--no-cache"]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """The report of all planted imports together, because reading the package takes seconds."""
    return lint(tmp_path_factory.mktemp("planted"), {module: line for module, (line, _) in PLANTED.items()})


def test_the_package_keeps_its_layers(tmp_path: pathlib.Path) -> None:
    status, report = lint(tmp_path, {})
    assert status == 0, report


@pytest.mark.parametrize("module", PLANTED)
def test_a_planted_import_is_refused(planted: tuple[int, str], module: str) -> None:
    status, report = planted
    assert status == 1
    assert PLANTED[module][1] in report


def test_a_module_without_a_place_is_refused(tmp_path: pathlib.Path) -> None:
    status, report = lint(tmp_path, {"_unplaced.py": ""})
    assert status == 1
    assert "foresee._unplaced" in report
