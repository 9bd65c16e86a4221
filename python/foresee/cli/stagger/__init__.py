# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger``: start jobs that read the same data at the right moments. One file per action."""

from __future__ import annotations

import argparse

from foresee.cli._commands import add_commands

HELP = "start jobs that read the same data at the right moments"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    add_commands(parser, "action", __name__, ["calibrate", "predict", "run"])
