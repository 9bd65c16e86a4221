# SPDX-License-Identifier: Apache-2.0
"""One epoch of ``foresee.torch.DataLoader``: batches of a feed, and what torch's generators give for them.

Torch's loader asks its sampler ahead of the batches that it hands out, and draws random numbers with it. The plan hears
when that would have been.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foresee._epoch import EpochIterator

if TYPE_CHECKING:
    from collections.abc import Callable

    from foresee._progress import Place
    from foresee._session import Session
    from foresee._steps import Lap
    from foresee.torch._feed import Ahead, Direct, Receipt, Target
    from foresee.torch._plans import Plan
    from foresee.torch._resources import Resources


class FeedEpoch(EpochIterator[Any]):
    """See the module.

    Args:
        owner: as of ``EpochIterator``, and so are ``session``, ``lap``, ``token`` and ``place``.
        session: see ``owner``.
        lap: see ``owner``.
        token: see ``owner``.
        place: see ``owner``.
        plan: whose order it is.
        resources: what makes the batches.
        feed: where they come from.
        lead: batches that torch's loader would have requested ahead.
        timeout_ms: for a batch; None waits as long as it takes.
        target_of: from where an epoch starts to the target of the feed.
        target: that of ``place``, if it is known already; else it is computed at the first ``next()``.
    """

    def __init__(
        self,
        owner: object,
        session: Session,
        lap: Lap,
        *,
        token: int,
        place: Place,
        plan: Plan,
        resources: Resources,
        feed: Ahead | Direct,
        lead: int,
        timeout_ms: int | None,
        target_of: Callable[[Place], Target],
        target: Target | None,
    ) -> None:
        super().__init__(owner, session, lap, token=token, place=place)
        self._plan = plan
        self._resources = resources
        self._feed = feed
        self._lead = lead
        self._timeout_ms = timeout_ms
        self._target_of = target_of
        self._target = target
        self._requested = 0

    def _aim(self, start: Place) -> None:
        self._waits.enter("plan")
        is_known = self._target is not None and start == self._place
        target = self._target if is_known else self._target_of(start)
        self._plan.handed(self._lead)
        assert target is not None, "known, or computed"
        self._feed.restart(target)
        self._waits.enter("copy")

    def _take(self) -> tuple[Receipt, Any] | None:
        return self._feed.next(self._timeout_ms)

    def _on_start(self) -> None:
        self._plan.before_start(self._session.progress)

    def _on_requested(self) -> None:
        # For the error of a batch, too, torch's loader has requested the batch behind it.
        self._requested += 1
        self._plan.handed(self._requested + self._lead)

    def _on_last(self) -> None:
        self._resources.epoch_over(self._waits)

    def _on_end(self) -> None:
        self._plan.handed(self._requested + self._lead + 1)

    def _on_abandoned(self) -> None:
        self._feed.pause()
        self._resources.epoch_over()
