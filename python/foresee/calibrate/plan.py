# SPDX-License-Identifier: Apache-2.0
"""Plan of a calibration: its checked options, and each part's share of the time.

All faults are found before anything is measured, as far as they can be seen without measuring. Parts that need what was
not given (an origin, a disk, a launcher) are left out and named.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from foresee import _native
from foresee._loading import data_source
from foresee._runtime.ranks import World, detect
from foresee.calibrate import decode, fio, parts, ranks
from foresee.calibrate.sweep import cores
from foresee.errors import ConfigError
from foresee.jobspec import Figure, Profile

__all__ = ["SECONDS", "CalibrationRequest", "Disk", "Measured", "check", "machine_name", "measure", "profile"]

#: Seconds of a whole calibration, all parts together, unless told otherwise.
SECONDS = 45.0
_SECONDS_MAX = 3600.0
#: What can be measured beside disks; these are no names for one.
_PARTS = ("memcpy", "checksum", "ram", "origin", "decode", "network")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
#: Parts of the time, relative to each other: where figures scatter most, most is spent.
_WEIGHTS = {"memcpy": 1.0, "checksum": 1.0, "ram": 2.5, "origin": 6.0, "decode": 2.0, "network": 3.0}
_DISK_WEIGHT = 6.0
#: However late it is, each part gets this much of its share: a figure of few bytes is better than none.
_SHARE_LEAST = 0.1


@dataclass(frozen=True)
class Disk:
    """A disk to measure, or one that fio has measured."""

    name: str
    path: str
    """Of a folder on it; of the results."""


@dataclass(frozen=True, kw_only=True)
class CalibrationRequest:
    """A calibration without faults."""

    seconds: float = SECONDS
    origin: data_source.Source | None = None
    disks: tuple[Disk, ...] = ()
    results: tuple[Figure, ...] = field(default=(), repr=False)
    """Of fio."""
    only: frozenset[str] = frozenset()
    """Parts and names of disks; empty: all."""
    world: World = field(default_factory=lambda: World(0, 1))
    meeting: str | None = None
    """The address at which ranks meet; None with one rank, or without the network part."""

    def wants(self, part: str) -> bool:
        """Whether a part, or a disk by its name, is to be measured."""
        return not self.only or part in self.only


@dataclass(frozen=True)
class Measured:
    """The result of a calibration."""

    figures: tuple[Figure, ...]
    left_out: tuple[str, ...]
    """Parts that were left out, with the reason."""


def check(
    *,
    seconds: float,
    disks: Sequence[str],
    results: Sequence[str],
    only: Sequence[str],
    port: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> CalibrationRequest:
    """Check the options of a command line, except the origin.

    Args:
        seconds: for everything, above 0, at most 3600.
        disks: ``[NAME=]FOLDER``.
        results: ``[NAME=]FILE`` of fio; the name of a tier, or ``origin``.
        only: parts and names of disks.
        port: where ranks meet; None: one above the launcher's.
        environ: for the launcher's variables.

    Raises:
        ConfigError: all faults.
    """
    faults: list[str] = []
    if not (math.isfinite(seconds) and 0 < seconds <= _SECONDS_MAX):
        faults.append(f"--seconds {seconds:g}: seconds above 0, at most {_SECONDS_MAX:g} expected")
    if port is not None and not 0 < port < 1 << 16:
        faults.append(f"--port {port}: 1 to 65535 expected")
    named = _named(disks, "--disk", _PARTS, faults)
    files = _named(results, "--fio", tuple(part for part in _PARTS if part != "origin"), faults)
    faults += [
        f"--disk {each.path}: no such folder; name one on the disk to be measured"
        for each in named
        if not os.path.isdir(each.path)
    ]
    known = (*_PARTS, *(each.name for each in named))
    faults += [
        f"--only {part}: no such part or tier; known are {', '.join(known)}"
        for part in only
        if part not in known
    ]
    figures: list[Figure] = []
    for each in files:
        place = "origin" if each.name == "origin" else f"tier.{each.name}"
        try:
            figures += fio.read(each.path, {"read": f"{place}.read", "latency": f"{place}.latency"})
        except ConfigError as error:
            faults += error.faults
        except OSError as error:
            faults.append(f"--fio {each.path}: {error.strerror or error}")
    world, meeting = World(0, 1), None
    try:
        world = detect(environ=environ)
        if world.size > 1 and (not only or "network" in only):
            meeting = ranks.meeting(port, environ)
    except ConfigError as error:
        faults += error.faults
    if faults:
        raise ConfigError(faults)
    return CalibrationRequest(
        seconds=seconds,
        disks=tuple(named),
        results=tuple(figures),
        only=frozenset(only),
        world=world,
        meeting=meeting,
    )


def _named(words: Sequence[str], option: str, taken: Sequence[str], faults: list[str]) -> list[Disk]:
    """``[NAME=]PATH``, each name once; without a name it is ``disk``, ``disk2``, ..."""
    made: list[Disk] = []
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or "/" in name:
            name, path = "disk" if not made else f"disk{len(made) + 1}", word
        if not path:
            faults.append(f"{option} {word}: [NAME=]PATH expected")
        elif name in taken or not _NAME.fullmatch(name):
            faults.append(
                f"{option} {word}: {name!r} is no name for a tier; letters, digits, - and _, and none of "
                f"{', '.join(taken)}"
            )
        elif name in (each.name for each in made):
            faults.append(f"{option} {word}: {name!r} is there already; each name once")
        else:
            made.append(Disk(name, path))
    return made


def measure(wanted: CalibrationRequest, tell: Callable[[str], None]) -> Measured | None:
    """Measure everything; None on ranks other than the first, which only answer it.

    Args:
        wanted: what to measure.
        tell: called with what is measured next.

    Raises:
        OriginError: the origin fails.
        CacheError: a disk's folder takes no file, or has no room.
        ForeseeError: ranks do not come, or their link breaks.
    """
    if wanted.world.rank > 0:
        if wanted.meeting is not None:
            tell("network: waiting for rank 0")
            ranks.answer(wanted.world, wanted.meeting)
        return None
    left_out = list(_not_given(wanted))
    figures: list[Figure] = []
    for run, seconds in _shares(wanted, tell, left_out):
        figures += run(seconds)
    return Measured((*figures, *wanted.results), tuple(left_out))


_Run = Callable[[float], Iterator[Figure]]


def _shares(
    wanted: CalibrationRequest, tell: Callable[[str], None], left_out: list[str]
) -> Iterator[tuple[_Run, float]]:
    """Return the parts in order, each with its seconds, which are fewer after parts that took too long."""
    until = time.monotonic() + wanted.seconds
    runs = list(_runs(wanted, tell, left_out))
    whole = rest = sum(weight for _, weight in runs)
    for run, weight in runs:
        share = wanted.seconds * weight / whole
        left = (until - time.monotonic()) * weight / rest
        rest -= weight
        yield run, max(min(share, left), _SHARE_LEAST * share)


def _runs(
    wanted: CalibrationRequest, tell: Callable[[str], None], left_out: list[str]
) -> Iterator[tuple[_Run, float]]:
    measured_by_fio = {figure.name for figure in wanted.results}
    if wanted.meeting is not None:
        # First, since the others wait for nothing else.
        world, meeting = wanted.world, wanted.meeting
        tell("network: waiting for ranks")
        yield partial(ranks.links, world, meeting), _WEIGHTS["network"]
    told: dict[str, Any] = {"tell": tell, "left_out": left_out}
    local: dict[str, Callable[..., Iterator[Figure]]] = {
        "memcpy": parts.memcpy,
        "checksum": parts.checksum,
        "ram": parts.ram,
    }
    local = {part: run for part, run in local.items() if wanted.wants(part)}
    memory = _native.Trial.memory() if local else None
    for part, run in local.items():
        yield partial(run, memory, **told), _WEIGHTS[part]
    for each in wanted.disks:
        if wanted.wants(each.name):
            reads = f"tier.{each.name}.read" not in measured_by_fio
            yield partial(parts.disk, each.name, each.path, reads=reads, **told), _DISK_WEIGHT
    source = wanted.origin
    if source is None or not (wanted.wants("origin") or wanted.wants("decode")):
        return
    trial = _native.Trial.origin(source.index, source.uri, options=dict(source.options))
    if wanted.wants("origin") and "origin.read" not in measured_by_fio:
        yield partial(parts.origin, trial, source, **told), _WEIGHTS["origin"]
    if wanted.wants("decode"):
        yield partial(decode.decode, trial, **told), _WEIGHTS["decode"]


def _not_given(wanted: CalibrationRequest) -> Iterator[str]:
    if wanted.wants("network") and wanted.meeting is None:
        yield (
            "network: one rank; start the command on every rank, by torchrun or with RANK, WORLD_SIZE, MASTER_ADDR "
            "and MASTER_PORT"
        )
    if wanted.origin is None:
        by_fio = any(figure.name == "origin.read" for figure in wanted.results)
        given = [
            part for part in ("origin", "decode") if wanted.wants(part) and not (by_fio and part == "origin")
        ]
        if given:
            yield f"{' and '.join(given)}: no --origin"
    if not wanted.disks and not wanted.results and not wanted.only:
        yield "disk: no --disk"


def machine_name() -> str:
    """This machine in a line: its name, cores, memory and kernel.

    >>> machine_name().isprintable()
    True
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}"
    words = f"{platform.node()}: {cores()} cores of {_processor()}, {memory:.0f} GiB, {system}"
    return "".join(letter for letter in words if letter.isprintable())


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def profile(measured: Measured, machine: str) -> Profile:
    """The profile of today."""
    today = dt.datetime.now().astimezone().date()
    return Profile(machine=machine, date=today, figure=measured.figures)
