# SPDX-License-Identifier: Apache-2.0
"""Configuration: sizes as strings, the cache, and the environment variables.

Arguments take precedence over the environment, and the environment over defaults. Nothing is allocated, opened or
created here.
"""

from __future__ import annotations

import logging
import operator
import os
import re
import threading
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex

from foresee._schema.files import user_path
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from foresee import _native

__all__ = ["Cache", "Settings", "parse_size"]

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_BYTES_MAX = 2**63 - 1
# Enough for staging and small data sets; at most a quarter of the node's memory.
_DEFAULT_RAM_BYTES = 2 * 10**9
_DEFAULT_RAM_SHARE = 4


def parse_size(value: int | str, name: str = "size") -> int:
    """Return the bytes of ``16_000_000``, ``"16GB"`` (10**9 each) or ``"16GiB"`` (2**30 each).

    Args:
        value: 0 or more. Units: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024), in
            any case; a fraction of a byte is cut off.
        name: name in the message.

    Raises:
        ConfigError: not a size, negative, or beyond 2**63 - 1 bytes.

    >>> parse_size("1.5GiB"), parse_size("16GB"), parse_size(512)
    (1610612736, 16000000000, 512)
    """
    bytes_: int | None = None
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        bytes_ = operator.index(value)
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)) and match[2].upper() in _UNITS:
        bytes_ = int(Decimal(match[1]) * _UNITS[match[2].upper()])
    if bytes_ is None or not 0 <= bytes_ <= _BYTES_MAX:
        raise ConfigError(
            f'{name}={value!r} is no size; write bytes as an int, or a string such as "16GB" or "2GiB"'
        )
    return bytes_


@dataclass(frozen=True, eq=False)
class Cache:
    """Memory and disk that loaders may use.

    Loaders with the same object share its capacity, such as a training and a validation loader. Two objects, even with
    equal fields, are two caches. Nothing is allocated before a loader starts.

    Raises:
        ConfigError: fields are wrong; all faults at once.
    """

    _: KW_ONLY
    ram: int | str = _DEFAULT_RAM_BYTES
    """Memory of this process for samples, staging and tables together: bytes, or "16GB". 0: staging only.
    Where several ranks share the cache of their node, it is the memory of the node, also by default."""
    disk: str | os.PathLike[str] | None = None
    """Directory on this node's fast disk; created with mode 0700 if missing. If other users can write to it, a private
    folder in it is used; if it is read-only, its entries are read. None: no disk tier."""
    disk_size: int | str | None = None
    """Capacity of ``disk`` in bytes, including the entries of earlier and concurrent runs; the oldest unused entries
    are evicted first. Required with ``disk``, refused without."""
    peers: bool | None = None
    """Exchange samples between the nodes of a job, so that the origin is read once for all of them: None, where the
    launcher reports several nodes and the order of all ranks is known for the run; True, the same, with a warning where
    it is not possible; False, never."""
    _handle: list[Any] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        faults: list[str] = []
        for name, check in (("ram", parse_size), ("disk_size", parse_size), ("disk", user_path)):
            value: Any = getattr(self, name)
            try:
                if value is not None or name == "ram":
                    check(value, name)
            except ConfigError as error:
                faults += error.faults
        if self.disk is not None and self.disk_size is None:
            faults.append(f'disk={self.disk!r} without disk_size=; pass its capacity, such as "300GB"')
        if self.disk is None and self.disk_size is not None:
            faults.append(
                f"disk_size={self.disk_size!r} without disk=; pass the directory, or leave both out"
            )
        if self.peers not in {None, True, False}:
            faults.append(f"peers={self.peers!r}; use True, False, or None for what the launcher reports")
        if faults:
            raise ConfigError(faults)

    @property
    def ram_bytes(self) -> int:
        """``ram`` in bytes."""
        return parse_size(self.ram, "ram")

    @property
    def disk_bytes(self) -> int:
        """``disk_size`` in bytes, 0 without a disk tier."""
        return 0 if self.disk_size is None else parse_size(self.disk_size, "disk_size")

    @property
    def is_open(self) -> bool:
        """Whether a loader of this process uses it or has used it."""
        return bool(self._handle) and self._handle[0] == os.getpid()

    def native(self) -> _native.Cache:
        """Return the native cache of this object in this process; a forked child gets a new, empty one.

        Raises:
            ConfigError: ``ram`` is above the memory limit of this process.
        """
        from foresee import _native
        from foresee._runtime.step_times import disk_cache_folder

        with _handles:
            if not self._handle or self._handle[0] != os.getpid():
                disk = None if self.disk is None else disk_cache_folder(user_path(self.disk, "disk"))
                try:
                    cache = _native.Cache(ram_bytes=self.ram_bytes, disk_dir=disk, disk_bytes=self.disk_bytes)
                except ValueError as error:
                    raise ConfigError(str(error)) from error
                if disk is not None and not self._handle and _native.is_on_nfs(disk):
                    _log.warning(
                        "the cache directory %s is on NFS, where reads and locks go over the network; set disk= to a "
                        "directory on a local disk",
                        disk,
                    )
                self._handle[:] = [os.getpid(), cache]
            handle: _native.Cache = self._handle[1]
            return handle

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields only: another process has another cache."""
        return partial(Cache, ram=self.ram, disk=self.disk, disk_size=self.disk_size, peers=self.peers), ()


_handles = threading.Lock()
_log = logging.getLogger("foresee")


@dataclass(frozen=True)
class Settings:
    """The environment variables of Foresee, read once per loader."""

    _: KW_ONLY
    off: bool = False
    """``FORESEE_OFF``: 1 for plain reads in the same order, without engine, threads and caches."""
    threads: int | None = None
    """``FORESEE_THREADS``: threads of the engine, 1 or more; default: the engine's choice."""
    run_dir: str | None = None
    """``FORESEE_TRACE``: run folder for the ledger; default: none is written."""
    steps_dir: str | None = None
    """``FORESEE_STEPS``: folder for a row per step, set by ``foresee stagger``; default: none is written."""
    profile: str | None = None
    """``FORESEE_PROFILE``: machine profile for the prediction of a run with a run folder; default: no prediction."""
    job: str | None = None
    """``FORESEE_JOB_FILE``: job file for the prediction; default: the first steps give the compute time."""
    log: str | None = None
    """``FORESEE_LOG``: level of the logger ``foresee`` (debug, info, warning, error), shown on stderr."""
    ram: str | None = None
    """``FORESEE_RAM``: ``ram`` of the cache that loaders without ``cache=`` share."""
    cache_dir: str | None = None
    """``FORESEE_CACHE_DIR``: its ``disk``."""
    disk_size: str | None = None
    """``FORESEE_DISK_SIZE``: its ``disk_size``."""
    peers: bool | None = None
    """``FORESEE_PEERS``: ``peers`` of all caches that leave it out, 1 or 0."""

    @staticmethod
    def read(environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables; an empty one counts as not set.

        Raises:
            ConfigError: every variable with a wrong value.
        """
        env = {key: value for key, value in (os.environ if environ is None else environ).items() if value}
        faults: list[str] = []

        def path(name: str) -> str | None:
            return os.path.expanduser(env[name]) if name in env else None

        off = env.get("FORESEE_OFF", "0")
        if off not in {"0", "1"}:
            faults.append(f"FORESEE_OFF={off!r}; use 1 or 0")
        threads = env.get("FORESEE_THREADS")
        if threads is not None and not (threads.isascii() and threads.isdigit() and int(threads) >= 1):
            faults.append(f"FORESEE_THREADS={threads!r}; use a whole number of 1 or more")
        peers = env.get("FORESEE_PEERS")
        if peers not in {None, "0", "1"}:
            faults.append(f"FORESEE_PEERS={peers!r}; use 1 or 0")
        log = env.get("FORESEE_LOG")
        if log is not None and log.lower() not in {"debug", "info", "warning", "error"}:
            faults.append(f"FORESEE_LOG={log!r}; use debug, info, warning or error")
        if faults:
            raise ConfigError(faults)
        return Settings(
            off=off == "1",
            threads=None if threads is None else int(threads),
            run_dir=path("FORESEE_TRACE"),
            steps_dir=path("FORESEE_STEPS"),
            profile=path("FORESEE_PROFILE"),
            job=path("FORESEE_JOB_FILE"),
            log=log,
            ram=env.get("FORESEE_RAM"),
            cache_dir=path("FORESEE_CACHE_DIR"),
            disk_size=env.get("FORESEE_DISK_SIZE"),
            peers=None if peers is None else peers == "1",
        )

    def cache(self) -> Cache:
        """Return the cache of loaders without ``cache=``: one per process and set of values."""
        key = (os.getpid(), self.ram, self.cache_dir, self.disk_size)
        with _handles:
            if key not in _defaults:
                pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
                ram = self.ram or min(_DEFAULT_RAM_BYTES, pages // _DEFAULT_RAM_SHARE)
                _defaults[key] = Cache(ram=ram, disk=self.cache_dir, disk_size=self.disk_size)
            return _defaults[key]

    def apply_log(self) -> None:
        """Set the level of the logger ``foresee``; without any handler, it logs to stderr."""
        if self.log is not None:
            logger = logging.getLogger("foresee")
            logger.setLevel(self.log.upper())
            if not logger.hasHandlers():
                logger.addHandler(logging.StreamHandler())


_defaults: dict[tuple[int, str | None, str | None, str | None], Cache] = {}
