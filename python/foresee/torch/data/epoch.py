# SPDX-License-Identifier: Apache-2.0
"""One epoch of ``foresee.torch.DataLoader``: batches of a feed, in the order of a plan.

Torch's loader asks its sampler ahead of the batches that it hands out, and draws random numbers with it. The iterator
reports to the plan when that would have happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foresee._loading.epoch import EpochIterator
from foresee.torch.data.feed import Target

if TYPE_CHECKING:
    from foresee._loading.progress import Place
    from foresee._loading.session import Session
    from foresee._runtime.step_times import Lap
    from foresee.torch.data.feed import Ahead, Direct, Receipt
    from foresee.torch.data.plans import Plan
    from foresee.torch.data.resources import Resources


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
        draws_at_once: whether the order of ``place`` is drawn now; else it is drawn at the first ``next()``.
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
        draws_at_once: bool,
    ) -> None:
        # Before the iterator is usable: one whose order cannot be drawn leaves the run as it was.
        target = _target(plan, place) if draws_at_once else None
        super().__init__(owner, session, lap, token=token, place=place)
        self._plan = plan
        self._resources = resources
        self._feed = feed
        self._lead = lead
        self._timeout_ms = timeout_ms
        self._target = target
        self._requested = 0

    def _begin_epoch(self, start: Place) -> None:
        self._waits.enter("plan")
        is_drawn = self._target is not None and start == self._place
        target = self._target if is_drawn else _target(self._plan, start)
        self._plan.handed(self._lead)
        assert target is not None, "drawn before, or now"
        self._feed.begin_epoch(target)
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


def _target(plan: Plan, place: Place) -> Target:
    """Draw the order of the epoch that begins at ``place``."""
    return Target(place, None if place.finished else plan.draw_order(place), plan.seed)
