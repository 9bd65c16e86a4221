# SPDX-License-Identifier: Apache-2.0
"""Iterator over one epoch of ``foresee.torch.DataLoader``: batches of a feed, in the order of a plan.

Torch's loader calls its sampler ahead of the batches that it returns, which draws random numbers. The iterator notifies
the plan when that would have happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foresee._loading.epoch import EpochIterator
from foresee.torch.data.feed import EpochStart

if TYPE_CHECKING:
    from foresee._loading.progress import Place
    from foresee._loading.session import Session
    from foresee._runtime.step_times import StepTimer
    from foresee.torch.data.feed import BatchReceipt, DirectFeed, PrefetchFeed
    from foresee.torch.data.plans import Plan
    from foresee.torch.data.resources import Resources


class FeedEpoch(EpochIterator[Any]):
    """Iterator over the batches of ``feed``.

    ``lead``: batches that torch's loader would request ahead. ``timeout_ms``: for a batch; None: no limit.
    ``draws_at_once``: whether the order of ``place`` is drawn now, not at the first ``next()``.
    """

    def __init__(
        self,
        owner: object,
        session: Session,
        timer: StepTimer,
        *,
        token: int,
        place: Place,
        plan: Plan,
        resources: Resources,
        feed: PrefetchFeed | DirectFeed,
        lead: int,
        timeout_ms: int | None,
        draws_at_once: bool,
    ) -> None:
        # First, so that an error of the sampler leaves the run unchanged.
        drawn = _start_of(plan, place) if draws_at_once else None
        super().__init__(owner, session, timer, token=token, place=place)
        self._plan = plan
        self._resources = resources
        self._feed = feed
        self._lead = lead
        self._timeout_ms = timeout_ms
        self._drawn = drawn
        self._requested = 0

    def _begin_epoch(self, start: Place) -> None:
        self._waits.enter("plan")
        drawn = self._drawn if start == self._place else None
        if drawn is None:
            drawn = _start_of(self._plan, start)
        self._plan.advance_sampler(self._lead)
        self._feed.begin_epoch(drawn)
        self._waits.enter("copy")

    def _take(self) -> tuple[BatchReceipt, Any] | None:
        return self._feed.next(self._timeout_ms)

    def _on_start(self) -> None:
        self._plan.before_start(self._session.progress)

    def _on_requested(self) -> None:
        # Torch's loader has requested the next batch, also after the error of one.
        self._requested += 1
        self._plan.advance_sampler(self._requested + self._lead)

    def _on_last(self) -> None:
        self._resources.end_epoch(self._waits)

    def _on_end(self) -> None:
        self._plan.advance_sampler(self._requested + self._lead + 1)

    def _on_abandoned(self) -> None:
        self._feed.pause()
        self._resources.end_epoch()


def _start_of(plan: Plan, place: Place) -> EpochStart:
    """Draw the order of the epoch that begins at ``place``."""
    return EpochStart(place, None if place.finished else plan.draw_order(place), plan.seed)
