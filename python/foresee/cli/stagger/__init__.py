# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger``: start jobs that read the same data at the right moments. One file per action."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

_HELP = "start jobs that read the same data at the right moments"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    from foresee.cli.stagger import calibrate, predict, run

    parser = commands.add_parser("stagger", help=_HELP, description=_HELP)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    calibrate.add_to(actions)
    predict.add_to(actions)
    run.add_to(actions)
