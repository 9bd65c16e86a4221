# SPDX-License-Identifier: Apache-2.0
"""The caches that ranks of a run shared with others of their node, and the bytes that this saved, from its ledgers."""

from __future__ import annotations

import os
from typing import Any

from foresee.storage.analysis import ledger

__all__ = ["read"]


def read(folder: str | os.PathLike[str], *, epoch: int | None = None) -> list[dict[str, Any]]:
    """Return each cache of a node that ranks of the run read through, in the order of their first ranks.

    Each has ``id`` (of its host), ``is_service``, ``host_rank`` (None for a service), ``ranks``, ``ram_bytes`` and
    ``disk_bytes`` of the whole node, ``delivered_bytes`` (all that its ranks read), ``origin_bytes`` (the part that was
    read from the origin, once for all of them) and ``saved_bytes``, their difference.

    Args:
        folder: contains ``ledger/rank-K.arrow``.
        epoch: only the bytes for this epoch, from 0; None: all.

    Raises:
        ConfigError: no ledger, not one of Foresee, or of another version.
        PackageMissing: pyarrow is not installed.
        OSError: a file cannot be read.
    """
    caches: dict[str, dict[str, Any]] = {}
    for path, rank in sorted(ledger.files(folder), key=lambda each: each[1]):
        facts = ledger.header(path)
        if "foresee.node.id" not in facts:
            continue
        role = facts.get("foresee.node.role")
        cache = caches.setdefault(
            facts["foresee.node.id"],
            {
                "id": facts["foresee.node.id"],
                "is_service": role == "service_consumer",
                "host_rank": None,
                "ranks": [],
                "ram_bytes": int(facts.get("foresee.node.ram_bytes", 0)),
                "disk_bytes": int(facts.get("foresee.node.disk_bytes", 0)),
                "delivered_bytes": 0,
                "origin_bytes": 0,
            },
        )
        if role == "host":
            cache["host_rank"] = rank
        if rank not in cache["ranks"]:
            cache["ranks"].append(rank)
        for batch in ledger.batches(path):
            if batch is not None:
                delivered, origin = _bytes(batch, epoch)
                cache["delivered_bytes"] += delivered
                cache["origin_bytes"] += origin
    return [
        {**cache, "saved_bytes": cache["delivered_bytes"] - cache["origin_bytes"]}
        for cache in caches.values()
    ]


def _bytes(batch: Any, epoch: int | None) -> tuple[int, int]:
    """Return the bytes of successful reads in one batch of a ledger, and those from the origin."""
    op, source, outcome, epochs, size = ledger.columns(batch, "op", "source", "outcome", "epoch", "bytes")
    read = (op == "read") & (outcome == "ok")
    if epoch is not None:
        read &= epochs == epoch
    return int(size[read].sum()), int(size[read & (source == "origin")].sum())
