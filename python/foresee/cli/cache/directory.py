# SPDX-License-Identifier: Apache-2.0
"""The directory that a command is about, and its partitions."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foresee.errors import ConfigError

if TYPE_CHECKING:
    from foresee import _native


@dataclass(frozen=True)
class Partition:
    """A partition, as :meth:`foresee._native.CacheDirectory.content` describes it."""

    source: str
    partition: str
    version: int
    disk_bytes: int
    last_used: int
    declared_bytes: int | None
    entries: int | None
    entry_bytes: int | None
    in_use: bool
    process: int | None

    @property
    def name(self) -> str:
        """Source and partition."""
        return f"{self.source}/{self.partition}"


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add the argument DIR."""
    parser.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        help="the disk= of a Cache; by default that of the environment, FORESEE_CACHE_DIR",
    )


def choose(directory: str | None) -> str:
    """Return the existing directory of the command line or of the environment.

    Raises:
        ConfigError: there is none.
    """
    from foresee.config import Settings

    chosen = directory or Settings.read().cache_dir
    if chosen is None:
        raise ConfigError("DIR is missing; name the cache directory, or set FORESEE_CACHE_DIR")
    if not os.path.isdir(chosen):
        raise ConfigError(f"{chosen}: no such directory; name the disk= of the Cache")
    return chosen


def read(cache: _native.CacheDirectory) -> tuple[list[Partition], list[str]]:
    """Return the partitions, and a message per link or folder of another user."""
    partitions, faults = cache.content()
    return [Partition(**partition) for partition in partitions], faults


def user(process: int | None) -> str:
    """Return the process that uses a partition, for a message."""
    return "a process of another container" if process is None else f"process {process}"
