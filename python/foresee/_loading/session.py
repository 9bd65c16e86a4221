# SPDX-License-Identifier: Apache-2.0
"""One rank's run behind either loader: engine, progress, faults and audit, wired together.

``foresee.Loader`` and ``foresee.torch.DataLoader`` add what they yield, and reach the engine through the session only.
The session needs no torch and knows neither transforms nor worker processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
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
from foresee._loading.on_error import Faults, OnError
from foresee._loading.orders import EpochSamples, RunOrder, positions
from foresee._loading.plain import PlainEngine
from foresee._loading.progress import Place, Progress
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
#: Samples whose sizes tell how the sizes of all of them scatter.
_SIZES = 1024
#: Batches of fewer bytes are small: their next() takes so little that letting go of one counts. Kept for a step longer,
#: they take no memory to speak of.
_SMALL = 1 << 20


class Session:
    """See the module. One per loader and rank. ``batch_size``: None where each epoch has the lengths of its batches."""

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
        self.faults = Faults(on_error, source, world.rank, seed, self._engine.read, avoid=frozenset(avoid))
        self._audit = Audit(world, seed)
        self._epoch_samples: EpochSamples | None = None
        self.on_ids: Callable[[Ints], None] | None = None
        self._begun = Place(0, 0)
        self._warned = False
        self._handed = _Prefix()
        self._beside = self._predicted(settings)
        self._process = os.getpid()
        # Runs when the loader is collected and at interpreter exit, so that no thread outlives its owner.
        self._finalizer = weakref.finalize(self, _end, self._process, self._engine, self._beside)

    def _open_engine(self, settings: Settings, per_batch: int) -> Engine:
        source, order, world = self.source, self.order, self.world
        if isinstance(source, MapSource):
            return MapEngine(order, world, per_batch, drop_last=self.drop_last, run_dir=settings.run_dir)
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
            )
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if settings.off:
            return PlainEngine(native, source, order, world, per_batch, drop_last=self.drop_last)
        return native

    def begin(self, *, repeats: bool) -> tuple[int, Place]:
        """Begin the next iterator. ``begin_epoch`` follows, from the thread that asks for batches.

        ``repeats``: see ``Progress.begin``. An epoch beyond ``epochs`` is read after one warning.
        """
        token, place = self.progress.begin(repeats=repeats)
        self._set_out(place)
        return token, place

    @property
    def began(self) -> Place:
        """Where the iterator that was begun last starts."""
        return self._begun

    def start(self, token: int, place: Place, *, turns: bool = True) -> Place:
        """Return where the iterator that began at ``place`` starts; see ``Progress.start``."""
        start = self.progress.start(token, place, turns=turns)
        if start != place:
            self._set_out(start)
        return start

    def _set_out(self, place: Place) -> None:
        if self.is_beyond(place.epoch) and not self._warned:
            self._warned = True
            _log.warning(
                "epoch %d of a loader with epochs=%d: it is read, but nothing was cached for it; give the true number, "
                "or none",
                place.epoch,
                self.epochs,
            )
        self._begun = place
        self._handed = _Prefix()
        # One for each iterator: an older one that is collected ends no wait but its own.
        self.waits.flush()
        self.waits = Waits(self._engine)
        self._audit.begin(place.epoch, place.position, None if self.order is None else self.order.n)
        if self._beside is not None:
            self._beside.begin_epoch(whole=place.position == 0)

    def open(self) -> None:
        """Open origin, cache and threads of the engine. Idempotent; the first batch does it too."""
        self._engine.start()

    def begin_epoch(self, place: Place, order: EpochSamples | None = None) -> None:
        """Let the engine continue at ``place``; ``order``: the epoch's samples, where the run has no order.

        Avoided samples are replaced here. The audit compares with the result.
        """
        if order is not None:
            ids = substituted(order.ids, self._avoid, samples=self.samples, seed=0, epoch=place.epoch)
            order = order._replace(ids=ids)
        self._epoch_samples = order
        self._engine.begin_epoch(place.epoch, place.position, order)

    def abandon(self, token: int) -> None:
        """The iterator of ``token`` was left: let the engine go on to what comes next at once, if that is known.

        Never raises: it runs while an iterator is collected. Whoever asks a closed, failed or forked engine for more
        hears what is wrong with it.
        """
        self.progress.leave(token)
        place = self.progress.peek()
        if self.order is not None and not self.is_beyond(place.epoch):
            with contextlib.suppress(ForeseeError):
                self._engine.begin_epoch(place.epoch, place.position)

    @property
    def samples(self) -> int:
        """Samples of the data set."""
        return len(self.source)

    @property
    def is_forked(self) -> bool:
        """Whether this is a fork's child: threads, workers and files are its parent's."""
        return os.getpid() != self._process

    def is_beyond(self, epoch: int) -> bool:
        """Whether ``epoch`` is not among those that the run was said to have."""
        return self.epochs is not None and epoch >= self.epochs

    @property
    def steps(self) -> int:
        """Batches of a whole epoch of the run's order."""
        return self._engine.steps(0)

    def turns(self) -> list[Turn]:
        """Return the causes of the engine's present wait so far."""
        return self._engine.turns()

    def prefetch_batch(self, timeout_ms: int) -> RawBatch | None:
        """Return the engine's next batch, for a thread that works ahead of the training loop."""
        return self._engine.next_batch(timeout_ms=timeout_ms)

    def next_batch(self, timeout_ms: int | None) -> RawBatch | None:
        """The engine's next batch, for the thread of the training loop; None at the epoch's end."""
        try:
            raw = self._engine.next_batch(timeout_ms=timeout_ms)
        except BaseException:
            self.waits.follow(self._engine.turns())
            raise
        if raw is not None and raw.turns:
            self.waits.follow(raw.turns)
        return raw

    def batch(self, raw: RawBatch, start: int) -> Batch:
        """``raw`` with its faults dealt with; ``start``: position at which its epoch began or was resumed.

        Raises:
            SampleFault: as ``on_error`` says.
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
        return self.faults.settle(raw, batch)

    def hand_over(self, token: int, raw: Receipt) -> None:
        """``raw`` is about to reach the training loop: count it."""
        steps, samples, finished = self._handed.add(raw)
        self.progress.handed(token, self.position(steps, samples), finished=finished)
        self._audit.record(raw.epoch, raw.start, raw.ids)
        if self.on_ids is not None:
            self.on_ids(raw.ids)

    def delivered(self, waits: Waits, raw: Receipt) -> None:
        """Nothing but ``yield`` is left to do for ``raw``: its wait is over."""
        waits.got(raw.epoch, raw.step, len(raw))
        if self._beside is not None:
            self._beside.on_batch(finished=self.progress.place.finished)

    def end_wait(self, waits: Waits) -> None:
        """End a wait to which no batch came: an error, a timeout or the epoch's end."""
        waits.got(self._begun.epoch, self._handed.reached[0], 0)
        waits.flush()

    def position(self, steps: int, samples: int) -> int:
        """Position after this rank's ``steps`` with ``samples`` since the epoch began or was resumed."""
        if self.order is not None:
            return self.order.position(self._begun.position, samples, self.world)
        if self._epoch_samples is not None and self._epoch_samples.lengths is not None:
            return self._begun.position + steps
        return self._begun.position + samples * self.world.size

    def state(self, order: Mapping[str, Any], *, draw: Mapping[str, Any] | None) -> dict[str, Any]:
        """The saved state; a loaded one unchanged until the next batch."""
        return self.progress.loaded or saved_state.build(
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
        """Return where ``state`` stands.

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
        """See ``foresee.Loader.audit``."""
        place = self._begun

        def planned() -> Ints:
            if self.order is not None:
                return self.order.ids(place.epoch, place.position, self.world)
            assert self._epoch_samples is not None, "something was handed out"
            return self._epoch_samples.ids

        steps, samples = self._handed.reached
        report = self._audit.report(self.order, self.position(steps, samples), planned)
        report["avoided"] = len(self._avoid)
        changes = self.faults.changes(place.epoch)
        report["replaced"] = [
            {"position": c.position, "sample": c.sample, "substitute": c.substitute, "cause": c.cause}
            for c in changes
            if c.substitute is not None
        ]
        report["skipped"] = [
            {"position": c.position, "sample": c.sample, "cause": c.cause}
            for c in changes
            if c.substitute is None
        ]
        return report

    def stats(self) -> dict[str, Any]:
        """Counters of the engine, and of ``on_error``."""
        self.waits.flush()
        return {**self._engine.stats(), "on_error": self.faults.counts(), "avoided": len(self._avoid)}

    def close(self) -> None:
        """End the engine."""
        self._finalizer()

    def _predicted(self, settings: Settings) -> LivePrediction | None:
        """What predicts this run, if the environment asks for that; one rank does it for all."""
        engine = self._engine
        if settings.profile is None or settings.run_dir is None or self.world.rank != 0:
            return None
        # Other engines read nothing, or as training goes: there is nothing to predict by.
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
            in_flight=engine.first_in_flight(),
            folder=local_path(index.uri) is not None,
        )

        def waits() -> dict[str, float]:
            # Work on samples is part of a step here: the simulation knows reads alone.
            self.waits.flush()
            told = engine.stats()["waits"]
            return {
                cause: each["seconds"]
                for cause, each in told.items()
                if each is not None and cause not in PREPARING
            }

        return live.LivePrediction(shape, settings.run_dir, settings.profile, settings.job, waits)


def _end(process: int, engine: Engine, beside: LivePrediction | None) -> None:
    if os.getpid() != process:
        return  # A fork's child: threads and files are its parent's.
    engine.close()
    if beside is not None:
        beside.close()


class _Prefix:
    """How far an epoch was handed out without a gap; batches may be handed out of order."""

    def __init__(self) -> None:
        self.reached = (0, 0)
        self._finished = False
        self._ahead: dict[int, tuple[int, bool]] = {}

    def add(self, raw: Receipt) -> tuple[int, int, bool]:
        """Steps and samples without a gap, and whether the epoch is over."""
        self._ahead[raw.step] = (len(raw), raw.last)
        steps, samples = self.reached
        while steps in self._ahead:
            count, self._finished = self._ahead.pop(steps)
            steps, samples = steps + 1, samples + count
        self.reached = (steps, samples)
        return steps, samples, self._finished
