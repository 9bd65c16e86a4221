# SPDX-License-Identifier: Apache-2.0
"""Memory of several processes that share a part of it, as PROTOCOL.md defines it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

#: Bytes of a block of ``stat``, on any file system.
BLOCK_BYTES = 512


def memory_bytes(pids: Iterable[int]) -> int:
    """Return the memory of the live ones of these processes; what they share counts once."""
    private = shared = 0
    memfds: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            sizes = _proportional(Path(f"/proc/{pid}/smaps_rollup").read_text())
            memfds |= _memfds(Path(f"/proc/{pid}/fd"))
        except OSError:
            continue
        private += sizes.get("Pss_Anon", 0) + sizes.get("Pss_File", 0)
        shared += sizes.get("Pss_Shmem", 0)
    return private + max(shared, sum(memfds.values()))


def _proportional(rollup: str) -> dict[str, int]:
    """Return the bytes of each kind of PSS."""
    lines = [line.split() for line in rollup.splitlines() if line.startswith("Pss_")]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


def _memfds(descriptors: Path) -> dict[tuple[int, int], int]:
    """Return the allocated bytes of each open memfd, by its device and inode."""
    found = {}
    for descriptor in descriptors.iterdir():
        try:
            if os.readlink(descriptor).startswith("/memfd:"):
                status = descriptor.stat()
                found[status.st_dev, status.st_ino] = status.st_blocks * BLOCK_BYTES
        except OSError:
            # It was closed in between.
            continue
    return found
