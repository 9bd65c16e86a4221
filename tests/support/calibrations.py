# SPDX-License-Identifier: Apache-2.0
"""Calibrations of jobs that read chunks of a file and sleep, and what the command says of them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

JOB = pathlib.Path(__file__).resolve().parent / "stagger_job.py"
CHUNK = 1 << 16
CHUNKS = 40
TOML = """
version = 1
[data]
name = "sleepy"
[train]
batch = {batch}
epochs = {epochs}
steps_per_epoch = {steps}
seed = {seed}
[run]
command = {command}
"""


def chunks(folder: pathlib.Path) -> pathlib.Path:
    """40 chunks in a file of a new folder there."""
    found = folder / "data"
    found.mkdir()
    (found / "chunks.bin").write_bytes(os.urandom(CHUNKS * CHUNK))
    return found


def pair_of(folder: pathlib.Path, data: pathlib.Path) -> list[str]:
    """Two jobs of which one computes for longer."""
    return [write(folder, "a", data), write(folder, "b", data, "--compute", "0.006")]


def write(folder: pathlib.Path, name: str, data: pathlib.Path, *words: str, **more: object) -> str:
    """A job file; ``words`` are of its command."""
    command = [sys.executable, str(JOB), str(data / "chunks.bin"), *words]
    values = {"batch": 4, "epochs": 1, "steps": 40, "seed": 0, "command": json.dumps(command), **more}
    path = folder / f"{name}.toml"
    path.write_text(TOML.format(**values))
    return str(path)


def calibrate(tmp_path: pathlib.Path, data: pathlib.Path, *arguments: str, code: int = 0) -> str:
    """What it prints of few steps."""
    return run(
        tmp_path,
        "--steps",
        "12",
        "--warmup",
        "2",
        "--data",
        str(data),
        "--patience",
        "20",
        *arguments,
        code=code,
    )


def run(tmp_path: pathlib.Path, *arguments: str, code: int = 0) -> str:
    """What it prints."""
    fixed = ["--catalog", str(tmp_path / "jobs.db"), "--machine", "here", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "foresee", "stagger", "calibrate", *arguments, *fixed],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr
