# SPDX-License-Identifier: Apache-2.0
"""``foresee cache``: list, verify and delete the content of a disk cache's directory. One file per action."""

from __future__ import annotations

import argparse

from foresee.cli._commands import add_commands

HELP = "list, verify and delete the content of a disk cache's directory"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    add_commands(parser, "action", __name__, ["ls", "rm", "verify"])
