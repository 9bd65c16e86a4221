# SPDX-License-Identifier: Apache-2.0
"""The request of a measurement: its checked options, and the space that its files need.

All faults are reported together, before a file is created.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from foresee._schema.values import Rate, Refused, Size
from foresee.errors import ConfigError
from foresee.storage import page_cache
from foresee.storage.bench import loop
from foresee.storage.bench.files import HEAD_BYTES
from foresee.storage.bench.throttle import Throttle

__all__ = ["FILES", "RATES", "SHUFFLES", "THROTTLERS", "BenchRequest", "Files", "Origin", "check"]

#: The paper's sizes, as in ImageNet and CosmoFlow, with counts that fit on a laptop.
FILES = ("128KiB:2048", "12MiB:24")
#: The paper's cache rates.
RATES = tuple(percent / 100 for percent in range(0, 101, 5))
SHUFFLES = ("global", "local")
THROTTLERS = ("reader", "kernel")
_PROCESSES_MAX, _EPOCHS_MAX, _COUNT_MAX = 1024, 10_000, 10**8
#: The word for no throttle, and the name of its case.
_NONE, _FULL = "none", "full"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
#: Usable share of the free space: a full file system is slow and blocks other users.
_USABLE_SHARE = 0.95

_T = TypeVar("_T")


@dataclass(frozen=True)
class Files:
    """A data set: files of one size."""

    name: str
    size: int
    count: int

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return self.size * self.count


@dataclass(frozen=True)
class Origin:
    """A named folder of the origin."""

    name: str
    folder: str


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """A checked request."""

    origins: tuple[Origin, ...]
    """Measured separately."""
    cache: str
    """A folder on the local tier."""
    files: tuple[Files, ...]
    rates: tuple[float, ...]
    """Ascending, 0 to 1."""
    throttles: tuple[tuple[str, Throttle], ...]
    """Names and speeds at which each origin is measured."""
    processes: int
    epochs: int
    shuffles: tuple[str, ...]
    seed: int
    drop_caches: bool
    """Whether the whole machine's caches are dropped before each epoch."""
    throttle_by: str
    """``reader``: a model in the reading processes; ``kernel``: of a loop device's reads."""


def check(
    *,
    origins: Sequence[str],
    cache: str,
    files: Sequence[str] = FILES,
    rates: str | None = None,
    throttles: Sequence[str] = (),
    processes: int = 4,
    epochs: int = 3,
    shuffles: Sequence[str] = SHUFFLES,
    seed: int = 0,
    drop_caches: bool = False,
    throttle_by: str = "reader",
) -> BenchRequest:
    """Check the options of a command line.

    Args:
        origins: ``[NAME=]FOLDER``, one or more.
        cache: a folder.
        files: ``SIZE:COUNT``.
        rates: shares with commas; None: 0 to 1 in steps of 0.05.
        throttles: ``[NAME=]RATE[,OPENS/s]`` or ``[NAME=]none``; empty: none.
        processes: 1 to 1024, and no more than there are files.
        epochs: 1 to 10,000.
        shuffles: of ``global`` and ``local``, each once.
        seed: of every order, 0 or more.
        drop_caches: needs root.
        throttle_by: ``reader``, or ``kernel``, which needs root.

    Raises:
        ConfigError: all faults.
    """
    faults: list[str] = []
    places = _parse_each(_split_names(origins, "--origin", "origin", faults), "--origin", _origin, faults)
    if not origins:
        faults.append("--origin: one folder or more expected")
    if not os.path.isdir(cache):
        faults.append(f"--cache {cache}: no such folder; name one on the local tier")
    sets = _parse_each([("", word) for word in files], "--files", _files, faults)
    if not files:
        faults.append("--files: one SIZE:COUNT or more expected")
    speeds = _parse_each(
        _split_names(throttles, "--throttle", "throttled", faults), "--throttle", _throttle, faults
    )
    shares = _rates(rates, faults)
    faults += [
        f"{option} {value}: a whole number from {least:,} to {most:,} expected"
        for option, value, least, most in (
            ("--processes", processes, 1, _PROCESSES_MAX),
            ("--epochs", epochs, 1, _EPOCHS_MAX),
            ("--seed", seed, 0, (1 << 32) - 1),
        )
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most
    ]
    faults += [
        f"--shuffle {each}: {' or '.join(SHUFFLES)} expected" for each in shuffles if each not in SHUFFLES
    ]
    names = [each.name for each in sets]
    faults += [f"--files {name}: is given twice" for at, name in enumerate(names) if name in names[:at]]
    faults += [
        f"--processes {processes}: more than the {each.count} files of {each.name}, so some would read nothing"
        for each in sets
        if each.count < processes <= _PROCESSES_MAX
    ]
    if drop_caches and not page_cache.may_drop_machine_caches():
        faults.append("--drop-caches: only root may drop the machine's caches; run as root, or leave it out")
    if throttle_by not in THROTTLERS:
        faults.append(f"--throttle-by {throttle_by}: {' or '.join(THROTTLERS)} expected")
    elif throttle_by == "kernel":
        if not throttles:
            faults.append("--throttle-by kernel without a rate; add --throttle RATE")
        if lack := loop.missing_requirement():
            faults.append(f"--throttle-by kernel: {lack}")
    if not faults:
        faults += _space_faults([place.folder for place in places], cache, sets, max(shares))
    if faults:
        raise ConfigError(faults)
    return BenchRequest(
        origins=tuple(places),
        cache=cache,
        files=tuple(sets),
        rates=shares,
        throttles=tuple(speeds) or (("", Throttle()),),
        processes=processes,
        epochs=epochs,
        shuffles=tuple(dict.fromkeys(shuffles)),
        seed=seed,
        drop_caches=drop_caches,
        throttle_by=throttle_by,
    )


def _split_names(words: Sequence[str], option: str, default: str, faults: list[str]) -> list[tuple[str, str]]:
    """Return the name and value of each ``[NAME=]VALUE``; names are unique."""
    pairs: list[tuple[str, str]] = []
    for word in words:
        name, equals, rest = word.partition("=")
        if not equals or "/" in name:
            stem = _FULL if word == _NONE else default
            name, rest = stem if stem not in dict(pairs) else f"{stem}{len(pairs) + 1}", word
        if not _NAME.fullmatch(name) or not rest:
            faults.append(
                f"{option} {word}: [NAME=] and a value expected; letters, digits, . - and _ in a name"
            )
        elif name in dict(pairs):
            faults.append(f"{option} {word}: {name!r} is given twice; each name once")
        else:
            pairs.append((name, rest))
    return pairs


def _parse_each(
    pairs: Sequence[tuple[str, str]], option: str, read: Callable[[str, str], _T], faults: list[str]
) -> list[_T]:
    values = []
    for name, word in pairs:
        try:
            values.append(read(name, word))
        except ValueError as error:
            faults.append(f"{option} {word}: {error}")
    return values


def _origin(name: str, folder: str) -> Origin:
    if not os.path.isdir(folder):
        raise ValueError("no such folder; name one on the origin")
    return Origin(name, folder)


def _files(_: str, word: str) -> Files:
    size, colon, count = word.rpartition(":")
    expected = (
        f"SIZE:COUNT expected, such as {FILES[0]}; {HEAD_BYTES} bytes or more, 1 to {_COUNT_MAX:,} files"
    )
    try:
        bytes_ = Size(whole=True).read(int(size) if size.isascii() and size.isdigit() else size)
    except Refused:
        raise ValueError(expected) from None
    is_count = bool(colon) and count.isascii() and count.isdigit() and 1 <= int(count) <= _COUNT_MAX
    if not is_count or bytes_ < HEAD_BYTES:
        raise ValueError(expected)
    return Files(size.replace(" ", ""), int(bytes_), int(count))


def _throttle(name: str, word: str) -> tuple[str, Throttle]:
    if word == _NONE:
        return name, Throttle()
    expected = (
        "a rate above 0 and maybe opens per second above 0 expected, such as 60MB/s or 60MB/s,1500/s; or none"
    )
    rate, comma, opens = word.partition(",")
    try:
        throttle = Throttle(float(Rate().read(rate)), float(opens.removesuffix("/s")) if comma else None)
    except ValueError:
        raise ValueError(expected) from None
    if throttle.opens_per_s is not None and not 0 < throttle.opens_per_s < math.inf:
        raise ValueError(expected)
    return name, throttle


def _rates(text: str | None, faults: list[str]) -> tuple[float, ...]:
    if text is None:
        return RATES
    found = []
    for word in text.split(","):
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not 0 <= value <= 1:
            faults.append(f"--rates {word!r}: cache rates from 0 to 1 expected, with commas between them")
        else:
            # Rounded as in the name of its folder.
            found.append(float(f"{value:g}"))
    return tuple(sorted(set(found)))


def _space_faults(origins: Sequence[str], cache: str, sets: Sequence[Files], most: float) -> list[str]:
    """Return the file systems without enough space; they have one data set at a time."""
    largest = max(each.bytes for each in sets)
    needs = [(folder, largest) for folder in origins]
    needs.append((cache, max(round(most * each.count) * each.size for each in sets)))
    by_device: dict[int, tuple[list[str], int]] = {}
    for folder, need in needs:
        device = os.stat(folder).st_dev
        names, total = by_device.get(device, ([], 0))
        by_device[device] = ([*names, folder], total + need)
    faults = []
    for names, need in by_device.values():
        status = os.statvfs(names[0])
        free = status.f_bavail * status.f_frsize
        if need > _USABLE_SHARE * free:
            faults.append(
                f"{' and '.join(dict.fromkeys(names))}: {need / 1e6:,.0f} MB of files, and {free / 1e6:,.0f} MB are "
                "free; fewer files by --files, or another folder"
            )
    return faults
