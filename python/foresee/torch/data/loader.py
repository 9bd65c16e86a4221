# SPDX-License-Identifier: Apache-2.0
"""``foresee.torch.DataLoader``: torch's DataLoader by name and manner, on Foresee's engine.

Not a subclass of torch's: Accelerate and Lightning rebuild instances of that class from their attributes, and
would silently drop the engine. It has the attributes that people read.
"""

from __future__ import annotations

import multiprocessing
import weakref
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Literal

import torch

from foresee._loading.arguments import checked, milliseconds, plain
from foresee._loading.base_loader import Face
from foresee._loading.map_source import MapSource
from foresee._loading.packages import cloudpickle
from foresee._loading.progress import Place, Progress
from foresee._loading.session import Session
from foresee._runtime.step_times import Meter
from foresee.config import Cache, Settings
from foresee.errors import ConfigError
from foresee.torch.data.arguments import Asked, objects_checked, workers_checked
from foresee.torch.data.assemble import ByteRecipe, MapRecipe, Recipe
from foresee.torch.data.dataset import source_of
from foresee.torch.data.epoch import FeedEpoch
from foresee.torch.data.frameworks import as_accelerate_follows, warn_of_caller, warn_of_resume
from foresee.torch.data.resources import Resources
from foresee.torch.data.selected import SelectedDataset, is_selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torch.distributed.device_mesh import DeviceMesh
    from torch.utils.data import Sampler

    from foresee._loading.on_error import OnError
    from foresee._runtime.ranks import World

__all__ = ["DataLoader"]

# Batches; as in torch.
_AHEAD_PER_WORKER = 2
# Attributes that would do nothing if they were assigned later.
_FIXED = frozenset(
    {
        "batch_sampler",
        "batch_size",
        "collate_fn",
        "dataset",
        "drop_last",
        "generator",
        "in_order",
        "multiprocessing_context",
        "num_workers",
        "persistent_workers",
        "pin_memory",
        "pin_memory_device",
        "prefetch_factor",
        "sampler",
        "timeout",
        "worker_init_fn",
    }
)


class DataLoader(Face):
    """Batches of a map-style dataset, in exactly the order that torch would give.

    Samples of the datasets of ``foresee.torch`` are read ahead and cached. Any other dataset, as for torch's loader,
    makes its samples itself: it has order, resume, audit and ``on_error``, and ``num_workers`` work ahead of the loop.

    One ``for`` loop is one epoch, also one that is left early. With an order that is known for the whole run, an
    iterator that handed out no batch, or one of several, costs no epoch: a look at the first batch leaves the run as it
    was. Arguments that torch's ``DataLoader`` has mean the same. Which order it is:

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

    Where transforms run:

    - ``num_workers=0``: in the thread that iterates, one after the other, as in torch. They draw from the global
      generators and see grad mode, autocast and context variables of the loop. Samples are read ahead all the same.
    - ``num_workers=k``: in k processes, where ``random``, NumPy and torch are seeded before every sample from
      (seed, epoch, position); once per batch for a dataset with ``__getitems__``.
    - ``transform_threads=k``: on k threads of this process, some batches ahead, with the grad mode, autocast and
      context variables that ``iter()`` was called with. Only for transforms that keep no state and draw from no
      global generator: several run at once.

    A transform with a parameter ``generator`` gets a ``torch.Generator`` that is seeded from (seed, epoch, position),
    wherever it runs. These seeds do not depend on the number of workers, nor on where a run was resumed. An exact
    resume with ``num_workers=0`` and transforms that draw from the global generators needs the states of these
    generators as well: save and restore them with the checkpoint.

    Args:
        dataset: one of ``foresee.torch``, or anything with ``__getitem__`` and ``__len__``. ``__getitems__`` is called
            where it exists. Without ``__len__`` it needs a sampler.
        batch_size: samples of a batch and rank, 1 or more; None: each batch is one sample, without a further
            dimension.
        shuffle: see above.
        sampler: see above; not with ``shuffle``.
        batch_sampler: lists of indices; not with ``batch_size``, ``shuffle``, ``sampler``, ``drop_last``.
        num_workers: processes for transforms; 0: none. Reading never takes a worker.
        collate_fn: from a list of samples to a batch; with ``batch_size=None`` from one sample.
        pin_memory: copy batches into page-locked memory, if CUDA is there.
        drop_last: whether a rank's short last batch is left out.
        timeout: seconds to wait for a batch before ``StallTimeout``; 0 or infinity waits as long as it takes. A
            transform that runs in the caller's own thread is not interrupted.
        worker_init_fn: called in each worker with its number.
        multiprocessing_context: how workers are started, by name or as a context; None: as Python's
            ``multiprocessing`` does, like torch. A dataset is pickled for each worker unless that is ``"fork"``.
        generator: see above.
        prefetch_factor: batches made ahead, per worker; default 2 (with ``transform_threads``: in all, one more than
            there are).
        persistent_workers: keep the workers between epochs. They then begin the next epoch while this one ends, with
            the dataset as it was when they were started.
        pin_memory_device: as torch takes it.
        in_order: False hands out whichever batch is made first (workers only). A resumed run then repeats the
            batches that were handed out ahead of a missing one.
        seed: see above.
        epochs: how many there will be, if known: the plan then keeps nothing for later ones. A further one is read
            after one warning.
        order: ``keyed``, or None.
        cache: memory and disk to use; loaders with the same ``Cache`` share it. Default: the environment's.
        rank: of this process among those that share the data. Default: that of the process group, if one is
            initialized before the first ``iter()``, else the launcher's.
        world_size: how many there are.
        mesh: the data-parallel dimension of a ``DeviceMesh``, such as ``mesh["dp"]``; instead of ``rank`` and
            ``world_size``. Ranks that share tensors or sequences then read the same samples.
        transform_threads: threads for transforms that are safe to run several at once; only with ``num_workers=0``.
        on_error: what to do with a sample that is missing or damaged, or for which ``decode``, ``transform`` or
            ``__getitem__`` raises: ``raise``, ``replace``, ``skip``, or a callable that gets the ``SampleFault`` and
            returns the id of another sample. The number of batches stays the same.

    Raises:
        ConfigError: every wrong argument at once.
    """

    # Accelerate's prepare_data_loader() then takes the loader as it is, and save_state() saves its state.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[int] | Iterable[int] | None = None,
        batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        epochs: int | None = None,
        order: Literal["keyed"] | None = None,
        cache: Cache | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        transform_threads: int = 0,
        on_error: OnError = "raise",
    ) -> None:
        settings = Settings.read()
        batch_size, epochs, seed = plain(batch_size), plain(epochs), plain(seed)
        num_workers, transform_threads = plain(num_workers), plain(transform_threads)
        prefetch_factor = plain(prefetch_factor)
        planned = SelectedDataset(dataset) if is_selection(dataset) else dataset
        source = source_of(planned)
        asked = Asked(
            dataset=dataset,
            source=source,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            generator=generator,
            seed=seed,
            order=order,
        )
        faults = checked(
            batch_size=1 if batch_size is None else batch_size,
            epochs=epochs,
            seed=seed,
            order=order,
            timeout=timeout,
            drop_last=drop_last,
            cache=cache,
            on_error=on_error,
        )
        faults += objects_checked(generator=generator, collate_fn=collate_fn, worker_init_fn=worker_init_fn)
        faults += workers_checked(
            num_workers,
            prefetch_factor,
            transform_threads,
            multiprocessing_context,
            persistent_workers=persistent_workers,
        )
        faults += asked.faults()
        if isinstance(source, MapSource) and source.count is None and on_error in ("replace", "skip"):
            faults.append(
                f"on_error={on_error!r} with a dataset without __len__; it says which samples could replace one"
            )
        if faults:
            raise ConfigError(faults)
        context = None
        if num_workers:
            cloudpickle()
            context = _context(multiprocessing_context)
        self.dataset = dataset
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.multiprocessing_context = context if multiprocessing_context is not None else None
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
        self._asked = asked
        recipe: Recipe
        if isinstance(source, MapSource):
            recipe = MapRecipe(planned, collate_fn, batch_size is not None, is_tolerant=on_error != "raise")
        else:
            recipe = ByteRecipe(planned, collate_fn, batch_size is not None)
        self._recipe = recipe
        self._open_session = partial(
            Session,
            source,
            batch_size=None if batch_sampler is not None else batch_size or 1,
            drop_last=drop_last,
            epochs=epochs,
            cache=cache,
            on_error=on_error,
            settings=settings,
        )
        self._open_resources = partial(
            Resources,
            recipe=recipe,
            workers=num_workers,
            threads=transform_threads,
            per_worker=self.prefetch_factor or 0,
            persistent=persistent_workers,
            in_order=in_order,
            init_fn=worker_init_fn,
            context=context,
            pin=partial(_pinned, pin_memory_device or None)
            if pin_memory and torch.accelerator.is_available()
            else None,
        )
        self._timeout_ms = milliseconds(timeout)
        self._steps_dir = settings.steps_dir
        self._begun_once = False
        world, is_given = asked.world(rank, world_size, mesh)
        super().__init__(world, rank_is_given=is_given)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _FIXED and self.__dict__.get("_is_open"):
            raise ConfigError(f"{name} of a loader is fixed when it is made; make a new DataLoader")
        super().__setattr__(name, value)

    def _open(self, world: World, progress: Progress) -> None:
        self._is_open = False
        self._plan = self._asked.plan(world)
        self._session = self._open_session(
            self._plan.order, world=world, progress=progress, avoided=self._avoided
        )
        self.sampler, self.batch_sampler = self._asked.samplers(self._session)
        self._meter = Meter(self._steps_dir, world)
        self._resources = self._open_resources(self._session)
        self._finalizer = weakref.finalize(self, _close, self._session, self._resources)
        self._is_open = True

    def _release(self) -> None:
        self._finalizer()

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        self._settle()
        if self._plan.order is not None:
            return self._session.steps
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type] # checked at construction

    def __iter__(self) -> Iterator[Any]:
        """The next epoch, or the rest of a resumed one. Ends iterators that came before it."""
        warn_of_caller()
        self._recipe.check()
        self._settle(provisional=False)
        plan = self._plan
        plan.before_iter(self._session.progress)
        token, place = self._session.begin(repeats=plan.repeats)
        base = not (self.persistent_workers and self._begun_once)
        self._begun_once = True
        plan.open(place, base=base)
        feed = self._resources.open(plan.base_seed)
        epoch = FeedEpoch(
            self,
            self._session,
            self._meter.lap(steps=len(self), order=0 if plan.order is None else plan.order.mark),
            token=token,
            place=place,
            plan=plan,
            resources=self._resources,
            feed=feed,
            lead=self.num_workers * (self.prefetch_factor or 0),
            timeout_ms=self._timeout_ms,
            # With workers the stock loader asks its sampler at iter(), else at the first next().
            draws_at_once=self.num_workers > 0,
        )
        return as_accelerate_follows(epoch, self._session)

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on at ``state_dict`` with the next ``iter()``; iterators that came before end.

        As ``foresee.Loader.load_state_dict``, ``strict`` and errors too; only the argument has torch's name.
        """
        super().load_state_dict(state_dict, strict=strict)
        warn_of_resume(state_dict, self._session)

    def _describe(self) -> Mapping[str, Any]:
        return self._plan.describe()

    def _draw(self) -> Mapping[str, Any] | None:
        return self._plan.draw(begun=self._session.progress.begun)

    def _turn_to(self, epoch: int) -> None:
        self._plan.set_epoch(epoch)

    def _restore(self, place: Place, state: Mapping[str, Any]) -> None:
        self._plan.load(place, state.get("draw"))


def _close(session: Session, resources: Resources) -> None:
    session.close()
    resources.close()


def _context(given: BaseContext | str | None) -> BaseContext:
    """How workers are started: as asked for, else as torch's loader starts its own."""
    return given if isinstance(given, BaseContext) else multiprocessing.get_context(given)


def _pinned(device: str | None, value: Any) -> Any:
    """``value`` with its tensors copied into page-locked memory, as torch's own loader does it."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(value, device)
