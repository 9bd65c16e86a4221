# SPDX-License-Identifier: Apache-2.0
"""Seconds of I/O by process and class, whatever they were read from, and what the source could not tell.

A class is a tier and what was done there: ``GFS-READ``, ``LFS-META``. The origin's tier is ``GFS``, the local one
``LFS``; further ones have names of their own. META is all that is neither reading nor writing.
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

__all__ = ["IoTable", "Spent", "align", "build", "join"]

_Key = TypeVar("_Key", str, float)

Spent = defaultdict[tuple[str, str], float]
"""Seconds by process and class, while they are added up."""

_FIRST = model.CLASSES


@dataclass(frozen=True, eq=False)
class IoTable:
    """I/O time of one run, or of one cache rate."""

    seconds: NDArray[np.float64]
    """Shape (processes, classes); NaN where the source does not tell."""
    classes: tuple[str, ...]
    """The columns; the four of the storage model first, in its order."""
    processes: tuple[str, ...]
    """The rows."""
    shared: tuple[float, ...]
    """By class, measured seconds of all processes together that ``seconds`` does not have, because it is NaN there."""
    limits: tuple[str, ...]
    """Facts that the source does not have, for readers of the result."""

    @property
    def known(self) -> bool:
        """Whether every class of every process was measured."""
        return not bool(np.isnan(self.seconds).any())

    def column(self, name: str) -> int:
        """The column of a class, in any case.

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
    untold: Mapping[str, float] | None = None,
    unknown: Collection[tuple[str, str]] = (),
    limits: Sequence[str] = (),
) -> IoTable:
    """A table from seconds by (process, class).

    Args:
        spent: seconds; what is not there is 0.
        processes: the rows.
        untold: classes with entries that belong to all processes together, and the seconds of those entries. The
            seconds of single processes are then unknown, and what ``spent`` has of them moves to ``shared``.
        unknown: processes and classes of ``spent`` that are only a part; they move to ``shared`` too. The process ""
            stands for the entries of all processes together, which are there already.
        limits: as :class:`IoTable` has them.
    """
    untold = untold or {}
    named = {name for _, name in spent} | set(untold)
    classes = (*_FIRST, *sorted(named - set(_FIRST)))
    rows = {process: at for at, process in enumerate(processes)}
    columns = {name: at for at, name in enumerate(classes)}
    seconds = np.zeros((len(rows), len(classes)))
    for (process, name), value in spent.items():
        seconds[rows[process], columns[name]] += value
    shared = [float(untold.get(name, 0.0)) for name in classes]
    for process, name in unknown:
        if process:
            cell = rows[process], columns[name]
            shared[cell[1]] += float(seconds[cell])
            seconds[cell] = np.nan
    for name in untold:
        shared[columns[name]] += float(np.nansum(seconds[:, columns[name]]))
        seconds[:, columns[name]] = np.nan
    return IoTable(seconds, classes, tuple(processes), tuple(shared), tuple(limits))


def align(tables: Mapping[_Key, IoTable]) -> dict[_Key, IoTable]:
    """The same tables with the same classes, 0 where a source never heard of one."""
    every: set[str] = {name for table in tables.values() for name in table.classes}
    classes = (*_FIRST, *sorted(every - set(_FIRST)))
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
    """One table of several logs, processes of all of them below each other; by the names of the logs.

    Raises:
        ConfigError: there is none.
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
