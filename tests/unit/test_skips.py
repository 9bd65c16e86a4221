# SPDX-License-Identifier: Apache-2.0
"""The guard against unexpected skips, tried on sessions of its own."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

GUARD = pathlib.Path(__file__).resolve().parents[1] / "conftest.py"


def session(folder: pathlib.Path, test: str, *, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run one test file under the guard; ``before`` is run when the file is read, before tests are chosen."""
    shutil.copy(GUARD, folder / "conftest.py")
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  gpu: needs a CUDA device\n  hosts: needs root\n  loops: needs root\n"
    )
    (folder / "test_one.py").write_text(before + test)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "test",
    [
        "import pytest\ndef test(): pytest.skip('no server')\n",
        "import pytest\n@pytest.mark.skipif(True, reason='no server')\ndef test(): pass\n",
        "import pytest\npytest.skip('no server', allow_module_level=True)\n",
    ],
    ids=["inside", "by marker", "whole file"],
)
def test_an_unexpected_skip_fails_and_is_named(tmp_path: pathlib.Path, test: str) -> None:
    ended = session(tmp_path, test)
    # A file that is skipped as a whole leaves no test at all, which is 5 in pytest's own words.
    assert ended.returncode in (6, 5), ended.stdout
    assert "unexpected skips" in ended.stdout
    assert "no server" in ended.stdout


def test_an_expected_failure_and_a_pass_are_no_skips(tmp_path: pathlib.Path) -> None:
    test = "import pytest\n@pytest.mark.xfail(strict=True)\ndef test(): assert False\ndef test_two(): pass\n"
    ended = session(tmp_path, test)
    assert ended.returncode == 0, ended.stdout
    assert "unexpected skips" not in ended.stdout


@pytest.mark.parametrize("marker", ["gpu", "hosts", "loops"])
def test_a_test_that_needs_a_gpu_or_hosts_may_be_skipped(tmp_path: pathlib.Path, marker: str) -> None:
    test = f"import pytest\n@pytest.mark.{marker}\ndef test(): pytest.skip('{marker}: too small')\n"
    ended = session(tmp_path, test)
    assert ended.returncode == 0, ended.stdout


def test_without_the_rights_tests_of_hosts_are_skipped_by_name(tmp_path: pathlib.Path) -> None:
    test = "import pytest\n@pytest.mark.hosts\ndef test(): assert False\n"
    ended = session(tmp_path, test, before="import os\nos.geteuid = lambda: 1000\n")
    assert ended.returncode == 0, ended.stdout
    assert "hosts: not root" in ended.stdout
