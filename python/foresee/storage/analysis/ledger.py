# SPDX-License-Identifier: Apache-2.0
"""A run folder's ledger as a table: ``docs/formats/ledger.md`` describes what is read here.

The origin is ``GFS``, the disk tier ``LFS``; peers have a name of their own. Opening, asking and closing
are META wherever the place can tell them apart. Memory, waits, transforms and gradients are no I/O and are left out.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from foresee.errors import ConfigError, PackageMissing
from foresee.storage.analysis.table import IoTable, Spent, build

__all__ = ["AT_ONCE", "batches", "epoch_seconds", "files", "read", "read_epochs"]

_VERSION = "1"
_FILE = re.compile(r"rank-(\d+)(?:\.\d+)?\.arrow")
_TIERS = {"origin": "GFS", "disk": "LFS", "peer": "PEER"}
_OPS = {"list": "META", "stat": "META", "open": "META", "close": "META", "read": "READ", "write": "WRITE"}
Spans = dict[int, tuple[int, int]]
"""By epoch the first row's begin and the last one's end, nanoseconds."""
AT_ONCE = (
    "seconds of one rank add up over requests that ran at the same time, so they may exceed the run's; "
    "what memory answered is no I/O"
)
"""Limits that every table of a run has, except of readers that do one thing after the other."""


def read(folder: str | os.PathLike[str], *, epoch: int | None = None) -> IoTable:
    """The table of a run folder: a row per rank.

    A ledger that ends early, as after a kill, is read as far as it goes, which the table's limits tell.

    Args:
        folder: with ``ledger/rank-K.arrow`` in it.
        epoch: only what was done for this epoch, from 0; None: all.

    Raises:
        ConfigError: no ledger there, not one of ours, of another version, or without any I/O.
        PackageMissing: pyarrow is not installed.
        OSError: a file cannot be read.
    """
    by_epoch, ranks, limits = _read(folder)
    chosen = by_epoch.values() if epoch is None else [by_epoch[epoch]] if epoch in by_epoch else []
    spent: Spent = defaultdict(float)
    for part in chosen:
        for key, seconds in part.items():
            spent[key] += seconds
    if not spent:
        where = "" if epoch is None else f" in epoch {epoch}"
        raise ConfigError(
            f"{os.fspath(folder)}: no I/O{where} in its ledgers; was the run traced (FORESEE_TRACE)?"
        )
    return build(spent, ranks, limits=limits)


def read_epochs(folder: str | os.PathLike[str]) -> dict[int, IoTable]:
    """A table for each epoch that has any I/O, with the same rows; arguments and errors are those of :func:`read`."""
    by_epoch, ranks, limits = _read(folder)
    return {epoch: build(by_epoch[epoch], ranks, limits=limits) for epoch in sorted(by_epoch)}


def epoch_seconds(folder: str | os.PathLike[str]) -> dict[int, float]:
    """Return the seconds of each epoch: from its first row to its last one, of the slowest rank.

    Where a rank waits for batches, only those waits count: reads run ahead, into the epoch before. What a job does
    after an epoch's last batch is not in it. Each ledger has a clock of its own, so ranks are not laid over each
    other. Arguments and errors are those of :func:`read`; epochs without I/O and waits are left out.
    """
    longest: dict[int, float] = {}
    for path, _ in files(folder):
        waits: Spans = {}
        reads: Spans = {}
        for batch in batches(path):
            if batch is not None:
                _stretch(batch, waits, reads)
        for epoch, (first, last) in (waits or reads).items():
            longest[epoch] = max(longest.get(epoch, 0.0), (last - first) / 1e9)
    return dict(sorted(longest.items()))


def files(folder: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """The ledgers of a run folder, by name: path, and whose rank it is. A rank may have several.

    Raises:
        ConfigError: no ledger there.
        OSError: the folder cannot be read.
    """
    shown = os.fspath(folder)
    where = os.path.join(shown, "ledger")
    if not os.path.isdir(where):
        raise ConfigError(
            f"{shown}: no folder ledger in it; a run folder expected, as FORESEE_TRACE names it"
        )
    found = sorted((name, int(match[1])) for name in os.listdir(where) if (match := _FILE.fullmatch(name)))
    if not found:
        raise ConfigError(f"{where}: no file rank-K.arrow; was the run traced (FORESEE_TRACE)?")
    return [(os.path.join(where, name), rank) for name, rank in found]


def batches(path: str) -> Iterator[Any]:
    """A ledger's entries as Arrow's `RecordBatch`; None comes last where the file ends early, as after a kill.

    Raises:
        ConfigError: not a ledger of ours, or of another version.
        PackageMissing: pyarrow is not installed.
        OSError: the file cannot be read.
    """
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ModuleNotFoundError as error:
        raise PackageMissing("ledgers are read with pyarrow; install it, or foresee[ledger]") from error
    with pa.OSFile(path) as file:
        try:
            stream = pyarrow.ipc.open_stream(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(f"{path}: no ledger: {error}") from None
        version = (stream.schema.metadata or {}).get(b"foresee.ledger", b"").decode(errors="replace")
        if version != _VERSION:
            found = repr(version) if version else "not there"
            raise ConfigError(
                f"{path}: foresee.ledger is {found}; this program reads ledgers of version {_VERSION}"
            )
        while True:
            try:
                batch = stream.read_next_batch()
            except StopIteration:
                return
            except (pa.ArrowInvalid, OSError):
                yield None
                return
            yield batch


def _read(folder: str | os.PathLike[str]) -> tuple[dict[int, Spent], list[str], list[str]]:
    """Seconds by epoch, rank and class; the ranks; and what the ledgers do not tell."""
    by_epoch: dict[int, Spent] = {}
    limits = [AT_ONCE]
    ranks: set[int] = set()
    for path, rank in files(folder):
        ranks.add(rank)
        entries = 0
        for batch in batches(path):
            if batch is None:
                limits.append(
                    f"{os.path.basename(path)} ends early, after {entries:,} entries: what came later is not in the "
                    "figures"
                )
            else:
                entries += batch.num_rows
                _add(batch, by_epoch, ranks)
    return by_epoch, [f"rank {rank}" for rank in sorted(ranks)], limits


def _add(batch: Any, by_epoch: dict[int, Spent], ranks: set[int]) -> None:
    """One batch: seconds by epoch, rank and class."""
    import numpy as np

    words = {name: batch.column(name).dictionary.to_pylist() for name in ("op", "source")}
    at = {name: batch.column(name).indices.to_numpy(zero_copy_only=False) for name in ("op", "source")}
    numbers = {
        name: batch.column(name).to_numpy(zero_copy_only=False) for name in ("epoch", "rank", "duration_ns")
    }
    for op, word in enumerate(words["op"]):
        for source, place in enumerate(words["source"]):
            if word not in _OPS or place not in _TIERS:
                continue
            which = (at["op"] == op) & (at["source"] == source)
            keys = np.stack([numbers["epoch"][which], numbers["rank"][which].astype(np.uint64)], axis=1)
            found, where = np.unique(keys, axis=0, return_inverse=True)
            seconds = np.bincount(where.reshape(-1), numbers["duration_ns"][which] / 1e9, len(found))
            for (epoch, rank), each in zip(found.tolist(), seconds.tolist(), strict=True):
                ranks.add(rank)
                spent = by_epoch.setdefault(epoch, defaultdict(float))
                spent[f"rank {rank}", f"{_TIERS[place]}-{_OPS[word]}"] += each


def _stretch(batch: Any, waits: Spans, reads: Spans) -> None:
    """One batch: its rows' begins and ends, of waits for batches and of I/O."""
    import numpy as np

    op, source, subject = (
        batch.column(name).to_numpy(zero_copy_only=False) for name in ("op", "source", "subject")
    )
    epochs, begin, took = (
        batch.column(name).to_numpy(zero_copy_only=False) for name in ("epoch", "start_ns", "duration_ns")
    )
    end = begin + took
    for spans, which in (
        (waits, (op == "wait") & (subject == "batch")),
        (reads, np.isin(op, list(_OPS)) & np.isin(source, list(_TIERS))),
    ):
        for epoch in np.unique(epochs[which]).tolist():
            here = which & (epochs == epoch)
            first, last = int(begin[here].min()), int(end[here].max())
            known = spans.get(epoch, (first, last))
            spans[epoch] = (min(known[0], first), max(known[1], last))
