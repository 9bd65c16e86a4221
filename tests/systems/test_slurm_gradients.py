# SPDX-License-Identifier: Apache-2.0
"""Gradients of ranks that `srun` starts on a real Slurm of one host."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable

import pytest
from support import gradients
from support.processes import Child, plain_environment
from support.slurm import Slurm

pytestmark = pytest.mark.systems

RANKS = 2


@pytest.mark.parametrize("hierarchical", [False, True])
def test_ranks_started_by_srun_have_the_bits_of_the_reference(
    tmp_path: pathlib.Path, slurm: Slurm, started: Callable[[Child], Child], hierarchical: bool
) -> None:
    server = started(gradients.serve("--bind", "127.0.0.1:0"))
    # Slurm sets the number of tasks per node only if it is requested; then the ranks exchange hierarchically.
    tasks = f"--ntasks={RANKS} --overcommit" + (f" --ntasks-per-node={RANKS}" if hierarchical else "")
    expected = started(gradients.reference(RANKS, RANKS if hierarchical else 1)).line()["digest"]
    environment = plain_environment({"FORESEE_TOKEN": gradients.TOKEN})
    exports = "\n".join(f"export {name}='{environment[name]}'" for name in ("PYTHONPATH", "FORESEE_TOKEN"))
    script = tmp_path / "script"
    program = f"{sys.executable} -m support.gradients train {server.line()['address']} recover"
    script.write_text(f"#!/bin/sh\n{exports}\nexport OMP_NUM_THREADS=1\nsrun {program}\n")
    submission = slurm.run("sbatch", "--wait", *tasks.split(), "-o", str(tmp_path / "out"), str(script))
    output = (tmp_path / "out").read_text()
    assert "Submitted" in submission, output
    reports = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [one.get("digest") for one in reports] == [expected] * RANKS, output
    assert [bool(one["stats"]["sent_bytes"]) for one in reports].count(True) == (1 if hierarchical else RANKS)
