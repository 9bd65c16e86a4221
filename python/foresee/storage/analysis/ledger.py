# SPDX-License-Identifier: Apache-2.0
"""A run folder's ledger as a table; ``docs/formats/ledger.md`` describes the format.

The origin is ``GFS``, the disk tier ``LFS``, other ranks ``PEER``. Opening, listing, ``stat`` and closing are META.
Memory, waits, transforms and gradients are no I/O and are left out. For a rank that reads through the cache of its
node, disk and origin are those of the node, and its seconds are those for which it had requests there: none if the
memory of the node had all samples.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from foresee.errors import ConfigError, PackageMissing
from foresee.storage.analysis.table import ClassSeconds, IoTable, build

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["AT_ONCE", "batches", "columns", "epoch_seconds", "files", "header", "read", "read_epochs"]

_VERSION = "1"
_FILE = re.compile(r"rank-(\d+)(?:\.\d+)?\.arrow")
_TIERS = {"origin": "GFS", "disk": "LFS", "peer": "PEER"}
_OPS = {"list": "META", "stat": "META", "open": "META", "close": "META", "read": "READ", "write": "WRITE"}
Spans = dict[int, tuple[int, int]]
"""Begin of the first entry and end of the last one in nanoseconds, by epoch."""
AT_ONCE = (
    "seconds of one rank add up over requests that ran at the same time, so they may exceed the run's; "
    "what memory answered is no I/O"
)
"""Limit of every table of a run, except of readers without concurrent requests."""
_THROUGH_NODE = (
    "ranks that read through the cache of their node have the seconds for which they had requests there, each instant "
    "once; what the memory of the node answered is no I/O"
)


def read(folder: str | os.PathLike[str], *, epoch: int | None = None) -> IoTable:
    """Read the table of a run folder, with a row per rank.

    A ledger that ends early, as after a kill, is read up to its end, and the table's limits state that.

    Args:
        folder: contains ``ledger/rank-K.arrow``.
        epoch: only the I/O for this epoch, from 0; None: all.

    Raises:
        ConfigError: no ledger, not one of Foresee, of another version, or without I/O.
        PackageMissing: pyarrow is not installed.
        OSError: a file cannot be read.
    """
    by_epoch, ranks, limits = _read(folder)
    chosen = by_epoch.values() if epoch is None else [by_epoch[epoch]] if epoch in by_epoch else []
    spent: ClassSeconds = defaultdict(float)
    for part in chosen:
        for key, seconds in part.items():
            spent[key] += seconds
    if not chosen:
        where = "" if epoch is None else f" in epoch {epoch}"
        raise ConfigError(
            f"{os.fspath(folder)}: no I/O{where} in its ledgers; was the run traced (FORESEE_TRACE)?"
        )
    return build(spent, ranks, limits=limits)


def read_epochs(folder: str | os.PathLike[str]) -> dict[int, IoTable]:
    """Read a table for each epoch with I/O, all with the same rows; arguments and errors are those of :func:`read`."""
    by_epoch, ranks, limits = _read(folder)
    return {epoch: build(by_epoch[epoch], ranks, limits=limits) for epoch in sorted(by_epoch)}


def epoch_seconds(folder: str | os.PathLike[str]) -> dict[int, float]:
    """Return the seconds of each epoch of the slowest rank, from its first entry to its last one.

    If a rank waits for batches, only those waits count, since reads run ahead into the epoch before. An epoch ends with
    its last batch. Each ledger has its own clock, so ranks are compared by duration. Arguments and errors are those of
    :func:`read`; epochs without I/O and waits are left out.
    """
    longest: dict[int, float] = {}
    for path, _ in files(folder):
        waits: Spans = {}
        reads: Spans = {}
        for batch in batches(path):
            if batch is not None:
                _extend_spans(batch, waits, reads)
        for epoch, (first, last) in (waits or reads).items():
            longest[epoch] = max(longest.get(epoch, 0.0), (last - first) / 1e9)
    return dict(sorted(longest.items()))


def files(folder: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """Return the path and rank of each ledger of a run folder, by name; a rank may have several.

    Raises:
        ConfigError: no ledger.
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
    """Yield a ledger's entries as Arrow's `RecordBatch`, and None last if the file ends early, as after a kill.

    Raises:
        ConfigError: not a ledger of Foresee, or of another version.
        PackageMissing: pyarrow is not installed.
        OSError: the file cannot be read.
    """
    with _stream(path) as stream:
        while True:
            try:
                batch = stream.read_next_batch()
            except StopIteration:
                return
            except (ValueError, OSError):  # Arrow's ArrowInvalid is a ValueError
                yield None
                return
            yield batch


def header(path: str) -> dict[str, str]:
    """Return the header of a ledger, ``foresee.node.id`` and the like; errors are those of :func:`batches`."""
    with _stream(path) as stream:
        return {key.decode(): value.decode(errors="replace") for key, value in stream.schema.metadata.items()}


@contextmanager
def _stream(path: str) -> Iterator[Any]:
    """Open a ledger as Arrow's stream of this version; errors are those of :func:`batches`."""
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
        yield stream


def columns(batch: Any, *names: str) -> list[NDArray[Any]]:
    """Return columns of a batch as arrays."""
    return [batch.column(name).to_numpy(zero_copy_only=False) for name in names]


def _read(folder: str | os.PathLike[str]) -> tuple[dict[int, ClassSeconds], list[str], list[str]]:
    """Return the seconds by epoch, rank and class; the ranks; and the limits.

    Epochs that ranks read from the memory of their node alone have no seconds.
    """
    by_epoch: dict[int, ClassSeconds] = {}
    limits: list[str] = []
    ranks: set[int] = set()
    for path, rank in files(folder):
        ranks.add(rank)
        is_through_node = "foresee.node.id" in header(path)
        limits.append(_THROUGH_NODE if is_through_node else AT_ONCE)
        entries = 0
        for batch in batches(path):
            if batch is None:
                limits.append(
                    f"{os.path.basename(path)} ends early, after {entries:,} entries: later ones are not in the table"
                )
            else:
                entries += batch.num_rows
                _add(batch, by_epoch, ranks)
                if is_through_node:
                    op, source, epochs = columns(batch, "op", "source", "epoch")
                    for epoch in set(epochs[(op == "read") & (source == "ram")].tolist()):
                        by_epoch.setdefault(epoch, defaultdict(float))
    return by_epoch, [f"rank {rank}" for rank in sorted(ranks)], list(dict.fromkeys(limits))


def _add(batch: Any, by_epoch: dict[int, ClassSeconds], ranks: set[int]) -> None:
    """Add the seconds of one batch by epoch, rank and class."""
    import numpy as np

    ops, sources = (batch.column(name).dictionary.to_pylist() for name in ("op", "source"))
    op_ids, source_ids = (
        batch.column(name).indices.to_numpy(zero_copy_only=False) for name in ("op", "source")
    )
    epochs, batch_ranks, durations = columns(batch, "epoch", "rank", "duration_ns")
    for op_id, op in enumerate(ops):
        for source_id, source in enumerate(sources):
            if op not in _OPS or source not in _TIERS:
                continue
            which = (op_ids == op_id) & (source_ids == source_id)
            keys = np.stack([epochs[which], batch_ranks[which].astype(np.uint64)], axis=1)
            found, where = np.unique(keys, axis=0, return_inverse=True)
            seconds = np.bincount(where.reshape(-1), durations[which] / 1e9, len(found))
            for (epoch, rank), each in zip(found.tolist(), seconds.tolist(), strict=True):
                ranks.add(rank)
                spent = by_epoch.setdefault(epoch, defaultdict(float))
                spent[f"rank {rank}", f"{_TIERS[source]}-{_OPS[op]}"] += each


def _extend_spans(batch: Any, waits: Spans, reads: Spans) -> None:
    """Extend the spans of waits for batches and of I/O by the entries of one batch."""
    import numpy as np

    op, source, subject, epochs, begin, durations = columns(
        batch, "op", "source", "subject", "epoch", "start_ns", "duration_ns"
    )
    end = begin + durations
    for spans, which in (
        (waits, (op == "wait") & (subject == "batch")),
        (reads, np.isin(op, list(_OPS)) & np.isin(source, list(_TIERS))),
    ):
        for epoch in np.unique(epochs[which]).tolist():
            in_epoch = which & (epochs == epoch)
            first, last = int(begin[in_epoch].min()), int(end[in_epoch].max())
            known = spans.get(epoch, (first, last))
            spans[epoch] = (min(known[0], first), max(known[1], last))
