# SPDX-License-Identifier: Apache-2.0
"""Job files and data for calibrations, in virtual time (``support.virtual``) and of real processes."""

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
    "calibrate_really",
    "data",
    "figures",
    "kinds",
    "pair",
    "refuse",
    "write",
]

CHUNKS = 40
#: Few steps: 12 that count.
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
    """A folder with the file that fake jobs read 40 chunks of; they never open it."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "chunks.bin").write_bytes(b"chunks")
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


def calibrate(virtual: Virtual, data: pathlib.Path, *arguments: str) -> dict:
    """What a calibration of few steps prints."""
    return virtual.calibrate(*FEW, "--data", str(data), *arguments)


def refuse(virtual: Virtual, data: pathlib.Path, *arguments: str, code: int = 2) -> str:
    """What a calibration of few steps says when it fails."""
    return virtual.refuse(*FEW, "--data", str(data), *arguments, code=code)


def kinds(told: dict) -> list[tuple[str, str]]:
    """The runs of a calibration: their kinds and jobs."""
    return [(ran["kind"], ran["job"]) for ran in told["runs"]]


def figures(told: dict) -> dict[tuple[str, str], dict]:
    """The figures that a catalog has, by job and name."""
    return {(job["name"], each["name"]): each for job in told["jobs"] for each in job["figures"]}


def calibrate_really(tmp_path: pathlib.Path, *arguments: str) -> str:
    """What the real command prints; its run folders stay below ``tmp_path``."""
    fixed = ["--catalog", str(tmp_path / "jobs.db"), "--machine", "here", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "foresee", "stagger", "calibrate", *arguments, *fixed],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**plain_environment(), "TMPDIR": str(tmp_path)},
    )
    return ended(process, 0)[0]
