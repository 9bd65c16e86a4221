# SPDX-License-Identifier: Apache-2.0
"""Options that name the file of a figure: they are checked before a command computes anything.

This module stays importable without matplotlib, as every command does.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = (".svg", ".png", ".pdf")


def add_to(parser: argparse.ArgumentParser, help_: str, option: str = "--plot") -> None:
    """Add the option."""
    parser.add_argument(option, metavar="FILE", help=help_)


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


def write(path: str | None, draw: Callable[[], Figure]) -> None:
    """Write the figure that ``draw`` returns, if the option names a file."""
    if path is not None:
        from foresee.cli import _figures

        _figures.write(path, draw())


def need_matplotlib() -> None:
    """Import the module that draws figures.

    Raises:
        PackageMissing: matplotlib is not installed.
    """
    importlib.import_module("foresee.cli._figures")
