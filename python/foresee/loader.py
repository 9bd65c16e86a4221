# SPDX-License-Identifier: Apache-2.0
"""``foresee.Loader``: NumPy batches of bytes in a known order, for programs without PyTorch."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from foresee._loading import data_source, orders
from foresee._loading.arguments import checked, milliseconds, plain
from foresee._loading.base_loader import BaseLoader
from foresee._loading.epoch import EpochIterator
from foresee._loading.session import Session
from foresee._runtime import ranks
from foresee._runtime.step_times import Meter
from foresee._schema.files import user_path
from foresee.config import Cache, Settings
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from foresee import _native
    from foresee._loading.batch import Batch, Receipt
    from foresee._loading.data_source import PathLike
    from foresee._loading.on_error import OnError
    from foresee._loading.progress import Place, Progress
    from foresee._loading.store_options import StorageOptions
    from foresee._runtime.ranks import World
    from foresee._runtime.step_times import StepTimer

__all__ = ["Loader"]

_log = logging.getLogger("foresee")


class Loader(BaseLoader):
    """Batches of a data set, read ahead of time because their order is known.

    One ``for`` loop is one epoch, also if it is left early; epochs advance by themselves. An iterator that returned no
    batch, or one of several, does not count, so a test of the first batch changes nothing. Nothing is read before the
    first ``iter()``, or ``start()``.

    Args:
        data: URI or path of the data, or of their index (``.fidx``), or an open ``Index``. Without an index, the
            data are listed at every start, by one rank of each node; an index is never listed again.
        batch_size: samples of a batch and rank, 1 or more.
        shuffle: True for the order of torch's ``DistributedSampler`` with ``seed`` and ``set_epoch`` every
            epoch; False for 0, 1, 2, ...
        seed: of the order; needed to shuffle.
        epochs: number of epochs, if known: nothing is then cached for later ones. A further epoch is read after one
            warning.
        drop_last: whether to omit a rank's short last batch.
        order: ``keyed`` for a permutation that takes no memory per sample (not torch's); None otherwise.
        cache: memory and disk to use; loaders with the same ``Cache`` share it. Default: the environment's.
        rank: of this process among those that share the data. Default: that of the process group of
            ``torch.distributed``, if one is initialized before the first ``iter()``, else the launcher's.
        world_size: number of these ranks.
        storage_options: of the origin, such as ``endpoint`` or ``region``, or a store of obstore; never stored.
        on_error: what to do with a sample that is missing or damaged: ``raise``, ``replace``, ``skip``, or a
            callable that gets the ``SampleFault`` and returns the id of another sample. The number of
            batches stays the same.
        layout: of data without index: ``folder``, ``flat``, ``npy``, ``bin``, or ``auto``.
        row_bytes: of layout ``bin``.
        extensions: of layout ``folder``; default: those of images.
        allow_empty: whether a class folder may have no sample.
        exclude: patterns of files and folders to omit from a listing, such as ``"*.tmp"`` or
            ``["train/old/", ".ipynb_checkpoints"]``: one without ``/`` matches a name on any level, one with ``/`` the
            path below the URI, in which ``**`` stands for any folders. Letter case counts.
        uri: new place of the objects of an index, if they have moved.
        timeout: seconds to wait for a batch before ``StallTimeout``; 0 or infinity: no limit.

    Raises:
        ConfigError: arguments are wrong; all faults at once.
        IndexInvalid: there are no samples, or no usable index.
        OriginError: the data cannot be listed.
    """

    def __init__(
        self,
        data: str | PathLike | _native.Index,
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int | None = None,
        epochs: int | None = None,
        drop_last: bool = False,
        order: Literal["keyed"] | None = None,
        cache: Cache | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        storage_options: StorageOptions | None = None,
        on_error: OnError = "raise",
        layout: str = "auto",
        row_bytes: int | None = None,
        extensions: Iterable[str] | None = None,
        allow_empty: bool = False,
        exclude: str | Iterable[str] | None = None,
        uri: str | None = None,
        timeout: float = 0,
    ) -> None:
        settings = Settings.read()
        batch_size, epochs, seed = plain(batch_size), plain(epochs), plain(seed)
        faults = checked(
            batch_size=batch_size,
            epochs=epochs,
            seed=seed,
            order=order,
            timeout=timeout,
            drop_last=drop_last,
            cache=cache,
            on_error=on_error,
        )
        if shuffle and seed is None:
            faults.append("shuffle=True without seed=; pass one, it determines the order of the whole run")
        if order == "keyed" and not shuffle:
            faults.append('order="keyed" without shuffle=True; it is a way to shuffle')
        if faults:
            raise ConfigError(faults)
        if isinstance(seed, int) and not shuffle:
            _log.info("seed=%s is not used: shuffle=False", seed)
        world = ranks.detect(rank, world_size, provisional=True)
        source = data_source.resolve(
            data,
            layout=layout,
            extensions=extensions,
            allow_empty=allow_empty,
            row_bytes=row_bytes,
            exclude=exclude,
            options=storage_options,
        )
        if uri is not None:
            source = data_source.Source(source.index, user_path(uri, "uri"), source.options)
        samples = len(source.index)
        if seed is None or not shuffle:
            known = orders.sequential(samples)
        elif order == "keyed":
            known = orders.keyed(samples, seed)
        else:
            known = orders.shuffled(samples, seed)
        self._open_session = partial(
            Session,
            source,
            known,
            batch_size=batch_size,
            drop_last=drop_last,
            epochs=epochs,
            cache=cache,
            on_error=on_error,
            settings=settings,
        )
        self._order = known
        self._index = source.index
        self._batch_size = batch_size
        self._timeout_ms = milliseconds(timeout)
        self._steps_dir = settings.steps_dir
        super().__init__(world, rank_is_given=rank is not None)

    def _open(self, world: World, progress: Progress) -> None:
        self._session = self._open_session(world=world, progress=progress, avoided=self._avoided)
        self._meter = Meter(self._steps_dir, world)

    @property
    def index(self) -> _native.Index:
        """Index of the data set."""
        return self._index

    @property
    def batch_size(self) -> int:
        """Samples of a batch and rank."""
        return self._batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a rank's short last batch is omitted."""
        return self._session.drop_last

    @property
    def rank(self) -> int:
        """Rank of this process."""
        self._update_rank()
        return self._session.world.rank

    @property
    def world_size(self) -> int:
        """Ranks that share the data."""
        self._update_rank()
        return self._session.world.size

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        self._update_rank()
        return self._session.steps

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, or the rest of a resumed one; older iterators end."""
        self._update_rank(provisional=False)
        token, place = self._session.begin(repeats=True)
        self._session.begin_epoch(place)
        timer = self._meter.timer(steps=len(self), order=self._order.order_hash)
        return _Epoch(self, self._session, timer, token=token, place=place, timeout_ms=self._timeout_ms)

    def _describe(self) -> Mapping[str, Any]:
        return self._order.describe()


class _Epoch(EpochIterator["Batch"]):
    """Batches of the engine."""

    def __init__(
        self,
        owner: object,
        session: Session,
        timer: StepTimer,
        *,
        token: int,
        place: Place,
        timeout_ms: int | None,
    ) -> None:
        super().__init__(owner, session, timer, token=token, place=place)
        self._timeout_ms = timeout_ms

    def _begin_epoch(self, start: Place) -> None:
        if start != self._place:
            self._session.begin_epoch(start)

    def _take(self) -> tuple[Receipt, Batch] | None:
        raw = self._session.next_batch(self._timeout_ms)
        if raw is None:
            return None
        if raw.faults:
            self._waits.enter("origin_read")
        return raw, self._session.batch(raw, self._session.start_place.position)
