# SPDX-License-Identifier: Apache-2.0
"""Public methods that ``foresee.Loader`` and ``foresee.torch.DataLoader`` share.

They delegate to the session. The two loaders differ only in how they make a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

from foresee._loading import saved_state, summary
from foresee._loading.progress import Place, Progress
from foresee._runtime.ranks import detect

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from foresee._loading.avoided_samples import Avoided
    from foresee._loading.session import Session
    from foresee._runtime.ranks import World


class BaseLoader(ABC):
    """Base of both loaders: epochs, states, statistics and ``close``."""

    _session: Session
    _avoided: tuple[Avoided, ...] = ()

    def __init__(self, world: World, *, rank_is_given: bool) -> None:
        """Open the session of ``world``.

        ``rank_is_given``: whether the rank is an argument. Otherwise a process group that is initialized before the
        first ``iter()`` still changes it.
        """
        self._rank_is_final = rank_is_given
        self._open(world, Progress())

    def _update_rank(self, *, provisional: bool = True) -> None:
        """Take the rank from a process group that was initialized after construction.

        ``provisional``: whether it may still change; False from the first ``iter()`` on.

        Raises:
            ConfigError: as in ``foresee._runtime.ranks.detect``, or the order is not possible on so many ranks.
            StateMismatch: the loaded state is of another world size, and its order does not allow this one.
        """
        if self._rank_is_final:
            return
        world, progress = detect(provisional=provisional), self._session.progress
        state = progress.loaded_state
        if world != self._session.world:
            self._release()
            self._open(world, progress)
            if state is not None:
                self._restore(progress.place, state)
        if provisional:
            return
        if state is not None:
            self._session.check(state, self._describe(), strict=False)
        self._rank_is_final = True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next ``iter()``, 0 or more; optional, since epochs advance by themselves."""
        self._session.progress.set_epoch(epoch)
        self._on_set_epoch(epoch)

    def start(self) -> None:
        """Open origin, cache and threads and begin to read before the first ``iter()``.

        This overlaps the first reads with other work, such as the loading of a model.

        Raises:
            OriginError: the origin cannot be reached.
            CacheError: the cache directory cannot be used.
        """
        self._update_rank()
        self._session.open()

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the run: small, JSON-able, equal on every rank, valid at another world or batch size.

        It counts the batches that the loop received, not those that were read ahead. An order of torch that is known
        for one epoch only (``foresee.torch``) needs the same batch and world size; the state of your own ``sampler=``
        is not in it.
        """
        self._update_rank()
        return self._session.state(self._describe(), draw=self._draw())

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Continue from ``state`` with the next ``iter()``; older iterators end.

        ``strict``: False accepts a data set that has grown.

        Raises:
            StateMismatch: the state is of another run; the message has both values of each difference.
        """
        self._update_rank()
        place = self._session.check(state, self._describe(), strict=strict)
        if saved_state.avoided(state) != self._avoided and not self._session.progress.is_stopped:
            # The engine plans ahead by its order, so another order needs another engine.
            world, progress = self._session.world, self._session.progress
            self._avoided = saved_state.avoided(state)
            self._release()
            self._open(world, progress)
        self._restore(place, state)
        self._session.progress.load(place, dict(state))

    def audit(self) -> dict[str, Any]:
        """Compare the samples that this rank returned in the current epoch with the order.

        Returns:
            Plain values: ``ok``, whether it is exactly this rank's share; ``epoch``, ``start``, ``stop``
            (positions over all ranks), ``rank``, ``world_size``, ``samples``; ``sum`` of this rank and
            ``expected`` of all ranks together, hexadecimal: the ranks' sums, added modulo 2**128, give
            ``expected``; ``replaced`` and ``skipped`` samples; ``avoided``, the number that the loaded state avoids.
        """
        return self._session.audit()

    def stats(self) -> dict[str, Any]:
        """Return the sources of all bytes and the causes of all waits since ``start``; None: not measured.

        ``waits`` has the time inside ``next()`` by cause, each with ``seconds``: ``plan`` (start, order),
        ``origin_queue``, ``origin_read``, ``origin_retry`` (after faults and throttling), ``disk``, ``node`` (the host
        of the node's cache has not answered), ``copy`` (in memory), ``transform`` (decoding too), ``collate``,
        ``workers``. Each instant has one cause, the stage of the batch, so they add up to the time that the loop
        waited.

        ``node`` is None for a loader with caches of its own. With a cache of the node it has

        - ``role``: ``host`` (the host of the cache is in this process), ``rank_consumer`` (in that of another rank) or
          ``service_consumer`` (``foresee node``);
        - ``socket``: path of the host; ``attached``: False after its end, when the loader reads the origin itself;
        - ``ram_bytes``, ``disk_bytes``: capacity of the whole node, 0 without a disk;
        - ``sources``: ``samples`` and ``bytes`` that this loader got from the host, by their source there: ``ram``,
          ``disk``, ``peer``, ``origin``. A read for several consumers is from the origin for one of them;
        - ``host``: its state for all consumers, as ``foresee node status --json`` shows it (with ``origin``: requests,
          bytes, retries); None if it does not answer within seconds.

        ``tiers`` is then empty, because this process has no cache.
        """
        return self._session.stats()

    def report(self) -> str:
        """Summarize ``stats()`` as a text: sources of the bytes, hits, caches, waits by cause, and a hint."""
        return summary.report(self.stats())

    def __repr__(self) -> str:
        """Samples, batches, rank and cache; starts nothing and never fails."""
        name = type(self).__name__
        try:
            return summary.loader_line(
                name, self._session, self._batches(), provisional=not self._rank_is_final
            )
        except Exception:  # noqa: BLE001 - a debugger shows unfinished objects
            return f"{name}(not open)"

    def _batches(self) -> int | None:
        """Return the batches of a whole epoch at the present world size; None: only the user's sampler has them."""
        session = self._session
        if session.order is None or session.batch_size is None:
            return None
        return session.order.steps(0, session.world.size, session.batch_size, drop_last=session.drop_last)

    def close(self) -> None:
        """Stop threads, workers and reads, write the cache's manifest. Idempotent, from any thread."""
        self._rank_is_final = True
        self._session.progress.stop()
        self._release()

    def __reduce__(self) -> NoReturn:
        """Raise ``TypeError``: a loader cannot be copied or pickled."""
        raise TypeError(
            f"a {type(self).__name__} has threads and memory of its own and cannot be copied or pickled; make one in "
            "each process (with Lightning's ddp_spawn: in train_dataloader()), or a second one"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _open(self, world: World, progress: Progress) -> None:
        """Make the session and everything else that depends on the rank."""

    def _release(self) -> None:
        """Close everything that ``_open`` made."""
        self._session.close()

    @abstractmethod
    def _describe(self) -> Mapping[str, Any]:
        """Return the order's fields of a state."""

    def _draw(self) -> Mapping[str, Any] | None:
        """Return the epoch's random numbers for a state, if the order cannot be computed without them."""
        return None

    def _on_set_epoch(self, epoch: int) -> None:
        """Called when the next epoch was set."""

    def _restore(self, place: Place, state: Mapping[str, Any]) -> None:
        """Prepare to continue from ``state``, which is at ``place``.

        Raises:
            StateMismatch: a field is missing.
        """
