# SPDX-License-Identifier: Apache-2.0
"""Fixtures of several test folders; each folder's `conftest.py` imports the ones that its tests use.

They are not in the `conftest.py` above these folders, because a test copies that one to another folder.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.environment import foreign

if TYPE_CHECKING:
    from support.processes import Child


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """An environment without launcher variables, credentials, settings, and measurements of the current user."""
    for name in filter(foreign, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "of this user"))


@pytest.fixture
def small_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """23 files of 8 bytes in three classes; a sample's bytes are its id, eight times."""
    return _pictures(tmp_path / "data", [8] * 23)


@pytest.fixture
def ragged(tmp_path: pathlib.Path) -> pathlib.Path:
    """11 files of 1 to 11 bytes in three classes."""
    return _pictures(tmp_path / "data", list(range(1, 12)))


@pytest.fixture
def array(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two .npy files with 17 float32 rows of shape (2, 3); row i is filled with i."""
    rows = np.broadcast_to(np.arange(17, dtype=np.float32)[:, None, None], (17, 2, 3))
    root = tmp_path / "arrays"
    root.mkdir()
    np.save(root / "a.npy", rows[:10])
    np.save(root / "b.npy", rows[10:])
    return root


@pytest.fixture
def started() -> Iterator[Callable[[Child], Child]]:
    """Track children, and kill them at the end of the test."""
    with contextlib.ExitStack() as stack:

        def track(child: Child) -> Child:
            stack.callback(child.close)
            return child

        yield track


def _pictures(root: pathlib.Path, sizes: list[int]) -> pathlib.Path:
    """Write a .jpg per size into classes a, b and c, so that ids follow the names."""
    for i, size in enumerate(sizes):
        path = root / "abc"[i * 3 // len(sizes)] / f"{i:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([i]) * size)
    return root


@pytest.fixture
def pictures(tmp_path: pathlib.Path) -> pathlib.Path:
    """Ten grey PNG files of unequal size in two classes."""
    image = pytest.importorskip("PIL.Image")
    random.seed(1)
    for i in range(10):
        path = tmp_path / "pictures" / "xy"[i // 5] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (random.randint(3, 9), 4)
        pixels = np.random.default_rng(i).integers(0, 255, (size[1], size[0]), dtype=np.uint8)
        image.fromarray(pixels).save(path)  # grey: the loader makes it RGB
    return tmp_path / "pictures"
