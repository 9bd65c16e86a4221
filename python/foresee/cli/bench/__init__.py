# SPDX-License-Identifier: Apache-2.0
"""``foresee bench``: measurements. One file per action."""

from __future__ import annotations

import argparse

from foresee.cli._commands import add_commands

HELP = "measure the storage under the load of a training job"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    add_commands(parser, "action", __name__, ["storage"])
