# SPDX-License-Identifier: Apache-2.0
"""The Rust core as Python sees it: thin classes, plain values, no policy.

Users call :mod:`foresee` and :mod:`foresee.torch`, which use this module.
Every call that may wait releases the interpreter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "IS_CHECKED",
    "LOADING_POLICIES",
    "TIMELINE_KINDS",
    "Batch",
    "Cache",
    "CacheDirectory",
    "CredentialReply",
    "GradientExchange",
    "GradientLeader",
    "GradientNode",
    "GradientServer",
    "Index",
    "LedgerFile",
    "Loader",
    "LoadingRun",
    "NetworkStep",
    "NodeHost",
    "Recorder",
    "SampleCache",
    "SampleCacheClient",
    "SampleFiles",
    "Trial",
    "__version__",
    "close_listings",
    "gradient_packet_bytes",
    "is_on_nfs",
    "jobs_simulate",
    "links_answer",
    "links_measure",
    "network_goodput",
    "network_packet_delay",
    "network_servers",
    "node_status",
    "order_audit_expected",
    "order_audit_sum",
    "order_distributed",
    "order_keyed",
    "order_keyed_inverse",
    "order_loader",
    "order_random",
    "order_randperm",
    "order_seedable_shard",
    "order_substitutes",
    "reads_above",
    "reads_counted",
    "reads_drawn",
    "reads_expected",
    "share_listing",
]

__version__: str
IS_CHECKED: bool
"""Whether arithmetic and assertions are checked, as in a build for development; such a build is slower."""

@final
class Index:
    """The index of a data set: one entry per sample, memory-mapped, immutable."""

    @staticmethod
    def open(path: str | PathLike[str]) -> Index:
        """Map an index file (``.fidx``) in O(1), however many samples it lists. ``~`` is the home directory.

        Raises:
            ConfigError: ``path`` is no path.
            IndexInvalid: not an index, truncated, corrupted, or of a newer version.
            FileNotFoundError: no such file.
        """

    @staticmethod
    def build(
        uri: str,
        *,
        layout: str,
        or_flat: bool = False,
        extensions: Sequence[str] | None = None,
        allow_empty: bool = False,
        row_bytes: int | None = None,
        keys: Sequence[bytes] | None = None,
        exclude: Sequence[bytes] | None = None,
        options: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Index:
        """List ``uri`` once, in parallel, and index it in memory.

        ``layout``: ``folder``, ``flat``, ``npy`` or ``bin`` (``row_bytes`` needed, 1 or more).
        ``or_flat``: ``folder`` without class folders is ``flat``. ``extensions``:
        those of a ``folder``; None: torchvision's picture extensions. ``allow_empty``: a class folder may have no
        sample. ``keys``: objects below ``uri`` where the origin has no listing (plain HTTP). ``exclude``: patterns of
        files and folders to leave out, such as ``b"*.tmp"`` or ``b"train/old/"``. ``options``: storage options of the
        origin, never stored. ``progress``: called at most ten times a second with the (objects, bytes) found so far;
        its exceptions, also KeyboardInterrupt, stop the listing. A file, link or key that cannot be read is left out,
        unless it would be a sample.

        Raises:
            ConfigError: an argument is wrong.
            OriginError: the origin cannot be reached or listed; the message names URI and remedy.
            IndexInvalid: no samples, duplicate or escaping keys, a malformed header; the message names the URI.
        """

    @staticmethod
    def table(
        columns: list[tuple[str, list[str]]],
        *,
        root: str,
        sizes: list[NDArray[np.int64] | None],
        allow_missing: bool = False,
        options: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Index:
        """Index the rows of a table, in their order, in memory.

        ``columns``: a name for messages and a path or URI per row, for each object of a sample. ``root``: absolute
        path or URI that relative rows are below. ``sizes``: sizes in bytes for each column, or None to
        request them: of files on several threads, of a bucket by a listing if that takes fewer requests.
        ``allow_missing``: an object that cannot be read stays, as one byte.

        Raises:
            ConfigError: a row names no object, or one in another store than the first; the message has its number.
            OriginMissing: objects cannot be read; the message has the first rows and the number of rows.
            OriginError: the origin cannot be reached.
        """

    @staticmethod
    def windows(
        uri: str | None,
        files: tuple[str, list[str]] | None,
        *,
        root: str,
        dtype: str,
        item_bytes: int,
        length: int,
        stride: int,
        drop_tail: bool,
        exclude: Sequence[bytes] | None = None,
        options: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> tuple[Index, int, int]:
        """Index windows of ``length`` elements, ``stride`` apart.

        Returns the index, the elements at ends of files that no window contains, and the number of these files.

        ``uri``: directory or prefix of ``.npy`` and ``.bin`` files, or None: ``files``, as a column of ``table``.
        ``dtype``: as NumPy writes it, of ``item_bytes`` bytes; empty: that of the first ``.npy`` file.

        Raises:
            ConfigError: ``dtype`` is missing, or a file is named wrongly.
            IndexInvalid: every file is shorter than a window, or one is no array of one axis and this type.
            OriginError: a file cannot be read.
        """

    def save(self, path: str | PathLike[str]) -> None:
        """Write to ``path``: a temporary file first, then a rename, so a reader never sees half an index.

        An index that was opened from ``path`` stays valid. An index of selected samples writes the data set that they
        are selected from.

        Raises:
            OSError: the file cannot be written.
        """

    def select(self, samples: NDArray[np.int64]) -> Index:
        """Return some of the samples: sample ``k`` is sample ``samples[k]`` of this index. Shares its memory.

        ``samples``: shape (number of samples,), 0 to ``len - 1`` each, with repetitions.

        Raises:
            ConfigError: no samples, or one that this index does not have.
        """

    def update(self, other: Index) -> dict[str, int]:
        """Count the samples ``added``, ``removed``, ``changed`` and ``kept`` in ``other``, a newer listing."""

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
        """Class names in label order, decoded by ``os.fsdecode``; empty for layouts without classes."""
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
        """NumPy dtype string of one row (``npy``, ``windows``), else None."""
    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of one row (``npy``, ``windows``), else None."""
    @property
    def outside(self) -> int:
        """Files next to class folders that would be samples in one; 0 for an index that was opened from a file."""
    @property
    def stride(self) -> int | None:
        """Elements from the start of a window to the next (``windows``), else None."""
    @property
    def drop_tail(self) -> bool | None:
        """Whether elements at a file's end are in no window (``windows``), else None."""
    @property
    def parts(self) -> int:
        """Objects per sample: 1, or the number of a table's columns of objects."""
    def part_sizes(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of each object of ``samples``, shape (samples, parts)."""
    def sample_uri(self, sample: int, *, base: str | None = None, part: int = 0) -> str:
        """Return the URI of an object of a sample, for messages; ``base``: URI of a moved data set."""
    def key(self, sample: int, *, part: int = 0) -> bytes: ...
    def size(self, sample: int) -> int: ...
    def label(self, sample: int) -> int | None:
        """Return the class of a sample; in a table its row number, which identifies its target; None without either."""
    def labels(self) -> NDArray[np.int64]:
        """Return the labels, shape (samples,); -1 for a sample without label. A copy."""
    def describe(self, limit: int) -> dict[str, Any]:
        """Return the index as plain values, with its first ``limit`` samples."""

@final
class Cache:
    """Memory and disk that the loaders of one process share."""

    def __new__(cls, *, ram_bytes: int, disk_dir: str | None, disk_bytes: int) -> Cache:
        """``ram_bytes``: 0 or more, memory of all loaders (slab, staging, tables). ``disk_dir``: None
        for no disk tier; created if missing, mode 0700. ``disk_bytes``: 0 or more. Nothing is allocated yet.

        Raises:
            ValueError: ``ram_bytes`` above the memory limit of this process (cgroup or host); shows both.
        """

@final
class Batch:
    """One step's samples of this rank, in order.

    The batch owns its memory. The loader reuses it after the batch and all its arrays are gone.
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
        """Shape (samples,); -1 for a sample without label."""
    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> int:
        """Number of the step, counted from the start or resumption of this epoch."""
    @property
    def start(self) -> int:
        """Position of the batch's first sample within this rank's epoch, from its start or resumption."""
    @property
    def last(self) -> bool:
        """Whether it is the last batch of the epoch."""
    @property
    def faults(self) -> list[tuple[int, str, str, bool]]:
        """Samples that could not be read: (index in the batch, kind, message, permanent). Their bytes are zero.

        ``kind``: ``missing``, ``changed``, ``denied``, ``corrupt``, ``timeout`` or ``failed``.
        """
    @property
    def turns(self) -> list[tuple[str, int]]:
        """Stages of a batch that the loop waited for: causes, each with its start in nanoseconds of ``Loader.now``."""
    def __len__(self) -> int: ...

@final
class CacheDirectory:
    """An existing directory of a disk cache (``docs/formats/disk-cache.md``): lists, verifies and deletes partitions.

    No link below the directory is followed, and files that the format does not know are never deleted.
    """

    def __new__(cls, path: str | PathLike[str]) -> CacheDirectory:
        """Open ``path`` and create nothing.

        Raises:
            CacheError: it is missing or unreadable, or another user may have planted a folder in it.
        """

    def content(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the partitions, and a message per link or folder of another user. Reads no segment.

        A partition has ``source`` and ``partition`` (names of folders), ``version`` (2, or 1, which is never read),
        ``disk_bytes``, ``last_used`` (seconds since 1970; 0: unknown), ``declared_bytes`` (capacity that its last
        process declared, or None), ``entries`` and ``entry_bytes`` (None without a manifest: in use, after a crash, or
        version 1), ``in_use``, and ``process`` (id, or None).

        Raises:
            CacheError: another process holds the directory's lock for more than 10 s.
        """

    def verify(
        self, source: str, partition: str, *, progress: Callable[[int, int], object] | None = None
    ) -> dict[str, Any]:
        """Read and check each entry of a partition of version 2; change nothing.

        ``progress``: called about every 100 ms with the entries and payload bytes read so far. Ctrl-C ends it. The
        partition is locked meanwhile, so a process that starts uses another one.

        Returns ``entries``, ``entry_bytes``, ``corrupt`` (segment, offset in bytes, size in bytes, and fault:
        ``header``, ``payload`` or the system's error), ``in_use`` and ``process``; not verified if ``in_use``.

        Raises:
            CacheError: there is no such partition, or another user may have planted a file in it.
        """

    def remove(self, source: str, partition: str) -> dict[str, Any]:
        """Delete a partition that no process uses; return ``freed_bytes``, ``in_use`` and ``process``.

        Raises:
            CacheError: a segment is a link or may belong to another user, and nothing was deleted; or another process
                holds the directory's lock for more than 10 s.
        """

def share_listing(key: bytes, build: Callable[[], tuple[Index, int, int]]) -> tuple[Index, int, int]:
    """Return the index that one rank of this node builds for all of its job that pass ``key``.

    ``key``: 16 bytes that identify the listing. ``build``: called if it is the turn of this rank, or where no rank can
    be asked; returns the index, and the numbers of elements and files outside of all windows. A rank whose ``build``
    raises gets the exception, and the ranks that wait build for themselves. Ctrl-C ends a wait.
    """

def close_listings() -> None:
    """Leave all listings at the end of the process. Its indexes stay usable."""

@final
class NodeHost:
    """The host of this node's cache as a service: it owns memory, disk cache and reads of the origin.

    ``foresee node`` is the command. A forked child must not use it; there it has no effect.
    """

    def __new__(
        cls,
        *,
        socket: str | PathLike[str] | None,
        ram_bytes: int,
        disk_dir: str | PathLike[str] | None,
        disk_bytes: int,
        allow_uids: Sequence[int],
    ) -> NodeHost:
        """Allocate the memory and listen. ``socket``: path, at most 107 bytes; None for that of the environment.

        ``ram_bytes``: 1 MiB or more, with the tables of the plan. ``disk_dir``: None for no disk cache; created
        when the first data set is opened. ``allow_uids``: users who may attach besides the own one, below 2**32.

        Raises:
            ValueError: the path is too long, or the environment forbids a cache of the node.
            OSError: another host has the socket, its directory is refused, or the memory is not available.
        """

    @property
    def socket(self) -> Path:
        """Absolute path of the socket."""

    def status(self) -> dict[str, Any]:
        """Return the state, as :func:`node_status` does."""

    def next_event(self) -> dict[str, Any] | None:
        """Wait up to 100 ms for the next event, and handle signals; None if there was none.

        An event has ``event`` (what happened), ``consumer`` (its number, or None) and further values as text.

        Raises:
            OSError: the host has ended, and all events were read.
        """

    def close(self) -> None:
        """Detach all consumers, finish writes to the disk (2 s at most) and remove the socket. Idempotent."""

def node_status(socket: str | PathLike[str] | None) -> dict[str, Any]:
    """Return the state of the host at ``socket``, by default at the path of the environment.

    ``foresee`` (version), ``pid``, ``uptime_seconds``; ``memory`` and ``disk`` with ``capacity_bytes`` and
    ``used_bytes``; ``origin`` since the start: ``requests`` and ``bytes``, ``retries`` (after faults), ``throttles``
    (refused for its load) and ``hedges`` (second attempts of late reads); ``peers``, None unless it exchanges samples
    with other nodes: ``received`` and ``sent`` with ``samples`` and ``bytes``, and reads for which another node had no
    sample (``missing``), was too slow (``late``), or was not connected (``silent``); ``omitted_consumers`` (a number),
    and ``consumers``: each has ``number``, ``pid`` (None if it is not visible to the host), ``uid``, ``job``, ``rank``,
    ``local_rank``, ``data_set`` (URI without credentials, or None), ``memory``, ``disk``, ``peers`` and ``origin`` with
    the ``samples`` and ``bytes`` of its answers, ``waiting`` (samples) and ``idle_ns`` (since its last message).

    Raises:
        ValueError: the path is too long, or the environment forbids a cache of the node.
        OSError: no host is there, it is another user's, or it does not answer within 10 s.
    """

@final
class CredentialReply:
    """Takes the first result of a request for credentials; see ``foresee._loading.credentials``."""

    def send(self, values: dict[str, str], expires: float | None) -> None:
        """Credentials by name, and the end of their validity in seconds since 1970."""

    def fail(self, cause: str) -> None:
        """Why there are none, with the remedy."""

@final
class Trial:
    """Measurement of memory, a disk or an origin in short repeats; see ``foresee.calibrate``."""

    @staticmethod
    def memory() -> Trial:
        """Memory: works ``copy``, ``checksum``, ``tier_read``, ``tier_small_read`` and ``tier_write``."""

    @staticmethod
    def disk(folder: str | PathLike[str], *, bytes_max: int, seconds: float) -> Trial:
        """The disk that ``folder`` is on: works ``read``, ``small_read``, ``cached_read`` and ``write``.

        Writes an unnamed file that exists as long as this object: at most ``bytes_max`` bytes and a quarter of the free
        space, at least 4 MiB, and no more than ``seconds`` allow. Ctrl-C ends it.

        Raises:
            CacheError: the folder is not writable or has too little space; the message names it and the remedy.
        """

    @staticmethod
    def origin(index: Index, uri: str, *, options: Mapping[str, str] | None = None) -> Trial:
        """The origin of ``index`` at ``uri``: works ``read``, ``small_read``, and of a directory ``cached_read``.

        Sends one small request. ``options``: storage options. Ctrl-C ends the wait.

        Raises:
            OriginError: it cannot be reached.
            IndexInvalid: all samples have 0 bytes.
        """

    def measure(self, work: str, *, threads: int, seconds: float) -> tuple[int, float, float]:
        """Run one repeat; return the bytes moved, its seconds, and the median seconds of one operation.

        ``threads``: 1 or more; for an origin, requests in flight. ``seconds``: 0 or more; every thread completes its
        last operation. Ctrl-C ends it.

        Raises:
            OriginError: a sample cannot be read.
            CacheError: the disk fails.
            ValueError: an unknown work, or an argument out of range.
        """

    def facts(self) -> dict[str, int | bool]:
        """Return facts of the place.

        Memory has ``pool_bytes`` to draw samples from. A disk has ``bytes`` of the file, ``free_bytes`` including it,
        ``direct`` (no page cache) and ``in_memory`` (no device). An origin has ``pages`` (it has a page cache) and
        ``in_memory``.
        """

    def samples(self, count: int, *, bytes_max: int) -> list[bytes]:
        """Return some samples of an origin, 16 MiB of each at most; none for memory and disks. Ctrl-C ends it."""

def links_answer(address: str, *, rank: int, world: int, secret: str, wait_s: float) -> None:
    """Answer rank 0 at ``address`` (``ip:port``) until its measurement ends; tries for ``wait_s`` to connect.

    Ctrl-C ends it.

    Raises:
        ForeseeError: rank 0 does not answer, or the link broke.
    """

def links_measure(
    address: str, *, world: int, secret: str, repeats: int, seconds: float, wait_s: float
) -> list[tuple[int, tuple[int, float, float], tuple[int, float, float]]]:
    """On rank 0, listen at ``address`` for all others for ``wait_s``, then measure link after link. Ctrl-C ends it.

    Returns for each repeat the other rank, bytes sent in ``seconds`` in the form of :meth:`Trial.measure`, and
    round trips of a small message in half the time, likewise.

    Raises:
        ForeseeError: ranks are missing, or a link broke.
    """

TIMELINE_KINDS: list[str]
"""Kinds of events of a timeline, by their numbers: ``pushed``, ``sent``, ``arrived``, ``summed``, ``landed``,
``waiting`` and ``resumed``."""

def is_on_nfs(path: str | PathLike[str]) -> bool:
    """Whether ``path``, or its nearest existing parent, is on NFS; False if the system does not tell."""

def gradient_packet_bytes(bytes_per_s: int) -> int:
    """Return the packet size in bytes for a link, 1408 to 523,776.

    It is the bytes of 0.23 ms, and of a longer time above 1 Gbit/s, in whole segments of 1408 bytes.
    """

@final
class Recorder:
    """Clock, waits and ledger of a loader whose samples come from Python."""

    def __new__(cls, rank: int) -> Recorder: ...
    def write_to(self, run_dir: str) -> None:
        """Write ``<run_dir>/ledger/rank-K.arrow`` from now on. Once.

        Raises:
            OSError: the file cannot be created.
        """

    def now(self) -> int:
        """Return the nanoseconds since its creation: the clock of its ledger."""

    def record_wait(
        self, epoch: int, step: int, samples: int, start: int, end: int, turns: list[tuple[str, int]]
    ) -> None:
        """As ``Loader.record_wait``."""

    def stats(self) -> dict[str, Any]:
        """``elapsed_s``, ``waits`` and ``ledger_lost``, as of ``Loader.stats``."""

    def close(self) -> None:
        """End the ledger file. Idempotent."""

@final
class SampleCache:
    """Encoded samples of a Python dataset, in the memory of its process. The dataset is read by its callers.

    In a forked child every method but ``close`` raises ``ForeseeError``.
    """

    def __new__(
        cls,
        *,
        capacity_bytes: int,
        reads_batches: bool = False,
        index: Index | None = None,
        has_peers: bool = False,
    ) -> SampleCache:
        """Create an empty cache.

        ``reads_batches``: announced samples are read together, in their order. ``index``: small neighbours in an object
        of this data set are read together instead; ``has_peers``: other processes read other samples of it.
        """

    @property
    def capacity_bytes(self) -> int: ...
    def attach(self, consumer: int, *, is_reading: bool) -> None:
        """Attach a consumer without accesses; ``is_reading``: whether it is known to request its samples here."""

    def detach(self, consumer: int) -> None:
        """End a consumer and its announcements."""

    def announce(self, consumer: int, samples: Sequence[int]) -> None:
        """Announce the next accesses of a consumer."""

    def expect(self, consumer: int, samples: NDArray[np.uint64]) -> None:
        """Further accesses that the consumer is expected to make."""

    def hand_out(self, consumer: int, count: int) -> None:
        """The consumer's first ``count`` announced accesses of all so far were handed out."""

    def request(self, sample: int) -> bytearray | None:
        """Return a copy of a sample's bytes, after a wait if it is being read.

        None: the caller reads it, and then calls ``insert`` or ``fail``.
        """

    def request_all(self, samples: Sequence[int]) -> tuple[list[bytearray | None], list[int]]:
        """Request several samples: return copies of those that are cached, and the samples that the caller reads.

        A copy is None for the others. The caller reads the samples of the second list, which may have neighbours of the
        requested ones, then calls ``insert_all``, or ``fail`` for each. After that it requests those that are in
        neither list: only then do they count as requests.
        """

    def insert_all(self, samples: Sequence[int], data: Sequence[bytes]) -> None:
        """Cache copies of the bytes of several samples that were read, as far as there is space."""

    def insert(self, sample: int, data: bytes) -> None:
        """Cache a copy of the bytes of a sample that was read, if there is space for it."""

    def note_disk_hit(self) -> None:
        """The sample that is inserted next was on the disk."""

    def fail(self, sample: int) -> None:
        """The read of a sample has failed."""

    def read_ahead(self, data: Loader, files: SampleFiles | None = None) -> None:
        """Read ahead on this thread until ``close``: from ``files``, or else from ``data``."""

    def next_fetch(self) -> list[int]:
        """Wait for the next samples to read ahead together; none after ``close``."""

    def outstanding(self, consumer: int) -> tuple[int, int] | None:
        """Accesses of a consumer that were handed out and not requested, and those passed over for good."""

    def mean_size(self) -> int | None:
        """Mean bytes of the samples read so far; None before the first."""

    def stats(self) -> dict[str, int]:
        """Counts since the start, over all processes; ``ft.CachedDataset.stats`` has their meaning."""

    def share(self, samples: int) -> Path:
        """Let worker processes use the cache, for a dataset of ``samples`` samples; return the path of its socket.

        A further call returns the same path. While worker processes are connected, they read ahead.

        Raises:
            OSError: the system refuses memory, a socket or a thread. The cache stays that of this process.
        """

    def close(self) -> None:
        """End the waits of ``next_fetch``, and the use by worker processes. Requests are still answered."""

@final
class SampleCacheClient:
    """The cache of another process, as a worker process uses it. After an error it behaves as an empty cache.

    In a forked child every method but ``close`` raises ``ForeseeError``.

    Raises:
        OSError: it cannot be used, for example because the dataset has another number of samples there.
    """

    def __new__(cls, path: str | PathLike[str], *, samples: int) -> SampleCacheClient: ...
    @property
    def fault(self) -> str | None:
        """Why the cache is of no use any more; None while it is."""

    def request(self, sample: int) -> bytearray | None:
        """Return a copy of a sample's bytes, after a wait if it is being read.

        None: the caller reads it, and then calls ``insert`` or ``fail``.
        """

    def request_all(self, samples: Sequence[int]) -> tuple[list[bytearray | None], list[int]]:
        """Request several samples: return copies of those that are cached, and the samples that the caller reads.

        A copy is None for the others. The caller reads the samples of the second list, which may have neighbours of the
        requested ones, then calls ``insert_all``, or ``fail`` for each. After that it requests those that are in
        neither list: only then do they count as requests.
        """

    def insert_all(self, samples: Sequence[int], data: Sequence[bytes]) -> None:
        """Cache copies of the bytes of several samples that were read, as far as there is space."""

    def insert(self, sample: int, data: bytes) -> None:
        """Cache a copy of the bytes of a sample that was read, if there is space for it."""

    def note_disk_hit(self) -> None:
        """The sample that is inserted next was on the disk."""

    def fail(self, sample: int) -> None:
        """The read of a sample has failed."""

    def read_ahead(self, data: Loader, files: SampleFiles | None = None) -> None:
        """Read ahead on this thread until ``close``, or the end of the host: from ``files``, or else from ``data``."""

    def next_fetch(self) -> list[int]:
        """Wait for the next samples to read ahead together; none after ``close``, or without a host."""

    def stats(self) -> dict[str, int]:
        """Counts since the start, over all processes; zeros without a host."""

    def close(self) -> None:
        """End the waits of ``next_fetch``."""

@final
class SampleFiles:
    """Encoded samples of a Python dataset under a key of the user, in a cache directory that processes share.

    In a forked child every method but ``close`` raises ``ForeseeError``.

    Args:
        directory: the cache directory, created if it is missing.
        capacity_bytes: maximum bytes of the directory, 1 MiB or more.
        key: the user's name of the data.
        variant: what has to be equal besides the key where bytes of samples are equal.
        samples: their number.

    Raises:
        CacheError: the directory or the capacity cannot be used.
    """

    def __new__(
        cls, directory: str | PathLike[str], *, capacity_bytes: int, key: str, variant: str, samples: int
    ) -> SampleFiles: ...
    @property
    def is_read_only(self) -> bool:
        """Whether the directory is read-only: nothing is added."""

    @property
    def fault(self) -> str | None:
        """The error after which nothing is added any more; None without one."""

    def get(self, sample: int) -> bytes | None:
        """Return the bytes of a sample; None if it is not there."""

    def insert(self, sample: int, data: bytes) -> None:
        """Add a sample that is not there, if there is space for it."""

    def close(self) -> None:
        """End the use of the files. From now on there are no samples, and none are added."""

@final
class LedgerFile:
    """A file ``rank-K.arrow`` of a run folder with the times of a rank's gradients or file reads.

    ``docs/formats/ledger.md`` describes it.
    """

    @staticmethod
    def create(folder: str, rank: int) -> LedgerFile:
        """Create a new file; none is overwritten.

        Raises:
            ConfigError: the folder cannot be written to.
        """

    def add(self, op: str, start_ns: int, duration_ns: int, step: int, tensor: int, nbytes: int) -> None:
        """Add an entry. Waits only while the disk is thousands of entries behind.

        Args:
            op: ``push``, ``pull`` or ``wait``.
            start_ns: on the file's clock.
            duration_ns: its duration.
            step: round, from 0.
            tensor: its number in the plan.
            nbytes: transferred bytes; 0 for a wait.
        """

    def add_files(
        self,
        op: str,
        source: str,
        epoch: int,
        start_ns: NDArray[np.uint64],
        duration_ns: NDArray[np.uint64],
        step: NDArray[np.uint64],
        sample: NDArray[np.uint64],
        nbytes: int,
    ) -> None:
        """Add an entry for each file that was opened, read or closed; contiguous arrays of one length.

        Args:
            op: ``open``, ``read`` or ``close``.
            source: ``origin`` or ``disk``.
            epoch: from 0.
            start_ns: on the file's clock.
            duration_ns: their durations.
            step: steps within the epoch.
            sample: ids.
            nbytes: bytes moved by each; 0 except for reads.
        """

    @property
    def lost(self) -> str | None:
        """Reason for which writing ended early; None: it did not."""

    def close(self) -> None:
        """Write the end of the file."""

@final
class GradientExchange:
    """One rank's exchange of gradients over servers; ``foresee.torch._exchange.GradientExchange`` is its protocol.

    Its threads send and receive, and every wait releases the interpreter. A failed exchange stays failed.
    """

    @staticmethod
    def open(
        servers: Sequence[str],
        *,
        job: str,
        rank: int,
        world: int,
        timeout_s: float,
        secret: str | None = None,
        secret_file: str | None = None,
        comm_dtype: str | None = None,
        policy: str = "foresee",
        tls: bool = False,
        packet_bytes: int | None = None,
        timeline: int = 0,
        colocated_server: GradientServer | None = None,
        recover: bool = True,
        continue_on_rank_loss: bool = False,
    ) -> GradientExchange:
        """Connect to every server. Blocks up to ``timeout_s``; Ctrl-C ends it.

        Args:
            servers: ``ip:port``, in the same order on every rank.
            job: 1 to 128 letters, digits and ``-_.:/``; the same on every rank.
            rank: below ``world``, which is 1 to 65535.
            world: ranks of the job.
            timeout_s: silence after which a server is lost, 0.01 to 86400.
            secret: 16 to 1024 bytes; None: from ``secret_file``, otherwise from ``FORESEE_TOKEN``.
            secret_file: a file that only its owner can read.
            comm_dtype: ``f32``, ``f16`` or ``bf16`` for 32-bit floats; None: unchanged.
            policy: as on the servers; a name, and settings that differ: ``partition,size=1000000,credit=4000000``.
            tls: encrypt; the secret authenticates the servers.
            packet_bytes: a multiple of 64; None: the size for 1 Gbit/s, and from the second plan on for the measured
                rate of rank 0's slowest interface.
            timeline: events to store between two calls of ``timeline()``, 40 bytes each; 0: none.
            colocated_server: the server of this process that is among ``servers``. Then the first ``world`` servers are
                colocated, one with each rank, by rank. The shares of all servers suit the links, and packets of this
                rank and its server leave in one order.
            recover: retain gradients until every rank has received everything of their round. Then broken connections
                are re-established, and a lost server may be replaced at its address within ``timeout_s``, with the same
                bits. A colocated server is not replaced.
            continue_on_rank_loss: continue without lost ranks, which takes the same memory: means are over the live
                ranks. The same on every rank; not with colocated servers.

        Raises:
            ConfigError: an argument is wrong, or the secret is not the server's.
            ServerLost: nothing listens there, or it refuses this rank.
        """

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def first(self) -> int:
        """The first remaining rank, as known here: it pushes the tensors that only one rank pushes."""

    def agree(
        self,
        tensors: Sequence[tuple[str, str, Sequence[int], Sequence[int], int, str]],
        *,
        limit_s: float | None = None,
    ) -> None:
        """Make these tensors the plan of all coming rounds.

        Blocks until every rank calls it; Ctrl-C ends it and the exchange.

        Args:
            tensors: name, dtype (as NumPy's, or ``bfloat16``), shape, strides in elements, class from 0 to 255, and
                ``mean`` or ``sum``. A mean is over all ranks, and may be sent with fewer bits. Calls identify a tensor
                by its position here.
            limit_s: seconds after which the wait for other ranks, and the exchange, end; None: no limit.

        Raises:
            ConfigError: ranks differ; names the first such tensor.
            TimeoutError: ``limit_s`` passed; names the ranks that the servers waited for.
        """

    def push(self, tensor_id: int, data_ptr: int, nbytes: int, keepalive: object) -> None:
        """Push a tensor of the present round. Never blocks.

        ``keepalive`` owns the ``nbytes`` bytes at ``data_ptr``, which must not change before the exchange releases it:
        in a later call, after they were sent, or with ``recover`` after every rank has received the round.
        """

    def end_round(self) -> int:
        """End the present round, and return its number in this plan.

        Blocks while the previous round is incomplete; it is complete if the caller has waited for all its tensors.
        """

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], object]) -> None:
        """Block until these were received, or pushed by no rank, in the round that ended last.

        ``on_interrupt`` is called every 0.1 s, after the signal handlers; exceptions of both are raised.

        Raises:
            RankLost: a rank is lost; the exchange ends.
            ServerLost: a server is lost and was not replaced; the exchange ends.
            Closed: ``close`` was called.
        """

    def count_received(self, ids: Sequence[int]) -> int:
        """Return how many of these, in their order, were received, or pushed by no rank, in the round that ended last.

        Does not block.
        """

    def wait_all(self, limit_s: float) -> bool:
        """Block until everything was received, or for ``limit_s``; returns whether it was. Raises as ``wait``."""

    def used(self, tensor_id: int) -> bool | None:
        """Whether any rank pushed it in the round that ended last; None while that is not known. Does not block."""

    def received(self, tensor_id: int) -> NDArray[np.uint8]:
        """Return the bytes of the average that was received last, without a copy. Does not block.

        Memory of the exchange, writable, alive as long as the array is; it changes after the tensor's next push.
        """

    def stats(self) -> dict[str, float]:
        """Return counters since the start; units are in the names. Does not block.

        ``servers_back``: replacements of lost servers; ``reconnects``: re-established connections; ``ranks_lost``:
        losses of ranks after which the others continued. The log has a line for each.
        """

    def timeline(self) -> tuple[dict[str, NDArray[Any]], int]:
        """Return the events since the last call, and the number of further events that did not fit. Does not block.

        Columns of one length: ``at_ns`` of the monotonic clock, ``kind`` (an index of :data:`TIMELINE_KINDS`),
        ``round``, ``tensor`` (its number in the plan that was agreed on), ``packet`` (-1: the whole tensor), ``peer``
        (the server; -1: none).
        """

    def tensors(self) -> list[tuple[str, int]]:
        """Return name and bytes on the wire of the tensors in the plan, by their numbers. Does not block."""

    def close(self) -> None:
        """Leave: a ``wait`` of another thread raises. A second call does nothing.

        Blocks up to 2 s; longer only if this rank has received everything while a server is being replaced, which may
        request it again.
        """

@final
class GradientNode:
    """Settings of the ranks of one node that exchange as one, equal on each of them. Linux only.

    Args:
        job: as for ``GradientExchange.open``, like all arguments without a description here.
        first: the node's first rank, whose process has its leader.
        local_world: ranks of the node: ``first`` to ``first + local_world - 1``.
        world: ranks of the job.
        timeout_s: silence after which another rank of the node is lost.
        secret: authenticates the ranks to each other and to the servers.
        secret_file: a file that only its owner can read.
        comm_dtype: the dtype between nodes.
        timeline: events to store.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __new__(
        cls,
        *,
        job: str,
        first: int,
        local_world: int,
        world: int,
        timeout_s: float,
        secret: str | None = None,
        secret_file: str | None = None,
        comm_dtype: str | None = None,
        timeline: int = 0,
    ) -> GradientNode: ...
    def listen(self) -> GradientLeader:
        """Listen for the ranks of this node, on the loopback interface. In the process of the first.

        Raises:
            ForeseeError: no free port.
        """

    def join(self, rank: int, address: str, *, leader: GradientLeader | None = None) -> GradientExchange:
        """Connect ``rank`` to the leader at ``address``. Blocks up to the timeout; Ctrl-C ends it.

        Args:
            rank: of this node.
            address: the leader's.
            leader: the leader, if it is in this process. It ends with the exchange, after the other ranks have left.

        Raises:
            ConfigError: the secret is not the leader's, or the rank not of this node.
            RankLost: nothing listens there.
        """

@final
class GradientLeader:
    """The exchange of a node whose ranks exchange as one, in the process of the first. Linux only.

    Its memory is shared and unnamed, and exists as long as a process maps it. It has two of each rank's gradients and
    one mean.
    """

    @property
    def address(self) -> str:
        """``ip:port``."""

    def connect(
        self,
        servers: Sequence[str],
        *,
        policy: str = "foresee",
        tls: bool = False,
        packet_bytes: int | None = None,
        colocated_server: GradientServer | None = None,
        recover: bool = True,
    ) -> None:
        """Connect to the servers, for all ranks of the node; once. Arguments as ``GradientExchange.open``.

        There is one colocated server per node, in its first rank's process.
        """

    def close(self) -> None:
        """End the exchange at once."""

@final
class GradientServer:
    """A gradient server; its threads run until it is closed or dropped."""

    @staticmethod
    def start(
        bind: str,
        *,
        timeout_s: float,
        early_buffer_bytes: int,
        secret: str | None = None,
        secret_file: str | None = None,
        policy: str = "foresee",
        tls_cert: str | None = None,
        tls_key: str | None = None,
        timeline: int = 0,
        colocated: bool = False,
    ) -> GradientServer:
        """Listen at ``bind``, ``ip:port``; port 0 selects a free port. Does not block.

        Args:
            bind: an address of this host.
            timeout_s: silence after which a rank is lost, 0.01 to 86400.
            early_buffer_bytes: per job, for contributions that wait for the turn of their rank.
            secret: as in ``GradientExchange.open``; likewise ``secret_file``.
            secret_file: see there.
            policy: order of results.
            tls_cert: certificates in PEM, with ``tls_key``.
            tls_key: the private key.
            timeline: as in ``GradientExchange.open``.
            colocated: a rank of this process uses it as its ``colocated_server``.

        Raises:
            ConfigError: an argument, the secret or a file is wrong.
            ForeseeError: the port is in use, or the address is not one of this host.
        """

    @property
    def address(self) -> str:
        """The actual ``ip:port``."""

    def stats(self) -> dict[str, Any]:
        """Return jobs with their connected ranks, and counters since the start. Does not block."""

    def timeline(self) -> tuple[dict[str, NDArray[Any]], int]:
        """As for a rank, over all jobs; ``peer`` is the rank that sent a packet."""

    def close(self) -> None:
        """End every job with a reason for each rank, and stop listening. Blocks for seconds at most."""

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
        avoid: list[int] = ...,
        node: tuple[str, str] | None = None,
        peers: bool = False,
    ) -> Loader:
        """Check and store the configuration; opens no thread, file or connection.

        ``uri``: present location of the index's objects (with ``options``; the index has no secrets).
        ``order``: the order of a run:
        ``{"name": "torch.distributed", "seed": int, "shuffle": bool, "drop_last": bool}``,
        ``{"name": "sequential"}``, ``{"name": "keyed-1", "seed": int}`` or ``{"name": "accelerate.seedable",
        "seed": int, "batch_size": int, "even_batches": bool}``; None: each epoch begins with its samples.
        ``epochs``: None if unknown. ``staging_bytes``: None for min(2 GB, 8 batches).
        ``run_dir``: folder of the ledger.
        ``listed``: the origin has just been listed, so it is reachable.
        ``node``: name of the job and version of the package, for the host of the node's cache; None: own caches only.
        ``peers``: the nodes of the job exchange samples; see ``peer_offer``. Without effect on a run without an order.
        ``avoid``: samples that the order replaces by substitutes; samples given to ``begin_epoch`` stay unchanged.

        Raises:
            ValueError: every wrong value at once, each with its remedy.
        """

    def start(self) -> None:
        """Open tiers and threads; idempotent. The first ``next_batch`` does it too.

        Raises:
            OriginError: the origin cannot be reached, or refuses the credentials.
            CacheError: the cache directory cannot be used; the message names it and the remedy.
        """

    def begin_epoch(
        self,
        epoch: int,
        position: int,
        order: tuple[NDArray[np.int64], NDArray[np.int64] | None] | None = None,
    ) -> None:
        """Continue at global ``position`` (0 to n) of ``epoch``; returns at once.

        A run with an order draws the epoch itself, and retains staged batches if they continue there. Any
        other run gets ``order``: this rank's samples from ``position`` on, and the samples of each batch (None cuts by
        ``batch_size``); nothing that was staged before is delivered after it.

        Raises:
            ConfigError: ``order`` is given to a run that has one, or is missing, or does not fit the data set.
        """

    def peer_offer(
        self, after: int | None, *, node: int, nodes: int, address: str, secret: str | None, timeout_ms: int
    ) -> tuple[str, int, bytes] | str:
        """Wait for the next offer of this node to the others of its job, after generation ``after``.

        Called in the process of each node's lowest local rank. A generation ends when the ranks continue elsewhere than
        planned.

        Args:
            after: the last generation that was offered; None: none.
            node: this node, from 0; ranks are numbered node by node, the same number on each.
            nodes: number of nodes.
            address: IP address at which the others reach this node.
            secret: of the job; None: that of ``FORESEE_TOKEN``.
            timeout_ms: maximum time of the call.

        Returns:
            Identity of the loader, equal on all nodes, generation, and bytes for ``join_peers`` of all nodes; or
            ``"waiting"``: call again; ``"not ready"``: call again after a pause; ``"closed"``, ``"not host"``: there
            will be none.

        Raises:
            ForeseeError: the address cannot be used, or the secret is missing.
        """

    def join_peers(self, offers: list[bytes]) -> None:
        """Exchange samples with the nodes that have made these offers, one of each node, in their order.

        Raises:
            ForeseeError: the nodes differ in what the message names, or the loader has continued elsewhere meanwhile.
        """

    def expect_no_peers(self) -> None:
        """Say that the nodes will not exchange samples, so that nothing waits for that any more."""

    def generation(self) -> int | None:
        """How often the loader has continued elsewhere than planned; None once it is closed."""

    def host_events(self) -> list[tuple[str, dict[str, str]]]:
        """Return and forget what has happened in the host of the node's cache, if that is in this process."""

    def next_batch(self, *, timeout_ms: int | None = None) -> Batch | None:
        """Wait for the next batch; None when the current epoch has no more (call again for the next epoch).

        Blocks with the interpreter released; Ctrl-C and ``close()`` end the wait.

        Raises:
            StallTimeout: ``timeout_ms`` (1 or more) passed; the batch is still in progress, call again.
            Closed: another thread called ``close()``.
        """

    def now(self) -> int:
        """Return the nanoseconds since the loader's creation: the clock of its ledger."""

    def turns(self) -> list[tuple[str, int]]:
        """As ``Batch.turns``, for a wait in ``next_batch`` that is in progress or ended without a batch."""

    def record_wait(
        self, epoch: int, step: int, samples: int, start: int, end: int, turns: list[tuple[str, int]]
    ) -> None:
        """Add a wait of the training loop, from ``start`` to ``end`` in nanoseconds of ``now``.

        ``turns``: stages of the batch that ended it, those of ``Batch.turns`` and later ones, in order.
        """

    def read(self, sample: int) -> bytes:
        """Read one sample from the origin, without plan and caches; waits."""

    def read_groups(self, samples: Sequence[int]) -> list[list[int]]:
        """Divide samples into those that are worth one read each, for ``read_all``: small neighbours in an object."""

    def read_all(self, samples: Sequence[int]) -> list[bytes]:
        """Read the samples of one of ``read_groups`` with one request, without plan and caches; waits."""

    def steps(self, position: int) -> int:
        """Return the remaining steps of this rank in an epoch resumed at ``position`` (run orders only)."""

    def first_in_flight(self) -> int:
        """Return the initial number of concurrent reads from the origin, 1 or more."""

    def stats(self) -> dict[str, Any]:
        """Return counters since ``start``: bytes and samples by source, waits by cause, queues, retries.

        ``node`` is that of ``BaseLoader.stats``; with a host in another process the call waits up to seconds for it.
        Missing values are None, never 0.
        """

    def close(self) -> None:
        """Stop: cancel, flush the disk tier's manifest, join threads within a bound. Idempotent, any thread."""

@final
class NetworkStep:
    """One training step whose gradients cross a network: ``foresee.network.model`` is its public interface.

    Layers in order of first use; seconds, bytes, bytes per second of one direction. ``policy``: ``oracle``,
    ``mercury``, ``barrier``, ``fifo_packet`` or ``fifo_tensor``. ``efficiency``: share of the link that gradients
    get, in (0, 1]. ``compat``: ``physical``, or ``paper`` for its equation (7).
    """

    def __new__(
        cls,
        sizes: NDArray[np.uint64],
        backward: NDArray[np.float64],
        forward: NDArray[np.float64],
        update: NDArray[np.float64],
    ) -> NetworkStep:
        """Check and copy the arrays; shape (layers,) each, contiguous.

        Raises:
            ConfigError: shapes differ, no layer, or a value outside its range; the message names its layer.
        """

    def __len__(self) -> int:
        """Layers."""
    @property
    def total_bytes(self) -> int:
        """Bytes of a step, pushed and again pulled."""
    @property
    def oracle(self) -> float:
        """Seconds of the step without a network."""

    def times(
        self,
        policies: Sequence[str],
        bandwidths: NDArray[np.float64],
        *,
        efficiency: float = 1.0,
        compat: str = "physical",
    ) -> NDArray[np.float64]:
        """Return the seconds of the step by closed form; shape (policies, bandwidths). ``bandwidths``: contiguous.

        Raises:
            ConfigError: no such policy or reading, or a value outside its range.
        """

    def timeline(
        self, policy: str, bandwidth: float, *, efficiency: float = 1.0, compat: str = "physical"
    ) -> dict[str, Any]:
        """Return the course of the step: ``t_iter``; ``backward``, ``push``, ``pull``, ``forward`` as arrays of shape
        (layers,); ``uplink`` and ``downlink`` as (layers, starts, ends), three arrays of shape (transfers,) each.

        Raises:
            ConfigError: as ``times``.
        """

    def required_bandwidth(
        self, policy: str, goal: float, *, efficiency: float = 1.0, compat: str = "physical"
    ) -> float | None:
        """Return the least bandwidth with the share ``goal`` of the speed; None if no bandwidth is enough.

        Raises:
            ConfigError: as ``times``.
        """

    def barrier_cost(self, bandwidth: float, *, efficiency: float = 1.0) -> float:
        """Return the seconds of ``barrier`` minus those of ``mercury``.

        Raises:
            ConfigError: a value outside its range.
        """

    def linear_scaling(self, ranks: int, batch: int) -> float:
        """Return the samples per second of ``ranks`` ranks that never wait; ``batch``: samples per rank and step."""

LOADING_POLICIES: Sequence[str]

@final
class LoadingRun:
    """One loading policy on one scenario in virtual time; ``foresee.planning.simulation`` is its public interface."""

    @staticmethod
    def begin(scenario: Mapping[str, Any], policy: str) -> LoadingRun | str:
        """Return the run at its start; a text if the policy does not support the scenario.

        Args:
            scenario: result of ``foresee.planning.simulation.scenario_of``, with every key.
            policy: one of ``LOADING_POLICIES``.

        Raises:
            ConfigError: all faults of the scenario.
        """

    def advance(self, steps: int) -> tuple[str, int, int]:
        """Advance by a part of the preparation, or by ``steps`` steps of training within an epoch, 1 or more.

        Releases the interpreter. Returns the stage (``preparing``, ``training`` or ``finished``), its completed amount
        and its total.
        """

    def write_to(self, folder: str | PathLike[str], memory: Sequence[bool]) -> None:
        """Write a ledger for each rank from now on; of the whole run if called before the first ``advance``.

        Args:
            folder: gets ``ledger/rank-K.arrow``.
            memory: by tier, whether it is memory; others are disks.

        Raises:
            OSError: the folder cannot be written to, or too many files are open.
        """

    def end_ledgers(self) -> None:
        """Write the rest of the ledgers, and stop writing. Idempotent.

        Raises:
            OSError: a ledger could not be written, now or before.
        """

    def report(self) -> dict[str, Any]:
        """Return the results so far, in seconds and bytes."""

def reads_above(
    ranks: int, epochs: int, samples: int, delta: str, *, compat: str = "physical"
) -> tuple[int, float]:
    """Return the least number of reads above ``(1 + delta)`` times the mean, and the expected number of samples that a
    rank reads at least so often.

    Raises:
        ConfigError: a count of 0, or a ``delta`` that is no number of 0 or more.
    """

def reads_expected(ranks: int, epochs: int, samples: int) -> NDArray[np.float64]:
    """Return the expected numbers of samples that a rank reads 0, 1, ... ``epochs`` times; shape (epochs + 1,)."""

def reads_counted(seed: int, ranks: int, epochs: int, samples: int, rank: int) -> NDArray[np.uint64]:
    """Return the numbers of samples that ``rank`` reads 0, 1, ... ``epochs`` times with ``seed``; shape (epochs + 1,).

    The order is ``DistributedSampler``'s, which distributes single samples, so the batch size does not matter; below
    2^16 epochs and 2^32 samples. Blocks with the interpreter released, some 10 ns per sample and epoch, and takes 10
    bytes per sample; Ctrl-C ends it between epochs.

    Raises:
        ConfigError: a count below 1, or a rank that is not one of ``ranks``.
        OverflowError: a number that is negative or too large.
    """

def reads_drawn(seed: int, ranks: int, epochs: int, samples: int) -> NDArray[np.uint64]:
    """Return the same for one random draw: in every epoch each sample goes to a rank with equal probability."""

def jobs_simulate(
    jobs: Sequence[tuple[int, int, int, list[int], int, int, int]],
    samples: int,
    cache: int,
    *,
    compat: str = "physical",
    read: int | None = None,
    hold: int | None = None,
) -> list[dict[str, Any]]:
    """Simulate jobs that share their data, step by step, in nanoseconds; see ``foresee.stagger.model.simulate``.

    ``jobs``: compute, wait, cached wait, waits next to 1, 2, ... others, samples per step, epochs, start. ``samples``:
    of an epoch; ``cache``: capacity in samples. ``read``: time to read the data set, for a cache that coalesces; None:
    reads compete. ``hold``: samples by which a follower has to stay behind; None: no limit.

    Per job ``start``, ``end``, ``first_epoch`` and ``caught`` (points in time; the last may be None), ``alone``,
    ``together``, ``behind``, ``cached`` and ``held`` as (count, time), ``stall`` (time), ``hits`` and ``reads``
    (samples).

    Raises:
        ConfigError: a value outside its range; the message names its job.
    """

def network_servers(ranks: int, servers: int, *, dedicated_only: bool = False) -> tuple[float, float, float]:
    """Return a rank's share of its link, and the shares of all bytes that a colocated and a dedicated server sums.

    Raises:
        ConfigError: fewer than 2 ranks, or no server.
    """

def network_goodput(packet: int) -> float:
    """Return the share of an Ethernet link that gradients get in packets of ``packet`` bytes, 1 to 2**52.

    Raises:
        ConfigError: outside that range.
    """

def network_packet_delay(window: int, packet: int, bandwidth: float, *, efficiency: float = 1.0) -> float:
    """Return the largest delay of a step by packets and a window of these sizes, in seconds.

    Raises:
        ConfigError: a value outside its range.
    """

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
    """Return one rank's indices of ``torch.utils.data.DistributedSampler`` from global position ``start`` on; the rest
    is padded or cut again."""

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
    count: int | None = None,
) -> tuple[NDArray[np.uint32] | NDArray[np.uint64], bytes]:
    """One epoch of ``RandomSampler(generator=g)``, ``state`` being ``g.get_state()``: indices, and the state after.

    ``count``: the number of samples; None runs to the end, which draws one more permutation.
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

    ``epochs``: number of batches taken from each, or None for all of them and the end. ``state``: of
    ``generator=``, or with ``generator_given=False`` of torch's default generator.
    """

def order_keyed(n: int, seed: int, epoch: int, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the samples at ``positions`` (each below ``n``) of the ``keyed-1`` order."""

def order_keyed_inverse(n: int, seed: int, epoch: int, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the positions of ``ids`` in the ``keyed-1`` order."""

def order_substitutes(n: int, seed: int, epoch: int, avoid: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the substitute in ``epoch`` for each of ``avoid``: ``avoid-1``, the same on every rank.

    Raises:
        ValueError: an id is not below ``n``, or no other sample is left.
    """

def order_audit_sum(
    seed: int, epoch: int, ids: NDArray[np.int64], *, first: int, stride: int, limit: int | None = None
) -> int:
    """Return the sum modulo 2**128 of the ``audit-1`` hashes of ``ids``, delivered at every ``stride``-th global
    position of ``epoch`` from ``first`` on; only positions below ``limit``.
    """

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
    """Return ``order_audit_sum`` over all ranks of a ``DistributedSampler`` epoch, from ``start`` to its end."""
