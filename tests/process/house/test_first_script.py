# SPDX-License-Identifier: Apache-2.0
"""The first script prints what its last line documents."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from support.waiting import WATCHDOG

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples"


def test_the_first_script_trains_and_reads_its_folder_once(tmp_path: pathlib.Path) -> None:
    pictures = tmp_path / "pictures"
    subprocess.run(
        [sys.executable, EXAMPLES / "demo" / "pictures.py", pictures, "--samples", "96"], check=True
    )
    script = [sys.executable, EXAMPLES / "first_script" / "train.py", pictures]
    lines = subprocess.run(
        script, check=True, capture_output=True, text=True, timeout=WATCHDOG
    ).stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["epoch 1", "epoch 2", "epoch 3"]
    assert lines[3] == "3 epochs of 96 samples; the folder was read for 96 of them"
