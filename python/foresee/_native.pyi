# SPDX-License-Identifier: Apache-2.0
"""The Rust core as Python sees it: thin classes, plain values, no policy.

Users import :mod:`foresee` and :mod:`foresee.torch`; this module is theirs to know, not to call.
Every call that may wait releases the interpreter.
"""

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__version__: str

@final
class Index:
    """What a data set consists of: one entry per sample, memory-mapped, immutable."""

    @staticmethod
    def open(path: str | PathLike[str]) -> Index:
        """Map an index file (``.fidx``) in O(1), however many samples it lists.

        Raises:
            IndexInvalid: not an index, truncated, corrupted, or of a newer version.
            FileNotFoundError: no such file.
        """

    @staticmethod
    def build(
        uri: str,
        *,
        layout: str,
        extensions: Iterable[str] | None = None,
        row_bytes: int | None = None,
        keys: Iterable[bytes] | None = None,
        options: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Index:
        """List ``uri`` once, in parallel, and index it in memory.

        ``layout``: ``folder``, ``flat``, ``npy`` or ``bin`` (``row_bytes`` needed, 1 or more). ``extensions``:
        of ``folder``; None means torchvision's picture extensions. ``keys``: objects below ``uri`` where the
        origin has no listing (plain HTTP). ``options``: storage options of the origin, never kept.
        ``progress``: called at most ten times a second with (objects, bytes) seen so far; what it raises,
        KeyboardInterrupt too, stops the listing.

        Raises:
            OriginError: the origin cannot be reached or listed; the message names URI and remedy.
            IndexInvalid: no samples, duplicate or escaping keys, a malformed header; the message names the URI.
        """

    def save(self, path: str | PathLike[str]) -> None:
        """Write to ``path``: a temporary file first, then a rename, so a reader never sees half an index."""

    def update(self, other: Index) -> dict[str, int]:
        """Count what is ``added``, ``removed``, ``changed`` and ``kept`` in ``other``, a newer listing."""

    def __len__(self) -> int: ...
    @property
    def uri(self) -> str:
        """Base URI, without credentials or presigned parts."""
    @property
    def layout(self) -> str: ...
    @property
    def fingerprint(self) -> str:
        """Identity of the content as listed, 32 hexadecimal digits."""
    @property
    def classes(self) -> list[str]:
        """Class names in label order; empty where the layout has none."""
    @property
    def uniform_size(self) -> int | None:
        """Bytes of every sample if all have the same, else None."""
    @property
    def max_size(self) -> int:
        """Bytes of the largest sample."""
    @property
    def total_bytes(self) -> int: ...
    @property
    def row_dtype(self) -> str | None:
        """NumPy dtype string of one row (``npy``), else None."""
    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of one row (``npy``), else None."""
    def sample_uri(self, sample: int) -> str:
        """URI of a sample's object, for messages."""
    def key(self, sample: int) -> bytes: ...
    def size(self, sample: int) -> int: ...
    def label(self, sample: int) -> int | None: ...
    def labels(self) -> NDArray[np.int64]:
        """Shape (samples,); -1 where a sample has no label. A copy."""
    def describe(self, limit: int) -> dict[str, Any]:
        """The index as plain values, with its first ``limit`` samples."""

@final
class Cache:
    """Memory and disk that the loaders of one process share."""

    def __init__(self, *, ram_bytes: int, disk_dir: str | None, disk_bytes: int) -> None:
        """``ram_bytes``: 0 or more, everything the loaders may use (slab, staging, tables). ``disk_dir``: None
        for no disk tier; made if missing, mode 0700. ``disk_bytes``: 0 or more. Nothing is allocated yet.

        Raises:
            ValueError: ``ram_bytes`` above the memory limit of this process (cgroup or machine); shows both.
        """

@final
class Batch:
    """One step's samples of this rank, in order.

    The memory is the batch's own until it and all arrays of it are gone; then the loader uses it again.
    """

    @property
    def data(self) -> NDArray[np.uint8]:
        """Shape (bytes,): the samples one after another. Writable: the batch is the caller's."""
    @property
    def offsets(self) -> NDArray[np.int64]:
        """Shape (samples + 1,): sample i is ``data[offsets[i]:offsets[i + 1]]``."""
    @property
    def ids(self) -> NDArray[np.int64]:
        """Shape (samples,)."""
    @property
    def labels(self) -> NDArray[np.int64]:
        """Shape (samples,); -1 where there is none."""
    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> int:
        """Counted from where this epoch began or was resumed."""
    @property
    def start(self) -> int:
        """Position of the batch's first sample within this rank's epoch (from where it began or was resumed)."""
    @property
    def last(self) -> bool:
        """Whether the epoch ends after it."""
    @property
    def faults(self) -> list[tuple[int, str, str, bool]]:
        """Samples that could not be read: (place in the batch, kind, message, permanent). Their bytes are zero.

        ``kind``: ``missing``, ``changed``, ``denied``, ``corrupt``, ``timeout`` or ``failed``.
        """
    def __len__(self) -> int: ...

@final
class Loader:
    """The engine of one rank: threads that follow the plan and stage batches in consumption order."""

    def __init__(
        self,
        index: Index,
        cache: Cache,
        *,
        uri: str,
        options: Mapping[str, str],
        batch_size: int,
        drop_last: bool,
        order: Mapping[str, Any] | None,
        epochs: int | None,
        rank: int,
        world_size: int,
        local_rank: int,
        local_world_size: int,
        staging_bytes: int | None,
        threads: int | None,
        run_dir: str | None,
    ) -> None:
        """Check and keep the configuration; no thread, file or connection yet.

        ``uri``: where the index's objects lie now (with ``options``; the index itself keeps no secrets).
        ``order``: a run's order, known for ever:
        ``{"name": "torch.distributed", "seed": int, "shuffle": bool, "drop_last": bool}``,
        ``{"name": "sequential"}``, ``{"name": "keyed-1", "seed": int}`` or ``{"name": "accelerate.seedable",
        "seed": int, "batch_size": int, "even_batches": bool}``; None: each epoch is announced. ``epochs``: None if
        nobody knows. ``staging_bytes``: None for min(2 GB, 8 batches). ``run_dir``: where the ledger goes.

        Raises:
            ValueError: every wrong value at once, each with its remedy.
        """

    def start(self) -> None:
        """Open tiers and threads; idempotent. The first ``seek`` or ``next_batch`` does it too.

        Raises:
            OriginError: the origin cannot be reached, or refuses the credentials.
            CacheError: the cache directory cannot be used; the message names it and the remedy.
        """

    def seek(self, epoch: int, position: int) -> None:
        """Go on at global ``position`` (0 to n) of ``epoch``. What is staged and still fits is kept, all else is
        cancelled; returns at once."""

    def announce(self, epoch: int, ids: NDArray[np.int64], lengths: NDArray[np.int64] | None) -> None:
        """Tell this rank's samples of ``epoch``, in order, when ``order`` is None. ``lengths``: samples of each
        batch; None cuts by ``batch_size``."""

    def next_batch(self, *, timeout_ms: int | None = None) -> Batch | None:
        """Wait for the next batch; None when the current epoch has no more (call again for the next epoch).

        Blocks with the interpreter released; Ctrl-C and ``close()`` end the wait.

        Raises:
            StallTimeout: ``timeout_ms`` (1 or more) passed; the batch is still coming, call again.
            Closed: another thread called ``close()``.
        """

    def read(self, sample: int) -> bytes:
        """One sample from the origin, past plan and caches; waits."""

    def steps(self, position: int) -> int:
        """Steps this rank still has in an epoch resumed at ``position`` (run orders only)."""

    def stats(self) -> dict[str, Any]:
        """Counters since ``start``, plain values: bytes and samples by source, waits by cause, queues, retries.

        A figure that was not measured is None, never 0.
        """

    def close(self) -> None:
        """Stop: cancel, flush the disk tier's manifest, join threads within a bound. Idempotent, any thread."""

def order_randperm(n: int, seed: int) -> NDArray[np.int64]:
    """``torch.randperm(n, generator=torch.Generator().manual_seed(seed))``, bit for bit."""

def order_distributed_indices(
    n: int, *, world_size: int, rank: int, seed: int, epoch: int, shuffle: bool, drop_last: bool, position: int = 0
) -> NDArray[np.int64]:
    """The indices of ``torch.utils.data.DistributedSampler``; from global ``position`` on, padded or cut anew."""

def order_indices(
    order: Mapping[str, Any], n: int, *, epoch: int, position: int, world_size: int, rank: int
) -> NDArray[np.int64]:
    """This rank's samples of ``epoch`` from global ``position`` on, padded or cut anew: what a ``Loader`` with
    this ``order`` hands out there."""

def order_audit_sum(order: Mapping[str, Any], n: int, *, epoch: int, start: int, stop: int) -> int:
    """Sum modulo 2**128 of ``audit-1`` hashes over global positions ``start`` to ``stop`` of ``epoch``."""

def order_audit_of(seed: int, epoch: int, positions: NDArray[np.int64], ids: NDArray[np.int64]) -> int:
    """Sum modulo 2**128 of ``audit-1`` hashes of what a rank has handed out."""
