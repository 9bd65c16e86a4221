# SPDX-License-Identifier: Apache-2.0
"""Folders for the origin and the cache of ``foresee bench storage``."""

from __future__ import annotations

import os
import pathlib

import pytest

__all__ = ["COUNT", "SIZE", "empty", "places"]

#: Bytes of a file, and number of files.
SIZE, COUNT = 4096, 10


@pytest.fixture
def places(tmp_path: pathlib.Path) -> list[str]:
    """Options that name an origin and a cache."""
    for name in ("origin", "cache"):
        (tmp_path / name).mkdir()
    folder = str(tmp_path / "run")
    return [
        *("--origin", str(tmp_path / "origin"), "--cache", str(tmp_path / "cache"), "--folder", folder),
        *("--files", f"{SIZE}:{COUNT}", "--processes", "2"),
    ]


def empty(tmp_path: pathlib.Path) -> bool:
    """Whether both folders are empty."""
    return not any(os.listdir(tmp_path / name) for name in ("origin", "cache"))
