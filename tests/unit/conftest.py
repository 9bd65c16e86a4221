# SPDX-License-Identifier: Apache-2.0
"""Data sets for the tests of the faces, and an environment without a launcher's variables."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.calibrations import data, pair  # noqa: F401 - found here by tests
from support.virtual import virtual  # noqa: F401 - found here by tests

_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_", "FORESEE_")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    for name in list(os.environ):
        if name.startswith(_LAUNCHERS):
            monkeypatch.delenv(name)
    # What this user has measured is no part of a test.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "of this user"))


@pytest.fixture(params=["in process", "over servers"])
def network(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """How ranks reach each other: called with their number, gives the exchange of each.

    ``late=``: seconds, the most by which landings are delayed, each by its own; ``seed=``: of the delays.
    """
    from support.exchanges import in_process, over_servers

    if request.param == "in process":
        yield in_process
        return
    with over_servers(2) as connect:
        yield connect


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """23 files of 8 bytes in three classes; a sample's bytes are its id, eight times."""
    return make_folder(tmp_path / "data", [8] * 23)


@pytest.fixture
def ragged(tmp_path: pathlib.Path) -> pathlib.Path:
    """11 files of 1 to 11 bytes in three classes."""
    return make_folder(tmp_path / "data", list(range(1, 12)))


@pytest.fixture
def array(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two .npy files of float32 rows, shape (2, 3); 17 together, row i full of i."""
    rows = np.broadcast_to(np.arange(17, dtype=np.float32)[:, None, None], (17, 2, 3))
    root = tmp_path / "arrays"
    root.mkdir()
    np.save(root / "a.npy", rows[:10])
    np.save(root / "b.npy", rows[10:])
    return root


def make_folder(root: pathlib.Path, sizes: list[int]) -> pathlib.Path:
    """One .jpg per size, dealt in runs to the classes a, b, c so that ids follow the names."""
    for i, size in enumerate(sizes):
        path = root / "abc"[i * 3 // len(sizes)] / f"{i:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([i]) * size)
    return root
