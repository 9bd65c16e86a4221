# SPDX-License-Identifier: Apache-2.0
"""What ``foresee.Loader`` and ``foresee.torch.DataLoader`` have in common for those who use them.

Apart from the two so that what is promised of both is written, and kept, once. Apart from the session, which
knows no user: here are the public names and their documents, there is what they do. Refuses to know what a
batch is: how one is made and handed out is all that the two loaders differ in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from foresee._session import Session


class Face(ABC):
    """A loader without its batches: epochs, states, figures and the end."""

    def __init__(self, session: Session) -> None:
        self._session = session

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
        self._session.engine.start()

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands: small, JSON, equal on every rank; usable at another world or batch size.

        Counts the batches that were handed out, not those that were read ahead. An order of torch that is
        known for one epoch only (``foresee.torch``) goes on at the same batch and world size alone; the state
        of a ``sampler=`` of yours is yours to keep.
        """
        return self._session.state(self._describe(), draw=self._draw())

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on at ``state`` with the next ``iter()``; iterators that came before end.

        ``strict``: False accepts a data set that has grown.

        Raises:
            StateMismatch: the state is of another run; shows both values of everything that differs.
        """
        place = self._session.load(state, self._describe(), strict=strict)
        self._turn_to(place.epoch)

    def audit(self) -> dict[str, Any]:
        """Compare what this rank handed out of the current epoch with the order.

        Returns:
            Plain values: ``ok``, whether it is exactly this rank's share; ``epoch``, ``start``, ``stop``
            (positions over all ranks), ``rank``, ``world_size``, ``samples``; ``sum`` of this rank and
            ``expected`` of all ranks together, hexadecimal: the ranks' sums, added modulo 2**128, give
            ``expected``; ``replaced`` and ``skipped`` samples.
        """
        return self._session.audit()

    def stats(self) -> dict[str, Any]:
        """Where every byte came from and every wait went, since ``start``; None: not measured."""
        return self._session.stats()

    def close(self) -> None:
        """Stop threads and reads, write the cache's manifest. Idempotent, from any thread."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _describe(self) -> Mapping[str, Any]:
        """What a state keeps of the order."""

    def _draw(self) -> Mapping[str, Any] | None:
        """What a state keeps of the epoch's random numbers, if the order cannot be computed without them."""
        return None

    def _turn_to(self, epoch: int) -> None:
        """The next epoch was named."""
