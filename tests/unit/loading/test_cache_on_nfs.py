# SPDX-License-Identifier: Apache-2.0
"""A cache directory on NFS: allowed, with one warning."""

from __future__ import annotations

import logging
import pathlib

import pytest

import foresee
from foresee import _native


def fake_file_system(path: str) -> bool:
    """Stand in for the kernel: every folder named nfs is on NFS."""
    return "nfs" in pathlib.Path(path).parts


def test_a_cache_directory_on_nfs_is_used_with_one_warning(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_native, "is_on_nfs", fake_file_system)
    cache = foresee.Cache(ram=0, disk=tmp_path / "nfs" / "cache", disk_size="1GB")
    with caplog.at_level(logging.WARNING, "foresee"):
        assert cache.native() is cache.native()
    (message,) = caplog.messages
    assert f"{tmp_path}/nfs/cache is on NFS" in message
    assert "directory on a local disk" in message


def test_a_cache_directory_on_a_local_disk_causes_no_warning(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_native, "is_on_nfs", fake_file_system)
    with caplog.at_level(logging.WARNING, "foresee"):
        foresee.Cache(ram=0, disk=tmp_path / "local", disk_size="1GB").native()
        foresee.Cache(ram=0).native()
    assert not caplog.messages
