# SPDX-License-Identifier: Apache-2.0
"""Options that name the file of a picture: they are checked before a command computes anything.

This module stays importable without matplotlib, as every command does.
"""

from __future__ import annotations

import importlib

__all__ = ["METAVAR", "check", "need_matplotlib"]

METAVAR = "FILE"
_FORMATS = (".svg", ".png", ".pdf")


def check(option: str, path: str | None) -> list[str]:
    """Return the faults of the file that ``option`` names; without a file there are none.

    Raises:
        PackageMissing: the file is valid, and matplotlib is not installed.
    """
    if path is None:
        return []
    if not path.lower().endswith(_FORMATS):
        return [f"{option} {path!r}: a file with one of the suffixes {', '.join(_FORMATS)} expected"]
    need_matplotlib()
    return []


def need_matplotlib() -> None:
    """Import what draws pictures.

    Raises:
        PackageMissing: matplotlib is not installed.
    """
    importlib.import_module("foresee.cli._figures")
