# SPDX-License-Identifier: Apache-2.0
"""``foresee.torch.DataLoader``: the interface of torch's DataLoader on Foresee's engine.

It is no subclass of torch's, because Accelerate and Lightning rebuild instances of that class from their attributes,
without the engine. It has the same public attributes.
"""

from __future__ import annotations

import multiprocessing
import weakref
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Literal

import torch

from foresee._loading.arguments import checked, milliseconds, plain
from foresee._loading.base_loader import BaseLoader
from foresee._loading.map_source import MapSource
from foresee._loading.packages import cloudpickle
from foresee._loading.progress import Place, Progress
from foresee._loading.session import Session
from foresee._runtime.step_times import Meter
from foresee.config import Cache, Settings
from foresee.errors import ConfigError
from foresee.torch.data.arguments import LoaderArguments, object_faults, worker_faults
from foresee.torch.data.assemble import ByteRecipe, MapRecipe, Recipe
from foresee.torch.data.dataset import source_of
from foresee.torch.data.epoch import FeedEpoch
from foresee.torch.data.frameworks import track_in_accelerate, warn_about_caller, warn_about_resume
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
_PREFETCH_PER_WORKER = 2
# Attributes that have no effect when they are assigned later.
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


class DataLoader(BaseLoader):
    """Batches of a map-style dataset, in exactly the order of torch's ``DataLoader``.

    Samples of the datasets of ``foresee.torch`` are read ahead and cached. Any other dataset makes its samples itself,
    as for torch's loader: it has order, resume, audit and ``on_error``, and ``num_workers`` prefetch its batches.

    One ``for`` loop is one epoch, also if it is left early. With an order that is known for the whole run, an iterator
    that returned no batch, or one of several, does not count, so a test of the first batch changes nothing. Arguments
    of torch's ``DataLoader`` have the same meaning. The order depends on the arguments:

    - ``shuffle=True, seed=s``: that of ``DistributedSampler(seed=s)`` with ``set_epoch`` every epoch, at any
      world size, 1 included. Known for the whole run: prefer it.
    - ``shuffle=False``: 0, 1, 2, ..., distributed over the ranks as by ``DistributedSampler(shuffle=False)``.
    - ``shuffle=True`` without ``seed``, or with ``generator``: torch's order, from torch's generators, which
      end in the same state as after torch's loader. Known for one epoch. On one rank only.
    - ``sampler``: the order of a ``DistributedSampler`` is known for the whole run, that of any other for one epoch,
    when
      that begins. ``batch_sampler``: likewise. They must have ``__len__``; each rank has its own.
    - ``order="keyed"``: a permutation that takes no memory per sample, for giant data sets. Not torch's.

    Without ``transform`` and ``collate_fn``, whole batches are returned without a copy. Data of equal sizes are one
    tensor; files of unequal sizes are a list of uint8 tensors. With one of them, samples are made one by one and
    collated, by default with torch's ``default_collate``.

    Transforms run:

    - ``num_workers=0``: in the thread that iterates, one after the other, as in torch. They draw from the global
      generators and see grad mode, autocast and context variables of the loop. Samples are still read ahead.
    - ``num_workers=k``: in k processes, where ``random``, NumPy and torch are seeded before every sample from
      (seed, epoch, position); once per batch for a dataset with ``__getitems__``.
    - ``transform_threads=k``: on k threads of this process, some batches ahead, with the grad mode, autocast and
      context variables of the call of ``iter()``. Only for transforms that keep no state and draw from no global
      generator, because several run in parallel.

    A transform with a parameter ``generator`` gets a ``torch.Generator`` that is seeded from (seed, epoch, position).
    These seeds do not depend on the number of workers or on a resume. An exact resume with ``num_workers=0`` and
    transforms that draw from the global generators also needs the states of these generators: save and restore them
    with the checkpoint.

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
        drop_last: whether to omit a rank's short last batch.
        timeout: seconds to wait for a batch before ``StallTimeout``; 0 or infinity: no limit. A transform in the
            caller's own thread is not interrupted.
        worker_init_fn: called in each worker with its number.
        multiprocessing_context: start method of the workers, by name or as a context; None: the default of Python's
            ``multiprocessing``, as in torch. The dataset is pickled for each worker unless it is ``"fork"``.
        generator: see above.
        prefetch_factor: batches made ahead per worker; default 2. With ``transform_threads`` it is the number for all
            threads; default: one more than threads.
        persistent_workers: do not end the workers between epochs. They then begin the next epoch while this one ends,
            with the dataset as of their start.
        pin_memory_device: as in torch.
        in_order: False returns whichever batch is finished first (workers only). A resumed run then repeats the batches
            that were returned before a missing one.
        seed: see above.
        epochs: number of epochs, if known: nothing is then cached for later ones. A further epoch is read after one
            warning.
        order: ``keyed``, or None.
        cache: memory and disk to use; loaders with the same ``Cache`` share it. Default: the environment's.
        rank: of this process among those that share the data. Default: that of the process group, if one is
            initialized before the first ``iter()``, else the launcher's.
        world_size: number of these ranks.
        mesh: the data-parallel dimension of a ``DeviceMesh``, such as ``mesh["dp"]``; instead of ``rank`` and
            ``world_size``. Ranks that share tensors or sequences then read the same samples.
        transform_threads: threads for transforms that are safe to run in parallel; only with ``num_workers=0``.
        on_error: what to do with a sample that is missing or damaged, or for which ``decode``, ``transform`` or
            ``__getitem__`` raises: ``raise``, ``replace``, ``skip``, or a callable that gets the ``SampleFault`` and
            returns the id of another sample. The number of batches stays the same.

    Raises:
        ConfigError: arguments are wrong; all faults at once.
    """

    # With these, Accelerate's prepare_data_loader() returns the loader unchanged, and save_state() saves its state.
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
        arguments = LoaderArguments(
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
        faults += object_faults(generator=generator, collate_fn=collate_fn, worker_init_fn=worker_init_fn)
        faults += worker_faults(
            num_workers,
            prefetch_factor,
            transform_threads,
            multiprocessing_context,
            persistent_workers=persistent_workers,
        )
        faults += arguments.faults()
        if isinstance(source, MapSource) and source.count is None and on_error in ("replace", "skip"):
            faults.append(
                f"on_error={on_error!r} with a dataset without __len__, which has the ids of the substitutes"
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
            _PREFETCH_PER_WORKER if num_workers and prefetch_factor is None else prefetch_factor
        )
        self.batch_size: int | None = batch_size if batch_sampler is None else None
        self.collate_fn = collate_fn
        self._arguments = arguments
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
        world, is_given = arguments.world(rank, world_size, mesh)
        super().__init__(world, rank_is_given=is_given)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _FIXED and self.__dict__.get("_is_open"):
            raise ConfigError(f"{name} of a loader is fixed when it is made; make a new DataLoader")
        super().__setattr__(name, value)

    def _open(self, world: World, progress: Progress) -> None:
        self._is_open = False
        self._plan = self._arguments.plan(world)
        self._session = self._open_session(
            self._plan.order, world=world, progress=progress, avoided=self._avoided
        )
        self.sampler, self.batch_sampler = self._arguments.samplers(self._session)
        self._meter = Meter(self._steps_dir, world)
        self._resources = self._open_resources(session=self._session)
        self._finalizer = weakref.finalize(self, _close, self._session, self._resources)
        self._is_open = True

    def _release(self) -> None:
        self._finalizer()

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        self._update_rank()
        if self._plan.order is not None:
            return self._session.steps
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type] # checked at construction

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, or the rest of a resumed one; older iterators end."""
        warn_about_caller()
        self._recipe.check()
        self._update_rank(provisional=False)
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
            self._meter.timer(steps=len(self), order=0 if plan.order is None else plan.order.order_hash),
            token=token,
            place=place,
            plan=plan,
            resources=self._resources,
            feed=feed,
            lead=self.num_workers * (self.prefetch_factor or 0),
            timeout_ms=self._timeout_ms,
            # With workers torch's loader calls its sampler at iter(), else at the first next().
            draws_at_once=self.num_workers > 0,
        )
        return track_in_accelerate(epoch, self._session)

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """As ``foresee.Loader.load_state_dict``; the argument has torch's name."""
        super().load_state_dict(state_dict, strict=strict)
        warn_about_resume(state_dict, self._session)

    def _describe(self) -> Mapping[str, Any]:
        return self._plan.describe()

    def _draw(self) -> Mapping[str, Any] | None:
        return self._plan.draw(is_begun=self._session.progress.is_begun)

    def _on_set_epoch(self, epoch: int) -> None:
        self._plan.set_epoch(epoch)

    def _restore(self, place: Place, state: Mapping[str, Any]) -> None:
        self._plan.load(place, state.get("draw"))


def _close(session: Session, resources: Resources) -> None:
    session.close()
    resources.close()


def _context(given: BaseContext | str | None) -> BaseContext:
    """Return the start method of the workers; None: the default of Python."""
    return given if isinstance(given, BaseContext) else multiprocessing.get_context(given)


def _pinned(device: str | None, value: Any) -> Any:
    """Copy the tensors of ``value`` into page-locked memory, as torch's loader does."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(value, device)
