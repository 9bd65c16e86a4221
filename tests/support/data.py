# SPDX-License-Identifier: Apache-2.0
"""Data sets whose bytes are computed from the sample's id, and the expected batches."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import foresee

CLASSES = ("ant", "bee", "cat")


def content(sample: int, size: int) -> bytes:
    """Return the random bytes of a sample."""
    return np.random.default_rng(sample).bytes(size)


def make_folder(root: pathlib.Path, sizes: Sequence[int]) -> pathlib.Path:
    """Write a .jpg per size into three class folders, so that sample i has the i-th size."""
    for sample, size in enumerate(sizes):
        path = root / key(sample, len(sizes))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(sample, size))
    return root


def key(sample: int, samples: int) -> str:
    """Return the key of a sample in the folder of `make_folder`."""
    return f"{CLASSES[sample * len(CLASSES) // samples]}/{sample:05}.jpg"


def epoch(loader: Iterable[foresee.Batch]) -> list[tuple[int, bytes]]:
    """Return (sample, bytes) of one epoch, in order."""
    return [
        (int(batch.ids[place]), bytes(batch.sample(place))) for batch in loader for place in range(len(batch))
    ]


def assert_exact(samples: Sequence[tuple[int, bytes]], sizes: Sequence[int]) -> None:
    """Assert that every sample has the bytes of its id."""
    for sample, data in samples:
        assert data == content(sample, sizes[sample]), f"sample {sample} has other bytes"


def digest(value: Any) -> str:
    """Return a digest of bytes, arrays, tensors and nested sequences of them, in order."""
    state = hashlib.blake2b(digest_size=16)
    _add(state, value)
    return state.hexdigest()


def _add(state: hashlib.blake2b, value: Any) -> None:
    if isinstance(value, (list, tuple)):
        state.update(f"{len(value)}:".encode())
        for part in value:
            _add(state, part)
        return
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        state.update(f"{value.dtype}{value.shape}".encode())
        value = np.ascontiguousarray(value).tobytes()
    state.update(value if isinstance(value, bytes) else repr(value).encode())
