# SPDX-License-Identifier: Apache-2.0
"""The jobs: their compute times, and the job files."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

JOB = Path(__file__).resolve().parents[1] / "job.py"

#: Compute time over compute and wait time, from the paper's Table I.
SHARES = {
    "inception_v3": 258.7 / 748.6,
    "resnet50": 303.6 / 752.9,
    "efficientnet_b0": 204.7 / 748.0,
    "vgg16": 462.2 / 741.0,
}
NETWORKS = ("plain_cnn", "residual_cnn")
PAIRS = (("inception_v3", "resnet50"), ("resnet50", "efficientnet_b0"), ("vgg16", "inception_v3"))

SAMPLE_BYTES = 32 << 10
BATCH = 4

_TOML = """version = 1
[data]
name = "samples-{samples}"
[train]
batch = {batch}
epochs = {epochs}
steps_per_epoch = {steps}
seed = {seed}
[stagger]
model = "{model}"
[run]
command = {command}
"""


@dataclass(frozen=True)
class Size:
    """Size of the benchmark."""

    steps: int
    """Per epoch."""
    step_s: float
    """Seconds in which the origin delivers a step."""
    epochs: int
    seed: int

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return self.steps * BATCH

    @property
    def bytes_per_s(self) -> int:
        """Rate of the origin."""
        return round(BATCH * SAMPLE_BYTES / self.step_s)


def write(folder: Path, model: str, size: Size, data: Path) -> str:
    """Write a job file and return its path."""
    command = [sys.executable, str(JOB), str(data), "--samples", str(size.samples), "--batch", str(BATCH)]
    command += ["--epochs", str(size.epochs), "--seed", str(size.seed)]
    if model in NETWORKS:
        command += ["--network", model]
    else:
        command += ["--compute", repr(SHARES[model] * size.step_s)]
    path = folder / f"{model}.toml"
    path.write_text(
        _TOML.format(
            samples=size.samples,
            batch=BATCH,
            epochs=size.epochs,
            steps=size.steps,
            seed=size.seed,
            model=model,
            command=json.dumps(command),
        )
    )
    return str(path)
