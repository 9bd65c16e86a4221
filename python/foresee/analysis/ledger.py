# SPDX-License-Identifier: Apache-2.0
"""A run folder's ledger as a table: ``docs/formats/ledger.md`` describes what is read here.

The origin is ``GFS``, the disk tier ``LFS``; memory and peers have names of their own. Opening, asking and closing
are META wherever the place can tell them apart. Waits, transforms and gradients are no I/O and are left out.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import Any

from foresee.analysis.table import IoTable, Spent, build
from foresee.errors import ConfigError, PackageMissing

__all__ = ["read"]

_VERSION = "1"
_FILE = re.compile(r"rank-(\d+)(?:\.\d+)?\.arrow")
_TIERS = {"origin": "GFS", "disk": "LFS", "ram": "RAM", "peer": "PEER"}
_OPS = {"list": "META", "stat": "META", "open": "META", "close": "META", "read": "READ", "write": "WRITE"}
_LIMIT = (
    "seconds of one rank add up over requests that ran at the same time, so they may exceed the run's; "
    "reads that a memory copy answered are none"
)


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
    shown = os.fspath(folder)
    files = _files(shown)
    spent: Spent = defaultdict(float)
    limits = [_LIMIT]
    ranks: set[int] = set()
    for name, rank in files:
        ranks.add(rank)
        entries, early = _sums(os.path.join(shown, "ledger", name), epoch, spent)
        if early:
            limits.append(
                f"{name} ends early, after {entries:,} entries: what came later is not in the figures"
            )
    if not spent:
        where = "" if epoch is None else f" in epoch {epoch}"
        raise ConfigError(f"{shown}: no I/O{where} in its ledgers; was the run traced (FORESEE_TRACE)?")
    ranks |= {int(process.split()[1]) for process, _ in spent}
    return build(spent, [f"rank {rank}" for rank in sorted(ranks)], limits=limits)


def _files(folder: str) -> list[tuple[str, int]]:
    where = os.path.join(folder, "ledger")
    if not os.path.isdir(where):
        raise ConfigError(
            f"{folder}: no folder ledger in it; a run folder expected, as FORESEE_TRACE names it"
        )
    found = sorted((name, int(match[1])) for name in os.listdir(where) if (match := _FILE.fullmatch(name)))
    if not found:
        raise ConfigError(f"{where}: no file rank-K.arrow; was the run traced (FORESEE_TRACE)?")
    return found


def _sums(path: str, epoch: int | None, spent: Spent) -> tuple[int, bool]:
    """Add a file's seconds to ``spent``; how many entries it has, and whether it ends early."""
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ModuleNotFoundError as error:
        raise PackageMissing("ledgers are read with pyarrow; install it, or foresee[ledger]") from error
    entries = 0
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
                return entries, False
            except (pa.ArrowInvalid, OSError):
                return entries, True
            entries += batch.num_rows
            _add(batch, epoch, spent)


def _add(batch: Any, epoch: int | None, spent: Spent) -> None:
    """One batch: seconds by rank and class."""
    import numpy as np

    columns = {name: batch.column(name) for name in ("rank", "epoch", "op", "source", "duration_ns")}
    chosen = np.ones(batch.num_rows, dtype=bool)
    if epoch is not None:
        chosen &= columns["epoch"].to_numpy(zero_copy_only=False) == epoch
    duration = columns["duration_ns"].to_numpy(zero_copy_only=False) / 1e9
    rank = columns["rank"].to_numpy(zero_copy_only=False)
    words = {name: columns[name].dictionary.to_pylist() for name in ("op", "source")}
    at = {name: columns[name].indices.to_numpy(zero_copy_only=False) for name in ("op", "source")}
    for op, word in enumerate(words["op"]):
        for source, place in enumerate(words["source"]):
            if word not in _OPS or place not in _TIERS:
                continue
            which = chosen & (at["op"] == op) & (at["source"] == source)
            for each in np.unique(rank[which]).tolist():
                seconds = float(duration[which & (rank == each)].sum())
                spent[f"rank {each}", f"{_TIERS[place]}-{_OPS[word]}"] += seconds
