# SPDX-License-Identifier: Apache-2.0
"""Which ranks share a node and may exchange as one, and how its members find their leader.

The leader is the first rank of the node. It writes its address to a file of this user and holds a lock on the file for
as long as the address is valid: however its process ends, the system drops the lock, so a file that another run left
behind is recognized. Where the launcher does not say how many ranks a node has, or ranks are not in the order of nodes,
every rank exchanges by itself.
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
    from types import TracebackType

    from foresee._runtime.ranks import World

__all__ = ["LOG_EVERY_S", "LeaderAddress", "find_leader", "leader_rank", "wait_for_leader"]

#: Seconds between two lines of the log about a leader that is waited for.
LOG_EVERY_S = 30.0
_POLL_S = 0.02
_log = logging.getLogger("foresee")


def leader_rank(world: World) -> int | None:
    """The first of the ranks that share this node and may exchange as one; None if they may not."""
    ranks = world.local_size
    in_order = world.size % ranks == 0 and world.rank % ranks == world.local_rank
    if sys.platform != "linux" or ranks == 1 or not world.local_size_known or not in_order:
        return None
    return world.rank - world.local_rank


class LeaderAddress:
    """The published address of a node's leader, until it is closed.

    Raises:
        ConfigError: the file cannot be written, or another process of this user holds it beyond ``timeout_s``.
    """

    def __init__(self, job: str, leader: int, address: str, timeout_s: float) -> None:
        self._path = _path(job, leader)
        self._file = _locked(self._path, timeout_s)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{address}\n".encode(), 0)

    def close(self) -> None:
        """Withdraw the address; a second call does nothing."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> LeaderAddress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wait_for_leader(job: str, leader: int, patience_s: float) -> str:
    """The address at which this node's leader listens, once it does: it may have much to do before.

    Raises:
        RankLost: it did not within ``patience_s``. It may have found no server and ended.
    """
    began = logged = time.monotonic()
    while (address := find_leader(job, leader)) is None:
        now = time.monotonic()
        if now - began > patience_s:
            raise RankLost(
                f"rank {leader}, which exchanges for this node, did not come to the exchange of gradients within "
                f"{patience_s:.0f} s; look at the output there",
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
    """The address at which this node's leader listens; None if it does not."""
    with contextlib.suppress(FileNotFoundError), open(_path(job, leader), "rb") as file:
        text = file.read().decode()
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            # A process holds it: the address is valid.
            return text.strip() if text.endswith("\n") else None
    return None


def _path(job: str, leader: int) -> str:
    """The file of a leader's address, in a folder that is this user's alone.

    Raises:
        ConfigError: other users have access to the folder.
    """
    folder = os.path.join(tempfile.gettempdir(), f"foresee-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is not this user's alone; remove it, or pass hierarchical=False on every rank"
        )
    return os.path.join(folder, f"{hashlib.sha256(job.encode()).hexdigest()[:24]}-{leader}")


def _locked(path: str, timeout_s: float) -> int:
    """Open the file, or create it, and lock it once no other process has its lock."""
    until = time.monotonic() + timeout_s
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process that had the lock may have removed the file.
            if os.fstat(file).st_ino == os.stat(path).st_ino:
                return file
        os.close(file)
        if time.monotonic() > until:
            raise ConfigError(
                f"{path} is held by another process of this user; give each job a name of its own with FORESEE_JOB"
            )
        time.sleep(_POLL_S)
