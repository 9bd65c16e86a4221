# SPDX-License-Identifier: Apache-2.0
"""The path of the catalog: the named one, or the user's own.

A named catalog that does not exist is an error of the code that opens it; the user's own catalog need not exist yet.
"""

from __future__ import annotations

import os

from foresee.errors import ConfigError

VARIABLE = "FORESEE_CATALOG"


def user_catalog() -> str:
    """Return the absolute path of this user's catalog, which need not exist."""
    named = os.environ.get(VARIABLE)
    if named:
        return os.path.abspath(named)
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification ignores relative paths.
    folder = data if os.path.isabs(data) else os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(folder, "foresee", "catalog.db")


def resolve(named: str | None, machine: str | None) -> str | None:
    """Return the catalog to read; None: none was named, and this user has none.

    Raises:
        ConfigError: there is none, but ``machine`` was given.
    """
    if named is not None:
        return named
    path = user_catalog()
    if os.path.exists(path):
        return path
    if machine is not None:
        raise ConfigError(
            f"--machine {machine!r}: there is no catalog at {path}; name one with --catalog, or measure into it by "
            "`foresee stagger calibrate`"
        )
    return None
