# SPDX-License-Identifier: Apache-2.0
"""The Rust core as Python sees it: thin classes, plain values, no policy.

Users import :mod:`foresee` and :mod:`foresee.torch`; this module is theirs to know, not to call.
Every call that may wait releases the interpreter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "IS_CHECKED",
    "LOADING_POLICIES",
    "TIMELINE_KINDS",
    "Batch",
    "Cache",
    "GradientExchange",
    "GradientLeader",
    "GradientNode",
    "GradientServer",
    "Index",
    "LedgerFile",
    "Loader",
    "LoadingRun",
    "NetworkStep",
    "Recorder",
    "Trial",
    "__version__",
    "gradient_packet_bytes",
    "jobs_simulate",
    "links_answer",
    "links_measure",
    "network_goodput",
    "network_packet_delay",
    "network_servers",
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
]

__version__: str
IS_CHECKED: bool
"""Whether arithmetic and assertions are checked, as in a build for development; such a build is slower."""

@final
class Index:
    """What a data set consists of: one entry per sample, memory-mapped, immutable."""

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
        ``or_flat``: ``folder`` is ``flat`` where no class folder is. ``extensions``:
        of ``folder``; None means torchvision's picture extensions. ``allow_empty``: a class folder may have no sample.
        ``keys``: objects below ``uri`` where the origin has no listing (plain HTTP). ``exclude``: patterns of files and
        folders to leave out, such as ``b"*.tmp"`` or ``b"train/old/"``. ``options``: storage options of the origin,
        never kept. ``progress``: called at most ten times a second with (objects, bytes) seen so far; what it raises,
        KeyboardInterrupt too, stops the listing. A file, link or key that cannot be read is left out, unless it would
        be a sample.

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
        path or URI that relative rows are below. ``sizes``: for each column its sizes in bytes, or None: these
        are asked for, files by several threads, of a bucket by a listing where that takes fewer requests.
        ``allow_missing``: an object that cannot be read stays, as one byte.

        Raises:
            ConfigError: a row names no object, or one in another store than the first; the message has its number.
            OriginMissing: objects cannot be read; the message names the first rows and how many there are.
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
            IndexInvalid: no file is as long as a window, or one is no array of one axis and this type.
            OriginError: a file cannot be read.
        """

    def save(self, path: str | PathLike[str]) -> None:
        """Write to ``path``: a temporary file first, then a rename, so a reader never sees half an index.

        However it came to be: an index that was opened from ``path`` stays whole, too. Of selected samples the file has
        the data set that they are selected from.

        Raises:
            OSError: the file cannot be written.
        """

    def select(self, samples: NDArray[np.int64]) -> Index:
        """Some of the samples: sample ``k`` is sample ``samples[k]`` of this index. Shares its memory.

        ``samples``: shape (number of samples,), 0 to ``len - 1`` each; one may be there several times.

        Raises:
            ConfigError: no samples, or one that this index does not have.
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
        """Class names in label order, as ``os.fsdecode`` has them; empty where the layout has none."""
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
        """Objects of a sample: 1, or as many as a table has columns of them."""
    def part_sizes(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of each object of ``samples``, shape (samples, parts)."""
    def sample_uri(self, sample: int, *, base: str | None = None, part: int = 0) -> str:
        """URI of an object of a sample, for messages; ``base``: of the data set, if it has moved."""
    def key(self, sample: int, *, part: int = 0) -> bytes: ...
    def size(self, sample: int) -> int: ...
    def label(self, sample: int) -> int | None:
        """Class of a sample; in a table its own number, by which its target is found; None without either."""
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
    @property
    def turns(self) -> list[tuple[str, int]]:
        """If it was waited for: causes, and the nanosecond of ``Loader.now`` since which each one lasted."""
    def __len__(self) -> int: ...

@final
class Trial:
    """Memory, a disk or an origin, to be measured one short repeat at a time; see ``foresee.calibrate``."""

    @staticmethod
    def memory() -> Trial:
        """Memory: works ``copy``, ``checksum``, ``tier_read``, ``tier_small_read`` and ``tier_write``."""

    @staticmethod
    def disk(folder: str | PathLike[str], *, bytes_max: int, seconds: float) -> Trial:
        """The disk that ``folder`` is on: works ``read``, ``small_read``, ``cached_read`` and ``write``.

        Writes a file without a name, which ends with this object or the process: at most ``bytes_max`` bytes and a
        quarter of the free room, at least 4 MiB, and no more than ``seconds`` allow. Ctrl-C ends it.

        Raises:
            CacheError: the folder takes no file, or there is too little room; the message names it and the remedy.
        """

    @staticmethod
    def origin(index: Index, uri: str, *, options: Mapping[str, str] | None = None) -> Trial:
        """The origin of ``index`` at ``uri``: works ``read``, ``small_read``, and of a directory ``cached_read``.

        Asks it one small question. ``options``: storage options. Ctrl-C ends the wait.

        Raises:
            OriginError: it cannot be reached.
            IndexInvalid: all samples have 0 bytes.
        """

    def measure(self, work: str, *, threads: int, seconds: float) -> tuple[int, float, float]:
        """One repeat: bytes moved, seconds taken, and the median seconds of one operation.

        ``threads``: 1 or more; requests under way, of an origin. ``seconds``: 0 or more; every thread ends the
        operation that it has begun. Ctrl-C ends it.

        Raises:
            OriginError: a sample cannot be read.
            CacheError: the disk fails.
            ValueError: no such work, or an argument out of range.
        """

    def facts(self) -> dict[str, int | bool]:
        """Return facts of the place.

        Memory has ``pool_bytes`` to draw samples from. A disk has ``bytes`` of the file, ``free_bytes`` including it,
        ``direct`` (no page cache) and ``in_memory`` (no device). An origin has ``pages`` (it has a page cache) and
        ``in_memory``.
        """

    def samples(self, count: int, *, bytes_max: int) -> list[bytes]:
        """Some samples of an origin, 16 MiB of each at most; of others none. Ctrl-C ends it."""

def links_answer(address: str, *, rank: int, world: int, secret: str, wait_s: float) -> None:
    """Answer rank 0 at ``address`` (``ip:port``) until it has measured; tries for ``wait_s`` to reach it.

    Ctrl-C ends it.

    Raises:
        ForeseeError: it is not there, or the link broke.
    """

def links_measure(
    address: str, *, world: int, secret: str, repeats: int, seconds: float, wait_s: float
) -> list[tuple[int, tuple[int, float, float], tuple[int, float, float]]]:
    """On rank 0, listen at ``address`` for all others for ``wait_s``, then measure link after link. Ctrl-C ends it.

    Returns for each repeat the other rank, bytes sent in ``seconds`` as :meth:`Trial.measure` has them, and round trips
    of a small message in half the time, whose operation is one of them.

    Raises:
        ForeseeError: ranks did not come, or a link broke.
    """

TIMELINE_KINDS: list[str]
"""Kinds of events of a timeline, by their numbers: ``pushed``, ``sent``, ``arrived``, ``summed``, ``landed``,
``waiting`` and ``resumed``."""

def gradient_packet_bytes(bytes_per_s: int) -> int:
    """Return the packet size in bytes for a link: what passes in 0.23 ms, and longer above 1 Gbit/s, in whole
    segments of 1408 bytes, 1408 to 523,776."""

@final
class Recorder:
    """The clock, the waits and the ledger of a loader that reads nothing: Python makes its samples."""

    def __new__(cls, rank: int) -> Recorder: ...
    def write_to(self, run_dir: str) -> None:
        """Write ``<run_dir>/ledger/rank-K.arrow`` from now on. Once.

        Raises:
            OSError: the file cannot be created.
        """

    def now(self) -> int:
        """Nanoseconds since it was made: the clock of its ledger."""

    def record_wait(
        self, epoch: int, step: int, samples: int, start: int, end: int, turns: list[tuple[str, int]]
    ) -> None:
        """As ``Loader.record_wait``."""

    def stats(self) -> dict[str, Any]:
        """``elapsed_s``, ``waits`` and ``ledger_lost``, as of ``Loader.stats``."""

    def close(self) -> None:
        """End the ledger file. Idempotent."""

@final
class LedgerFile:
    """A file ``rank-K.arrow`` of a run folder, for what a rank's gradients or its reads of files took; see
    ``docs/formats/ledger.md``.
    """

    @staticmethod
    def create(folder: str, rank: int) -> LedgerFile:
        """A new file; none is overwritten.

        Raises:
            ConfigError: the folder cannot be written to.
        """

    def add(self, op: str, start_ns: int, duration_ns: int, step: int, tensor: int, nbytes: int) -> None:
        """Add an entry. It waits for the disk only while that is thousands of entries behind.

        Args:
            op: ``push``, ``pull`` or ``wait``.
            start_ns: on the file's clock.
            duration_ns: how long it took.
            step: round, from 0.
            tensor: its number in the plan.
            nbytes: that travelled; 0 for a wait.
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
        """Add an entry for each of some files that were opened, read or closed; contiguous arrays of one length.

        Args:
            op: ``open``, ``read`` or ``close``.
            source: ``origin`` or ``disk``.
            epoch: from 0.
            start_ns: on the file's clock.
            duration_ns: how long each took.
            step: of the epoch.
            sample: ids.
            nbytes: that each moved; 0 unless they were read.
        """

    @property
    def lost(self) -> str | None:
        """Why the file was given up, if it was."""

    def close(self) -> None:
        """Write the end."""

@final
class GradientExchange:
    """One rank's exchange of gradients over servers, as ``foresee.torch._exchange.GradientExchange`` asks.

    Its threads send and receive; no call holds the interpreter while it waits. A failed exchange stays failed.
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
            secret: 16 to 1024 bytes; None: of ``secret_file``, else of ``FORESEE_TOKEN``.
            secret_file: which only its owner can read.
            comm_dtype: ``f32``, ``f16`` or ``bf16`` for 32-bit floats; None: as they are.
            policy: as on the servers; a name, and settings that differ: ``partition,size=1000000,credit=4000000``.
            tls: encrypt; the servers prove themselves by the secret.
            packet_bytes: a multiple of 64; None: what suits 1 Gbit/s, and from the second plan on what the slowest
                interface of rank 0 has delivered.
            timeline: events to keep between two calls of ``timeline()``, 40 bytes each; 0: none.
            colocated_server: the server of this process that is among ``servers``. Then the first ``world`` servers are
                colocated, one with each rank, by rank. The shares of all servers suit the links, and packets of this
                rank and its server leave in one order.
            recover: retain gradients until every rank has received everything of their round. Then broken connections
                are made again, and a lost server may be replaced at its address within ``timeout_s``, with the same
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
        """The first rank that is left, as far as this one has heard: it pushes what one rank alone pushes."""

    def agree(
        self,
        tensors: Sequence[tuple[str, str, Sequence[int], Sequence[int], int, str]],
        *,
        limit_s: float | None = None,
    ) -> None:
        """Make these tensors the plan of all coming rounds. Blocks until every rank calls it; Ctrl-C ends it, and the
        exchange.

        Args:
            tensors: name, dtype (as NumPy's, or ``bfloat16``), shape, strides in elements, class from 0 to 255, and
                ``mean`` or ``sum``. A mean is over all ranks, and may travel in fewer bits. Calls name a tensor by its
                place here.
            limit_s: seconds after which the wait for other ranks, and the exchange, end; None: as long as it takes.

        Raises:
            ConfigError: ranks differ; names the first tensor that does.
            TimeoutError: ``limit_s`` passed; whom the servers waited for.
        """

    def push(self, tensor_id: int, data_ptr: int, nbytes: int, keepalive: object) -> None:
        """Hand a tensor of the present round over. Never blocks.

        ``keepalive`` owns the ``nbytes`` bytes at ``data_ptr``, and nobody writes to them before the exchange has let
        go of it: after they were sent, or, with ``recover``, after every rank has received the round; at a later call.
        """

    def end_round(self) -> int:
        """End the present round, and return its number in this plan. Blocks while the round before is under way, which
        it is not if everything of it was waited for.
        """

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], object]) -> None:
        """Block until these were received, or pushed by no rank, in the round that ended last.

        ``on_interrupt`` is called every 0.1 s, after signals were looked at; what either raises comes out.

        Raises:
            RankLost: a rank is gone; the exchange ends.
            ServerLost: a server is gone, and none has come in its place; the exchange ends.
            Closed: ``close`` was called.
        """

    def count_received(self, ids: Sequence[int]) -> int:
        """How many of these, in their order, were received, or pushed by no rank, in the round that ended last.

        Does not block.
        """

    def wait_all(self, limit_s: float) -> bool:
        """Block until everything was received, or for ``limit_s``; returns whether it was. Raises as ``wait``."""

    def used(self, tensor_id: int) -> bool | None:
        """Whether any rank pushed it in the round that ended last; None while that is not known. Does not block."""

    def received(self, tensor_id: int) -> NDArray[np.uint8]:
        """The bytes of the average that was received last, without a copy. Does not block.

        Memory of the exchange, writable, alive as long as the array is; it changes after the tensor's next push.
        """

    def stats(self) -> dict[str, float]:
        """Counters since the start; units are in the names. Does not block.

        ``servers_back``: how often another server has taken the place of a lost one; ``reconnects``: how often a broken
        connection was made again; ``ranks_lost``: how often ranks were lost and the others went on. The log has a line
        for each.
        """

    def timeline(self) -> tuple[dict[str, NDArray[Any]], int]:
        """What happened since the last call, and how many events more, for which there was no room. Does not block.

        Columns of one length: ``at_ns`` of the monotonic clock, ``kind`` (a place in :data:`TIMELINE_KINDS`),
        ``round``, ``tensor`` (its number in the plan that was agreed on), ``packet`` (-1: the whole tensor), ``peer``
        (the server; -1: none).
        """

    def tensors(self) -> list[tuple[str, int]]:
        """Name and travelling bytes of the tensors in the plan that was agreed on, by their numbers. Does not block."""

    def close(self) -> None:
        """Leave: a ``wait`` of another thread raises. A second call does nothing.

        Blocks up to 2 s, longer only where everything was received here while a server is being replaced, which may
        want it again.
        """

@final
class GradientNode:
    """Settings of the ranks of one node that exchange as one, equal on each of them. Linux only.

    Args:
        job: as for ``GradientExchange.open``, and so are the others that are not named here.
        first: the node's first rank, in whose process its leader is.
        local_world: ranks of the node: ``first`` to ``first + local_world - 1``.
        world: ranks of the job.
        timeout_s: silence after which another rank of the node is lost.
        secret: what they prove to each other, and to the servers.
        secret_file: which only its owner can read.
        comm_dtype: the dtype between nodes.
        timeline: events to keep.

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
            ForeseeError: there is no port.
        """

    def join(self, rank: int, address: str, *, leader: GradientLeader | None = None) -> GradientExchange:
        """Connect ``rank`` to the leader at ``address``. Blocks up to the timeout; Ctrl-C ends it.

        Args:
            rank: of this node.
            address: the leader's.
            leader: where it is in this process. It ends with the exchange, once the other ranks have left.

        Raises:
            ConfigError: the secret is not the leader's, or the rank not of this node.
            RankLost: nothing listens there.
        """

@final
class GradientLeader:
    """The exchange of a node whose ranks exchange as one, in the process of the first. Linux only.

    Its memory is shared, and has no name: it goes with the last process that has it. Two of each rank's gradients and
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
        """End it at once."""

@final
class GradientServer:
    """A server of gradients, in threads of its own until it is closed or dropped."""

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
        """Listen at ``bind``, ``ip:port``; port 0 is any that is free. Does not block.

        Args:
            bind: an address of this machine.
            timeout_s: silence after which a rank is lost, 0.01 to 86400.
            early_buffer_bytes: per job, for contributions that wait for the turn of their rank.
            secret: as in ``GradientExchange.open``; likewise ``secret_file``.
            secret_file: see there.
            policy: which result goes first.
            tls_cert: certificates in PEM, with ``tls_key``.
            tls_key: the private key.
            timeline: as in ``GradientExchange.open``.
            colocated: a rank of this process uses it as its ``colocated_server``.

        Raises:
            ConfigError: an argument, the secret or a file is wrong.
            ForeseeError: the port is in use, or the address not of this machine.
        """

    @property
    def address(self) -> str:
        """``ip:port``, as it is."""

    def stats(self) -> dict[str, Any]:
        """Jobs, each with its ranks that are connected; counters since the start. Does not block."""

    def timeline(self) -> tuple[dict[str, NDArray[Any]], int]:
        """As a rank's; ``peer`` is the rank that a packet came from. Of all jobs."""

    def close(self) -> None:
        """End every job, each rank with a reason, and listen no more. Blocks for seconds at most."""

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
    ) -> Loader:
        """Check and keep the configuration; no thread, file or connection yet.

        ``uri``: where the index's objects lie now (with ``options``; the index itself keeps no secrets).
        ``order``: a run's order, known at once:
        ``{"name": "torch.distributed", "seed": int, "shuffle": bool, "drop_last": bool}``,
        ``{"name": "sequential"}``, ``{"name": "keyed-1", "seed": int}`` or ``{"name": "accelerate.seedable",
        "seed": int, "batch_size": int, "even_batches": bool}``; None: each epoch begins with its samples.
        ``epochs``: None if it is not known. ``staging_bytes``: None for min(2 GB, 8 batches).
        ``run_dir``: where the ledger goes.
        ``listed``: the origin has just been listed, so that it is known to be reachable.
        ``avoid``: samples that the order has a substitute for; samples that an epoch begins with are taken as they are.

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

        A run with an order draws the epoch itself, and keeps what is staged if the next batch is that one anyway. Any
        other run gets ``order``: this rank's samples from ``position`` on, and the samples of each batch (None cuts by
        ``batch_size``); nothing that was staged before is handed out after it.

        Raises:
            ConfigError: ``order`` is given to a run that has one, or is missing, or does not fit the data set.
        """

    def next_batch(self, *, timeout_ms: int | None = None) -> Batch | None:
        """Wait for the next batch; None when the current epoch has no more (call again for the next epoch).

        Blocks with the interpreter released; Ctrl-C and ``close()`` end the wait.

        Raises:
            StallTimeout: ``timeout_ms`` (1 or more) passed; the batch is still coming, call again.
            Closed: another thread called ``close()``.
        """

    def now(self) -> int:
        """Nanoseconds since the loader was made: the clock of its ledger."""

    def turns(self) -> list[tuple[str, int]]:
        """As ``Batch.turns``, of a wait in ``next_batch`` that is under way or ended without a batch."""

    def record_wait(
        self, epoch: int, step: int, samples: int, start: int, end: int, turns: list[tuple[str, int]]
    ) -> None:
        """Book a wait of the training loop, from ``start`` to ``end``, nanoseconds of ``now``.

        ``turns``: stages of the batch that ended it, as ``Batch.turns`` and further ones; in order.
        """

    def read(self, sample: int) -> bytes:
        """One sample from the origin, past plan and caches; waits."""

    def steps(self, position: int) -> int:
        """Steps this rank still has in an epoch resumed at ``position`` (run orders only)."""

    def first_in_flight(self) -> int:
        """How many reads of the origin this rank begins with, 1 or more."""

    def stats(self) -> dict[str, Any]:
        """Counters since ``start``, plain values: bytes and samples by source, waits by cause, queues, retries.

        A figure that was not measured is None, never 0.
        """

    def close(self) -> None:
        """Stop: cancel, flush the disk tier's manifest, join threads within a bound. Idempotent, any thread."""

@final
class NetworkStep:
    """One training step whose gradients cross a network: ``foresee.network.model`` is its face.

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
        """Check and keep copies of the figures; shape (layers,) each, contiguous.

        Raises:
            ConfigError: shapes differ, no layer, or a figure outside its range; the message names its layer.
        """

    def __len__(self) -> int:
        """Layers."""
    @property
    def total_bytes(self) -> int:
        """Bytes pushed in a step, and pulled."""
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
        """Seconds of the step by closed form; shape (policies, bandwidths). ``bandwidths``: contiguous.

        Raises:
            ConfigError: no such policy or reading, or a figure outside its range.
        """

    def timeline(
        self, policy: str, bandwidth: float, *, efficiency: float = 1.0, compat: str = "physical"
    ) -> dict[str, Any]:
        """The step, followed: ``t_iter``; ``backward``, ``push``, ``pull``, ``forward`` as arrays of shape (layers,);
        ``uplink`` and ``downlink`` as (layers, starts, ends), three arrays of shape (transfers,) each.

        Raises:
            ConfigError: as ``times``.
        """

    def required_bandwidth(
        self, policy: str, goal: float, *, efficiency: float = 1.0, compat: str = "physical"
    ) -> float | None:
        """The least bandwidth that keeps the share ``goal`` of the speed; None if no bandwidth does.

        Raises:
            ConfigError: as ``times``.
        """

    def barrier_cost(self, bandwidth: float, *, efficiency: float = 1.0) -> float:
        """Seconds of ``barrier`` less those of ``mercury``.

        Raises:
            ConfigError: a figure outside its range.
        """

    def linear_scaling(self, ranks: int, batch: int) -> float:
        """Samples per second of ``ranks`` ranks that never wait; ``batch``: samples per rank and step."""

LOADING_POLICIES: Sequence[str]

@final
class LoadingRun:
    """One policy of loading on one scenario, in virtual time. ``foresee.planning.simulation`` is its face."""

    @staticmethod
    def begin(scenario: Mapping[str, Any], policy: str) -> LoadingRun | str:
        """The run at its start; a text where the policy has no answer for the scenario.

        Args:
            scenario: as ``foresee.planning.simulation.scenario_of`` makes it; every key has to be there.
            policy: one of ``LOADING_POLICIES``.

        Raises:
            ConfigError: all that is wrong with the scenario.
        """

    def advance(self, steps: int) -> tuple[str, int, int]:
        """Go on by a part of what is prepared, or by so many steps of training within an epoch; 1 at least.

        Releases the interpreter. Returns the stage, ``preparing``, ``training`` or ``finished``, how much of it is
        done, and of how much.
        """

    def write_to(self, folder: str | PathLike[str], memory: Sequence[bool]) -> None:
        """Write a ledger for each rank, of what is simulated from now on. Before the first ``advance``: of everything.

        Args:
            folder: gets ``ledger/rank-K.arrow``.
            memory: by tier, whether it is memory; others are disks.

        Raises:
            OSError: the folder cannot be written to, or so many files cannot be open.
        """

    def end_ledgers(self) -> None:
        """Write the rest of the ledgers; nothing goes there afterwards. Idempotent.

        Raises:
            OSError: a ledger could not be written, now or before.
        """

    def report(self) -> dict[str, Any]:
        """What it came to so far, in seconds and bytes."""

def reads_above(
    ranks: int, epochs: int, samples: int, delta: str, *, compat: str = "physical"
) -> tuple[int, float]:
    """The least number of reads above ``(1 + delta)`` times the mean, and how many samples a rank is expected to read
    so often.

    Raises:
        ConfigError: a count of 0, or a ``delta`` that is no number of 0 or more.
    """

def reads_expected(ranks: int, epochs: int, samples: int) -> NDArray[np.float64]:
    """How many samples a rank is expected to read 0, 1, ... ``epochs`` times; shape (epochs + 1,)."""

def reads_counted(seed: int, ranks: int, epochs: int, samples: int, rank: int) -> NDArray[np.uint64]:
    """How many samples ``rank`` reads 0, 1, ... ``epochs`` times in the order of that seed; shape (epochs + 1,).

    The order is ``DistributedSampler``'s, which deals samples one by one, so that no batch size matters; below 2^16
    epochs and 2^32 samples. Blocks with the interpreter released, some 10 ns per sample and epoch, and takes 10 bytes
    per sample; Ctrl-C ends it between epochs.

    Raises:
        ConfigError: a count below 1, or a rank that is not one of ``ranks``.
        OverflowError: a number that is negative or too large.
    """

def reads_drawn(seed: int, ranks: int, epochs: int, samples: int) -> NDArray[np.uint64]:
    """The same of one draw, in which every epoch deals each sample to any rank alike: Monte Carlo."""

def jobs_simulate(
    jobs: Sequence[tuple[int, int, int, list[int], int, int, int]],
    samples: int,
    cache: int,
    *,
    compat: str = "physical",
    read: int | None = None,
    hold: int | None = None,
) -> list[dict[str, Any]]:
    """Play jobs that share their data, step by step; nanoseconds. ``foresee.stagger.model.simulate`` is its face.

    ``jobs``: compute, wait, cached wait, waits beside 1, 2, ... others, samples per step, epochs, start. ``samples``
    of an epoch, ``cache`` how many of them are kept. ``read``: of the data set, by a cache that coalesces; None: reads
    compete. ``hold``: samples by which a follower is kept behind; None: it is not.

    Per job ``start``, ``end``, ``first_epoch`` and ``caught`` (moments; the last may be None), ``alone``, ``together``,
    ``behind``, ``cached`` and ``held`` as (count, time), ``stall`` (time), ``hits`` and ``reads`` (samples).

    Raises:
        ConfigError: a figure outside its range; the message names its job.
    """

def network_servers(ranks: int, servers: int, *, dedicated_only: bool = False) -> tuple[float, float, float]:
    """Share of its link that a rank gets; shares of all bytes that a co-located and a dedicated server sums.

    Raises:
        ConfigError: fewer than 2 ranks, or no server at all.
    """

def network_goodput(packet: int) -> float:
    """Share of an Ethernet link that gradients get in packets of ``packet`` bytes, 1 to 2**52.

    Raises:
        ConfigError: outside that range.
    """

def network_packet_delay(window: int, packet: int, bandwidth: float, *, efficiency: float = 1.0) -> float:
    """The most that packets and a window of these sizes add to a step, in seconds.

    Raises:
        ConfigError: a figure outside its range.
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

    ``epochs``: of each how many batches are taken, or None for all of them and the end. ``state``: of
    ``generator=``, or with ``generator_given=False`` of torch's default generator.
    """

def order_keyed(n: int, seed: int, epoch: int, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The samples at ``positions`` (each below ``n``) of the ``keyed-1`` order."""

def order_keyed_inverse(n: int, seed: int, epoch: int, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The positions of ``ids`` in the ``keyed-1`` order."""

def order_substitutes(n: int, seed: int, epoch: int, avoid: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The sample that is read in ``epoch`` in place of each of ``avoid``: ``avoid-1``, the same on every rank.

    Raises:
        ValueError: an id is not below ``n``, or no other sample is left.
    """

def order_audit_sum(
    seed: int, epoch: int, ids: NDArray[np.int64], *, first: int, stride: int, limit: int | None = None
) -> int:
    """Sum modulo 2**128 of the ``audit-1`` hashes of ``ids``, handed out at every ``stride``-th global position of
    ``epoch`` from ``first`` on; of those below ``limit``.
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
    """What ``order_audit_sum`` gives over all ranks of a ``DistributedSampler`` epoch, from ``start`` to its end."""
