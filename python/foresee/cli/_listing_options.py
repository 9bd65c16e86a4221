# SPDX-License-Identifier: Apache-2.0
"""Options that say how an origin is listed, the same in every command that lists one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from foresee.errors import ConfigError


def add_to(parser: argparse.ArgumentParser, *, layout: str) -> None:
    """Add the options; ``layout`` is the help of ``--layout``."""
    parser.add_argument(
        "--layout", default="auto", choices=("auto", "folder", "flat", "npy", "bin"), help=layout
    )
    parser.add_argument("--row-bytes", type=int, metavar="N", help="bytes of a row; for layout bin")
    parser.add_argument(
        "--keys", metavar="FILE", help="objects below URI, one a line, where there is no listing (HTTP)"
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="files and folders to leave out, such as '*.tmp' or 'train/old/'; repeat it for several",
    )
    parser.add_argument(
        "--allow-empty", action="store_true", help="a class folder may have no sample; for layout folder"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="K=V", help="storage option, such as region=eu-1"
    )


def read_keys(path: str | None) -> list[bytes] | None:
    """Return the objects that the file of ``--keys`` names; None without a file.

    Raises:
        OSError: the file cannot be read.
    """
    if path is None:
        return None
    with open(path, "rb") as file:
        return [line for line in file.read().splitlines() if line]


def parse_storage(pairs: Sequence[str], faults: Sequence[str] = ()) -> dict[str, str]:
    """Parse the values of ``--option``.

    Raises:
        ConfigError: values that are no pair, and after them ``faults`` of the command.
    """
    wrong = [f"--option {pair!r}: write KEY=VALUE" for pair in pairs if "=" not in pair]
    if wrong or faults:
        raise ConfigError([*wrong, *faults])
    return dict(pair.split("=", 1) for pair in pairs)
