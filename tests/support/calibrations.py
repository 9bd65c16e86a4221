# SPDX-License-Identifier: Apache-2.0
"""Job files and data for calibrations, in virtual time (``support.virtual``) and with real processes."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from support.processes import plain_environment
from support.stagger_runs import JOB, ended
from support.virtual import Virtual

__all__ = [
    "CHUNKS",
    "FEW",
    "calibrate",
    "data",
    "figures",
    "kinds",
    "pair",
    "refuse",
    "run_calibration",
    "write",
]

CHUNKS = 40
#: Options for few steps: 12 measured ones.
FEW = ("--steps", "12", "--warmup", "2", "--patience", "20")
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
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with the file of fake jobs, which never open it."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "chunks.bin").write_bytes(b"chunks")
    return folder


@pytest.fixture
def pair(tmp_path: pathlib.Path, data: pathlib.Path) -> list[str]:
    """Two jobs; the second computes for longer."""
    return [write(tmp_path, "a", data), write(tmp_path, "b", data, "--compute", "0.006")]


def write(folder: pathlib.Path, name: str, data: pathlib.Path, *words: str, **more: object) -> str:
    """Write a job file; ``words``: further arguments of its command."""
    command = [sys.executable, str(JOB), str(data / "chunks.bin"), *words]
    values = {"batch": 4, "epochs": 1, "steps": 40, "seed": 0, "command": json.dumps(command), **more}
    path = folder / f"{name}.toml"
    path.write_text(TOML.format(**values))
    return str(path)


def calibrate(virtual: Virtual, data: pathlib.Path, *arguments: str) -> dict:
    """Run a calibration of few steps; returns its result."""
    return virtual.calibrate(*FEW, "--data", str(data), *arguments)


def refuse(virtual: Virtual, data: pathlib.Path, *arguments: str, code: int = 2) -> str:
    """Run a calibration of few steps that must fail; returns its messages."""
    return virtual.refuse(*FEW, "--data", str(data), *arguments, code=code)


def kinds(result: dict) -> list[tuple[str, str]]:
    """Return kind and job of each run of a calibration."""
    return [(run["kind"], run["job"]) for run in result["runs"]]


def figures(result: dict) -> dict[tuple[str, str], dict]:
    """Return the measurements of a calibration by job and name."""
    return {(job["name"], each["name"]): each for job in result["jobs"] for each in job["figures"]}


def run_calibration(tmp_path: pathlib.Path, *arguments: str) -> str:
    """Run the real command with its run folders below ``tmp_path``; returns its output."""
    fixed = ["--catalog", str(tmp_path / "jobs.db"), "--machine", "here", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "foresee", "stagger", "calibrate", *arguments, *fixed],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**plain_environment(), "TMPDIR": str(tmp_path)},
    )
    return ended(process, 0)[0]
