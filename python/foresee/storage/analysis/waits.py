# SPDX-License-Identifier: Apache-2.0
"""Waits of training loops from the ledgers of a run folder: seconds by rank and cause."""

from __future__ import annotations

import os
from collections import defaultdict

from foresee.storage.analysis import ledger

__all__ = ["read"]


def read(folder: str | os.PathLike[str], *, epoch: int | None = None) -> dict[str, dict[str, float]]:
    """Return the seconds that training loops waited, by rank and cause, the longest cause first.

    Ranks without waits are omitted. All loaders of a rank are added. Waits for gradients are left out.

    Args:
        folder: with ``ledger/rank-K.arrow`` in it.
        epoch: only waits for batches of this epoch, from 0; None: all.

    Raises:
        ConfigError: no ledger there, not one of Foresee, or of another version.
        PackageMissing: pyarrow is not installed.
        OSError: a file cannot be read.
    """
    spent: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for path, rank in ledger.files(folder):
        for batch in ledger.batches(path):
            if batch is None:
                continue
            op, subject, cause, epochs, duration = ledger.columns(
                batch, "op", "subject", "cause", "epoch", "duration_ns"
            )
            which = (op == "wait") & (subject == "batch")
            if epoch is not None:
                which &= epochs == epoch
            for word in set(cause[which].tolist()):
                spent[rank][word] += float(duration[which & (cause == word)].sum()) / 1e9
    return {
        f"rank {rank}": dict(sorted(causes.items(), key=lambda each: -each[1]))
        for rank, causes in sorted(spent.items())
    }
