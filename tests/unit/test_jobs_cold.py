# SPDX-License-Identifier: Apache-2.0
"""Data that are in memory before a run, which is no cold start: seen, told, and no figure is judged by it."""

from __future__ import annotations

import argparse
import os
import pathlib

from foresee import job
from foresee._native import Index
from foresee.cli import _stagger_run
from foresee.jobs import cold

CHUNK = 1 << 16


def test_data_that_are_in_memory_are_told_of_and_mark_nothing(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for at in range(8):
        (folder / f"{at}.bin").write_bytes(os.urandom(CHUNK))
    Index.build(str(folder), layout="flat").save(tmp_path / "files.fidx")
    toml = f'version = 1\n[data]\nindex = "{tmp_path / "files.fidx"}"\n'
    jobs = [job.loads(toml, str(tmp_path)) for _ in range(2)]
    told = _stagger_run._warm(jobs)
    assert told is not None
    assert told.startswith("100 % of the data are in memory already")
    judged = {"measured": {"makespan": 9.0}, "predicted_at_starts": {"makespan": 1.0}, "doubts": [told]}
    assert _stagger_run._judged(argparse.Namespace(catalog="jobs.db"), jobs, "here", judged) is None
    cold.evict([str(path) for path in folder.iterdir()])
    assert _stagger_run._warm(jobs) is None
    nowhere = job.loads('version = 1\n[data]\nname = "files"\n', str(tmp_path))
    assert _stagger_run._warm([nowhere, nowhere]) is None
