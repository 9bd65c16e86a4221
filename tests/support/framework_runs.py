# SPDX-License-Identifier: Apache-2.0
"""Run the examples in the environment of the frameworks, and compute the expected order of each rank."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import textwrap
from collections.abc import Sequence

from torch.utils.data import DistributedSampler

from support.processes import ROOT, plain_environment

BIN = ROOT / ".frameworks-venv" / "bin"
PROGRAM = ROOT / "tests" / "support" / "recorded_example.py"
#: Batch size and epochs of every example.
BATCH, EPOCHS = 8, 3

Batch = tuple[int, list[int]]
"""Epoch and ids."""

# Several runs in one process, because imports take longer than the runs. Each has a folder for its batches, and arguments.
_SEVERAL = """
import json, os, sys
sys.path.insert(0, sys.argv[2])
import recorded_example
recorded_example.install()
train = recorded_example.example(sys.argv[1])
for folder, arguments in json.loads(sys.argv[3]):
    os.environ["RECORDED"] = folder
    sys.argv = ["train.py", *arguments]
    train.main()
"""

#: Number of rows of the training array, and ranks of a multi-rank run.
SAMPLES = 51
RANKS = 2


def environment(**variables: str) -> dict[str, str]:
    """Return the environment for a framework on CPUs, without a network or a GPU."""
    paths = f"{ROOT / 'python'}:{ROOT / 'tests'}"
    # Accelerate makes a process group of CPUs only if this is set.
    cpus = {
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    return plain_environment({"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", **cpus, **variables})


def torchrun(ranks: int) -> list[str]:
    """Return the command that starts a program on ``ranks`` local ranks."""
    return ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def run(name: str, folder: pathlib.Path, *arguments: object, launcher: Sequence[str] = ("python",)) -> str:
    """Run an example that writes its batches to ``folder``; returns its output."""
    folder.mkdir()
    program, *words = launcher
    command = [BIN / program, *words, PROGRAM, *map(str, arguments)]
    return _ended(command, folder, environment(EXAMPLE=name, RECORDED=str(folder)))


def run_several(name: str, runs: dict[pathlib.Path, list[str]], launcher: Sequence[str] = ("python",)) -> str:
    """Run an example once for each folder with its arguments, one after the other in one process of each rank."""
    for folder in runs:
        folder.mkdir()
    pairs = json.dumps([(str(folder), arguments) for folder, arguments in runs.items()])
    folder = next(iter(runs)).parent
    return run_text(_SEVERAL, folder, name, PROGRAM.parent, pairs, launcher=launcher)


def run_text(
    program: str,
    folder: pathlib.Path,
    *arguments: object,
    launcher: Sequence[str] = ("python",),
    place: pathlib.Path = BIN,
    **variables: str,
) -> str:
    """Run a program given as text; returns its output."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    name, *words = launcher
    return _ended([place / name, *words, path, *map(str, arguments)], folder, environment(**variables))


def _ended(command: Sequence[str | os.PathLike[str]], folder: pathlib.Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed[-6000:]
    return printed


def batches(folder: pathlib.Path, rank: int = 0) -> list[Batch]:
    """Return the samples of one process of a rank, in order."""
    (file,) = folder.glob(f"{rank}-*")
    return [(epoch, ids) for epoch, _, ids in map(json.loads, file.read_text().splitlines())]


def expected(
    samples: int, *, rank: int = 0, ranks: int = 1, epochs: int = EPOCHS, drop_last: bool = False
) -> list[Batch]:
    """Return the batches of a rank by torch's ``DistributedSampler`` with ``set_epoch``."""
    sampler: DistributedSampler[int] = DistributedSampler(range(samples), ranks, rank, seed=0)  # type: ignore[arg-type]
    found = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        ids = list(sampler)
        found += [(epoch, ids[at : at + BATCH]) for at in range(0, len(ids), BATCH)]
    return [batch for batch in found if not drop_last or len(batch[1]) == BATCH]
