# SPDX-License-Identifier: Apache-2.0
"""Shape, samples and compute times of a run, from the ledgers of its run folder.

The result has the facts that do not depend on the host's storage, and the measured times of the run; ``limits`` lists
missing facts. A step computes from the end of its batch's wait to the beginning of the next wait, including transforms.
This time also contains waits for other ranks at the end of a step. So each step counts with the least over ranks, that
of the rank whose batch came last.
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
#: Replaces the sample's id of an entry without one.
_NO_ID = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Trace:
    """Facts of one run from its ledgers."""

    folder: str
    """The run folder."""
    ranks: int
    """Training processes."""
    epochs: int
    """Number of epochs that began."""
    steps: int
    """Steps of a complete epoch."""
    batch: int
    """Samples per rank and step."""
    samples: int
    """Of the data set, as far as the ledgers show."""
    drop_last: bool
    """Whether a short last batch was left out."""
    ids: NDArray[np.int64]
    """Shape (samples that were read individually,): their ids, ascending. Empty if all ranks read through the cache of
    their node, which answers by the batch.
    """
    sizes: NDArray[np.float64]
    """Same shape: bytes of each; without ids the mean of all samples alone."""
    order: str
    """``sequential``, or ``distributed`` for any shuffled order."""
    compute: NDArray[np.float64]
    """Seconds of compute and transforms of each step, all epochs. The last step of an epoch is left out, because no
    wait follows it.
    """
    waits: Mapping[str, float]
    """Seconds of waiting by cause, added up over ranks."""
    epoch_s: tuple[float, ...]
    """Duration of each complete epoch on the slowest rank: from its first wait to the end of its last step."""
    fetches: int
    """Maximum of concurrent reads of one rank."""
    preprocess_rate: float | None
    """Bytes per second that one thread decoded; None: the ledgers have no such entries."""
    limits: tuple[str, ...]
    """Facts that the ledgers do not have."""
    node_cache: bool = False
    """Whether ranks read through the cache of their node."""


def read(folder: str | os.PathLike[str]) -> Trace:
    """Return the trace of a run folder.

    Raises:
        ConfigError: no ledger of a loader, a ledger of another program or version, or fewer than two steps.
        PackageMissing: pyarrow is not installed.
        OSError: a file cannot be read.
    """
    shown = os.fspath(folder)
    limits: list[str] = []
    by_rank = _loaders(shown, limits)
    ranks = max(by_rank) + 1
    if missing := sorted(set(range(ranks)) - by_rank.keys()):
        limits.append(f"cluster.ranks: {_list_ranks(missing)} left no ledger; assumed to equal the others")
    waits = {rank: _waits(columns) for rank, columns in by_rank.items()}
    epochs = 1 + max(int(each["epoch"].max()) for each in waits.values())
    steps = 1 + max(int(each["step"].max()) for each in waits.values())
    whole = _whole(waits, steps, epochs)
    compute = _compute(waits, steps)
    if not len(compute):
        raise ConfigError(
            f"{shown}: no two consecutive steps of one epoch, so no time per step; trace at least one epoch"
        )
    batch = max(int(each["samples"].max()) for each in waits.values())
    ids, sizes = _sizes(by_rank)
    fetches = max(_max_in_flight(columns) for columns in by_rank.values())
    is_sequential = _sequential(by_rank, ranks, batch)
    node_cache = any("foresee.node.id" in ledger.header(path) for path, _ in ledger.files(shown))
    if not len(ids) and node_cache:
        sizes, fetches, is_sequential = _mean_size(by_rank), batch, False
        limits.append(
            "ranks read whole batches through the cache of their node: samples are assumed to have their mean size and "
            f"a shuffled order, and each rank to request the {batch:,} samples of a batch at once"
        )
    if not len(sizes):
        raise ConfigError(
            f"{shown}: no sample was read individually, all came from memory; trace a run from its start"
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
        order="sequential" if is_sequential else "distributed",
        compute=compute,
        waits=_by_cause(by_rank),
        epoch_s=tuple(_epoch_s(waits, epoch, float(np.median(compute))) for epoch in whole),
        fetches=fetches,
        preprocess_rate=_decoded(by_rank),
        limits=tuple(limits),
        node_cache=node_cache,
    )


def _loaders(folder: str, limits: list[str]) -> dict[int, _Columns]:
    """Return by rank the entries of its first loader. ``limits`` names further loaders."""
    found: dict[int, _Columns] = {}
    for path, rank in ledger.files(folder):
        name = os.path.basename(path)
        columns = _columns(path, name, limits)
        if not len(_of(columns, op="wait")["step"]):
            continue
        if rank in found:
            limits.append(f"{name}: of a further loader of rank {rank}, not part of the numbers")
        else:
            found[rank] = columns
    if not found:
        raise ConfigError(f"{folder}: its ledgers have no wait for a batch; expected a run with a loader")
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
    """Return the entries of an operation on batches; entries of gradients are about tensors."""
    which = (columns["op"] == op) & (columns["subject"] == "batch")
    return {key: column[which] for key, column in columns.items()}


def _waits(columns: _Columns) -> _Columns:
    """Return one row per wait for a batch: start, time of reading, step and samples.

    The ledger has one row per cause, and the last one has the samples. Decoding, transforms and workers are not
    simulated, so their time is part of the step.
    """
    rows = _of(columns, op="wait")
    order = np.argsort(rows["start_ns"], kind="stable")
    rows = {key: column[order] for key, column in rows.items()}
    last = np.flatnonzero(rows["samples"] > 0)
    wait = np.searchsorted(last, np.arange(len(order)))
    # Rows after the last samples belong to an incomplete wait.
    is_complete = wait < len(last)
    reading = is_complete & ~np.isin(rows["cause"].astype(str), PREPARING)
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
    """Return the epochs of which every rank took every step once."""
    every = np.arange(steps)
    return [
        epoch
        for epoch in range(epochs)
        if all(
            np.array_equal(np.sort(each["step"][each["epoch"] == epoch]), every) for each in waits.values()
        )
    ]


def _compute(waits: Mapping[int, _Columns], steps: int) -> NDArray[np.float64]:
    """Return the seconds between waits by epoch and step, the least over ranks."""
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


def _is_single_read(columns: _Columns) -> NDArray[np.bool_]:
    which: NDArray[np.bool_] = (
        (columns["op"] == "read") & (columns["subject"] == "sample") & (columns["outcome"] == "ok")
    )
    return which


def _sizes(by_rank: Mapping[int, _Columns]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the samples that were read individually, and their bytes."""
    reads = [_is_single_read(columns) for columns in by_rank.values()]
    ids = np.concatenate(
        [each["subject_id"][which] for each, which in zip(by_rank.values(), reads, strict=True)]
    )
    sizes = np.concatenate(
        [each["bytes"][which] for each, which in zip(by_rank.values(), reads, strict=True)]
    )
    found, first = np.unique(ids, return_index=True)
    return found, sizes[first].astype(np.float64)


def _mean_size(by_rank: Mapping[int, _Columns]) -> NDArray[np.float64]:
    """Return the mean bytes of all samples that were read, shape (1,); empty without any."""
    nbytes = samples = 0
    for columns in by_rank.values():
        which = (columns["op"] == "read") & (columns["outcome"] == "ok")
        nbytes += int(columns["bytes"][which].sum())
        samples += int(columns["samples"][which].sum())
    return np.array([nbytes / samples] if samples else [], np.float64)


def _samples(
    waits: Mapping[int, _Columns], whole: list[int], ids: NDArray[Any], ranks: int, limits: list[str]
) -> tuple[int, bool]:
    """Return the number of samples of the data set, and whether an epoch leaves some out."""
    highest = int(ids[-1]) + 1 if len(ids) else 0
    if not whole:
        limits.append(
            f"data.samples: no complete epoch was traced; assumed {highest:,}, from the highest id that was read"
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
    """Whether every sample was read in its step of the ascending order."""
    for columns in by_rank.values():
        which = _is_single_read(columns)
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
    """Return the seconds of an epoch on the slowest rank; ``step``: those of its last step, which no wait ends."""
    spans = []
    for each in waits.values():
        which = each["epoch"] == epoch
        start, duration = each["start_ns"][which], each["duration_ns"][which]
        spans.append(float((start + duration).max() - start.min()) / _NS)
    return max(spans) + step


def _max_in_flight(columns: _Columns) -> int:
    """Return the maximum of concurrent reads of single samples."""
    which = _is_single_read(columns)
    start, duration = columns["start_ns"][which], columns["duration_ns"][which]
    times = np.concatenate([start, start + duration])
    change = np.concatenate([np.ones_like(start), -np.ones_like(start)])
    # An end counts before a start at the same time.
    in_flight = np.cumsum(change[np.lexsort((change, times))])
    return max(1, int(in_flight.max(initial=0)))


def _decoded(by_rank: Mapping[int, _Columns]) -> float | None:
    nbytes = seconds = 0.0
    for columns in by_rank.values():
        which = (columns["op"] == "decode") & (columns["outcome"] == "ok")
        nbytes += float(columns["bytes"][which].sum())
        seconds += float(columns["duration_ns"][which].sum()) / _NS
    return nbytes / seconds if nbytes and seconds else None


def _list_ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
