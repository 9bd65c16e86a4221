# SPDX-License-Identifier: Apache-2.0
"""Each epoch of run folders by cache rate: its duration, and the slowest process of its I/O.

``answers`` has tables of one span of time; this module has one table per epoch and rate. Only run folders have epochs.
"""

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
    """By cache rate, ascending, its ``rate`` and its ``epochs``.

    Of an epoch: ``epoch``, its number; ``seconds``, of the folder that took longest; ``slowest`` and, with a change,
    ``what_if`` as :func:`foresee.storage.analysis.answers.slowest` has them, 0 s where memory answered everything.

    Args:
        folders: run folders by cache rate, one or more each; those of one rate are one run's.
        epoch: only this one, from 0; None: all.
        change: percent of throughput by class; None: as measured only.

    Raises:
        ConfigError: as :func:`foresee.storage.analysis.ledger.read`; a folder without any I/O among them; or no rank
            came to ``epoch``.
        PackageMissing: pyarrow is not installed.
        OSError: a file cannot be read.
    """
    tables: dict[str, dict[str, IoTable]] = {}
    keys: dict[float, dict[int, float]] = {}
    for rate in sorted(folders):
        seconds: dict[int, float] = {}
        for folder in folders[rate]:
            path = os.fspath(folder)
            by_epoch = ledger.read_epochs(path)
            if not by_epoch:
                raise ConfigError(f"{path}: no I/O in its ledgers; was the run traced (FORESEE_TRACE)?")
            for at, took in ledger.epoch_seconds(path).items():
                if epoch in {None, at}:
                    seconds[at] = max(took, seconds.get(at, 0.0))
                    tables.setdefault(_key(rate, at), {})[path] = _of(by_epoch, at)
        keys[rate] = dict(sorted(seconds.items()))
    if not tables:
        # A rank that waits for batches reads ahead, maybe of an epoch to which it never comes.
        raise ConfigError(f"no rank came to epoch {epoch}; what it has of it was read ahead")
    aligned = align({key: join(each) for key, each in tables.items()})
    return [
        {
            "rate": rate,
            "epochs": [
                {"epoch": at, "seconds": took, **_facts(aligned[_key(rate, at)], change)}
                for at, took in seconds.items()
            ],
        }
        for rate, seconds in keys.items()
    ]


def _key(rate: float, epoch: int) -> str:
    return f"{rate!r} {epoch}"


def _of(by_epoch: Mapping[int, IoTable], epoch: int) -> IoTable:
    """The table of an epoch, which may be one without any I/O beside those that have some."""
    if epoch in by_epoch:
        return by_epoch[epoch]
    other = next(iter(by_epoch.values()))
    return replace(other, seconds=np.zeros_like(other.seconds))


def _facts(table: IoTable, change: Mapping[str, float] | None) -> dict[str, Any]:
    told: dict[str, Any] = {"slowest": answers.slowest(table)}
    if change is not None:
        told["what_if"] = answers.slowest(table, [change.get(name, 0.0) for name in table.classes])
    return told
