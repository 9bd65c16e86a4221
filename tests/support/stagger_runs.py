# SPDX-License-Identifier: Apache-2.0
"""Job files of jobs that sleep where others compute and wait, and the real ``foresee stagger run`` of them.

``support.virtual`` runs the same files in virtual time.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

from support.cold import cold_file
from support.processes import plain_environment
from support.stagger_job import CHUNK
from support.waiting import WATCHDOG

__all__ = ["FIGURES", "JOB", "begun", "cold_data", "ended", "run", "write"]

#: Seconds after which a run hangs: some programs in it load torch.
_HANGS = 1.5 * WATCHDOG
JOB = pathlib.Path(__file__).resolve().parent / "stagger_job.py"
TOML = """
version = 1
[data]
name = "{name}"
[train]
batch = 4
epochs = {epochs}
steps_per_epoch = 40
{train}
[stagger]
{stagger}
[run]
command = {command}
start = {start}
"""
#: Of a job that computes for 20 ms and waits for 30 or not at all.
FIGURES = "wait = 0.03\nwait_cached = 0.0\nwait_conc = 0.03"


def cold_data(folder: pathlib.Path) -> pathlib.Path:
    """40 chunks in a file, none of them in memory."""
    return cold_file(folder / "chunks.bin", 40 * CHUNK)


def write(folder: pathlib.Path, stem: str, data: pathlib.Path, *words: str, **more: object) -> str:
    """A job file; ``words`` are of its command."""
    command = [sys.executable, str(JOB), str(data), "--compute", "0.02", "--wait", "0.03", *words]
    values = {
        "epochs": 1,
        "train": "compute_step = 0.02",
        "stagger": FIGURES,
        "start": 0,
        "name": "sleepy",
        "command": json.dumps(command),
        **more,
    }
    path = folder / f"{stem}.toml"
    path.write_text(TOML.format(**values))
    return str(path)


def begun(tmp_path: pathlib.Path, *arguments: str, program: str | None = None) -> subprocess.Popen[str]:
    """A real run in flight; ``program``: the source of one that is the command, with a change."""
    fixed = ["--folder", str(tmp_path / "run"), "--json"]
    how = ["-m", "foresee"] if program is None else ["-c", program]
    return subprocess.Popen(
        [sys.executable, *how, "stagger", "run", *arguments, *fixed],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What this user has measured is no part of a test.
        env={**plain_environment(), "XDG_DATA_HOME": str(tmp_path / "of this user")},
    )


def ended(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """What a program prints and says that ends with ``code``; one that hangs is ended, with its jobs."""
    with process:
        try:
            out, said = process.communicate(timeout=_HANGS)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, said = process.communicate()
    assert process.returncode == code, said
    return out, said


def run(tmp_path: pathlib.Path, *arguments: str, code: int = 0) -> tuple[dict, str]:
    """What it prints, and what it says."""
    out, said = ended(begun(tmp_path, *arguments), code)
    return json.loads(out) if out else {}, said
