# SPDX-License-Identifier: Apache-2.0
"""``foresee.torch.DataLoader``: torch's DataLoader by name and manner, on Foresee's engine.

Not a subclass of torch's: Accelerate and Lightning rebuild instances of that class from their attributes, and
would silently drop the engine. It has the attributes that people read.
"""

from __future__ import annotations

import os
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler

from foresee import _faults, _orders, _world
from foresee._progress import Place
from foresee._session import Session
from foresee.config import Cache, Settings
from foresee.errors import Closed, ConfigError
from foresee.loader import abandon, checked, milliseconds
from foresee.torch import _plans
from foresee.torch._assemble import Recipe, SampleError, Work
from foresee.torch._dataset import OriginDataset, storage_error
from foresee.torch._feed import Ahead, Direct, Job, Target
from foresee.torch._mend import mend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from foresee._batch import Batch
    from foresee._faults import OnError
    from foresee._world import World
    from foresee.torch._workers import WorkerPool

__all__ = ["DataLoader"]

# Python threads beyond these mostly wait for the interpreter.
_THREADS_MAX = 4
_AHEAD_PER_WORKER = 2


class DataLoader:
    """Batches of a Foresee dataset, in exactly the order that torch would give.

    One ``for`` loop is one epoch. Arguments that torch's ``DataLoader`` has mean the same. Which order it is:

    - ``shuffle=True, seed=s``: that of ``DistributedSampler(seed=s)`` with ``set_epoch`` every epoch, at any
      world size, 1 included. Known for the whole run: prefer it.
    - ``shuffle=False``: 0, 1, 2, ..., dealt to the ranks as ``DistributedSampler(shuffle=False)`` does.
    - ``shuffle=True`` without ``seed``, or with ``generator``: torch's order, from torch's generators, which
      end in the same state as after a stock loader. Known for one epoch. On one rank only.
    - ``sampler``: a ``DistributedSampler`` is known for the whole run, others for the epoch; asked when an
      epoch begins. ``batch_sampler``: likewise. They must have ``__len__``; each rank has its own.
    - ``order="keyed"``: a permutation that takes no memory per sample, for giant data sets. Not torch's.

    What a batch is: without ``transform`` and ``collate_fn`` whole batches are handed out without copying.
    Data of equal sizes are one tensor; files of unequal sizes are a list of uint8 tensors. With them, samples
    are made one by one and collated, by default with torch's ``default_collate``.

    Where transforms run: ``num_workers=0``, on threads, some batches ahead. Random ones should take a
    parameter ``generator``: it gets a ``torch.Generator`` seeded from (seed, epoch, position). The global
    generators are shared by all threads and not seeded there. ``num_workers=k``: in k fresh processes, where
    ``random``, NumPy and torch are seeded before every sample from the same three numbers. Both are
    independent of how many workers there are and of where a run was resumed.

    Args:
        dataset: ``FolderDataset`` or ``ArrayDataset``.
        batch_size: samples of a batch and rank, 1 or more.
        shuffle: see above.
        sampler: see above; not with ``shuffle``.
        batch_sampler: lists of indices; not with ``batch_size``, ``shuffle``, ``sampler``, ``drop_last``.
        num_workers: processes for transforms; 0: threads. Reading never takes a worker.
        collate_fn: from a list of samples to a batch.
        pin_memory: copy batches into page-locked memory, if CUDA is there.
        drop_last: whether a rank's short last batch is left out.
        timeout: seconds to wait for a batch before ``StallTimeout``; 0 waits as long as it takes.
        worker_init_fn: called in each worker with its number.
        generator: see above.
        prefetch_factor: batches made ahead, per worker; default 2 (threads: one more than there are).
        persistent_workers: keep the workers between epochs. Recommended: starting one takes seconds.
        in_order: False hands out whichever batch is made first (workers only). A resumed run then repeats the
            batches that were handed out ahead of a missing one.
        seed: see above.
        epochs: how many there will be, if known: the plan then keeps nothing for later ones.
        order: ``keyed``, or None.
        cache: memory and disk to use; loaders with the same ``Cache`` share it. Default: the environment's.
        rank: of this process among those that share the data; default: the launcher's.
        world_size: how many there are.
        on_error: what to do with a sample that is missing, damaged or undecodable: ``raise``, ``replace``,
            ``skip``, or a callable that gets the ``SampleFault`` and returns the id of another sample. The
            number of batches stays the same. Faults of a ``transform`` are always raised.

    Raises:
        ConfigError: every wrong argument at once.
    """

    def __init__(
        self,
        dataset: OriginDataset,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: Sampler[int] | Iterable[int] | None = None,
        batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        *,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        seed: int | None = None,
        epochs: int | None = None,
        order: Literal["keyed"] | None = None,
        cache: Cache | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        on_error: OnError = "raise",
    ) -> None:
        settings = Settings.read()
        if not isinstance(dataset, OriginDataset):
            raise storage_error(dataset)
        faults = checked(batch_size=batch_size, epochs=epochs, seed=seed, timeout=timeout)
        faults += _faults.checked(on_error)
        faults += _workers_checked(num_workers, prefetch_factor, persistent_workers=persistent_workers)
        faults += _order_checked(
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            generator=generator,
            seed=seed,
            order=order,
        )
        if faults:
            raise ConfigError(faults)
        self.dataset = dataset
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.prefetch_factor = (
            _AHEAD_PER_WORKER if num_workers and prefetch_factor is None else prefetch_factor
        )
        self.batch_size: int | None = batch_size if batch_sampler is None else None
        self.collate_fn = collate_fn
        world = _world_of(sampler, rank, world_size)
        samples = len(dataset)
        self._plan = self._planned(world, samples, bool(shuffle), sampler, batch_sampler, seed, order)
        self._session = Session(
            dataset.source,
            self._plan.order,
            batch_size=batch_size,
            drop_last=drop_last,
            epochs=epochs,
            world=world,
            cache=cache,
            on_error=on_error,
            settings=settings,
        )
        self.sampler, self.batch_sampler = self._samplers(sampler, batch_sampler)
        self._recipe = Recipe(dataset, collate_fn)
        self._pin = pin_memory and torch.cuda.is_available()
        self._timeout_ms = milliseconds(timeout)
        self._resources = _Resources(self)
        self._begun_once = False
        self._finalizer = weakref.finalize(self, _close, self._session, self._resources)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        if self._plan.order is not None:
            return self._session.engine.steps(0)
        return len(self.batch_sampler)  # type: ignore[arg-type] # checked at construction

    def __iter__(self) -> Iterator[Any]:
        """The next epoch, or the rest of a resumed one. Ends iterators that came before it."""
        self._plan.before_iter(self._session.progress)
        loaded = self._session.progress.loaded
        draw = None if loaded is None else loaded.get("draw")
        token, place = self._session.begin()
        resumed = loaded is not None and place.epoch == loaded["epoch"]
        if draw is not None and not resumed and loaded is not None and loaded["finished"]:
            if isinstance(self._plan, _plans.RandomPlan):
                self._plan.replay(Place(loaded["epoch"], 0), draw)
        base = not (self.persistent_workers and self._begun_once)
        self._begun_once = True
        self._plan.open(place, draw if resumed else None, base=base)
        feed = self._resources.open(self._plan.base_seed)
        # With workers the stock loader asks its sampler at iter(), else at the first next().
        target = self._target(place) if self.num_workers else None
        return self._epoch(token, place, feed, target)

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` give ``epoch``, 0 or more; optional, epochs advance by themselves."""
        self._session.progress.set_epoch(epoch)
        self._plan.set_epoch(epoch)

    def start(self) -> None:
        """Open origin and cache and begin to read, ahead of the first ``iter()``: overlaps a model's loading.

        Raises:
            OriginError: the origin cannot be reached.
            CacheError: the cache directory cannot be used.
        """
        self._session.engine.start()

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands: small, JSON, equal on every rank; usable at another world or batch size.

        Counts the batches that were handed out, not those that were read ahead. Orders that are known for an
        epoch only go on at the same batch and world size; for a ``sampler=`` of yours, restore its state as
        well.
        """
        draw = self._plan.draw(begun=self._session.progress.begun)
        return self._session.state(self._plan.describe(), batch_size=self.batch_size, draw=draw)

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on at ``state_dict`` with the next ``iter()``; iterators that came before end.

        ``strict``: False accepts a data set that has grown.

        Raises:
            StateMismatch: the state is of another run; shows both values of everything that differs.
        """
        place = self._session.load(
            state_dict, self._plan.describe(), batch_size=self.batch_size, strict=strict
        )
        self._plan.set_epoch(place.epoch)

    def audit(self) -> dict[str, Any]:
        """Compare what this rank handed out of the current epoch with the order; see
        ``foresee.Loader.audit``.
        """
        return self._session.audit()

    def stats(self) -> dict[str, Any]:
        """Where every byte came from and every wait went, since ``start``; None: not measured."""
        return self._session.stats()

    def close(self) -> None:
        """Stop threads, workers and reads, write the cache's manifest. Idempotent, from any thread."""
        self._finalizer()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _epoch(self, token: int, place: Place, feed: Ahead | Direct, target: Target | None) -> Iterator[Any]:
        session, plan = self._session, self._plan
        lead = self.num_workers * (self.prefetch_factor or 0)
        handed, over = 0, place.finished
        try:
            if target is None and not over:
                session.progress.check(token)
                target = self._target(place)
            plan.handed(lead)
            if target is not None and not over:
                feed.restart(target)
            while not over:
                session.progress.check(token)
                delivery = feed.next(self._timeout_ms)
                if delivery is None:
                    over = True
                    break
                receipt, value = delivery
                session.hand_over(token, receipt)
                handed += 1
                plan.handed(handed + lead)
                over = session.progress.place.finished
                if over:
                    self._resources.epoch_over()
                del delivery
                yield value
                del value
            plan.handed(handed + lead + 1)
        finally:
            if session.progress.is_current(token) and not over:
                feed.pause()
                self._resources.epoch_over()
                abandon(session, place.epoch)

    def _target(self, place: Place) -> Target:
        announced = None if place.finished else self._plan.announce(place)
        self._session.expect(announced)
        return Target(place, announced, self._plan.seed)

    def _planned(
        self,
        world: World,
        samples: int,
        shuffle: bool,
        sampler: Sampler[int] | Iterable[int] | None,
        batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None,
        seed: int | None,
        order: str | None,
    ) -> _plans.Plan:
        if batch_sampler is not None:
            return _plans.SamplerPlan(
                batch_sampler, samples, counts_batches=True, generator=self.generator, world=world
            )
        assert self.batch_size is not None, "only a batch sampler takes its place"
        if sampler is not None:
            batches = BatchSampler(sampler, self.batch_size, self.drop_last)
            return _plans.of_sampler(sampler, batches, samples, world, self.generator)
        if not shuffle:
            return _plans.RunPlan(_orders.sequential(samples), self.generator)
        if seed is not None:
            known = _orders.keyed(samples, seed) if order == "keyed" else _orders.shuffled(samples, seed)
            return _plans.RunPlan(known, self.generator)
        if world.size > 1:
            raise ConfigError(
                f"shuffle=True on {world.size} ranks without seed=: each rank would draw an order of its own; "
                "give seed=, or sampler=DistributedSampler(...), or rank=0, world_size=1 if every rank shall read all"
            )
        return _plans.RandomPlan(
            RandomSampler(self.dataset, generator=self.generator),
            samples,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            generator=self.generator,
            world=world,
        )

    def _samplers(
        self,
        sampler: Sampler[int] | Iterable[int] | None,
        batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None,
    ) -> tuple[Sampler[int] | Iterable[int] | None, Sampler[list[int]] | Iterable[list[int]]]:
        """What ``sampler`` and ``batch_sampler`` are to others."""
        if batch_sampler is not None or self.batch_size is None:
            assert batch_sampler is not None
            return getattr(batch_sampler, "sampler", None), batch_sampler
        if sampler is None and self._plan.order is not None:
            sampler = _plans.RunSampler(self._plan.order, self._session.world, self._session.progress)
        elif sampler is None:
            sampler = RandomSampler(self.dataset, generator=self.generator)
        return sampler, BatchSampler(sampler, self.batch_size, self.drop_last)


class _Resources:
    """Feed, threads and worker processes of one loader; opened at the first ``iter()``. Has no reference to
    it.
    """

    def __init__(self, loader: DataLoader) -> None:
        # The loader in two halves, so that it can be collected.
        self._session = loader._session  # noqa: SLF001
        self._recipe = loader._recipe  # noqa: SLF001
        self._pin = loader._pin  # noqa: SLF001
        self._in_order = loader.in_order
        self._workers = loader.num_workers
        self._per_worker = loader.prefetch_factor
        self._persistent = loader.persistent_workers
        self._init_fn = loader.worker_init_fn
        self._feed: Direct | Ahead | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._pool: WorkerPool | None = None
        self._closed = False

    def open(self, base_seed: int) -> Direct | Ahead:
        """The feed, with fresh workers if they do not persist."""
        if self._closed:
            raise Closed("the loader is closed")
        if self._workers:
            self._open_pool(base_seed)
        if self._feed is None:
            self._feed = self._make_feed()
        return self._feed

    def epoch_over(self) -> None:
        """All batches of an epoch are made, or not wanted."""
        if self._pool is not None and not self._persistent:
            pool, self._pool = self._pool, None
            pool.close()

    def close(self) -> None:
        """Release everything; the engine is closed already."""
        self._closed = True
        if self._pool is not None:
            self._pool.close()
        if self._feed is not None:
            self._feed.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _make_feed(self) -> Direct | Ahead:
        if self._workers:
            return Ahead(
                self._session,
                self._submit,
                depth=self._workers * (self._per_worker or _AHEAD_PER_WORKER),
                across_epochs=self._persistent and self._session.order is not None,
                in_order=self._in_order,
            )
        if self._session.off or (self._recipe.whole and not self._pin):
            return Direct(self._session, self._make)
        count = min(_THREADS_MAX, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(count, "foresee-transform")
        return Ahead(
            self._session,
            self._run,
            depth=self._per_worker or count + 1,
            across_epochs=self._session.order is not None,
        )

    def _run(self, job: Job) -> Future[Any]:
        assert self._threads is not None, "made with the feed"
        return self._threads.submit(self._make, job)

    def _make(self, job: Job) -> Any:
        """The batch, in this thread."""
        batch = self._session.batch(job.raw, job.start)
        while True:
            try:
                value = self._recipe.assemble(_work(batch, job.seed))
            except SampleError as error:
                batch = mend(self._session, batch, error)
            else:
                return pinned(value) if self._pin else value

    def _submit(self, job: Job) -> Future[Any]:
        assert self._pool is not None, "opened with the epoch"
        batch = self._session.batch(job.raw, job.start)
        return self._pool.submit(batch, job.seed)

    def _open_pool(self, base_seed: int) -> None:
        if self._pool is not None and self._pool.broken:
            self._pool.close()
            self._pool = None
        if self._pool is None:
            from foresee.torch._workers import WorkerPool

            self._pool = WorkerPool(
                self._session,
                self._recipe,
                count=self._workers,
                slots=self._per_worker or _AHEAD_PER_WORKER,
                base_seed=base_seed,
                init_fn=self._init_fn,
                pin=self._pin,
            )


def pinned(value: Any) -> Any:
    """``value`` with its tensors copied into page-locked memory, as torch's own loader does it."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(value)


def _work(batch: Batch, seed: int) -> Work:
    return Work(batch.data, batch.offsets, batch.labels, batch.positions, batch.epoch, seed)


def _close(session: Session, resources: _Resources) -> None:
    session.close()
    resources.close()


def _world_of(sampler: object, rank: int | None, world_size: int | None) -> World:
    if type(sampler) is not DistributedSampler:
        return _world.detect(rank, world_size)
    if rank is not None and (rank, world_size) != (sampler.rank, sampler.num_replicas):
        raise ConfigError(
            f"rank={rank}, world_size={world_size}, but the sampler has rank {sampler.rank} of {sampler.num_replicas}; "
            "leave the arguments out"
        )
    return _world.detect(sampler.rank, sampler.num_replicas)


def _workers_checked(num_workers: object, prefetch_factor: object, *, persistent_workers: bool) -> list[str]:
    faults = []
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        faults.append(f"num_workers={num_workers!r}; a whole number of 0 or more")
    elif persistent_workers and num_workers == 0:
        faults.append("persistent_workers=True with num_workers=0; there are none to keep")
    if prefetch_factor is not None and (
        isinstance(prefetch_factor, bool) or not isinstance(prefetch_factor, int) or prefetch_factor < 1
    ):
        faults.append(f"prefetch_factor={prefetch_factor!r}; a whole number of 1 or more")
    return faults


def _order_checked(
    *,
    batch_size: object,
    shuffle: bool | None,
    sampler: object,
    batch_sampler: object,
    drop_last: bool,
    generator: object,
    seed: int | None,
    order: object,
) -> list[str]:
    faults = []
    if sampler is not None and shuffle:
        faults.append("sampler= with shuffle=True; the sampler says the order")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        faults.append("batch_sampler= with batch_size=, shuffle=, sampler= or drop_last=; it says them all")
    if seed is not None and (sampler is not None or batch_sampler is not None):
        faults.append(f"seed={seed!r} with a sampler; the sampler says the order")
    if seed is not None and generator is not None and shuffle:
        faults.append(f"seed={seed!r} with generator=; either may say the order, not both")
    if order not in (None, "keyed"):
        faults.append(f'order={order!r}; use "keyed", or leave it out')
    elif order == "keyed" and (not shuffle or seed is None):
        faults.append('order="keyed" needs shuffle=True and seed=')
    faults += [
        f"{name}={type(given).__name__} without __len__; its order cannot be known, use torch.utils.data.DataLoader"
        for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler))
        if given is not None and not hasattr(given, "__len__")
    ]
    return faults
