# SPDX-License-Identifier: Apache-2.0
"""Proof of work: what an epoch must deliver, and whether a rank delivered it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from common.samples import key

#: Ids of samples, or their CRC-32.
U64 = NDArray[np.uint64]


class Epoch(Protocol):
    """What a rank delivered in one pass."""

    samples: int
    bytes: int
    #: CRC-32 of the sequence of the samples' numbers, each with 8 bytes.
    order: int
    #: Sum of the CRC-32 of each sample, modulo 2^64.
    checksum: int


def checksums(folder: Path, samples: int) -> U64:
    """Return the CRC-32 of each sample, read from its file."""
    return np.array([zlib.crc32((folder / key(sample)).read_bytes()) for sample in range(samples)], np.uint64)


def order_checksum(ids: U64, before: int = 0) -> int:
    """Return the CRC-32 of a sequence of ids, continued from that of the ids before."""
    return zlib.crc32(ids.astype("<u8").tobytes(), before)


def fault(epoch: Epoch, ids: U64, crcs: U64, sample_bytes: int) -> str:
    """Return how an epoch differs from what it must deliver; empty if it does not.

    Args:
        epoch: what a rank delivered.
        ids: the samples, in the order of delivery.
        crcs: CRC-32 of each sample of the data set.
        sample_bytes: bytes of each sample.
    """
    expected = {
        "samples": len(ids),
        "bytes": len(ids) * sample_bytes,
        "order": order_checksum(ids),
        "checksum": int(crcs[ids].sum(dtype=np.uint64)),
    }
    for name, value in expected.items():
        found = getattr(epoch, name)
        if found != value:
            return f"{name} {found}, expected {value}"
    return ""


def void(
    results: Sequence[Sequence[Epoch]], orders: Sequence[Sequence[U64]], crcs: U64, sample_bytes: int
) -> str:
    """Return why a run is void; empty if all epochs of all ranks delivered what they must.

    Args:
        results: the epochs of each rank.
        orders: the ids of each epoch of each rank.
        crcs: CRC-32 of each sample of the data set.
        sample_bytes: bytes of each sample.
    """
    for rank, (epochs, expected) in enumerate(zip(results, orders, strict=True)):
        if len(epochs) != len(expected):
            return f"rank {rank} had {len(epochs)} epochs, expected {len(expected)}"
        for number, (epoch, ids) in enumerate(zip(epochs, expected, strict=True)):
            if why := fault(epoch, ids, crcs, sample_bytes):
                return f"rank {rank}, epoch {number}: {why}"
    return ""


def orders(samples: int, *, ranks: int, rank: int, seed: int, epochs: int) -> list[U64]:
    """Return the ids of each epoch of a rank, in torch's order."""
    # A table needs no torch.
    from torch.utils.data import DistributedSampler

    sampler: DistributedSampler[Any] = DistributedSampler(
        range(samples),  # type: ignore[arg-type]
        num_replicas=ranks,
        rank=rank,
        seed=seed,
    )
    found = []
    for number in range(epochs):
        sampler.set_epoch(number)
        found.append(np.array(list(sampler), np.uint64))
    return found
