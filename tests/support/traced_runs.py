# SPDX-License-Identifier: Apache-2.0
"""The run folder of two ranks that wait for each other, and the profile of another host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

MS = 10**6


RANKS, BATCH, STEPS, EPOCHS, SIZE = 2, 4, 5, 3, 100_000


WAIT_NS, COMPUTE_NS = 3 * MS, 20 * MS


THERE = """
version = 1
machine = "other"
date = 2026-11-22
[[figure]]
name = "tier.ram.capacity"
value = 2.0
unit = "MB"
[[figure]]
name = "tier.ram.read"
at = 1
value = 1.0
unit = "GB/s"
[[figure]]
name = "tier.disk.read"
at = 1
value = 2.0
unit = "GB/s"
[[figure]]
name = "origin.read"
at = 1
value = {origin}
unit = "MB/s"
"""


def entry(rank: int, epoch: int, step: int, op: str, **other: Any) -> dict[str, Any]:
    made = {
        "start_ns": 0,
        "duration_ns": 0,
        "rank": rank,
        "epoch": epoch,
        "step": step,
        "subject": "batch",
        "subject_id": None,
        "op": op,
        "source": "origin",
        "cause": "origin_read" if op == "wait" else None,
        "bytes": 0,
        "samples": BATCH,
        "attempt": 1,
        "outcome": "ok",
    }
    return made | other


def run(epochs: int = EPOCHS, slow: int = 0) -> dict[int, list[dict[str, Any]]]:
    """A run of two ranks that wait for each other; rank 1 waits ``slow`` ns longer for data, rank 0 then for it."""
    random = np.random.default_rng(7)
    made: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(RANKS)}
    now = 0
    for epoch in range(epochs):
        ids = random.permutation(RANKS * BATCH * STEPS).reshape(STEPS, RANKS, BATCH)
        for step in range(STEPS):
            for rank in range(RANKS):
                if epoch == 0:
                    reads = {"subject": "sample", "samples": 1, "duration_ns": 2 * MS, "start_ns": now}
                    made[rank] += [
                        entry(rank, 0, step, "read", subject_id=int(one), bytes=SIZE + int(one), **reads)
                        for one in ids[step, rank]
                    ]
                waited = WAIT_NS + slow * rank
                made[rank].append(entry(rank, epoch, step, "wait", start_ns=now, duration_ns=waited))
            now += WAIT_NS + slow + COMPUTE_NS
    return made


def written(
    path: Path, entries: list[dict[str, Any]], cut: int = 0, header: Mapping[str, str] | None = None
) -> None:
    words = pa.dictionary(pa.uint8(), pa.string())
    types = {
        "start_ns": pa.uint64(),
        "duration_ns": pa.uint64(),
        "rank": pa.uint32(),
        "epoch": pa.uint64(),
        "step": pa.uint64(),
        "subject": words,
        "subject_id": pa.uint64(),
        "op": words,
        "source": words,
        "cause": words,
        "bytes": pa.uint64(),
        "samples": pa.uint32(),
        "attempt": pa.uint32(),
        "outcome": words,
    }
    schema = pa.schema(list(types.items()), {"foresee.ledger": "1", **(header or {})})
    arrays = [pa.array([each[name] for each in entries], kind) for name, kind in types.items()]
    table = pa.table(dict(zip(types, arrays, strict=True)), schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, schema) as stream:
        stream.write_table(table, max_chunksize=8)
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])


def folder(
    tmp_path: Path, made: dict[int, list[dict[str, Any]]], header: Mapping[str, str] | None = None
) -> Path:
    for rank, entries in made.items():
        written(tmp_path / "ledger" / f"rank-{rank}.arrow", entries, header=header)
    return tmp_path


def through_node(entries_by_rank: dict[int, list[dict[str, Any]]]) -> dict[int, list[dict[str, Any]]]:
    """The same run through the cache of a node, which answers by the batch: no row of a single sample."""
    made = {}
    for rank, entries in entries_by_rank.items():
        waits = [each for each in entries if each["op"] == "wait"]
        reads = [entry(rank, each["epoch"], each["step"], "read", bytes=BATCH * SIZE) for each in waits]
        made[rank] = [*reads, *waits]
    return made
