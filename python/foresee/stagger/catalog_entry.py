# SPDX-License-Identifier: Apache-2.0
"""Entries of a catalog: a value of a job, its key, and the values that a prediction used.

All values outside their range are reported at once.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass

from foresee.errors import ConfigError
from foresee.stagger.model import Figure

__all__ = ["Entry", "Key", "UsedValue", "is_time"]

_BATCH_BELOW = 2**32


@dataclass(frozen=True, kw_only=True)
class Key:
    """The key of a job's values.

    Raises:
        ConfigError: a text that is empty or not printable, a batch outside its range; all faults at once.
    """

    machine: str
    data: str
    """The common data set of the jobs."""
    model: str
    batch: int
    """Samples per step, 1 to 2**32 - 1."""
    loader: str
    """The loader's settings, as free text."""

    def __post_init__(self) -> None:
        faults = [
            f"{field} is {value!r}; printable text expected, not empty"
            for field in ("machine", "data", "model", "loader")
            if not isinstance(value := getattr(self, field), str) or not value or not value.isprintable()
        ]
        if (
            isinstance(self.batch, bool)
            or not isinstance(self.batch, int)
            or not 1 <= self.batch < _BATCH_BELOW
        ):
            faults.append(f"batch is {self.batch!r}; a whole number from 1 to 2**32 - 1 expected")
        if faults:
            raise ConfigError(faults)

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch}, of {self.data} on {self.machine} ({self.loader})"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One value of a job.

    Raises:
        ConfigError: a value outside its range; all faults at once.
    """

    seconds: float
    """Mean per step; finite, 0 or more."""
    sd: float | None = None
    """Standard deviation over the steps, seconds; None without one."""
    steps: int | None = None
    """Measured steps, 1 or more; None: derived from other values."""
    date: dt.date
    program: str
    """Version of Foresee that measured it."""
    stale: str | None = None
    """The observation that contradicted it, or None."""

    def __post_init__(self) -> None:
        faults = []
        if not is_time(self.seconds):
            faults.append(f"seconds is {self.seconds!r}; a finite number of 0 or more expected")
        if self.sd is not None and not is_time(self.sd):
            faults.append(f"sd is {self.sd!r}; a finite number of 0 or more expected, or None")
        if self.steps is not None and (
            isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1
        ):
            faults.append(f"steps is {self.steps!r}; a whole number of 1 or more expected, or None")
        day: object = self.date  # callers may ignore annotations
        if not isinstance(day, dt.date) or isinstance(day, dt.datetime):
            faults.append(f"date is {day!r}; a date expected")
        if not isinstance(self.program, str) or not self.program:
            faults.append(f"program is {self.program!r}; a version expected")
        if self.stale is not None and (not isinstance(self.stale, str) or not self.stale):
            faults.append(f"stale is {self.stale!r}; a reason expected, or None")
        if faults:
            raise ConfigError(faults)


@dataclass(frozen=True)
class UsedValue:
    """A value that a prediction used."""

    key: Key
    name: Figure
    beside: Key | None = None
    """The other job of ``wait_conc``; None for other values."""


def is_time(value: object) -> bool:
    """Whether it is a finite number of seconds, 0 or more."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )
