# SPDX-License-Identifier: Apache-2.0
"""The plug-in of DLIO without DLIO: an error with the package to install. `tests/systems` has the real one."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from foresee.errors import PackageMissing


def test_without_dlio_the_plug_in_names_the_package_to_install() -> None:
    assert importlib.util.find_spec("dlio_benchmark") is None, "tests run in an environment without it"
    sys.modules.pop("foresee.dlio", None)
    with pytest.raises(
        PackageMissing, match=r"dlio_benchmark is not installed; install DLIO into an environment"
    ):
        importlib.import_module("foresee.dlio")
