# SPDX-License-Identifier: Apache-2.0
"""Job files of jobs that sleep instead of computing, and real runs of ``foresee stagger run`` with them.

``support.virtual`` runs the same files in virtual time.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

from support.processes import plain_environment
from support.stagger_job import CHUNK
from support.uncached import uncached_file
from support.waiting import WATCHDOG

__all__ = ["FIGURES", "JOB", "begun", "ended", "run", "uncached_data", "write"]

#: Seconds after which a run counts as hanging; some of its programs import torch.
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
#: Measurements of a job that computes for 20 ms and waits for 30 ms, or for 0 with cached data.
FIGURES = "wait = 0.03\nwait_cached = 0.0\nwait_conc = 0.03"


def uncached_data(folder: pathlib.Path) -> pathlib.Path:
    """Write a file of 40 chunks without a page in memory."""
    return uncached_file(folder / "chunks.bin", 40 * CHUNK)


def write(folder: pathlib.Path, stem: str, data: pathlib.Path, *words: str, **more: object) -> str:
    """Write a job file; ``words``: further arguments of its command."""
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
    """Start a real run; ``program``: source of a modified command."""
    fixed = ["--folder", str(tmp_path / "run"), "--json"]
    how = ["-m", "foresee"] if program is None else ["-c", program]
    return subprocess.Popen(
        [sys.executable, *how, "stagger", "run", *arguments, *fixed],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Measurements of the current user must not affect a test.
        env={**plain_environment(), "XDG_DATA_HOME": str(tmp_path / "of this user")},
    )


def ended(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """Wait for a program that must exit with ``code``; returns output and errors. A hanging one is terminated with its jobs."""
    with process:
        try:
            out, messages = process.communicate(timeout=_HANGS)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, messages = process.communicate()
    assert process.returncode == code, messages
    return out, messages


def run(tmp_path: pathlib.Path, *arguments: str, code: int = 0) -> tuple[dict, str]:
    """Run the command; returns its result and its messages."""
    out, messages = ended(begun(tmp_path, *arguments), code)
    return json.loads(out) if out else {}, messages
