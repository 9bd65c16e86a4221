# SPDX-License-Identifier: Apache-2.0
"""Job files of the staggering paper's Table I, with the waits of the worked example, and their predictions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foresee.cli import main

__all__ = ["MODELS", "TOML", "facts", "write"]

TOML = """
version = 1
[data]
name = "{data}"
[train]
batch = 64
epochs = {epochs}
seed = {seed}
steps_per_epoch = 1560
compute_step = "{compute} ms"
[stagger]
{stagger}
[run]
start = {start}
"""
#: Milliseconds per step: compute, wait, and wait next to the other job.
MODELS = {"resnet": (303.6, 449.3, 600), "efficientnet": (204.7, 543.3, 700)}


def write(folder: Path, name: str, given: str | None = None, **more: object) -> str:
    """Write a job file of one of :data:`MODELS`, or a second one; ``given``: its measured waits."""
    compute, wait, conc = MODELS[name.rstrip("2")]
    if given is None:
        given = f'wait = "{wait} ms"\nwait_cached = "40 ms"\nwait_conc = "{conc} ms"'
    path = folder / f"{name}.toml"
    values = {"data": "TinyImageNet", "epochs": 1, "seed": 0, "start": 0, "compute": compute, **more}
    path.write_text(TOML.format(stagger=given, **values))
    return str(path)


def facts(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    """Run ``foresee stagger predict --json``; returns its result."""
    assert main(["stagger", "predict", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)
