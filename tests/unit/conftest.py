# SPDX-License-Identifier: Apache-2.0
"""Data sets for the unit tests, and an environment without a launcher's variables."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
# Before torch is imported: ranks are threads here, and each would get a busy-waiting pool with a thread per core.
os.environ["OMP_NUM_THREADS"] = "1"

from support.alone import alone
from support.bench_places import places  # noqa: F401 - found here by tests
from support.calibrations import data, pair  # noqa: F401 - found here by tests
from support.fixtures import array, own_environment, pictures, ragged, small_folder  # noqa: F401 - likewise
from support.virtual import virtual  # noqa: F401 - likewise


@pytest.fixture
def folder(small_folder: pathlib.Path) -> pathlib.Path:  # noqa: F811 - a fixture is requested by its name
    """23 files of 8 bytes in three classes; see `small_folder`."""
    return small_folder


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Refuse processes, sockets and sleeps in every unit test."""
    with alone():
        yield
