# SPDX-License-Identifier: Apache-2.0
"""Plan of a calibration: its checked options, and each part's share of the time.

Faults are found before the measurement as far as possible. Parts without their option (an origin, a disk, a launcher)
are listed as left out.
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

from foresee import _native
from foresee._loading import data_source
from foresee._runtime.ranks import World, detect
from foresee.calibrate import decode, fio, parts, ranks
from foresee.calibrate.sweep import cores
from foresee.errors import ConfigError
from foresee.jobspec import Figure, Profile

#: Default seconds of a whole calibration.
SECONDS = 45.0
_SECONDS_MAX = 3600.0
#: Parts other than disks, whose names no disk may have.
_PARTS = ("memcpy", "checksum", "ram", "origin", "decode", "network")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
#: Relative shares of the time; parts with more scatter get more.
_WEIGHTS = {"memcpy": 1.0, "checksum": 1.0, "ram": 2.5, "origin": 6.0, "decode": 2.0, "network": 3.0}
_DISK_WEIGHT = 6.0
#: Fraction of its share that each part gets at least.
_SHARE_LEAST = 0.1


@dataclass(frozen=True)
class Disk:
    """A disk to measure, or one that fio has measured."""

    name: str
    path: str
    """Path of a folder on it, or of the results."""


@dataclass(frozen=True, kw_only=True)
class CalibrationRequest:
    """Checked options of a calibration."""

    seconds: float = SECONDS
    origin: data_source.Source | None = None
    disks: tuple[Disk, ...] = ()
    results: tuple[Figure, ...] = field(default=(), repr=False)
    """Figures of fio."""
    only: frozenset[str] = frozenset()
    """Parts and names of disks; empty: all."""
    world: World = field(default_factory=lambda: World(0, 1))
    rendezvous: str | None = None
    """Address of rank 0; None with one rank, or without the network part."""

    def includes(self, part: str) -> bool:
        """Whether to measure a part, or a disk by its name."""
        return not self.only or part in self.only


@dataclass(frozen=True)
class CalibrationResult:
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
        seconds: for all parts, above 0, at most 3600.
        disks: ``[NAME=]FOLDER``.
        results: ``[NAME=]FILE`` of fio; the name of a tier, or ``origin``.
        only: parts and names of disks.
        port: of rank 0; None: one above the launcher's.
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
    world, rendezvous = World(0, 1), None
    try:
        world = detect(environ=environ)
        if world.size > 1 and (not only or "network" in only):
            rendezvous = ranks.rendezvous(port, environ)
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
        rendezvous=rendezvous,
    )


def _named(words: Sequence[str], option: str, reserved: Sequence[str], faults: list[str]) -> list[Disk]:
    """Parse ``[NAME=]PATH``, with unique names; default names are ``disk``, ``disk2``, ..."""
    made: list[Disk] = []
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or "/" in name:
            name, path = "disk" if not made else f"disk{len(made) + 1}", word
        if not path:
            faults.append(f"{option} {word}: [NAME=]PATH expected")
        elif name in reserved or not _NAME.fullmatch(name):
            faults.append(
                f"{option} {word}: {name!r} is no name for a tier; letters, digits, - and _, and none of "
                f"{', '.join(reserved)}"
            )
        elif name in (each.name for each in made):
            faults.append(f"{option} {word}: {name!r} is repeated; each name once")
        else:
            made.append(Disk(name, path))
    return made


def measure(request: CalibrationRequest, on_progress: Callable[[str], None]) -> CalibrationResult | None:
    """Measure all parts; None on ranks other than the first, which only answer it.

    ``on_progress`` gets what is measured next.

    Raises:
        OriginError: the origin fails.
        CacheError: a disk's folder cannot be written, or has no free space.
        ForeseeError: a rank is missing, or its link breaks.
    """
    if request.world.rank > 0:
        if request.rendezvous is not None:
            on_progress("network: waiting for rank 0")
            ranks.serve_links(request.world, request.rendezvous)
        return None
    recorder = parts.Recorder(on_progress)
    recorder.left_out += _missing_options(request)
    figures: list[Figure] = []
    for run, seconds in _shares(request, recorder):
        figures += run(seconds)
    return CalibrationResult((*figures, *request.results), tuple(recorder.left_out))


_Run = Callable[[float], Iterator[Figure]]


def _shares(request: CalibrationRequest, recorder: parts.Recorder) -> Iterator[tuple[_Run, float]]:
    """Return the parts in order, each with its seconds, which are fewer after parts that took too long."""
    until = time.monotonic() + request.seconds
    runs = list(_runs(request, recorder))
    whole = rest = sum(weight for _, weight in runs)
    for run, weight in runs:
        share = request.seconds * weight / whole
        left = (until - time.monotonic()) * weight / rest
        rest -= weight
        yield run, max(min(share, left), _SHARE_LEAST * share)


def _runs(request: CalibrationRequest, recorder: parts.Recorder) -> Iterator[tuple[_Run, float]]:
    measured_by_fio = {figure.name for figure in request.results}
    if request.rendezvous is not None:
        # First, because the other ranks do nothing else.
        recorder.on_progress("network: waiting for ranks")
        yield partial(ranks.links, request.world, request.rendezvous), _WEIGHTS["network"]
    local: dict[str, Callable[..., Iterator[Figure]]] = {
        "memcpy": parts.memcpy,
        "checksum": parts.checksum,
        "ram": parts.ram,
    }
    local = {part: run for part, run in local.items() if request.includes(part)}
    memory = _native.Trial.memory() if local else None
    for part, run in local.items():
        yield partial(run, memory, recorder=recorder), _WEIGHTS[part]
    for each in request.disks:
        if request.includes(each.name):
            reads = f"tier.{each.name}.read" not in measured_by_fio
            yield partial(parts.disk, each.name, each.path, reads=reads, recorder=recorder), _DISK_WEIGHT
    source = request.origin
    if source is None or not (request.includes("origin") or request.includes("decode")):
        return
    trial = _native.Trial.origin(source.index, source.uri, options=dict(source.options))
    if request.includes("origin") and "origin.read" not in measured_by_fio:
        yield partial(parts.origin, trial, source, recorder=recorder), _WEIGHTS["origin"]
    if request.includes("decode"):
        yield partial(decode.decode, trial, recorder=recorder), _WEIGHTS["decode"]


def _missing_options(request: CalibrationRequest) -> Iterator[str]:
    if request.includes("network") and request.rendezvous is None:
        yield (
            "network: one rank; start the command on every rank, by torchrun or with RANK, WORLD_SIZE, MASTER_ADDR "
            "and MASTER_PORT"
        )
    if request.origin is None:
        by_fio = any(figure.name == "origin.read" for figure in request.results)
        given = [
            part
            for part in ("origin", "decode")
            if request.includes(part) and not (by_fio and part == "origin")
        ]
        if given:
            yield f"{' and '.join(given)}: no --origin"
    if not request.disks and not request.results and not request.only:
        yield "disk: no --disk"


def machine_name() -> str:
    """Describe this machine in a line: its name, cores, memory and kernel.

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


def profile(measured: CalibrationResult, machine: str) -> Profile:
    """Make a profile with today's date."""
    today = dt.datetime.now().astimezone().date()
    return Profile(machine=machine, date=today, figure=measured.figures)
