# SPDX-License-Identifier: Apache-2.0
"""Public methods that ``foresee.Loader`` and ``foresee.torch.DataLoader`` share, with their documentation.

The session does the work. The two loaders differ only in how a batch is made and handed out, which is not known here.
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


class Face(ABC):
    """A loader without its batches: epochs, states, figures and the end."""

    _session: Session
    _avoided: tuple[Avoided, ...] = ()

    def __init__(self, world: World, *, rank_is_given: bool) -> None:
        """Open the session of ``world``.

        ``rank_is_given``: whether the caller named the rank. Otherwise a process group that is initialized before the
        first ``iter()`` still decides it.
        """
        self._rank_is_final = rank_is_given
        self._open(world, Progress())

    def _settle(self, *, provisional: bool = True) -> None:
        """Take the rank from a process group that was initialized after construction.

        ``provisional``: it may still change. ``iter()`` ends that.

        Raises:
            ConfigError: see ``foresee._runtime.ranks.detect``; or the order is not possible on so many ranks.
            StateMismatch: the loaded state is of another world size, and its order allows only that one.
        """
        if self._rank_is_final:
            return
        world, progress = detect(provisional=provisional), self._session.progress
        state = progress.loaded
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
        """Let the next ``iter()`` give ``epoch``, 0 or more; optional, epochs advance by themselves."""
        self._session.progress.set_epoch(epoch)
        self._turn_to(epoch)

    def start(self) -> None:
        """Open origin, cache and threads and begin to read, ahead of the first ``iter()``.

        Worth it where something else takes its time first, such as the loading of a model.

        Raises:
            OriginError: the origin cannot be reached.
            CacheError: the cache directory cannot be used.
        """
        self._settle()
        self._session.open()

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands: small, JSON, equal on every rank; usable at another world or batch size.

        Counts the batches that were handed out, not those that were read ahead. An order of torch that is
        known for one epoch only (``foresee.torch``) goes on at the same batch and world size alone; the state
        of a ``sampler=`` of yours is yours to keep.
        """
        self._settle()
        return self._session.state(self._describe(), draw=self._draw())

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on at ``state`` with the next ``iter()``; iterators that came before end.

        ``strict``: False accepts a data set that has grown.

        Raises:
            StateMismatch: the state is of another run; shows both values of everything that differs.
        """
        self._settle()
        place = self._session.check(state, self._describe(), strict=strict)
        if saved_state.avoided(state) != self._avoided and not self._session.progress.is_stopped:
            # The engine plans ahead by its order, so another order takes another engine.
            world, progress = self._session.world, self._session.progress
            self._avoided = saved_state.avoided(state)
            self._release()
            self._open(world, progress)
        self._restore(place, state)
        self._session.progress.load(place, dict(state))

    def audit(self) -> dict[str, Any]:
        """Compare what this rank handed out of the current epoch with the order.

        Returns:
            Plain values: ``ok``, whether it is exactly this rank's share; ``epoch``, ``start``, ``stop``
            (positions over all ranks), ``rank``, ``world_size``, ``samples``; ``sum`` of this rank and
            ``expected`` of all ranks together, hexadecimal: the ranks' sums, added modulo 2**128, give
            ``expected``; ``replaced`` and ``skipped`` samples; ``avoided``, how many the loaded state avoids.
        """
        return self._session.audit()

    def stats(self) -> dict[str, Any]:
        """Where every byte came from and every wait went, since ``start``; None: not measured.

        ``waits`` has the time inside ``next()`` by cause, each with ``seconds``: ``plan`` (start, order),
        ``origin_queue``, ``origin_read``, ``origin_retry`` (after faults and throttling), ``disk``, ``copy`` (in
        memory, and the hand-over), ``transform`` (decoding too), ``collate``, ``workers``. Each instant has one cause,
        that of the stage which the batch was in, so they add up to the time that the loop waited.
        """
        return self._session.stats()

    def report(self) -> str:
        """Return what ``stats()`` mean, to be printed: where bytes came from, hits, waits by cause, and a hint."""
        return summary.report(self.stats())

    def __repr__(self) -> str:
        """Samples, batches, rank and cache; starts nothing and never fails."""
        name = type(self).__name__
        try:
            return summary.loader_line(
                name, self._session, self._batches(), provisional=not self._rank_is_final
            )
        except Exception:  # noqa: BLE001 - a debugger shows objects that are half made
            return f"{name}(not open)"

    def _batches(self) -> int | None:
        """Batches of a whole epoch as far as the rank is known; None: only a sampler of the user's knows."""
        session = self._session
        if session.order is None or session.batch_size is None:
            return None
        samples = session.order.samples_per_rank(0, session.world.size)
        return samples // session.batch_size if session.drop_last else -(-samples // session.batch_size)

    def close(self) -> None:
        """Stop threads, workers and reads, write the cache's manifest. Idempotent, from any thread."""
        self._rank_is_final = True
        self._session.progress.stop()
        self._release()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled."""
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
        """Make the session, and what else depends on the rank."""

    def _release(self) -> None:
        """Close what ``_open`` made."""
        self._session.close()

    @abstractmethod
    def _describe(self) -> Mapping[str, Any]:
        """What a state keeps of the order."""

    def _draw(self) -> Mapping[str, Any] | None:
        """What a state keeps of the epoch's random numbers, if the order cannot be computed without them."""
        return None

    def _turn_to(self, epoch: int) -> None:
        """The next epoch was named."""

    def _restore(self, place: Place, state: Mapping[str, Any]) -> None:
        """``state``, which stands at ``place``, is about to be gone on from.

        Raises:
            StateMismatch: it lacks something.
        """
