# SPDX-License-Identifier: Apache-2.0
"""The ranks of one node that exchange as one, and how members find the node's leader.

The leader is the first rank of the node. It writes its address to a file of this user, and holds a lock on the file
while the address is valid. The kernel drops the lock however the process ends, so a file of another run is recognized.
If the launcher does not report the ranks per node, or ranks are not in the order of nodes, every rank exchanges by
itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from foresee.errors import ConfigError, RankLost

if TYPE_CHECKING:
    from foresee._runtime.ranks import World

__all__ = ["LOG_EVERY_S", "LeaderAddress", "find_leader", "leader_rank", "wait_for_leader"]

#: Seconds between two lines of the log during a wait for the leader.
LOG_EVERY_S = 30.0
_POLL_S = 0.02
_log = logging.getLogger("foresee")


def leader_rank(world: World) -> int | None:
    """Return the first rank of this node; None if its ranks may not exchange as one."""
    ranks = world.local_size
    is_in_order = world.size % ranks == 0 and world.rank % ranks == world.local_rank
    if sys.platform != "linux" or ranks == 1 or not world.local_size_known or not is_in_order:
        return None
    return world.rank - world.local_rank


class LeaderAddress:
    """The published address of a node's leader, until it is closed.

    Raises:
        ConfigError: the file cannot be written, or another process of this user holds it beyond ``timeout_s``.
    """

    def __init__(self, job: str, leader: int, address: str, timeout_s: float) -> None:
        self._path = _path(job, leader)
        self._file = _lock(self._path, timeout_s)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{address}\n".encode(), 0)

    def close(self) -> None:
        """Withdraw the address; a second call does nothing."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._file)
            self._file = -1


def wait_for_leader(job: str, leader: int, limit_s: float) -> str:
    """Wait for the address of this node's leader.

    Raises:
        RankLost: the leader did not listen within ``limit_s``, for instance since it found no server.
    """
    began = logged = time.monotonic()
    while (address := find_leader(job, leader)) is None:
        now = time.monotonic()
        if now - began > limit_s:
            raise RankLost(
                f"rank {leader}, which exchanges for this node, did not come to the exchange of gradients within "
                f"{limit_s:.0f} s; look at the output there",
                rank=leader,
            )
        if now - logged > LOG_EVERY_S:
            logged = now
            _log.warning(
                "%.0f s without gradients: waiting for rank %d, which exchanges for this node",
                now - began,
                leader,
            )
        time.sleep(_POLL_S)
    return address


def find_leader(job: str, leader: int) -> str | None:
    """Return the address of this node's leader; None if it does not listen."""
    with contextlib.suppress(FileNotFoundError), open(_path(job, leader), "rb") as file:
        text = file.read().decode()
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            # A process holds the lock, so the address is valid.
            return text.strip() if text.endswith("\n") else None
    return None


def _path(job: str, leader: int) -> str:
    """Return the path of a leader's address, in a folder that only this user can access.

    Raises:
        ConfigError: other users have access to the folder.
    """
    folder = os.path.join(tempfile.gettempdir(), f"foresee-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    info = os.lstat(folder)
    if info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is not this user's alone; remove it, or pass hierarchical=False on every rank"
        )
    return os.path.join(folder, f"{hashlib.sha256(job.encode()).hexdigest()[:24]}-{leader}")


def _lock(path: str, timeout_s: float) -> int:
    """Open or create the file, and wait for its lock."""
    until = time.monotonic() + timeout_s
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder of the lock may have removed the file.
            if os.fstat(file).st_ino == os.stat(path).st_ino:
                return file
        os.close(file)
        if time.monotonic() > until:
            raise ConfigError(
                f"{path} is held by another process of this user; give each job a name of its own with FORESEE_JOB"
            )
        time.sleep(_POLL_S)
