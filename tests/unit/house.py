# SPDX-License-Identifier: Apache-2.0
"""What the tests of the house share: the checkout's root, and its files as git sees them."""

from __future__ import annotations

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def files(*suffixes: str) -> list[pathlib.Path]:
    """Files of the checkout with one of ``suffixes``, sorted; what git ignores is left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    names = {name for name in listed.decode().split("\0") if name.endswith(suffixes)}
    return [ROOT / name for name in sorted(names) if (ROOT / name).is_file()]


def shown(path: pathlib.Path) -> str:
    """The path as messages name it."""
    return str(path.relative_to(ROOT))
