# SPDX-License-Identifier: Apache-2.0
"""The machine profile, ``profile.toml``: measured values, each with unit, spread, conditions and date.

``docs/formats/profile.md`` describes the format; ``foresee calibrate`` writes it. A value has a name from a closed
list, which determines its unit. A value that depends on a count (threads, readers) has one entry per count. Missing
values were not measured, and nothing fills them in.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from foresee._schema import files, toml
from foresee._schema.checked import Checked, Tables, build, value_of
from foresee._schema.values import (
    Count,
    Day,
    Frequency,
    Number,
    Quantity,
    Rate,
    Size,
    Text,
    Time,
    base_value,
    shown,
)
from foresee.errors import ConfigError

__all__ = ["NAMES", "VERSION", "Figure", "Given", "Profile", "dumps", "loads", "read", "write"]

VERSION = 1


@dataclass(frozen=True)
class _Meaning:
    """The meaning of a value's name."""

    kind: Quantity
    against: str | None
    says: str


NAMES: Mapping[str, _Meaning] = {
    "tier.NAME.capacity": _Meaning(
        Size(), None, "capacity of the tier NAME on the host, of which each of its ranks has an equal share"
    ),
    "tier.NAME.read": _Meaning(Rate(), "threads", "random reads from the tier NAME, all threads together"),
    "tier.NAME.write": _Meaning(Rate(), "threads", "writes into it, all threads together"),
    "tier.NAME.latency": _Meaning(Time(), "threads", "one read of it"),
    "tier.NAME.cached_read": _Meaning(Rate(), "threads", "reads that the page cache answered"),
    "origin.read": _Meaning(Rate(), "readers", "random reads of the origin, all readers together"),
    "origin.cached_read": _Meaning(Rate(), "readers", "reads of it that the page cache answered"),
    "origin.latency": _Meaning(Time(), "readers", "one request to it"),
    "origin.requests": _Meaning(
        Frequency(), None, "requests that it accepts per second, of all readers together"
    ),
    "network.rate": _Meaning(Rate(), None, "one direction of a link between ranks"),
    "network.latency": _Meaning(Time(), None, "one request between ranks"),
    "memcpy.rate": _Meaning(Rate(), "threads", "copies within memory"),
    "checksum.rate": _Meaning(Rate(), "threads", "checksums of samples"),
    "decode.rate": _Meaning(Rate(), "threads", "decoding, bytes of encoded samples"),
}
"""Names of values; NAME is that of a tier."""

_TIER = re.compile(r"tier\.([^.]+)\.(\w+)")


@dataclass(frozen=True, kw_only=True)
class Figure(Checked):
    """``[[figure]]``: one measured value."""

    name: str = value_of(Text(), required=True)
    """One of :data:`NAMES`."""
    value: float = value_of(Number(above=True), required=True)
    """In ``unit``; the median of its repeats."""
    unit: str = value_of(Text(), required=True)
    """``"GB/s"``, ``"ms"``; one of the name's."""
    at: int | None = value_of(Count(below=2**32))
    """Threads or readers, where the name depends on them."""
    spread: float | None = value_of(Number())
    """Half of the distance between the first and the last quartile of the repeats, in ``unit``."""
    conditions: str | None = value_of(Text())
    """Conditions of the measurement: direct reads, size of a read, other load."""
    date: dt.date | None = value_of(Day())
    """Date of this value; None: that of the profile."""

    @property
    def base(self) -> float:
        """``value`` in bytes, seconds, or bytes per second."""
        meaning = _meaning(self.name)
        base = None if meaning is None else base_value(meaning.kind, self.value, self.unit)
        assert base is not None
        return base

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if wrong & {"name", "value", "unit"}:
            return
        meaning = _meaning(self.name)
        if meaning is None:
            yield f"name = {shown(self.name)}; one of {', '.join(NAMES)} expected, NAME being a tier's"
            return
        base = base_value(meaning.kind, self.value, self.unit)
        if base is None:
            yield f"unit = {shown(self.unit)}; {meaning.kind.expected.replace('a number, or a text', 'a unit')}"
        elif not 0 < base < meaning.kind.below:
            yield f"value = {self.value!r} {self.unit}; {meaning.kind.expected}"
        if meaning.against is None and self.at is not None:
            yield f"at = {self.at}; {self.name} depends on no count, leave it out"
        if meaning.against is not None and self.at is None and "at" not in wrong:
            yield f"at is missing; {self.name} is measured against {meaning.against}: a whole number of 1 or more"


@dataclass(frozen=True, kw_only=True)
class Profile(Checked):
    """The measured values of one host.

    >>> figure = Figure(name="tier.ram.read", value=85.0, unit="GB/s", at=4)
    >>> Profile(machine="a", date=dt.date(2026, 11, 22), figure=(figure,)).curve("tier.ram.read")
    {4: 85000000000.0}
    """

    machine: str = value_of(Text(), required=True)
    """Name of the host."""
    date: dt.date = value_of(Day(), required=True)
    """Date of the measurement."""
    version: int = value_of(Count(below=VERSION + 1), VERSION)
    """Version of the format."""
    figure: tuple[Figure, ...] = value_of(Tables(Figure), ())
    """All values; each pair of name and count once."""

    def get(self, name: str, at: int | None = None) -> float | None:
        """Return a value in base units; None if it was not measured."""
        return next((each.base for each in self.figure if each.name == name and each.at == at), None)

    def curve(self, name: str) -> dict[int, float]:
        """Return the values of one name by ascending count; empty if none was measured."""
        return dict(
            sorted((each.at, each.base) for each in self.figure if each.name == name and each.at is not None)
        )

    def complete(self, cluster: Mapping[str, Any]) -> dict[str, Any]:
        """Return the table ``[cluster]`` of a job with missing values from this profile.

        A tier's capacity was measured for the host, and each rank of a job has an equal share. The origin was measured
        against requests in flight, and a rank of a job has as many as its staging has threads.
        """
        made = dict(cluster)
        ranks_per_node = made.get("ranks_per_machine", 1)
        sharing = ranks_per_node if isinstance(ranks_per_node, int) and ranks_per_node > 0 else 1
        network = {"rate": self.get("network.rate"), "latency": self.get("network.latency")}
        latencies = self.curve("origin.latency")
        requests = self.get("origin.requests")
        origin = {
            "read": _by_rank(self.curve("origin.read"), made),
            "latency": latencies[min(latencies)] if latencies else None,
            "requests": None if requests is None else max(1, round(requests)),
        }
        for key, measured in (("network", network), ("origin", origin)):
            given = made.get(key, {})
            if isinstance(given, Mapping):
                made[key] = {name: value for name, value in measured.items() if value} | dict(given)
        tiers = made.get("tiers")
        if isinstance(tiers, list):
            made["tiers"] = [
                self._of_tier(str(tier.get("name")), sharing) | dict(tier)
                if isinstance(tier, Mapping)
                else tier
                for tier in tiers
            ]
        return made

    def _of_tier(self, name: str, sharing: int) -> dict[str, Any]:
        capacity = self.get(f"tier.{name}.capacity")
        measured = {
            "capacity": None if capacity is None else capacity // sharing,
            "read": self.curve(f"tier.{name}.read"),
            "write": self.curve(f"tier.{name}.write"),
        }
        return {key: value for key, value in measured.items() if value}

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if "figure" in wrong:
            return
        seen: set[tuple[str, int | None]] = set()
        for at, figure in enumerate(self.figure):
            key = (figure.name, figure.at)
            if key in seen:
                count = "" if figure.at is None else f" at {figure.at}"
                yield f'figure[{at}].name = "{figure.name}"{count}; each figure once'
            seen.add(key)


@dataclass(frozen=True)
class Given:
    """The original table ``[cluster]`` of a job, and the profile that completes it.

    A job stores both, because values from a profile depend on other keys: the origin's rates on ``staging.threads``,
    a tier's capacity on ``ranks_per_machine``. A job with another value there is completed again.
    """

    cluster: Mapping[str, Any]
    """As in the file, with paths relative to the working folder."""
    measured: Profile | None = None
    """None: no profile."""

    def complete(self) -> dict[str, Any]:
        """Return the table with missing values from the profile."""
        return dict(self.cluster) if self.measured is None else self.measured.complete(self.cluster)


def _by_rank(by_request: Mapping[int, float], cluster: Mapping[str, Any]) -> dict[int, float]:
    """Convert rates against requests in flight to rates against ranks with ``staging.threads`` requests each.

    Both curves are linear between their points. A point that is no whole number of ranks becomes its two neighbours.
    """
    staging = cluster.get("staging")
    threads = staging.get("threads", 1) if isinstance(staging, Mapping) else 1
    if not by_request or not isinstance(threads, int) or threads < 2:
        return dict(by_request)
    counts = sorted(by_request)
    ranks = {1} | {end for count in counts for end in (count // threads, -(-count // threads)) if end > 0}
    return {each: _between(by_request, counts, each * threads) for each in sorted(ranks)}


def _between(curve: Mapping[int, float], counts: list[int], at: int) -> float:
    """Interpolate linearly between neighbouring counts; outside, return the nearest value."""
    above = next((count for count in counts if count >= at), counts[-1])
    below = next((count for count in reversed(counts) if count <= at), counts[0])
    if above <= below:
        return curve[above]
    return curve[below] + (curve[above] - curve[below]) * (at - below) / (above - below)


def read(path: str | os.PathLike[str]) -> Profile:
    """Read a profile.

    Raises:
        ConfigError: not a profile, another version, or faults; the error has all of them.
        OSError: the file cannot be read.
    """
    return toml.read(path, _profile)


def loads(text: str) -> Profile:
    """Return a profile from the text of its file.

    Raises:
        ConfigError: as :func:`read`, without the file's name.
    """
    return _profile(toml.parse(text))


def dumps(made: Profile) -> str:
    """Return the text of the file; reading it gives equal values."""
    lines = [f"{key} = {toml.written(getattr(made, key))}" for key in ("version", "machine", "date")]
    for figure in made.figure:
        lines += ["", "[[figure]]"]
        lines += [
            f"{key} = {toml.written(value)}"
            for key in ("name", "at", "value", "unit", "spread", "conditions", "date")
            if (value := getattr(figure, key)) is not None
        ]
    return "\n".join([*lines, ""])


def write(made: Profile, path: str | os.PathLike[str]) -> None:
    """Write ``made`` to ``path``: first to a temporary file in the same folder, then by a rename.

    Raises:
        OSError: the file cannot be written.
    """
    files.write(path, dumps(made))


def _profile(table: Mapping[str, Any]) -> Profile:
    if fault := toml.version_fault(table, VERSION, "profile"):
        raise ConfigError(fault)
    return build(Profile, table)


def _meaning(name: str) -> _Meaning | None:
    tier = _TIER.fullmatch(name)
    return NAMES.get(f"tier.NAME.{tier[2]}" if tier else name)
