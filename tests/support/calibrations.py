# SPDX-License-Identifier: Apache-2.0
"""Calibrations of jobs that read chunks of a file and sleep, what the command says of them, and fixtures for both files of
their tests.

Refuses to say what a calibration comes to: that is the tests'.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from support.stagger_runs import CHUNK, JOB

__all__ = ["CHUNK", "CHUNKS", "calibrate", "data", "kept_here", "pair", "run", "write"]

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


@pytest.fixture
def kept_here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command keeps its run folders; nobody wants those of tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """40 chunks in a file of a folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "chunks.bin").write_bytes(os.urandom(CHUNKS * CHUNK))
    return folder


@pytest.fixture
def pair(tmp_path: pathlib.Path, data: pathlib.Path) -> list[str]:
    """Two jobs of which one computes for longer."""
    return [write(tmp_path, "a", data), write(tmp_path, "b", data, "--compute", "0.006")]


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
