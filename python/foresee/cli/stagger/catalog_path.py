# SPDX-License-Identifier: Apache-2.0
"""The catalog that ``foresee stagger`` reads and writes: the named one, or the user's own.

All subcommands use it, so that they share measurements. A named catalog that does not exist is an error of the code
that opens it; the user's own catalog need not exist yet.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from foresee.errors import ConfigError

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to", "found", "own"]

VARIABLE = "FORESEE_CATALOG"


def add_to(parser: argparse.ArgumentParser, *, machine: str) -> None:
    """Add ``--catalog`` and ``--machine``, the latter with this help."""
    parser.add_argument(
        "--catalog",
        metavar="FILE",
        help=f"the catalog of measured figures (${VARIABLE}, else foresee/catalog.db in $XDG_DATA_HOME, that is in "
        "~/.local/share)",
    )
    parser.add_argument("--machine", metavar="NAME", help=machine)


def own() -> str:
    """The path of this user's own, absolute; whether it is there or not."""
    named = os.environ.get(VARIABLE)
    if named:
        return os.path.abspath(named)
    data = os.environ.get("XDG_DATA_HOME", "")
    # A relative one counts for nothing, as the specification of these folders says.
    place = data if os.path.isabs(data) else os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(place, "foresee", "catalog.db")


def found(named: str | None, machine: str | None) -> str | None:
    """The catalog to read; None: none was named, and this user has none.

    Raises:
        ConfigError: there is none, and a machine was asked for.
    """
    if named is not None:
        return named
    path = own()
    if os.path.exists(path):
        return path
    if machine is not None:
        raise ConfigError(
            f"--machine {machine!r}: there is no catalog at {path}; name one with --catalog, or measure into it by "
            "`foresee stagger calibrate`"
        )
    return None
