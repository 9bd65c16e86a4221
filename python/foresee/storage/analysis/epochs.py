# SPDX-License-Identifier: Apache-2.0
"""Each epoch of run folders by cache rate: its duration, and the slowest process of its I/O."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from foresee.errors import ConfigError
from foresee.storage.analysis import answers, ledger
from foresee.storage.analysis.table import IoTable, align, join

__all__ = ["read"]


def read(
    folders: Mapping[float, Sequence[str | os.PathLike[str]]],
    *,
    epoch: int | None = None,
    change: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Return ``rate`` and ``epochs`` of each cache rate, ascending.

    An epoch has its number ``epoch``, the ``seconds`` of its longest folder, and ``slowest`` and, with a change,
    ``what_if`` as :func:`foresee.storage.analysis.answers.slowest` returns them: 0 s if memory answered everything.

    Args:
        folders: run folders by cache rate, one or more each; those of one rate belong to one run.
        epoch: only this epoch, from 0; None: all.
        change: percent of throughput by class; None: only as measured.

    Raises:
        ConfigError: as :func:`foresee.storage.analysis.ledger.read`; a folder without I/O; or no rank reached
            ``epoch``.
        PackageMissing: pyarrow is not installed.
        OSError: a file cannot be read.
    """
    tables: dict[str, dict[str, IoTable]] = {}
    by_rate: dict[float, dict[int, float]] = {}
    for rate in sorted(folders):
        seconds: dict[int, float] = {}
        for folder in folders[rate]:
            path = os.fspath(folder)
            by_epoch = ledger.read_epochs(path)
            if not by_epoch:
                raise ConfigError(f"{path}: no I/O in its ledgers; was the run traced (FORESEE_TRACE)?")
            for at, duration in ledger.epoch_seconds(path).items():
                if epoch in {None, at}:
                    seconds[at] = max(duration, seconds.get(at, 0.0))
                    tables.setdefault(f"{rate!r} {at}", {})[path] = _epoch_table(by_epoch, at)
        by_rate[rate] = dict(sorted(seconds.items()))
    if not tables:
        # A loader reads ahead, perhaps for an epoch that the run does not reach.
        raise ConfigError(f"no rank came to epoch {epoch}; its I/O was read ahead")
    aligned = align({key: join(each) for key, each in tables.items()})
    return [
        {
            "rate": rate,
            "epochs": [
                {"epoch": at, "seconds": duration, **_facts(aligned[f"{rate!r} {at}"], change)}
                for at, duration in seconds.items()
            ],
        }
        for rate, seconds in by_rate.items()
    ]


def _epoch_table(by_epoch: Mapping[int, IoTable], epoch: int) -> IoTable:
    """Return the table of an epoch, zeros for an epoch without I/O."""
    if epoch in by_epoch:
        return by_epoch[epoch]
    other = next(iter(by_epoch.values()))
    return replace(other, seconds=np.zeros_like(other.seconds))


def _facts(table: IoTable, change: Mapping[str, float] | None) -> dict[str, Any]:
    facts = {"slowest": answers.slowest(table)}
    if change is not None:
        facts["what_if"] = answers.slowest(table, [change.get(name, 0.0) for name in table.classes])
    return facts
