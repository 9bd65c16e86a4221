# SPDX-License-Identifier: Apache-2.0
"""Possible purchases, ``offers.toml``: improvements of classes, and capacity for cache rates, each with its price.

``docs/formats/offers.md`` describes the format. Unlike the price book, offers have the effect of a change to one
storage, which only its owner knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from foresee._schema import toml
from foresee._schema.checked import Checked, Tables, build, value_of
from foresee._schema.values import Count, Number, Text
from foresee.errors import ConfigError
from foresee.storage.purchases import Offer

__all__ = ["VERSION", "Capacity", "ClassOffer", "Offers", "loads", "read"]

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ClassOffer(Checked):
    """``[[offer]]``: more throughput for one class."""

    name: str = value_of(Text(), required=True)
    """The class, such as ``gfs-meta``, in any case."""
    improvement: float = value_of(Number(least=-100.0, above=True), required=True)
    """Percent of throughput."""
    price: float = value_of(Number(), required=True)
    """In any one currency."""


@dataclass(frozen=True, kw_only=True)
class Capacity(Checked):
    """``[[capacity]]``: the price of a share of the data in the local tier."""

    rate: float = value_of(Number(most=1.0), required=True)
    """The cache rate, 0 to 1."""
    price: float = value_of(Number(), required=True)
    """In the same currency."""


@dataclass(frozen=True, kw_only=True)
class Offers(Checked):
    r"""All offers of a file.

    >>> loads('version = 1\n[[offer]]\nname = "gfs-meta"\nimprovement = 50\nprice = 40').by_class(("GFS-META",))
    {0: [Offer(improvement=50.0, price=40.0)]}
    """

    version: int = value_of(Count(below=VERSION + 1), VERSION)
    """Of the format."""
    offer: tuple[ClassOffer, ...] = value_of(Tables(ClassOffer), ())
    """Several per class are allowed."""
    capacity: tuple[Capacity, ...] = value_of(Tables(Capacity), ())
    """Each rate once; other rates cost nothing."""

    def by_class(self, classes: tuple[str, ...]) -> dict[int, list[Offer]]:
        """Return the offers as :func:`foresee.storage.purchases.choose` takes them, for a table of these classes.

        Raises:
            ConfigError: offers for classes that the table does not have.
        """
        faults = [
            f"offer[{at}].name = {each.name!r} is no class of the table; classes are {', '.join(classes)}"
            for at, each in enumerate(self.offer)
            if each.name.upper() not in classes
        ]
        if faults:
            raise ConfigError(faults)
        found: dict[int, list[Offer]] = {}
        for each in self.offer:
            found.setdefault(classes.index(each.name.upper()), []).append(Offer(each.improvement, each.price))
        return found

    @property
    def cache_prices(self) -> dict[float, float]:
        """Return the price of each cache rate."""
        return {each.rate: each.price for each in self.capacity}

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        if "capacity" not in wrong:
            rates = [each.rate for each in self.capacity]
            for at, rate in enumerate(rates):
                if rate in rates[:at]:
                    yield f"capacity[{at}].rate = {rate:g}; each rate once"


def read(path: str | os.PathLike[str]) -> Offers:
    """Read a file of offers.

    Raises:
        ConfigError: no file of offers, another version, or faults: all of them.
        OSError: the file cannot be read.
    """
    return toml.read(path, _offers)


def loads(text: str) -> Offers:
    """Parse the text of a file of offers.

    Raises:
        ConfigError: as :func:`read`, without the file's name.
    """
    return _offers(toml.parse(text))


def _offers(table: Mapping[str, Any]) -> Offers:
    if fault := toml.version_fault(table, VERSION, "file of offers"):
        raise ConfigError(fault)
    return build(Offers, table)
