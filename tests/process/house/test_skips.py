# SPDX-License-Identifier: Apache-2.0
"""The check for unexpected skips, in its own pytest sessions."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

from support.waiting import WATCHDOG

GUARD = pathlib.Path(__file__).resolve().parents[2] / "conftest.py"


def session(folder: pathlib.Path, tests: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run test files, by name, under the guard."""
    shutil.copy(GUARD, folder / "conftest.py")
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  gpu: needs a CUDA device\n  hosts: needs root\n  loops: needs root\n"
    )
    for name, text in tests.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=WATCHDOG)


def test_unexpected_skips_fail_and_each_is_named(tmp_path: pathlib.Path) -> None:
    ended = session(
        tmp_path,
        {
            "inside": "import pytest\ndef test(): pytest.skip('no server')\n",
            "by_marker": "import pytest\n@pytest.mark.skipif(True, reason='no bucket')\ndef test(): pass\n",
            "whole_file": "import pytest\npytest.skip('no package', allow_module_level=True)\n",
            "passes": "def test(): pass\n",
        },
    )
    assert ended.returncode == 6, ended.stdout
    listed = ended.stdout.partition("unexpected skips")[2]
    for name, reason in (("inside", "no server"), ("by_marker", "no bucket"), ("whole_file", "no package")):
        assert re.search(rf"test_{name}\.py.*: .*{reason}", listed), ended.stdout
    assert "test_passes" not in listed


def test_a_session_of_a_file_that_is_skipped_as_a_whole_fails(tmp_path: pathlib.Path) -> None:
    ended = session(tmp_path, {"one": "import pytest\npytest.skip('no server', allow_module_level=True)\n"})
    # Without any test, pytest itself exits with 5.
    assert ended.returncode == 5, ended.stdout
    assert "unexpected skips" in ended.stdout
    assert "no server" in ended.stdout


def test_expected_failures_and_allowed_skips_do_not_fail_the_session(
    tmp_path: pathlib.Path,
) -> None:
    tests = {
        marker: f"import pytest\n@pytest.mark.{marker}\ndef test(): pytest.skip('{marker}: too small')\n"
        for marker in ("gpu", "hosts", "loops")
    }
    tests["fails"] = (
        "import pytest\n@pytest.mark.xfail(strict=True)\ndef test(): assert False\ndef test_two(): pass\n"
    )
    ended = session(tmp_path, tests)
    assert ended.returncode == 0, ended.stdout
    assert "unexpected skips" not in ended.stdout


def test_without_the_rights_tests_of_hosts_are_skipped_by_name(tmp_path: pathlib.Path) -> None:
    test = (
        "import os\nos.geteuid = lambda: 1000\nimport pytest\n@pytest.mark.hosts\ndef test(): assert False\n"
    )
    ended = session(tmp_path, {"one": test})
    assert ended.returncode == 0, ended.stdout
    assert "hosts: not root" in ended.stdout
