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

__all__ = [
    "Batch",
    "Cache",
    "Index",
    "Loader",
    "__version__",
    "order_audit_expected",
    "order_audit_sum",
    "order_distributed",
    "order_keyed",
    "order_keyed_inverse",
    "order_loader",
    "order_random",
    "order_randperm",
    "order_seedable_shard",
]

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
        """Write to ``path``: a temporary file first, then a rename, so a reader never sees half an index.

        However it came to be: an index that was opened from ``path`` stays whole, too.

        Raises:
            OSError: the file cannot be written.
        """

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

    def __new__(cls, *, ram_bytes: int, disk_dir: str | None, disk_bytes: int) -> Cache:
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

    def __new__(
        cls,
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
        listed: bool,
    ) -> Loader:
        """Check and keep the configuration; no thread, file or connection yet.

        ``uri``: where the index's objects lie now (with ``options``; the index itself keeps no secrets).
        ``order``: a run's order, known for ever:
        ``{"name": "torch.distributed", "seed": int, "shuffle": bool, "drop_last": bool}``,
        ``{"name": "sequential"}``, ``{"name": "keyed-1", "seed": int}`` or ``{"name": "accelerate.seedable",
        "seed": int, "batch_size": int, "even_batches": bool}``; None: each epoch is announced. ``epochs``: None if
        nobody knows. ``staging_bytes``: None for min(2 GB, 8 batches). ``run_dir``: where the ledger goes.
        ``listed``: the origin has just been listed, so that nobody asks it again whether it can be reached.

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

def order_randperm(n: int, seed: int) -> NDArray[np.uint32] | NDArray[np.uint64]:
    """``torch.randperm(n, generator=torch.Generator().manual_seed(seed))``, bit for bit."""

def order_distributed(
    n: int,
    world_size: int,
    rank: int,
    *,
    seed: int = ...,
    epoch: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    start: int = 0,
) -> NDArray[np.uint32] | NDArray[np.uint64]:
    """One rank's indices of ``torch.utils.data.DistributedSampler``; from global position ``start`` on, padded or
    cut anew."""

def order_seedable_shard(
    n: int,
    world_size: int,
    rank: int,
    batch_size: int,
    *,
    seed: int = ...,
    epoch: int = 0,
    drop_last: bool = False,
    even_batches: bool = True,
    start: int = 0,
) -> NDArray[np.uint32] | NDArray[np.uint64]:
    """One rank's indices under Accelerate's ``SeedableRandomSampler`` and ``BatchSamplerShard``, batch after batch."""

def order_random(
    n: int,
    state: bytes,
    *,
    replacement: bool = False,
    num_samples: int | None = None,
    taken: int | None = None,
) -> tuple[NDArray[np.uint32] | NDArray[np.uint64], bytes]:
    """One epoch of ``RandomSampler(generator=g)``, ``state`` being ``g.get_state()``: indices, and the state after.

    ``taken``: how many samples are asked for; None runs to the end, which draws one permutation more.
    """

def order_loader(
    n: int,
    state: bytes,
    epochs: Iterable[int | None],
    *,
    batch_size: int = 1,
    drop_last: bool = False,
    replacement: bool = False,
    num_samples: int | None = None,
    generator_given: bool = True,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    persistent_workers: bool = False,
) -> tuple[list[tuple[int | None, NDArray[np.uint32] | NDArray[np.uint64]]], bytes]:
    """Epochs of a shuffling ``DataLoader``: for each its ``base_seed`` and indices; then the generator's state.

    ``epochs``: of each how many batches are taken, or None for all of them and the end. ``state``: of
    ``generator=``, or with ``generator_given=False`` of torch's default generator.
    """

def order_keyed(n: int, seed: int, epoch: int, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The samples at ``positions`` (each below ``n``) of the ``keyed-1`` order."""

def order_keyed_inverse(n: int, seed: int, epoch: int, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The positions of ``ids`` in the ``keyed-1`` order."""

def order_audit_sum(seed: int, epoch: int, positions: NDArray[np.uint64], ids: NDArray[np.uint64]) -> int:
    """Sum modulo 2**128 of the ``audit-1`` hashes of ``ids`` handed out at global ``positions`` of ``epoch``."""

def order_audit_expected(
    n: int,
    world_size: int,
    *,
    seed: int = ...,
    epoch: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    start: int = 0,
) -> int:
    """What ``order_audit_sum`` gives over all ranks of a ``DistributedSampler`` epoch, from ``start`` to its end."""
