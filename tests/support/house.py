# SPDX-License-Identifier: Apache-2.0
"""Helpers of the house tests: the checkout's root, and its files without those that git ignores."""

from __future__ import annotations

import fnmatch
import os
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]


def files(*suffixes: str, root: pathlib.Path = ROOT) -> list[pathlib.Path]:
    """Files of the checkout with one of ``suffixes``, sorted; what `.gitignore` names is left out.

    A submodule or a negated pattern would need git itself; there is neither.
    """
    ignored = [line for line in (root / ".gitignore").read_text().split() if not line.startswith("#")]
    found = []
    for folder, inside, names in os.walk(root):
        here = pathlib.Path(folder)
        inside[:] = [name for name in inside if name != ".git" and not _ignored(here / name, root, ignored)]
        found += [here / name for name in names if name.endswith(suffixes)]
    return sorted(path for path in found if not _ignored(path, root, ignored))


def shown(path: pathlib.Path) -> str:
    """The path as messages name it."""
    return str(path.relative_to(ROOT))


def _ignored(path: pathlib.Path, root: pathlib.Path, patterns: list[str]) -> bool:
    """Whether a pattern names ``path``: ``/x`` at the root alone, ``x/`` only a folder, ``*`` within a name."""
    return any(
        fnmatch.fnmatchcase(name, pattern.strip("/"))
        for pattern in patterns
        for name in _names(path, root, pattern)
    )


def _names(path: pathlib.Path, root: pathlib.Path, pattern: str) -> Iterator[str]:
    """How ``path`` is called where ``pattern`` may name it."""
    if pattern.endswith("/") and not path.is_dir():
        return
    if not pattern.startswith("/") or path.parent == root:
        yield path.name
