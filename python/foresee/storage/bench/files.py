# SPDX-License-Identifier: Apache-2.0
"""Files of a measurement: created in folders of their own, evicted from memory, and removed with these folders.

Each file begins with its number, by which its reader checks that it is the right one. The rest is random, so that it
can neither be compressed nor deduplicated. Files that existed before are never touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from foresee.errors import ConfigError, PageCacheKept

__all__ = ["HEAD_BYTES", "cold", "made", "may_drop", "path", "uninterrupted"]

#: A file's number, little-endian.
HEAD_BYTES = 8
_PREFIX = "foresee-bench-"
_TOLD_EVERY = 64
_DROP = "/proc/sys/vm/drop_caches"


def path(folder: str, number: int) -> str:
    """The place of a file."""
    return os.path.join(folder, f"{number:08d}")


@contextmanager
def made(
    folders: Sequence[str], numbers: Sequence[Sequence[int]], size: int, tell: Callable[[str], None]
) -> Iterator[list[str]]:
    """New folders within ``folders`` with files of ``size`` bytes in them, of these numbers each; gone at the end.

    Raises:
        ConfigError: a folder cannot be written to.
        OSError: a file cannot be written; what was made is removed.
    """
    mine: list[str] = []
    try:
        for folder in folders:
            try:
                mine.append(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
            except OSError as error:
                why = error.strerror or error
                raise ConfigError(f"{folder}: cannot be written to ({why}); name a folder of yours") from None
        whole = sum(map(len, numbers))
        done = 0
        random = np.random.default_rng()
        for folder, those in zip(mine, numbers, strict=True):
            for number in those:
                if done % _TOLD_EVERY == 0:
                    tell(f"making files: {done} of {whole}")
                _write(
                    path(folder, number),
                    number.to_bytes(HEAD_BYTES, "little"),
                    random.bytes(size - HEAD_BYTES),
                )
                done += 1
        tell("making files: waiting for the disk")
        os.sync()
        yield mine
    finally:
        with uninterrupted():
            for folder in mine:
                shutil.rmtree(folder, ignore_errors=True)


def _write(where: str, head: bytes, rest: bytes) -> None:
    try:
        with open(where, "xb") as file:
            file.write(head)
            file.write(rest)
    except OSError as error:
        # Without a name the error does not show which of the folders is full.
        raise OSError(error.errno, error.strerror, where) from None


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within, Ctrl-C and SIGTERM wait, here and in the processes that are started."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def may_drop() -> bool:
    """Whether this process may drop the machine's caches."""
    return os.access(_DROP, os.W_OK)


def cold(paths: Sequence[str], *, machine: bool) -> float | None:
    """Drive files out of memory as far as that goes.

    Args:
        paths: of the files.
        machine: drop all pages, names and inodes of the machine too, which ``may_drop`` has allowed.

    Returns:
        The share of their bytes that is in memory still; None: the kernel does not say.
    """
    from foresee.storage import page_cache as pages

    if machine:
        os.sync()
        with open(_DROP, "w", encoding="ascii") as file:
            file.write("3")
    try:
        pages.evict(paths)
    except PageCacheKept:
        pass  # asked below how much it is: a figure, not a failure
    kept, looked_at = pages.resident(paths)
    return None if kept is None or looked_at == 0 else kept / looked_at
