# SPDX-License-Identifier: Apache-2.0
"""The service: hosts the cache of this node until a signal ends it, or until it had no consumer for some time."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from types import FrameType
from typing import TYPE_CHECKING, Any

from foresee.errors import ConfigError

if TYPE_CHECKING:
    from foresee import _native

_RAM_BYTES_MIN = 1 << 20
# The overflow uid stands for every user without a mapping in a user namespace, and the last one for no user.
_UIDS_REFUSED = (65534, 2**32 - 1)
_MEMBERSHIP = frozenset({"attached", "detached"})


@dataclass(frozen=True)
class ServiceOptions:
    """The checked options of the service."""

    socket: str | None
    ram_bytes: int
    disk: str | None
    disk_bytes: int
    idle_exit_s: float | None
    allow_uids: tuple[int, ...]

    @staticmethod
    def read(options: argparse.Namespace) -> ServiceOptions:
        """Check a command line.

        Raises:
            ConfigError: options are missing or wrong; all faults at once.
        """
        from foresee.cli._durations import read_seconds
        from foresee.config import parse_size

        faults: list[str] = []

        def size(option: str, text: str | None) -> int:
            try:
                return 0 if text is None else parse_size(text, option)
            except ConfigError as error:
                faults.extend(error.faults)
                return 0

        known = len(faults)
        ram = size("--ram", options.ram)
        if options.ram is None:
            faults.append("--ram is missing; give the memory of the cache, such as --ram 64GB")
        elif len(faults) == known and ram < _RAM_BYTES_MIN:
            faults.append(f"--ram {options.ram}: 1 MiB or more")
        disk_bytes = size("--disk-size", options.disk_size)
        if options.disk is not None and options.disk_size is None:
            faults.append(f"--disk {options.disk} without --disk-size; give its capacity, such as 300GB")
        if options.disk is None and options.disk_size is not None:
            faults.append(f"--disk-size {options.disk_size} without --disk; give the directory, or neither")
        idle_exit_s = None
        if options.idle_exit is not None:
            try:
                idle_exit_s = read_seconds("--idle-exit", options.idle_exit, zero=False)
            except ConfigError as error:
                faults.extend(error.faults)
        faults += [
            f"--allow-uid {uid}: the number of a user, other than the overflow uid 65534"
            for uid in options.allow_uid
            if not 0 <= uid < 2**32 or uid in _UIDS_REFUSED
        ]
        if faults:
            raise ConfigError(faults)
        return ServiceOptions(
            socket=options.socket,
            ram_bytes=ram,
            disk=None if options.disk is None else os.path.abspath(options.disk),
            disk_bytes=disk_bytes,
            idle_exit_s=idle_exit_s,
            allow_uids=tuple(options.allow_uid),
        )


class IdleTimer:
    """The time without consumers. Times are seconds of one clock."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._since = now

    def is_over(self, now: float, *, is_used: bool) -> bool:
        """Whether the limit has passed since the last call with ``is_used``."""
        if is_used:
            self._since = now
        return now - self._since >= self._limit_s


def serve(options: ServiceOptions, *, prints_json: bool) -> int:
    """Host the cache until a signal or the idle time ends it; return the exit code.

    Raises:
        ConfigError: the socket's path is too long, or the environment forbids a cache of the node.
        OSError: the socket is in use, its directory is refused, there is too little memory, or the host has failed.
    """
    from foresee import _native

    with _end_signals() as received:
        try:
            host = _native.NodeHost(
                socket=options.socket,
                ram_bytes=options.ram_bytes,
                disk_dir=options.disk,
                disk_bytes=options.disk_bytes,
                allow_uids=list(options.allow_uids),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
        try:
            _announce(host, options, prints_json=prints_json)
            reason = _wait(host, options, received)
        finally:
            host.close()
        with contextlib.suppress(OSError):  # all events were read
            while (event := host.next_event()) is not None:
                _log(event)
        _log({"event": "ended", "why": reason})
    return 0


def _announce(host: _native.NodeHost, options: ServiceOptions, *, prints_json: bool) -> None:
    from foresee import _native

    facts: dict[str, Any] = {
        "socket": str(host.socket),
        "pid": os.getpid(),
        "ram_bytes": options.ram_bytes,
        "disk": options.disk,
        "disk_bytes": options.disk_bytes,
        "idle_exit_seconds": options.idle_exit_s,
        "allow_uids": list(options.allow_uids),
    }
    print(f"hosting the cache of this node at {host.socket}; Ctrl-C ends it", file=sys.stderr, flush=True)
    if prints_json:
        print(json.dumps(facts), flush=True)
    _log({"event": "listening", **facts})
    if options.disk is not None and _native.is_on_nfs(options.disk):
        why = "the directory is on NFS, where reads and locks go over the network; use a local disk"
        _log({"event": "slow disk", "disk": options.disk, "why": why})


def _wait(host: _native.NodeHost, options: ServiceOptions, received: list[signal.Signals]) -> str:
    """Log events until the end; return its reason."""
    timer = None if options.idle_exit_s is None else IdleTimer(options.idle_exit_s, time.monotonic())
    while not received:
        try:
            event = host.next_event()
        except OSError as error:
            raise OSError(f"{error} by a fault of its own, see the lines above; start it again") from error
        if event is not None:
            _log(event)
        if timer is None:
            continue
        # A consumer may attach and leave between two looks at the status.
        is_used = event is not None and event["event"] in _MEMBERSHIP
        is_used = is_used or bool(host.status()["consumers"])
        if timer.is_over(time.monotonic(), is_used=is_used):
            return "no consumer within --idle-exit"
    return received[0].name


def _log(event: dict[str, Any]) -> None:
    """Write an event as one line, without values that are None."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    values = {name: value for name, value in event.items() if value is not None}
    print(json.dumps({"time": now, **values}), file=sys.stderr, flush=True)


@contextlib.contextmanager
def _end_signals() -> Iterator[list[signal.Signals]]:
    """Collect the first SIGINT or SIGTERM within the block; a second one ends the process at once."""
    received: list[signal.Signals] = []
    before: dict[signal.Signals, Any] = {}

    def end(number: int, _frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        # The system's default action also ends a process that waits in native code.
        for each in before:
            signal.signal(each, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        # A shell ignores SIGINT of a background job.
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, end)
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
