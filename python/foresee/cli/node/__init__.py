# SPDX-License-Identifier: Apache-2.0
"""``foresee node``: the cache of this node as a service. `service` runs it, `status` prints the state of one."""

from __future__ import annotations

import argparse

from foresee.cli._commands import add_commands
from foresee.cli.node import service

HELP = "run the cache of this node, which all ranks and jobs of one user share; or print its status"
EPILOG = (
    "The service ends with exit code 0 on SIGINT or SIGTERM, and writes the list of entries on disk first; a second "
    "signal ends it at once. Ranks find the default socket by themselves, and another one by FORESEE_NODE. Each event "
    "is a JSON object on a line of stderr."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the service, and the command below it."""
    parser.add_argument(
        "--ram", metavar="SIZE", help='memory of the node\'s cache with its tables, such as "64GB"; required'
    )
    parser.add_argument("--disk", metavar="DIR", help="directory on a local disk; with --disk-size")
    parser.add_argument("--disk-size", metavar="SIZE", help='capacity of --disk, such as "300GB"')
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="socket to listen on (FORESEE_NODE, else node.sock in a private directory of this user)",
    )
    parser.add_argument(
        "--idle-exit", metavar="DURATION", help="end after this time without consumers, such as 10min (never)"
    )
    parser.add_argument(
        "--allow-uid",
        action="extend",
        nargs="+",
        type=int,
        default=[],
        metavar="UID",
        help="other users whose processes may attach; they can read all samples in the cache",
    )
    add_commands(parser, "action", __name__, ["status"], required=False)


def run(options: argparse.Namespace) -> int:
    """Run the service; return its exit code."""
    return service.serve(service.ServiceOptions.read(options), prints_json=options.json)
