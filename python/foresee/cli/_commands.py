# SPDX-License-Identifier: Apache-2.0
"""Parsers of commands, from one module per command.

A module has ``HELP``, ``add_options(parser)`` and ``run(options)``, and may have an ``EPILOG``. A group of commands has
no ``run``: its ``add_options`` adds the commands below it.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence


def add_commands(
    parser: argparse.ArgumentParser, dest: str, package: str, names: Sequence[str], *, required: bool = True
) -> None:
    """Add the commands ``names``, modules of ``package``; ``dest`` is their attribute in the parsed options."""
    commands = parser.add_subparsers(dest=dest, metavar=dest.upper(), required=required)
    for name in names:
        module = importlib.import_module(f"{package}.{name}")
        epilog = getattr(module, "EPILOG", None)
        command = commands.add_parser(name, help=module.HELP, description=module.HELP, epilog=epilog)
        module.add_options(command)
        run = getattr(module, "run", None)
        if callable(run):  # in a group, it may be a submodule
            command.add_argument(
                "--json", action="store_true", help="one JSON object on stdout, nothing else"
            )
            command.set_defaults(run=run)


def add_compat(parser: argparse.ArgumentParser, paper: str) -> None:
    """Add ``--compat``; ``paper`` describes the reading to the letter."""
    parser.add_argument("--compat", choices=("physical", "paper"), default="physical", help=f"paper: {paper}")
