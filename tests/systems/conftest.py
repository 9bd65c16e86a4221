# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests against systems that only `make test-systems` installs."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.fixtures import started  # noqa: F401 - found here by tests
from support.framework_runs import SAMPLES
from support.recorded_example import write_rows
from support.slurm import Slurm


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A running Slurm with one node on this host."""
    with Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def rows(tmp_path: pathlib.Path) -> str:
    """An array of rows that the examples train on."""
    return str(write_rows(tmp_path / "rows.npy", SAMPLES))
