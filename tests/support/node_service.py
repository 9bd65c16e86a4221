# SPDX-License-Identifier: Apache-2.0
"""`foresee node`: a service in a process of its own, and its state as `foresee node status` shows it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from support.environment import plain_environment
from support.processes import Child, child
from support.waiting import WATCHDOG

#: A service; its arguments are those of `foresee node`.
SERVICE = """
    import sys
    from foresee.cli import main
    sys.exit(main(["node", *sys.argv[1:]]))
"""


def service(
    socket: pathlib.Path, *, ram: str = "64MB", env: Mapping[str, str] | None = None
) -> AbstractContextManager[Child]:
    """Start a service, whose first line shows that it listens; the end of the block kills it."""
    return child(SERVICE, "--ram", ram, "--socket", str(socket), "--json", env=env)


def node_status(socket: pathlib.Path) -> dict[str, Any] | None:
    """Return the state of a service; None if no service is there."""
    ended = subprocess.run(
        [sys.executable, "-m", "foresee", "node", "status", "--socket", str(socket), "--json"],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        env=plain_environment({}),
        check=False,
    )
    if ended.returncode != 0:
        return None
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def consumers(socket: pathlib.Path) -> list[dict[str, Any]]:
    """Return the consumers of a service; none if no service is there."""
    found = node_status(socket)
    return [] if found is None else found["consumers"]
