# SPDX-License-Identifier: Apache-2.0
"""The Python layers of `pyproject.toml` refuse what they are meant to refuse: tried on a copy with planted imports."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sysconfig

import pytest
from house import ROOT

LINTER = pathlib.Path(sysconfig.get_path("scripts")) / "lint-imports"


def lint(folder: pathlib.Path, plant: tuple[str, str] | None) -> tuple[int, str]:
    """Check a copy of the package, with a line added to one of its modules; status and report."""
    leave = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "python" / "foresee", folder / "foresee", ignore=leave)
    shutil.copy(ROOT / "pyproject.toml", folder)
    if plant:
        with (folder / "foresee" / plant[0]).open("a") as file:
            file.write(f"\n{plant[1]}\n")
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    command = [LINTER, "--no-cache"]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def test_the_package_keeps_its_layers(tmp_path: pathlib.Path) -> None:
    status, report = lint(tmp_path, None)
    assert status == 0, report


@pytest.mark.parametrize(
    ("module", "line", "expected"),
    [
        ("_session.py", "import torch", "foresee._session -> torch"),
        ("cli/index.py", "import foresee.torch", "foresee.cli.index -> foresee.torch"),
        ("_world.py", "import foresee.loader", "foresee._world -> foresee.loader"),
        ("torch/folder.py", "import foresee.torch._plans", "foresee.torch.folder -> foresee.torch._plans"),
        ("_unplaced.py", "", "foresee._unplaced"),
    ],
)
def test_a_planted_import_is_refused(tmp_path: pathlib.Path, module: str, line: str, expected: str) -> None:
    status, report = lint(tmp_path, (module, line))
    assert status == 1
    assert expected in report
