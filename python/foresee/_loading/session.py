# SPDX-License-Identifier: Apache-2.0
"""Session of one rank: engine, progress, fault handling and audit of a loader.

``foresee.Loader`` and ``foresee.torch.DataLoader`` reach the engine only through the session. It needs no torch, and
has neither transforms nor worker processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from foresee import _native
from foresee._loading import saved_state
from foresee._loading.audit import Audit
from foresee._loading.avoided_samples import Avoided, substituted, union
from foresee._loading.batch import Batch, Ints, RawBatch, Receipt
from foresee._loading.data_source import Source
from foresee._loading.map_source import MapEngine, MapSource
from foresee._loading.on_error import FaultHandler, OnError
from foresee._loading.orders import EpochSamples, RunOrder, positions
from foresee._loading.peers import PeerRendezvous, can_exchange
from foresee._loading.plain import PlainEngine
from foresee._loading.progress import Place, Progress
from foresee._loading.store_options import StoreOptions
from foresee._runtime.waits import PREPARING, Waits
from foresee.errors import ConfigError, ForeseeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from foresee._runtime.ranks import World
    from foresee._runtime.waits import Turn
    from foresee.config import Cache, Settings
    from foresee.predict.live import LivePrediction

    Engine: TypeAlias = _native.Loader | PlainEngine | MapEngine


_log = logging.getLogger("foresee")
#: Samples from which the standard deviation of the sizes is estimated.
_SIZES = 1024
#: Bytes below which a batch is small: the time to free it is then a notable part of next(), and the memory of one more
#: batch is not.
_SMALL = 1 << 20


class Session:
    """Session of one loader and rank; ``batch_size``: None where each epoch has the lengths of its batches."""

    def __init__(
        self,
        source: Source | MapSource,
        order: RunOrder | None,
        *,
        batch_size: int | None,
        drop_last: bool,
        epochs: int | None,
        world: World,
        cache: Cache | None,
        on_error: OnError,
        settings: Settings,
        progress: Progress,
        avoided: tuple[Avoided, ...] = (),
    ) -> None:
        avoid = union(avoided)
        if order is not None:
            order = replace(order, avoid=avoid)
        self.avoided = avoided
        self._avoid = avoid
        settings.apply_log()
        per_batch = 1 if batch_size is None else batch_size
        self.source = source
        self.order = order
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.epochs = epochs
        self.world = world
        self.off = settings.off
        self.progress = progress
        self.cache = cache if cache is not None else settings.cache()
        self._engine: Engine = self._open_engine(settings, per_batch)
        self.now: Callable[[], int] = self._engine.now
        """Nanoseconds of the engine's clock."""
        self.waits = Waits(self._engine)
        self.is_small = isinstance(source, Source) and source.mean_bytes * per_batch < _SMALL
        seed = 0 if order is None else order.seed
        self.faults = FaultHandler(
            on_error, source, world.rank, seed, self._engine.read, avoid=frozenset(avoid)
        )
        self._audit = Audit(world, seed)
        self._epoch_samples: EpochSamples | None = None
        self.on_ids: Callable[[Ints], None] | None = None
        self._start = Place(0, 0)
        self._has_warned = False
        self._prefix = _ReturnedPrefix()
        self._live_job = self._open_live_job(settings)
        self._process = os.getpid()
        # Also at interpreter exit, so that no thread outlives the loader.
        self._finalizer = weakref.finalize(
            self, _end, self._process, self._engine, self._live_job, self._peers
        )

    def _open_engine(self, settings: Settings, per_batch: int) -> Engine:
        source, order, world = self.source, self.order, self.world
        self._peers: PeerRendezvous | None = None
        if isinstance(source, MapSource):
            return MapEngine(order, world, per_batch, drop_last=self.drop_last, run_dir=settings.run_dir)
        shares_node = _shares_node(source, world)
        wanted = settings.peers if self.cache.peers is None else self.cache.peers
        peers = shares_node and not settings.off and can_exchange(world, order, self.cache, peers=wanted)
        try:
            native = _native.Loader(
                source.index,
                self.cache.native(),
                uri=source.uri,
                options=source.options,
                batch_size=per_batch,
                drop_last=self.drop_last,
                order=None if order is None else order.native,
                epochs=self.epochs,
                rank=world.rank,
                world_size=world.size,
                local_rank=world.local_rank,
                local_world_size=world.local_size,
                staging_bytes=None,
                threads=settings.threads,
                run_dir=settings.run_dir,
                listed=source.listed,
                avoid=list(self._avoid),
                node=(_job_name(), _native.__version__) if shares_node else None,
                peers=peers,
            )
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if settings.off:
            return PlainEngine(native, source, order, world, per_batch, drop_last=self.drop_last)
        if peers and world.local_rank == 0:
            self._peers = PeerRendezvous(native, world, is_requested=bool(wanted))
        return native

    def begin(self, *, repeats: bool) -> tuple[int, Place]:
        """Begin the next iterator; the thread that requests batches then calls ``begin_epoch``.

        ``repeats``: as in ``Progress.begin``. An epoch beyond ``epochs`` is read after one warning.
        """
        token, place = self.progress.begin(repeats=repeats)
        self._begin_at(place)
        return token, place

    @property
    def start_place(self) -> Place:
        """Start of the current iterator."""
        return self._start

    def start(self, token: int, place: Place, *, can_switch: bool = True) -> Place:
        """Return the start of the iterator that began at ``place``, as ``Progress.start``."""
        start = self.progress.start(token, place, can_switch=can_switch)
        if start != place:
            self._begin_at(start)
        return start

    def _begin_at(self, place: Place) -> None:
        if self.is_beyond(place.epoch) and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "epoch %d of a loader with epochs=%d: it is read, but nothing was cached for it; give the true number, "
                "or none",
                place.epoch,
                self.epochs,
            )
        self._start = place
        self._prefix = _ReturnedPrefix()
        # One per iterator, so that an older one that is collected ends only its own wait.
        self.waits.flush()
        self.waits = Waits(self._engine)
        self._audit.begin(place.epoch, place.position, None if self.order is None else self.order.n)
        if self._live_job is not None:
            self._live_job.begin_epoch(whole=place.position == 0)

    def open(self) -> None:
        """Open origin, cache and threads of the engine. Idempotent; the first batch does it too."""
        self._start_peers()
        self._engine.start()

    def _start_peers(self) -> None:
        """Let this node meet the others, once the program has its process group."""
        if self._peers is not None:
            self._peers.start()

    def begin_epoch(self, place: Place, order: EpochSamples | None = None) -> None:
        """Let the engine continue at ``place``; ``order``: the epoch's samples, where the run has no order.

        Replaces avoided samples; the audit compares with the result.
        """
        if order is not None:
            ids = substituted(order.ids, self._avoid, samples=self.samples, seed=0, epoch=place.epoch)
            order = order._replace(ids=ids)
        self._epoch_samples = order
        self._engine.begin_epoch(place.epoch, place.position, order)
        self._start_peers()

    def abandon(self, token: int) -> None:
        """End the iterator of ``token`` early, and let the engine begin the next epoch at once, if it is known.

        Never raises, because it runs while an iterator is collected. The next request to a closed, failed or forked
        engine raises its error.
        """
        self.progress.abandon(token)
        place = self.progress.peek()
        if self.order is not None and not self.is_beyond(place.epoch):
            with contextlib.suppress(ForeseeError):
                self._engine.begin_epoch(place.epoch, place.position)

    @property
    def samples(self) -> int:
        """Number of samples of the data set."""
        return len(self.source)

    @property
    def is_forked(self) -> bool:
        """Whether this process is a forked child; threads, workers and files belong to the parent."""
        return os.getpid() != self._process

    def is_beyond(self, epoch: int) -> bool:
        """Whether ``epoch`` exceeds ``epochs=``."""
        return self.epochs is not None and epoch >= self.epochs

    @property
    def steps(self) -> int:
        """Batches of a whole epoch of the run's order."""
        return self._engine.steps(0)

    def turns(self) -> list[Turn]:
        """Return the stages of the engine's present wait."""
        return self._engine.turns()

    def prefetch_batch(self, timeout_ms: int) -> RawBatch | None:
        """Return the engine's next batch, for a thread that works ahead of the training loop."""
        return self._engine.next_batch(timeout_ms=timeout_ms)

    def next_batch(self, timeout_ms: int | None) -> RawBatch | None:
        """Return the engine's next batch in the thread of the training loop; None at the epoch's end."""
        try:
            raw = self._engine.next_batch(timeout_ms=timeout_ms)
        except BaseException:
            self.waits.extend(self._engine.turns())
            raise
        if raw is not None and raw.turns:
            self.waits.extend(raw.turns)
        return raw

    def batch(self, raw: RawBatch, start: int) -> Batch:
        """Make a batch of ``raw`` and apply ``on_error``; ``start``: position at which its epoch began or was resumed.

        Raises:
            SampleFault: as decided by ``on_error``.
        """
        batch = Batch(
            data=raw.data,
            offsets=raw.offsets,
            ids=raw.ids,
            labels=raw.labels,
            epoch=raw.epoch,
            step=raw.step,
            positions=positions(start, raw.start, len(raw), self.world),
            planned=raw.ids,
            tries=np.zeros(len(raw), np.int64),
            row_dtype=self.source.row_dtype,
            row_shape=self.source.row_shape,
        )
        return self.faults.repair_unreadable(raw, batch)

    def record_batch(self, token: int, raw: Receipt) -> None:
        """Count ``raw``, which is about to be returned."""
        steps, samples, finished = self._prefix.add(raw)
        self.progress.record_batch(token, self.position(steps, samples), finished=finished)
        self._audit.record(raw.epoch, raw.start, raw.ids)
        if self.on_ids is not None:
            self.on_ids(raw.ids)

    def finish_wait(self, waits: Waits, raw: Receipt) -> None:
        """End the wait for ``raw``, right before it is returned."""
        waits.end(raw.epoch, raw.step, len(raw))
        if self._live_job is not None:
            self._live_job.on_batch(finished=self.progress.place.finished)

    def end_wait(self, waits: Waits) -> None:
        """End a wait without a batch: by an error, a timeout or the epoch's end."""
        waits.end(self._start.epoch, self._prefix.reached[0], 0)
        waits.flush()

    def position(self, steps: int, samples: int) -> int:
        """Return the position after ``steps`` with ``samples`` of this rank since the start of the iterator."""
        if self.order is not None:
            return self.order.position(self._start.position, samples, self.world)
        if self._epoch_samples is not None and self._epoch_samples.lengths is not None:
            return self._start.position + steps
        return self._start.position + samples * self.world.size

    def state(self, order: Mapping[str, Any], *, draw: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the state; a loaded one is unchanged until the next batch."""
        return self.progress.loaded_state or saved_state.build(
            self.progress.place,
            order=order,
            batch_size=self.batch_size,
            world_size=self.world.size,
            drop_last=self.drop_last,
            fingerprint=self.source.fingerprint,
            draw=draw,
            avoided=self.avoided,
        )

    def check(self, state: Mapping[str, Any], order: Mapping[str, Any], *, strict: bool) -> Place:
        """Return the place of ``state``.

        Raises:
            StateMismatch: it does not fit this session.
        """
        return saved_state.check(
            state,
            order=order,
            batch_size=self.batch_size,
            world_size=self.world.size,
            fingerprint=self.source.fingerprint,
            any_world=self.order is not None,
            strict=strict,
        )

    def audit(self) -> dict[str, Any]:
        """As ``foresee.Loader.audit``."""
        place = self._start

        def planned() -> Ints:
            if self.order is not None:
                return self.order.ids(place.epoch, place.position, self.world)
            assert self._epoch_samples is not None, "a batch was returned"
            return self._epoch_samples.ids

        steps, samples = self._prefix.reached
        report = self._audit.report(self.order, self.position(steps, samples), planned)
        report["avoided"] = len(self._avoid)
        changes = self.faults.changes(place.epoch)
        report["replaced"] = [change for change in changes if "substitute" in change]
        report["skipped"] = [change for change in changes if "substitute" not in change]
        return report

    def stats(self) -> dict[str, Any]:
        """Return the counters of the engine and of ``on_error``."""
        self.waits.flush()
        return {**self._engine.stats(), "on_error": self.faults.counts(), "avoided": len(self._avoid)}

    def close(self) -> None:
        self._finalizer()

    def _open_live_job(self, settings: Settings) -> LivePrediction | None:
        """Return the predictor of this run, on rank 0 and if the environment asks for it."""
        engine = self._engine
        if settings.profile is None or settings.run_dir is None or self.world.rank != 0:
            return None
        # Other engines read nothing, or not ahead of training, so there is nothing to predict.
        if not isinstance(engine, _native.Loader) or isinstance(self.source, MapSource):
            return None
        from foresee._loading.data_source import local_path
        from foresee.predict import live

        index, order = self.source.index, self.order
        few = range(0, len(index), max(1, len(index) // _SIZES))
        shape = live.Shape(
            samples=len(index),
            mean_bytes=self.source.mean_bytes,
            sigma_bytes=float(np.std([index.size(sample) for sample in few])),
            batch=1 if self.batch_size is None else self.batch_size,
            drop_last=self.drop_last,
            epochs=self.epochs,
            ranks=self.world.size,
            rank=self.world.rank,
            seed=0 if order is None else order.seed % 2**63,
            shuffled=order is None or order.shuffle,
            ram_bytes=self.cache.ram_bytes,
            disk_bytes=self.cache.disk_bytes,
            node_ranks=self.world.local_size,
            # Until the loader has started: what its ranks do if no service is there.
            has_node_cache=(self.world.local_size > 1 or self._peers is not None)
            and not isinstance(self.source.options, StoreOptions)
            and self.cache.ram_bytes > 0
            and os.environ.get("FORESEE_NODE") != "off",
            in_flight=engine.first_in_flight(),
            folder=local_path(index.uri) is not None,
        )

        def waits() -> dict[str, float]:
            # The simulation has reads alone, so work on samples counts as a part of a step.
            self.waits.flush()
            return {
                cause: each["seconds"]
                for cause, each in engine.stats()["waits"].items()
                if each is not None and cause not in PREPARING
            }

        def node() -> dict[str, Any] | None:
            found: dict[str, Any] | None = engine.stats()["node"]
            return found

        return live.LivePrediction(shape, settings.run_dir, settings.profile, settings.job, waits, node)


def _end(process: int, engine: Engine, live_job: LivePrediction | None, peers: PeerRendezvous | None) -> None:
    if os.getpid() != process:
        return  # In a forked child, threads and files belong to the parent.
    engine.close()
    if peers is not None:
        peers.join()
    if live_job is not None:
        live_job.close()


class _ReturnedPrefix:
    """Steps of an epoch that were returned without a gap; batches may be returned out of order."""

    def __init__(self) -> None:
        self.reached = (0, 0)
        self._finished = False
        self._ahead: dict[int, tuple[int, bool]] = {}

    def add(self, raw: Receipt) -> tuple[int, int, bool]:
        """Add a batch; return steps and samples without a gap, and whether the epoch is over."""
        self._ahead[raw.step] = (len(raw), raw.last)
        steps, samples = self.reached
        while steps in self._ahead:
            count, self._finished = self._ahead.pop(steps)
            steps, samples = steps + 1, samples + count
        self.reached = (steps, samples)
        return steps, samples, self._finished


def _shares_node(source: Source, world: World) -> bool:
    """Return whether the host of a node's cache could read the source; it cannot call a function of this process."""
    if not isinstance(source.options, StoreOptions):
        return True
    if world.local_size > 1 and os.environ.get("FORESEE_NODE") != "off":
        _log.warning(
            "each of the %d ranks of this node reads %s itself: the function for credentials of an obstore store stays "
            "in its process; give the keys or an AWS profile as storage_options= to share a cache",
            world.local_size,
            source.uri,
        )
    return False


def _job_name() -> str:
    """Name of this job for the host of a node's cache: the launcher's, or the program's."""
    env = os.environ
    named = env.get("SLURM_JOB_NAME") or env.get("TORCHELASTIC_RUN_ID", "none")
    return named if named != "none" else os.path.basename(sys.argv[0]) or "python"
