# SPDX-License-Identifier: Apache-2.0
"""Values that users write into files: sizes, rates, times, counts, words.

A :class:`Kind` reads one value, a number in base units (bytes, seconds, bytes per second) or a text with a unit, or
raises an error that states the expected form. All file formats share these kinds, so a rate has the same spelling in
each of them.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, ClassVar

from foresee.errors import ConfigError

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_BYTES = {f"{prefix}B": Decimal(1000) ** power for prefix, power in _POWERS.items()} | {
    f"{prefix}IB": Decimal(1024) ** power for prefix, power in _POWERS.items() if power
}
_BITS = {f"{prefix}BIT": Decimal(1000) ** power / 8 for prefix, power in _POWERS.items()}
_RATES = {f"{unit}/S": factor for unit, factor in (_BYTES | _BITS).items()}
_TIMES = {
    "NS": Decimal("1e-9"),
    "US": Decimal("1e-6"),
    "µs".upper(): Decimal("1e-6"),
    "MS": Decimal("1e-3"),
    "S": Decimal(1),
    "MIN": Decimal(60),
    "H": Decimal(3600),
    "D": Decimal(86400),
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([A-Za-zµ/]+)\s*")
_COUNT_BELOW = 2**63
_SHOWN_MAX = 60


class Refused(ValueError):
    """A value is not of its kind. A text, if any, gives the reason and replaces the kind's expected form."""


def refusal(error: Refused, kind: Kind) -> str:
    """Format a rejected value for a message."""
    return str(error) or kind.expected


class Kind(ABC):
    """The values that a field accepts."""

    expected: str = ""
    """The expected form for messages, range included."""

    @abstractmethod
    def read(self, value: object) -> Any:
        """The value in base units.

        Raises:
            Refused: the value is not of this kind.
            ConfigError: the value is a table with faults of its own.
        """


@dataclass(frozen=True)
class Quantity(Kind):
    """A number with a unit; a plain number is in base units."""

    zero: bool = False
    """Whether 0 is allowed."""
    whole: bool = False
    """Whether a fraction is cut off."""
    below: float = math.inf
    """Exclusive upper bound."""

    units: ClassVar[Mapping[str, Decimal]] = {}
    names: ClassVar[str] = ""

    @property
    def expected(self) -> str:  # type: ignore[override]
        return self.names.format("0 or more" if self.zero else "above 0")

    def read(self, value: object) -> float | int:
        number = _finite(value)
        if number is None and isinstance(value, str):
            match = _QUANTITY.fullmatch(value)
            factor = self._factor(match[2]) if match else None
            if match and factor is not None:
                exact = Decimal(match[1].replace("_", "")) * factor
                number = int(exact) if self.whole and 0 < exact < _COUNT_BELOW else float(exact)
        if number is None or not (number > 0 or (self.zero and number == 0)) or not number < self.below:
            raise Refused
        if self.whole:
            number = int(number)
            if number < 1 and not self.zero:
                raise Refused
        return number

    def _factor(self, unit: str) -> Decimal | None:
        return self.units.get(unit.upper())


@dataclass(frozen=True)
class Size(Quantity):
    """Bytes."""

    below: float = float(_COUNT_BELOW)
    units: ClassVar[Mapping[str, Decimal]] = _BYTES
    names: ClassVar[str] = 'bytes {} expected: a number, or a text such as "120 GB" (B, KB to PB, KiB to PiB)'


@dataclass(frozen=True)
class Rate(Quantity):
    """Bytes per second."""

    below: float = 1e18
    units: ClassVar[Mapping[str, Decimal]] = _RATES
    names: ClassVar[str] = (
        'a rate {} expected: bytes per second, or a text such as "85 GB/s" (B/s to PB/s, KiB/s to PiB/s, '
        "bit/s to Pbit/s)"
    )

    def _factor(self, unit: str) -> Decimal | None:
        if unit.endswith(("b/s", "b/S")) and unit.upper() in self.units:
            prefix = unit[:-3]
            raise Refused(
                f"{unit} could be bits or bytes: write {prefix}bit/s or {prefix}B/s"
                if not prefix.upper().endswith("I")
                else f"{unit} could be bits or bytes: write {prefix}B/s"
            )
        return self.units.get(unit.upper())


@dataclass(frozen=True)
class Frequency(Quantity):
    """Events per second."""

    below: float = 1e15
    units: ClassVar[Mapping[str, Decimal]] = {"/S": Decimal(1)}
    names: ClassVar[str] = 'a frequency {} expected: a number per second, or a text such as "1500 /s"'


@dataclass(frozen=True)
class Time(Quantity):
    """Seconds."""

    zero: bool = True
    below: float = 1e12
    units: ClassVar[Mapping[str, Decimal]] = _TIMES
    names: ClassVar[str] = 'a time {} expected: seconds, or a text such as "20 ms" (ns, us, ms, s, min, h, d)'


@dataclass(frozen=True)
class Number(Kind):
    """A finite number."""

    least: float = 0.0
    most: float = math.inf
    above: bool = False
    """Whether ``least`` itself is refused."""

    @property
    def expected(self) -> str:  # type: ignore[override]
        low = f"above {self.least:g}" if self.above else f"{self.least:g} or more"
        high = f", at most {self.most:g}" if self.most < math.inf else ""
        return f"a finite number expected, {low}{high}"

    def read(self, value: object) -> float:
        number = _finite(value)
        if (
            number is None
            or number > self.most
            or number < self.least
            or (self.above and number == self.least)
        ):
            raise Refused
        return float(number)


@dataclass(frozen=True)
class Count(Kind):
    """A whole number."""

    least: int = 1
    below: int = _COUNT_BELOW

    @property
    def expected(self) -> str:  # type: ignore[override]
        high = "" if self.below == _COUNT_BELOW else f", below {self.below}"
        return f"a whole number of {self.least} or more{high} expected"

    def read(self, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not self.least <= value < self.below:
            raise Refused
        return value


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    expected: str = "true or false expected"

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise Refused
        return value


@dataclass(frozen=True)
class Text(Kind):
    """One printable line."""

    expected: str = "a text expected, printable and not empty"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise Refused
        return value


@dataclass(frozen=True)
class Texts(Kind):
    """A list of words, or one text that is split at blanks as a shell does."""

    expected: str = 'a list of texts expected, or one text: ["python", "train.py"] or "python train.py"'

    def read(self, value: object) -> tuple[str, ...]:
        import shlex

        if isinstance(value, str):
            try:
                value = shlex.split(value)
            except ValueError:
                raise Refused from None
        if not isinstance(value, (list, tuple)) or not value:
            raise Refused
        if not all(isinstance(word, str) and "\0" not in word for word in value) or not value[0]:
            raise Refused
        return tuple(value)


@dataclass(frozen=True)
class Choice(Kind):
    """One of some words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:  # type: ignore[override]
        return f"one of {', '.join(self.words)} expected"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise Refused
        return value


@dataclass(frozen=True)
class Choices(Kind):
    """A subset of some words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:  # type: ignore[override]
        return f"a list of {', '.join(self.words)} expected, at least one, each once"

    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or not value:
            raise Refused
        if any(not isinstance(word, str) or word not in self.words for word in value):
            raise Refused
        if len(set(value)) != len(value):
            raise Refused
        return tuple(value)


@dataclass(frozen=True)
class Day(Kind):
    """A date."""

    expected: str = "a date expected: 2026-11-22"

    def read(self, value: object) -> dt.date:
        if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
            raise Refused
        return value


@dataclass(frozen=True)
class Curve(Kind):
    """Rates against a count (threads, readers): one for all counts, or a table from count to rate."""

    of: str = "threads"

    @property
    def expected(self) -> str:  # type: ignore[override]
        return (
            f'a rate above 0 expected, such as "85 GB/s", or a table from {self.of} (1 or more) to rates: '
            '{1 = "30 GB/s", 4 = "85 GB/s"}'
        )

    def read(self, value: object) -> tuple[tuple[int, float], ...]:
        """Return pairs of count and bytes per second, ascending; a single rate has count 1."""
        rate = Rate()
        if isinstance(value, (list, tuple)):  # the result of an earlier read
            value = dict(value) if all(isinstance(pair, tuple) and len(pair) == 2 for pair in value) else None
        if not isinstance(value, Mapping):
            return ((1, rate.read(value)),)
        points: dict[int, float] = {}
        for key, each in value.items():
            count = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key
            if (
                not isinstance(count, int)
                or isinstance(count, bool)
                or not 1 <= count < 2**32
                or count in points
            ):
                raise Refused
            points[count] = rate.read(each)
        if not points:
            raise Refused
        return tuple(sorted(points.items()))


@dataclass(frozen=True)
class ByWord(Kind):
    """A table from some words to values of one kind, or one value for all of them."""

    kind: Kind
    words: tuple[str, ...]

    @property
    def expected(self) -> str:  # type: ignore[override]
        return f"{self.kind.expected}; or a table of them by {', '.join(self.words)}"

    def read(self, value: object) -> dict[str, Any]:
        """Return values by word; one value for all words has the empty text as key."""
        if not isinstance(value, Mapping):
            return {"": self.kind.read(value)}
        faults = [unknown(word, list(self.words)) for word in value if word and word not in self.words]
        values: dict[str, Any] = {}
        for word, each in value.items():
            try:
                values[word] = self.kind.read(each)
            except Refused:
                faults.append(f"{_printable(word)} = {shown(each)}; {self.kind.expected}")
        if faults:
            raise ConfigError(faults)
        if not values:
            raise Refused
        return values


def base_value(kind: Quantity, value: float, unit: str) -> float | None:
    """Convert ``value`` from ``unit`` to base units; None if ``kind`` has no such unit."""
    try:
        factor = kind._factor(unit)  # noqa: SLF001 - the same module
    except Refused:
        return None
    return None if factor is None else float(Decimal(repr(float(value))) * factor)


def shown(value: object) -> str:
    """Format a value as in TOML, cut to 60 characters.

    >>> shown("120 GX"), shown(True), shown(float("nan"))
    ('"120 GX"', 'true', 'nan')
    """
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key} = {shown(each)}" for key, each in value.items()) + "}"
    elif isinstance(value, (list, tuple)):
        text = "[" + ", ".join(map(shown, value)) + "]"
    elif isinstance(value, dt.date):
        text = value.isoformat()
    else:
        text = repr(value)
    text = _printable(text)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."


def unknown(key: str, known: Sequence[str]) -> str:
    """Return the hint of a message for an unknown key: the nearest known key."""
    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return f"{_printable(key)} is no key of this table; {hint}"


def _printable(text: str) -> str:
    """Escape ``text`` to one printable line."""
    if text.isprintable():
        return text or '""'
    return text.encode("unicode_escape").decode("ascii")


def _finite(value: object) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None
