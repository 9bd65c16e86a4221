# SPDX-License-Identifier: Apache-2.0
"""Ranks that `srun` starts on a real Slurm of one machine, with a server of their own job."""

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


@pytest.mark.parametrize("together", [False, True])
def test_ranks_that_srun_started_have_the_bits_of_the_reference(
    tmp_path: pathlib.Path, slurm: Slurm, started: Callable[[Child], Child], together: bool
) -> None:
    server = started(gradients.serve("--bind", "127.0.0.1:0"))
    # Slurm says how many tasks a machine has only to those who ask for a number: then they exchange as one.
    tasks = f"--ntasks={RANKS} --overcommit" + (f" --ntasks-per-node={RANKS}" if together else "")
    expected = started(gradients.reference(RANKS, RANKS if together else 1)).line()["digest"]
    environment = plain_environment({"FORESEE_TOKEN": gradients.TOKEN})
    given = "\n".join(f"export {name}='{environment[name]}'" for name in ("PYTHONPATH", "FORESEE_TOKEN"))
    script = tmp_path / "script"
    program = f"{sys.executable} -m support.gradients train {server.line()['address']} recover"
    script.write_text(f"#!/bin/sh\n{given}\nexport OMP_NUM_THREADS=1\nsrun {program}\n")
    told = slurm.ask("sbatch", "--wait", *tasks.split(), "-o", str(tmp_path / "out"), str(script))
    output = (tmp_path / "out").read_text()
    assert "Submitted" in told, output
    said = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [one.get("digest") for one in said] == [expected] * RANKS, output
    assert [bool(one["stats"]["sent_bytes"]) for one in said].count(True) == (1 if together else RANKS)
