# SPDX-License-Identifier: Apache-2.0
"""The run itself as its run folder's ledgers describe it: its shape, its samples, and the compute time of a step.

Only facts that do not depend on the machine's storage hold on another machine; these are returned, along with the
measured times of the run. Facts that the ledgers leave open are listed in ``limits``.

A step computes from the end of its batch's wait to the beginning of the next wait, transforms included. Ranks that
wait for each other at the end of a step hide their waiting there. So the least over ranks counts for every step, which
is that of the rank that had its batch last and delayed the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresee._runtime.waits import PREPARING
from foresee.errors import ConfigError
from foresee.storage.analysis import ledger

__all__ = ["Trace", "read"]

_Columns: TypeAlias = dict[str, NDArray[Any]]

_NUMBERS = ("start_ns", "duration_ns", "epoch", "step", "subject_id", "bytes", "samples")
_WORDS = ("op", "source", "subject", "cause", "outcome")
_NS = 1e9
#: In place of a sample's id where an entry has none.
_NO_ID = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Trace:
    """One run, as its ledgers tell it."""

    folder: str
    """The run folder."""
    ranks: int
    """Training processes."""
    epochs: int
    """That were begun."""
    steps: int
    """Of a whole epoch."""
    batch: int
    """Samples per rank and step."""
    samples: int
    """Of the data set, as far as the ledgers show."""
    drop_last: bool
    """Whether a last batch that is short was left out."""
    ids: NDArray[np.int64]
    """Shape (samples that were read one by one,): which, ascending."""
    sizes: NDArray[np.float64]
    """Likewise: bytes of each."""
    order: str
    """``sequential``, or ``distributed`` for any shuffled order."""
    compute: NDArray[np.float64]
    """Seconds that each step computed and its batch was transformed, all epochs. The last step of an epoch is followed
    by no wait and left out.
    """
    waits: Mapping[str, float]
    """Seconds of waiting by cause, added up over ranks."""
    epoch_s: tuple[float, ...]
    """Duration of each whole epoch on the slowest rank: from its first wait to the end of its last step."""
    fetches: int
    """Most reads of one rank that were under way at a time."""
    preprocess_rate: float | None
    """Bytes per second that were decoded by one thread; None: the ledgers have no such entries."""
    limits: tuple[str, ...]
    """Facts that the ledgers do not have."""


def read(folder: str | os.PathLike[str]) -> Trace:
    """The trace of a run folder.

    Raises:
        ConfigError: no ledger of a loader there, not one of ours, of another version, or of less than two steps.
        PackageMissing: pyarrow is not installed.
        OSError: a file cannot be read.
    """
    shown = os.fspath(folder)
    limits: list[str] = []
    by_rank = _loaders(shown, limits)
    ranks = max(by_rank) + 1
    if missing := sorted(set(range(ranks)) - by_rank.keys()):
        limits.append(f"cluster.ranks: {_listed(missing)} left no ledger; taken to be like the others")
    waits = {rank: _waits(columns) for rank, columns in by_rank.items()}
    epochs = 1 + max(int(each["epoch"].max()) for each in waits.values())
    steps = 1 + max(int(each["step"].max()) for each in waits.values())
    whole = _whole(waits, steps, epochs)
    compute = _compute(waits, steps)
    if not len(compute):
        raise ConfigError(f"{shown}: no two steps of one epoch follow each other there, so no time per step")
    batch = max(int(each["samples"].max()) for each in waits.values())
    ids, sizes = _sizes(by_rank)
    if not len(sizes):
        raise ConfigError(
            f"{shown}: no sample was read one by one, all came out of memory; trace a run from its start"
        )
    samples, drop_last = _samples(waits, whole, ids, ranks, limits)
    return Trace(
        folder=shown,
        ranks=ranks,
        epochs=epochs,
        steps=steps,
        batch=batch,
        samples=samples,
        drop_last=drop_last,
        ids=ids,
        sizes=sizes,
        order="sequential" if _sequential(by_rank, ranks, batch) else "distributed",
        compute=compute,
        waits=_by_cause(by_rank),
        epoch_s=tuple(_epoch_s(waits, epoch, float(np.median(compute))) for epoch in whole),
        fetches=max(_together(columns) for columns in by_rank.values()),
        preprocess_rate=_decoded(by_rank),
        limits=tuple(limits),
    )


def _loaders(folder: str, limits: list[str]) -> dict[int, _Columns]:
    """By rank, the entries of its first loader. Further loaders and gradients are told of."""
    found: dict[int, _Columns] = {}
    for path, rank in ledger.files(folder):
        name = os.path.basename(path)
        columns = _columns(path, name, limits)
        if not len(_of(columns, op="wait")["step"]):
            continue
        if rank in found:
            limits.append(f"{name}: of a further loader of rank {rank}, not in the figures")
        else:
            found[rank] = columns
    if not found:
        raise ConfigError(f"{folder}: no batch was waited for in its ledgers; a run with a loader expected")
    return found


def _columns(path: str, name: str, limits: list[str]) -> _Columns:
    parts: dict[str, list[NDArray[Any]]] = {key: [] for key in (*_NUMBERS, *_WORDS)}
    entries = 0
    for batch in ledger.batches(path):
        if batch is None:
            limits.append(f"{name} ends early, after {entries:,} entries")
            break
        entries += batch.num_rows
        for key in _NUMBERS:
            column = batch.column(key)
            if key == "subject_id":
                column = column.fill_null(_NO_ID)
            parts[key].append(column.to_numpy(zero_copy_only=False).astype(np.int64))
        for key in _WORDS:
            column = batch.column(key)
            words = np.array([*column.dictionary.to_pylist(), ""], dtype=object)
            at = column.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
            parts[key].append(words[at.astype(np.int64)])
    return {
        key: np.concatenate(each) if each else np.zeros(0, np.int64 if key in _NUMBERS else object)
        for key, each in parts.items()
    }


def _of(columns: _Columns, *, op: str) -> _Columns:
    """Entries of the batches' own operation; those of gradients are about tensors."""
    which = (columns["op"] == op) & (columns["subject"] == "batch")
    return {key: column[which] for key, column in columns.items()}


def _waits(columns: _Columns) -> _Columns:
    """The waits for batches, one row each: when it began, how long the batch was being read, its step and samples.

    The ledger has one row per cause, the last one with the samples. Decoding, transforms and workers are not simulated:
    their time is the step's.
    """
    rows = _of(columns, op="wait")
    order = np.argsort(rows["start_ns"], kind="stable")
    rows = {key: column[order] for key, column in rows.items()}
    last = np.flatnonzero(rows["samples"] > 0)
    wait = np.searchsorted(last, np.arange(len(order)))
    # Rows after the last samples are of a wait that was cut off.
    known = wait < len(last)
    reading = known & ~np.isin(rows["cause"].astype(str), PREPARING)
    spent = np.bincount(wait[reading], rows["duration_ns"][reading], len(last)).astype(np.int64)
    first = np.concatenate([[0], last[:-1] + 1])[: len(last)]
    return {
        "epoch": rows["epoch"][last],
        "step": rows["step"][last],
        "samples": rows["samples"][last],
        "start_ns": rows["start_ns"][first],
        "duration_ns": spent,
    }


def _whole(waits: Mapping[int, _Columns], steps: int, epochs: int) -> list[int]:
    """Epochs of which every rank took every step, once."""
    every = np.arange(steps)
    return [
        epoch
        for epoch in range(epochs)
        if all(
            np.array_equal(np.sort(each["step"][each["epoch"] == epoch]), every) for each in waits.values()
        )
    ]


def _compute(waits: Mapping[int, _Columns], steps: int) -> NDArray[np.float64]:
    """Seconds between waits, by epoch and step, the least over ranks."""
    least: dict[int, float] = {}
    for each in waits.values():
        order = np.argsort(each["start_ns"], kind="stable")
        epoch, step, start = (each[key][order] for key in ("epoch", "step", "start_ns"))
        end = start + each["duration_ns"][order]
        follows = (epoch[1:] == epoch[:-1]) & (step[1:] == step[:-1] + 1)
        keys = (epoch[:-1] * steps + step[:-1])[follows]
        gaps = np.maximum(start[1:] - end[:-1], 0)[follows] / _NS
        for key, gap in zip(keys.tolist(), gaps.tolist(), strict=True):
            least[key] = min(gap, least.get(key, gap))
    return np.array([least[key] for key in sorted(least)])


def _read_alone(columns: _Columns) -> NDArray[np.bool_]:
    which: NDArray[np.bool_] = (
        (columns["op"] == "read") & (columns["subject"] == "sample") & (columns["outcome"] == "ok")
    )
    return which


def _sizes(by_rank: Mapping[int, _Columns]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Samples that were read one by one, and their bytes."""
    reads = [_read_alone(columns) for columns in by_rank.values()]
    ids = np.concatenate(
        [each["subject_id"][which] for each, which in zip(by_rank.values(), reads, strict=True)]
    )
    sizes = np.concatenate(
        [each["bytes"][which] for each, which in zip(by_rank.values(), reads, strict=True)]
    )
    found, first = np.unique(ids, return_index=True)
    return found, sizes[first].astype(np.float64)


def _samples(
    waits: Mapping[int, _Columns], whole: list[int], ids: NDArray[Any], ranks: int, limits: list[str]
) -> tuple[int, bool]:
    """Return the number of samples of the data set, and whether an epoch leaves some out."""
    highest = int(ids[-1]) + 1
    if not whole:
        limits.append(
            f"data.samples: no epoch was traced from its beginning to its end; {highest:,}, the highest that was read"
        )
        return max(highest, ranks), False
    counts = [int(each["samples"][each["epoch"] == whole[0]].sum()) for each in waits.values()]
    reads = sum(counts) * ranks // len(counts)
    if highest > reads:
        limits.append(f"data.samples: at least {highest:,}, of which an epoch reads {reads:,}")
        return highest, True
    if len(ids) == highest and reads - highest < ranks:
        return highest, False
    limits.append(
        f"data.samples: {reads:,}, the reads of an epoch, padding among them; {len(ids):,} were read one by one"
    )
    return reads, False


def _sequential(by_rank: Mapping[int, _Columns], ranks: int, batch: int) -> bool:
    """Whether every sample was read in the step in which ascending ids have it."""
    for columns in by_rank.values():
        which = _read_alone(columns)
        if np.any(columns["subject_id"][which] // (ranks * batch) != columns["step"][which]):
            return False
    return True


def _by_cause(by_rank: Mapping[int, _Columns]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for columns in by_rank.values():
        each = _of(columns, op="wait")
        for cause in set(each["cause"].tolist()):
            spent = float(each["duration_ns"][each["cause"] == cause].sum()) / _NS
            seconds[cause] = seconds.get(cause, 0.0) + spent
    return dict(sorted(seconds.items()))


def _epoch_s(waits: Mapping[int, _Columns], epoch: int, step: float) -> float:
    """Of the slowest rank; its last step, which no wait ends, takes as long as one does."""
    spans = []
    for each in waits.values():
        which = each["epoch"] == epoch
        start, duration = each["start_ns"][which], each["duration_ns"][which]
        spans.append(float((start + duration).max() - start.min()) / _NS)
    return max(spans) + step


def _together(columns: _Columns) -> int:
    """The most reads by themselves under way at a time."""
    which = _read_alone(columns)
    start, duration = columns["start_ns"][which], columns["duration_ns"][which]
    times = np.concatenate([start, start + duration])
    change = np.concatenate([np.ones_like(start), -np.ones_like(start)])
    # One that ends makes room for one that begins at the same time.
    under_way = np.cumsum(change[np.lexsort((change, times))])
    return max(1, int(under_way.max(initial=0)))


def _decoded(by_rank: Mapping[int, _Columns]) -> float | None:
    nbytes = seconds = 0.0
    for columns in by_rank.values():
        which = (columns["op"] == "decode") & (columns["outcome"] == "ok")
        nbytes += float(columns["bytes"][which].sum())
        seconds += float(columns["duration_ns"][which].sum()) / _NS
    return nbytes / seconds if nbytes and seconds else None


def _listed(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
