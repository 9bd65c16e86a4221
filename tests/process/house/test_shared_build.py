# SPDX-License-Identifier: Apache-2.0
"""Extension module and tests use the same compiled crates.

Cargo compiles a crate and all that depend on it once more for each set of features. The features of a crate are those
that the selected packages enable, and the extension module is built alone.
"""

from __future__ import annotations

import subprocess
import sys

from support.house import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from setup import SHARED_BUILD


def crates(*selection: str) -> set[str]:
    """Return the crates that a build of a selection compiles, each with its version and features."""
    tree = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p} {f}", *selection]
    done = subprocess.run(tree, cwd=ROOT, check=True, capture_output=True, text=True)
    return {line.removesuffix(" (*)") for line in done.stdout.splitlines()}


def test_the_tests_compile_no_crate_of_the_extension_module_again() -> None:
    extension = crates("--package", "foresee-python", "--features", SHARED_BUILD, "--edges", "normal,build")
    tests = crates("--workspace", "--edges", "normal,build,dev")
    assert {crate for crate in extension - tests if not crate.startswith("foresee-python ")} == set()
