# SPDX-License-Identifier: Apache-2.0
"""The environment of the builds that the scripts start."""

from __future__ import annotations

import sys

import pytest
from support.house import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from steps import build_environment


def test_builds_use_the_target_folder_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARGO_TARGET_DIR", "/elsewhere")
    assert build_environment()["CARGO_TARGET_DIR"] == str(ROOT / "target")
