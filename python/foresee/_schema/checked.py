# SPDX-License-Identifier: Apache-2.0
"""Tables of values that users write into files, checked as a whole.

A :class:`Checked` dataclass has a kind of value for each field and reports all faults at once, whether its values came
from a file or from code. ``toml`` reads the files, and ``values`` has the spelling of each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from foresee._schema.values import Kind, Refused, refusal, shown, unknown
from foresee.errors import ConfigError

_T = TypeVar("_T", bound="Checked")


@dataclass(frozen=True)
class Table(Kind):
    """A table that is a :class:`Checked` dataclass."""

    of: type[Checked]
    expected: str = "a table expected"

    def read(self, value: object) -> Checked:
        if isinstance(value, self.of):
            return value
        if not isinstance(value, Mapping):
            raise Refused
        return build(self.of, value)


@dataclass(frozen=True)
class Tables(Kind):
    """A list of such tables."""

    of: type[Checked]
    expected: str = "a list of tables expected"

    def read(self, value: object) -> tuple[Checked, ...]:
        if not isinstance(value, (list, tuple)):
            raise Refused
        made: list[Checked] = []
        faults: list[str] = []
        for at, each in enumerate(value):
            try:
                made.append(Table(self.of).read(each))
            except ConfigError as error:
                faults += [f"[{at}].{fault}" for fault in error.faults]
            except Refused:
                faults.append(f"[{at}] = {shown(each)}; a table expected")
        if faults:
            raise ConfigError(faults)
        return tuple(made)


def value_of(kind: Kind, default: Any = None, *, required: bool = False, key: bool = True) -> Any:
    """Return the field of a :class:`Checked` dataclass; ``key``: whether files may have it as a key."""
    return field(default=default, metadata={"kind": kind, "required": required, "key": key})


def section(of: type[Checked]) -> Any:
    """Return the field of a table that has its defaults where it was not given."""
    return value_of(Table(of), of())


class Checked:
    """Base of frozen dataclasses whose fields come from :func:`value_of`.

    Values are put into base units when the object is made. None stands for a value that was not given.

    Raises:
        ConfigError: all faults at once, each with key, value and what was expected.
    """

    def __post_init__(self) -> None:
        faults: list[str] = []
        wrong: set[str] = set()
        for each in fields(self):  # type: ignore[arg-type]
            kind: Kind = each.metadata["kind"]
            value = getattr(self, each.name)
            if value is None:
                if each.metadata["required"]:
                    faults.append(f"{each.name} is missing; {kind.expected}")
                    wrong.add(each.name)
                continue
            try:
                object.__setattr__(self, each.name, kind.read(value))
            except ConfigError as error:
                wrong.add(each.name)
                faults += [
                    f"{each.name}{'' if fault.startswith('[') else '.'}{fault}" for fault in error.faults
                ]
            except Refused as error:
                wrong.add(each.name)
                faults.append(f"{each.name} = {shown(value)}; {refusal(error, kind)}")
        faults += self._faults(frozenset(wrong))
        if faults:
            raise ConfigError(faults)

    def _faults(self, wrong: frozenset[str]) -> Iterator[str]:
        """Yield faults between fields; fields in ``wrong`` hold unchecked input and must not be read."""
        yield from ()


def build(of: type[_T], table: Mapping[str, object]) -> _T:
    """Make an ``of`` from a table of a file.

    Raises:
        ConfigError: faults of ``of``, and unknown keys with the nearest known one.
    """
    known = [each.name for each in fields(of) if each.metadata["key"]]  # type: ignore[arg-type]
    faults = [unknown(key, known) for key in table if key not in known]
    made: _T | None = None
    try:
        made = of(**{key: value for key, value in table.items() if key in known})
    except ConfigError as error:
        faults += error.faults
    if faults or made is None:
        raise ConfigError(faults)
    return made


def expected(of: type[Checked], key: str) -> str:
    """Return the kind of the field ``key`` of a dataclass."""
    (kind,) = (each.metadata["kind"] for each in fields(of) if each.name == key)  # type: ignore[arg-type]
    return str(kind.expected)
