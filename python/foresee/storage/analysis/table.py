# SPDX-License-Identifier: Apache-2.0
"""Seconds of I/O by process and class, and the limits of their source.

A class is a tier and an operation: ``GFS-READ``, ``LFS-META``. The origin's tier is ``GFS``, the local one ``LFS``;
other tiers have their own names. META is everything except reading and writing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foresee.errors import ConfigError
from foresee.storage import model

__all__ = ["ClassSeconds", "IoTable", "align", "build", "join"]

_Key = TypeVar("_Key", str, float)

ClassSeconds = defaultdict[tuple[str, str], float]
"""Sums of seconds by process and class."""


@dataclass(frozen=True, eq=False)
class IoTable:
    """I/O time of one run, or of one cache rate."""

    seconds: NDArray[np.float64]
    """Shape (processes, classes); NaN if the source does not have the value."""
    classes: tuple[str, ...]
    """The columns; the four of the storage model first, in its order."""
    processes: tuple[str, ...]
    """The rows."""
    shared: tuple[float, ...]
    """By class: measured seconds of all processes together whose cells in ``seconds`` are NaN."""
    limits: tuple[str, ...]
    """Limits of the source, for readers of the result."""

    @property
    def known(self) -> bool:
        """Return whether every class of every process was measured."""
        return not bool(np.isnan(self.seconds).any())

    def column(self, name: str) -> int:
        """Return the column of a class; upper and lower case are equal.

        Raises:
            ConfigError: there is no such class.
        """
        upper = name.upper()
        if upper not in self.classes:
            raise ConfigError(f"{name} is no class of this table; classes are {', '.join(self.classes)}")
        return self.classes.index(upper)


def build(
    spent: Mapping[tuple[str, str], float],
    processes: Sequence[str],
    *,
    unassigned: Mapping[str, float] | None = None,
    unknown: Collection[tuple[str, str]] = (),
    limits: Sequence[str] = (),
) -> IoTable:
    """Build a table from seconds by (process, class).

    Args:
        spent: seconds; missing entries are 0.
        processes: the rows.
        unassigned: seconds by class of entries that belong to all processes together. The seconds of single processes
            in these classes are unknown, and their part in ``spent`` moves to ``shared``.
        unknown: incomplete processes and classes of ``spent``; they move to ``shared`` too. The process "" stands for
            the entries of all processes together, which are in ``unassigned``.
        limits: those of :class:`IoTable`.
    """
    unassigned = unassigned or {}
    classes = _order_classes({name for _, name in spent} | set(unassigned))
    rows = {process: at for at, process in enumerate(processes)}
    columns = {name: at for at, name in enumerate(classes)}
    seconds = np.zeros((len(rows), len(classes)))
    for (process, name), value in spent.items():
        seconds[rows[process], columns[name]] += value
    shared = [float(unassigned.get(name, 0.0)) for name in classes]
    for process, name in unknown:
        if process:
            cell = rows[process], columns[name]
            shared[cell[1]] += float(seconds[cell])
            seconds[cell] = np.nan
    for name in unassigned:
        shared[columns[name]] += float(np.nansum(seconds[:, columns[name]]))
        seconds[:, columns[name]] = np.nan
    return IoTable(seconds, classes, tuple(processes), tuple(shared), tuple(limits))


def align(tables: Mapping[_Key, IoTable]) -> dict[_Key, IoTable]:
    """Return the tables with the same classes; a table has 0 s in a class that its source lacks."""
    classes = _order_classes({name for table in tables.values() for name in table.classes})
    aligned = {}
    for key, table in tables.items():
        seconds = np.zeros((len(table.processes), len(classes)))
        shared = [0.0] * len(classes)
        for at, name in enumerate(table.classes):
            seconds[:, classes.index(name)] = table.seconds[:, at]
            shared[classes.index(name)] = table.shared[at]
        aligned[key] = IoTable(seconds, classes, table.processes, tuple(shared), table.limits)
    return aligned


def join(tables: Mapping[str, IoTable]) -> IoTable:
    """Join the tables of several logs, by the names of the logs, to one table with the processes of all of them.

    Raises:
        ConfigError: there is no table.
    """
    if not tables:
        raise ConfigError("no table; one or more expected")
    if len(tables) == 1:
        return next(iter(tables.values()))
    aligned = align(tables)
    classes = next(iter(aligned.values())).classes
    shared = tuple(sum(table.shared[at] for table in aligned.values()) for at in range(len(classes)))
    processes = tuple(f"{log}: {process}" for log, table in tables.items() for process in table.processes)
    limits = tuple(dict.fromkeys(limit for table in tables.values() for limit in table.limits))
    return IoTable(
        np.concatenate([table.seconds for table in aligned.values()]), classes, processes, shared, limits
    )


def _order_classes(names: set[str]) -> tuple[str, ...]:
    """Return the classes of the storage model and the other ``names``, in a fixed order."""
    return (*model.CLASSES, *sorted(names - set(model.CLASSES)))
