# SPDX-License-Identifier: Apache-2.0
"""One epoch of a ``DataLoader``, batch by batch: what ``iter()`` returns.

A batch that could not be made is raised in its turn, and the next call gives the batch behind it, as in torch. What is
counted, saved and drawn ahead follows the batches that the training loop received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from foresee.errors import Closed, StallTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from foresee._progress import Place
    from foresee._session import Session
    from foresee._steps import Lap
    from foresee.torch._feed import Ahead, Direct, Receipt, Target
    from foresee.torch._plans import Plan
    from foresee.torch._resources import Resources


class EpochIterator:
    """See the module.

    Args:
        owner: the loader, which lives as long as its iterator.
        session: whose epoch it is.
        plan: whose order it is.
        resources: what makes the batches.
        feed: where they come from.
        lap: the clock of its steps.
        token: of the epoch, from ``Session.begin``.
        place: where it begins.
        lead: batches that torch's loader would have requested ahead.
        timeout_ms: for a batch; None waits as long as it takes.
        aim: from where an epoch starts to the target of the feed.
        target: that of ``place``, if it is known already; else it is computed at the first ``next()``.
    """

    def __init__(
        self,
        owner: object,
        session: Session,
        plan: Plan,
        resources: Resources,
        feed: Ahead | Direct,
        lap: Lap,
        *,
        token: int,
        place: Place,
        lead: int,
        timeout_ms: int | None,
        aim: Callable[[Place], Target],
        target: Target | None,
    ) -> None:
        self._owner = owner
        self._session = session
        self._plan = plan
        self._resources = resources
        self._feed = feed
        self._lap = lap
        self._token = token
        self._lead = lead
        self._timeout_ms = timeout_ms
        self._place = place
        self._aim = aim
        self._target = target
        self._is_begun = False
        self._waits = session.waits
        self._asked = 0
        """Batches that the loop asked for and got, or whose error it got."""
        self._is_over = place.finished
        self._is_closed = False
        # The loop lets go of a batch when it has the next one; see ``foresee.Loader``.
        self._value: Any = None
        self._before: Any = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        if self._is_begun and self._is_over:
            self._finish()
        self._waits.ask()
        try:
            receipt = self._advance()
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StallTimeout | Closed):
                # Torch's loader, too, has requested the batch behind it by then.
                self._count()
            self._session.end_wait(self._waits)
            raise
        if receipt is None:
            self._finish()
        else:
            self._session.delivered(self._waits, receipt)
        return self._value

    def _finish(self) -> NoReturn:
        """The epoch has no more batches."""
        self._is_over = True
        self._plan.handed(self._asked + self._lead + 1)
        self.close()
        raise StopIteration

    def _advance(self) -> Receipt | None:
        """Take the next batch; None at the epoch's end."""
        session = self._session
        if not self._is_begun:
            self._begin()
        else:
            self._before, self._value = self._value if session.is_small else None, None
        if self._is_over:
            return None
        session.progress.check(self._token)
        if self._lap.ask():
            self._waits.ask()
        delivery = self._feed.next(self._timeout_ms)
        if delivery is None:
            return None
        self._lap.got()
        receipt, self._value = delivery
        session.hand_over(self._token, receipt)
        self._count()
        if session.progress.place.finished:
            self._is_over = True
            self._resources.epoch_over(self._waits)
        return receipt

    def close(self) -> None:
        """Give up the rest of the epoch. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._value = self._before = None
        session = self._session
        session.end_wait(self._waits)
        self._lap.end()
        if session.progress.is_current(self._token) and not self._is_over and not session.is_forked:
            self._feed.pause()
            self._resources.epoch_over()
            session.abandon(self._token)

    def __del__(self) -> None:
        if hasattr(self, "_before"):
            self.close()

    def _begin(self) -> None:
        """Ask for the first batch. An epoch that was named since ``iter()`` counts."""
        session, plan = self._session, self._plan
        if session.progress.is_current(self._token):
            plan.before_start(session.progress)
        start = session.start(self._token, self._place, turns=plan.order is not None)
        if session.waits is not self._waits:
            self._waits = session.waits
            self._waits.ask()
        self._waits.enter("plan")
        self._is_over = start.finished
        if not self._is_over:
            session.progress.check(self._token)
            target = self._aim(start) if self._target is None or start != self._place else self._target
            plan.handed(self._lead)
            self._feed.restart(target)
        self._is_begun = True
        self._waits.enter("copy")

    def _count(self) -> None:
        self._asked += 1
        self._plan.handed(self._asked + self._lead)
