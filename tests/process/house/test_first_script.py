# SPDX-License-Identifier: Apache-2.0
"""The first script prints what its last line documents."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from support.processes import child

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples"


def test_the_first_script_trains_and_reads_its_folder_once(tmp_path: pathlib.Path) -> None:
    pictures = tmp_path / "pictures"
    subprocess.run(
        [sys.executable, EXAMPLES / "demo" / "pictures.py", pictures, "--samples", "96"], check=True
    )
    script = str(EXAMPLES / "first_script" / "train.py")
    source = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    with child(source, script, str(pictures), warm=True) as program:
        status, output, errors = program.end()
    assert status == 0, errors
    lines = output.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["epoch 1", "epoch 2", "epoch 3"]
    assert lines[3] == "3 epochs of 96 samples; the folder was read for 96 of them"
