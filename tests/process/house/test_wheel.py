# SPDX-License-Identifier: Apache-2.0
"""The wheel in an otherwise empty environment."""

from __future__ import annotations

import pathlib
import sys

from support.processes import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import wheel as script
from setup import SHARED_BUILD
from steps import BUILD_BIN, run


def test_the_wheel_starts_in_an_empty_environment_without_torch(tmp_path: pathlib.Path) -> None:
    # Of what `make setup` has compiled: the released one has the same contents, linked for older systems.
    options = ["--profile", "dev", "--features", SHARED_BUILD, "--locked"]
    run([BUILD_BIN / "maturin", "build", *options, "--out", tmp_path])
    (wheel,) = tmp_path.glob("*.whl")
    script.start(wheel, tmp_path / "venv")
