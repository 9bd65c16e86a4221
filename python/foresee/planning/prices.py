# SPDX-License-Identifier: Apache-2.0
"""The price book, ``prices.toml``: prices of clouds, each with its date and its source.

``docs/formats/prices.md`` describes the format. Prices of the shipped book were read at the source of their row. A
user's book overrides it row by row. Nothing is downloaded; a missing price is :class:`foresee.errors.NotMeasured`.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from foresee._schema import toml
from foresee._schema.checked import Checked, Tables, build, value_of
from foresee._schema.values import Choice, Count, Day, Number, Size, Text, shown
from foresee.errors import ConfigError, NotMeasured

__all__ = [
    "KINDS",
    "SHIPPED",
    "VERSION",
    "EgressTier",
    "Price",
    "PriceBook",
    "load",
    "loads",
    "read",
    "stale",
]

VERSION = 1
SHIPPED = os.path.join(os.path.dirname(__file__), "prices.toml")
STALE_AFTER = dt.timedelta(days=365)
"""Age above which a price causes a warning."""

_MONTH_HOURS = 730.0
_GIB = 2**30 / 1e9
_PER_HOUR = {"h": 1.0}
_PER_GB_MONTH = {"GB-month": 1.0, "GiB-month": 1 / _GIB, "GB-h": _MONTH_HOURS, "GiB-h": _MONTH_HOURS / _GIB}
_PER_10000 = {f"{count} requests": 10_000 / count for count in (1, 1_000, 10_000, 1_000_000)}
_PER_GB = {"GB": 1.0, "GiB": 1 / _GIB}
KINDS: Mapping[str, Mapping[str, float]] = {
    "vm": _PER_HOUR,
    "gpu": _PER_HOUR,
    "disk": _PER_GB_MONTH,
    "bucket": _PER_GB_MONTH,
    "list": _PER_10000,
    "get": _PER_10000,
    "egress": _PER_GB,
}
"""Priced resources and their units; the factor converts to the first unit: hours, GB-months, 10,000 requests, GB."""

_UNIT = re.compile(r"([A-Z]{3})/(.+)")


@dataclass(frozen=True, kw_only=True)
class EgressTier(Checked):
    """``[[price.tiers]]``: egress up to some bytes."""

    price: float = value_of(Number(), required=True)
    """In the row's unit."""
    up_to: float | None = value_of(Size())
    """Bytes of a month at which the next tier begins; default: unlimited."""


@dataclass(frozen=True, kw_only=True)
class Price(Checked):
    """``[[price]]``: one row."""

    kind: str = value_of(Choice(tuple(KINDS)), required=True)
    """The priced resource."""
    provider: str = value_of(Text(), required=True)
    """The cloud provider."""
    region: str = value_of(Text(), required=True)
    """Its region."""
    name: str = value_of(Text(), required=True)
    """Machine type, GPU, disk type, or storage class, also for listings and reads."""
    unit: str = value_of(Text(), required=True)
    """``"USD/h"``, ``"USD/GiB-month"``, ``"USD/1000 requests"``."""
    date: dt.date = value_of(Day(), required=True)
    """Date of the source."""
    source: str = value_of(Text(), required=True)
    """Address of the source."""
    price: float | None = value_of(Number())
    """In ``unit``; for all kinds except egress."""
    tiers: tuple[EgressTier, ...] = value_of(Tables(EgressTier), ())
    """For egress, ascending."""
    discount: float = value_of(Number(most=100.0), 0.0)
    """Percent off."""
    note: str | None = value_of(Text())
    """A remark."""

    @property
    def currency(self) -> str:
        """Return the currency of the unit."""
        return self.unit[:3]

    @property
    def base(self) -> float:
        """Return the price per hour, GB and month, or 10,000 requests, with the discount."""
        assert self.price is not None
        return self.price * self._factor

    @property
    def tariff(self) -> tuple[tuple[float, float], ...]:
        """Return the end of each egress tier in bytes, and its price per GB."""
        return tuple(
            (float("inf") if tier.up_to is None else tier.up_to, tier.price * self._factor)
            for tier in self.tiers
        )

    @property
    def _factor(self) -> float:
        return KINDS[self.kind][self.unit[4:]] * (1 - self.discount / 100)

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if wrong & {"kind", "unit"}:
            return
        match = _UNIT.fullmatch(self.unit)
        if match is None or match[2] not in KINDS[self.kind]:
            units = ", ".join(f"USD/{unit}" for unit in KINDS[self.kind])
            yield f"unit = {shown(self.unit)}; of a {self.kind}, in any currency of three letters: {units}"
        if wrong & {"price", "tiers"}:
            return
        if self.kind == "egress":
            if self.price is not None or not self.tiers:
                yield "egress has tiers and no price: [[price.tiers]]"
            ends = [tier.up_to for tier in self.tiers]
            if None in ends[:-1] or any(
                a is not None and b is not None and a >= b for a, b in pairwise(ends)
            ):
                yield "tiers.up_to; ascending expected, and only the last without end"
        elif self.tiers or self.price is None:
            yield f"a {self.kind} has a price and no tiers"


@dataclass(frozen=True, kw_only=True)
class PriceBook(Checked):
    """All rows.

    >>> book = load()
    >>> round(book.find("get", "gcp", "us-central1", "standard").base, 6)  # per 10,000
    0.004
    """

    version: int = value_of(Count(below=VERSION + 1), VERSION)
    """Of the format."""
    price: tuple[Price, ...] = value_of(Tables(Price), ())
    """Each kind, provider, region and name once."""

    def find(self, kind: str, provider: str, region: str, name: str) -> Price:
        """Return one row.

        Raises:
            NotMeasured: there is no such row.
        """
        for row in self.price:
            if _key(row) == (kind, provider, region, name):
                return row
        names = sorted({row.name for row in self.price if _key(row)[:3] == (kind, provider, region)})
        near = get_close_matches(name, names, n=1)
        known = f"did you mean {near[0]}?" if near else f"known names are {', '.join(names) or 'none'};"
        raise NotMeasured(
            f"the price of {kind} {name} at {provider} in {region}",
            f"{known} write a row into a file of your own and give it as --prices",
        )

    def over(self, other: PriceBook) -> PriceBook:
        """Return this book with the rows of ``other`` that it lacks."""
        own = {_key(row) for row in self.price}
        return PriceBook(price=(*self.price, *(row for row in other.price if _key(row) not in own)))

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if "price" in wrong:
            return
        seen: set[tuple[str, str, str, str]] = set()
        for at, row in enumerate(self.price):
            if _key(row) in seen:
                yield f"price[{at}]: {' '.join(_key(row))} is given twice; each row once"
            seen.add(_key(row))


def load(path: str | os.PathLike[str] | None = None) -> PriceBook:
    """Return the shipped book, overridden by the user's book at ``path``.

    Raises:
        ConfigError: as :func:`read`.
        OSError: the file cannot be read.
    """
    shipped = read(SHIPPED)
    return shipped if path is None else read(path).over(shipped)


def read(path: str | os.PathLike[str]) -> PriceBook:
    """Read one book.

    Raises:
        ConfigError: not a price book, another version, or faults: all of them.
        OSError: the file cannot be read.
    """
    return toml.read(path, _book)


def loads(text: str) -> PriceBook:
    """Parse the text of a price book.

    Raises:
        ConfigError: as :func:`read`, without the file's name.
    """
    return _book(toml.parse(text))


def stale(rows: list[Price], today: dt.date) -> list[str]:
    """Return warnings for prices that are older than a year: provider, date, and their number."""
    old: dict[tuple[str, dt.date], int] = {}
    for row in rows:
        if today - row.date > STALE_AFTER:
            old[row.provider, row.date] = old.get((row.provider, row.date), 0) + 1
    return [
        f"{count} price{'' if count == 1 else 's'} of {provider} {'is' if count == 1 else 'are'} of {date}, older than "
        "a year; a newer row goes into a file given as --prices"
        for (provider, date), count in sorted(old.items())
    ]


def _key(row: Price) -> tuple[str, str, str, str]:
    return row.kind, row.provider, row.region, row.name


def _book(table: Mapping[str, Any]) -> PriceBook:
    if fault := toml.version_fault(table, VERSION, "price book"):
        raise ConfigError(fault)
    return build(PriceBook, table)
