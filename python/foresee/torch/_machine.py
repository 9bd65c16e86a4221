# SPDX-License-Identifier: Apache-2.0
"""Which ranks share a machine and may exchange as one, and how they find each other there.

The first of them writes where it listens to a file of this user, and holds a lock on it for as long as that is true:
whatever ends it, the system drops the lock, so that what another run left behind is known for what it is.

Apart from ``_rendezvous``, where a job's machines meet. Refuses to guess: where the launcher does not say how many
ranks a machine has, or they are not in the order of the machines, every rank exchanges by itself.
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

    from foresee._world import World

__all__ = ["SAY_EVERY_S", "Meeting", "find", "first_rank", "meet"]

#: After each of these the log says who is waited for.
SAY_EVERY_S = 30.0
_AGAIN_S = 0.02
_log = logging.getLogger("foresee")


def first_rank(world: World) -> int | None:
    """The first of the ranks that share this machine with others and may exchange as one; None if they may not."""
    ranks = world.local_size
    in_order = world.size % ranks == 0 and world.rank % ranks == world.local_rank
    if sys.platform != "linux" or ranks == 1 or not world.local_size_known or not in_order:
        return None
    return world.rank - world.local_rank


class Meeting:
    """Where the first rank of a machine is found, until it is closed.

    Raises:
        ConfigError: the file cannot be written, or another process of this user holds it beyond ``timeout_s``.
    """

    def __init__(self, job: str, first: int, address: str, timeout_s: float) -> None:
        self._path = _path(job, first)
        self._file = _locked(self._path, timeout_s)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{address}\n".encode(), 0)

    def close(self) -> None:
        """Nobody finds it any more; a second call does nothing."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Meeting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def meet(job: str, first: int, patience_s: float) -> str:
    """The address at which the first rank of this machine listens, once it does: it may have much to do before.

    Raises:
        RankLost: it did not within ``patience_s``. It may have been there, found no server, and gone again.
    """
    began = said = time.monotonic()
    while (address := find(job, first)) is None:
        now = time.monotonic()
        if now - began > patience_s:
            raise RankLost(
                f"rank {first}, which exchanges for this machine, did not come to the exchange of gradients within "
                f"{patience_s:.0f} s; look at the output there",
                rank=first,
            )
        if now - said > SAY_EVERY_S:
            said = now
            _log.warning(
                "%.0f s without gradients: waiting for rank %d, which exchanges for this machine",
                now - began,
                first,
            )
        time.sleep(_AGAIN_S)
    return address


def find(job: str, first: int) -> str | None:
    """The address at which the first rank of this machine listens; None if it does not."""
    with contextlib.suppress(FileNotFoundError), open(_path(job, first), "rb") as file:
        text = file.read().decode()
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            # Somebody holds it: what stands there is true.
            return text.strip() if text.endswith("\n") else None
    return None


def _path(job: str, first: int) -> str:
    """Of a folder that is this user's alone.

    Raises:
        ConfigError: it is somebody else's.
    """
    folder = os.path.join(tempfile.gettempdir(), f"foresee-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is not this user's alone; remove it, or pass local_average=False on every rank"
        )
    return os.path.join(folder, f"{hashlib.sha256(job.encode()).hexdigest()[:24]}-{first}")


def _locked(path: str, timeout_s: float) -> int:
    """The file, made if need be, once nobody else has its lock."""
    until = time.monotonic() + timeout_s
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it before has removed it by now, perhaps.
            if os.fstat(file).st_ino == os.stat(path).st_ino:
                return file
        os.close(file)
        if time.monotonic() > until:
            raise ConfigError(
                f"{path} is held by another process of this user; give each job a name of its own with FORESEE_JOB"
            )
        time.sleep(_AGAIN_S)
