# SPDX-License-Identifier: Apache-2.0
"""Darshan logs truncated or damaged at many positions, each read by a separate process."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from foresee.errors import ConfigError
from foresee.storage.analysis import darshan


@pytest.fixture(scope="module")
def whole() -> bytes:
    """An example log of PyDarshan."""
    found = importlib.util.find_spec("darshan")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "examples" / "example_logs" / "dxt.darshan").read_bytes()


@pytest.mark.parametrize("part", [0, 7, 49, 360, 989, 2048, 9899, 20_000, 49_499, 98_008])
def test_a_truncated_log_is_refused_and_unchanged(tmp_path: Path, whole: bytes, part: int) -> None:
    path = tmp_path / "cut.darshan"
    path.write_bytes(whole[:part])
    with pytest.raises(
        ConfigError, match=r"cut\.darshan: not a Darshan log, or a truncated or damaged one: \w+"
    ):
        darshan.read(path, {"/blues": "gfs"})
    assert path.read_bytes() == whole[:part]


@pytest.mark.parametrize("content", [b"hello\n" * 99, b"PK\x03\x04" + bytes(999)])
def test_a_file_that_is_no_darshan_log_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.darshan"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a Darshan log"):
        darshan.read(path, {"/": "gfs"})
