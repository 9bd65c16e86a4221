# SPDX-License-Identifier: Apache-2.0
"""Files of a measurement: created in new folders, evicted from memory, and removed with these folders.

Each file begins with its number, which its reader checks. The rest is random, so that it can be neither compressed nor
deduplicated. Files that existed before are never touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from foresee.errors import ConfigError, PageCacheKept

__all__ = ["HEAD_BYTES", "block_signals", "create_files", "evict_files", "file_path"]

#: A file's number, little-endian.
HEAD_BYTES = 8
_PREFIX = "foresee-bench-"
_REPORT_EVERY = 64


def file_path(folder: str, number: int) -> str:
    """Return the path of a file."""
    return os.path.join(folder, f"{number:08d}")


@contextmanager
def create_files(
    folders: Sequence[str], numbers: Sequence[Sequence[int]], size: int, report: Callable[[str], None]
) -> Iterator[list[str]]:
    """Create new folders within ``folders`` with files of ``size`` bytes and these ``numbers``; remove them at the end.

    Raises:
        ConfigError: a folder cannot be written to.
        OSError: a file cannot be written; the created files are removed.
    """
    created: list[str] = []
    try:
        for folder in folders:
            try:
                created.append(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
            except OSError as error:
                reason = error.strerror or error
                raise ConfigError(f"{folder}: cannot be written to ({reason}); name another folder") from None
        total = sum(map(len, numbers))
        done = 0
        random = np.random.default_rng()
        for folder, listed in zip(created, numbers, strict=True):
            for number in listed:
                if done % _REPORT_EVERY == 0:
                    report(f"making files: {done} of {total}")
                head = number.to_bytes(HEAD_BYTES, "little")
                _write(file_path(folder, number), head, random.bytes(size - HEAD_BYTES))
                done += 1
        report("making files: waiting for the disk")
        os.sync()
        yield created
    finally:
        with block_signals():
            for folder in created:
                shutil.rmtree(folder, ignore_errors=True)


def _write(path: str, head: bytes, rest: bytes) -> None:
    try:
        with open(path, "xb") as file:
            file.write(head)
            file.write(rest)
    except OSError as error:
        # The error of a full disk has no path.
        raise OSError(error.errno, error.strerror, path) from None


@contextmanager
def block_signals() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM within the block, here and in the processes that are started."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def evict_files(paths: Sequence[str], *, machine: bool) -> float | None:
    """Evict files from memory as far as possible.

    Args:
        paths: of the files.
        machine: also drop all pages, names and inodes of the machine.

    Returns:
        The share of their bytes that is still in memory; None: the kernel does not report it.
    """
    from foresee.storage import page_cache

    if machine:
        page_cache.drop_machine_caches("3")
    with suppress(PageCacheKept):  # the caller reports the share
        page_cache.evict(paths)
    resident, checked = page_cache.resident_bytes(paths)
    return None if resident is None or checked == 0 else resident / checked
