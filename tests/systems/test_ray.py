# SPDX-License-Identifier: Apache-2.0
"""Ranks that Ray starts: a real Ray, in an environment of its own, with its trainer for torch."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Callable

import pytest
from support import gradients
from support.processes import ROOT, Child, plain_environment

PYTHON = ROOT / ".ray-venv" / "bin" / "python"
RANKS = 2

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


def trained(folder: pathlib.Path, servers: str, **variables: str) -> list[dict]:
    """What each rank said at its end."""
    paths = f"{ROOT / 'python'}:{ROOT / 'tests'}"
    env = plain_environment({"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", **variables})
    done = subprocess.run(
        [PYTHON, "-m", "support.ray_job", str(folder), str(RANKS), servers],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("place", ["a server", "ranks"])
def test_ranks_that_ray_started_have_the_bits_of_the_reference(
    started: Callable[[Child], Child], tmp_path: pathlib.Path, place: str
) -> None:
    # Ray tells each worker how many a machine has, so they exchange as one.
    expected = started(gradients.reference(RANKS, RANKS)).line()["digest"]
    if place == "ranks":
        # No secret is given: the process group's store carries one.
        said = trained(tmp_path, "ranks")
    else:
        server = started(gradients.serve("--bind", "127.0.0.1:0"))
        said = trained(tmp_path, server.line()["address"], FORESEE_TOKEN=gradients.TOKEN)
    assert [one["digest"] for one in said] == [expected] * RANKS
    if place == "a server":
        assert [bool(one["stats"]["sent_bytes"]) for one in said] == [True, False]
