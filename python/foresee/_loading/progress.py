# SPDX-License-Identifier: Apache-2.0
"""The next epoch, and how much of it was returned; resume depends on it.

Only batches that the training loop received count, not those in flight.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import Any

from foresee.errors import Closed

_log = logging.getLogger("foresee")


@dataclass(frozen=True)
class Place:
    """A point in the run: ``position`` of ``epoch``, and whether that epoch has ended there."""

    epoch: int
    position: int
    finished: bool = False


class Progress:
    """Batches returned so far, and the place of the next ``iter()``. A test proves each of these rules:

    - After an epoch was begun, the next one follows, whether the first was finished or not.
    - Where epochs may repeat, an iterator that returned no batch, or one of several, is unused: the next ``iter()``
      begins at the same place.
    - ``set_epoch`` starts its epoch at 0, except that the epoch of a loaded state keeps its position.
    - After a state of an epoch's end, ``iter()`` returns the next epoch.
    - ``set_epoch`` between ``iter()`` and the first batch applies to that iterator, as in torch, whose loader calls its
      sampler at the first ``next()``. Lightning calls it there. Later calls set the epoch after.
    """

    def __init__(self) -> None:
        self._now: Place | None = None
        self._next: Place | None = Place(0, 0)
        self._loaded: dict[str, Any] | None = None
        self._is_epoch_set = False
        # Whether the current iterator returned a batch after `_next` was set.
        self._is_continued = False
        self._generation = 0
        self._stopped = False
        # Of the current iterator, if it can be unused: its start, and the loaded state of that place.
        self._begun: tuple[Place, dict[str, Any] | None] | None = None
        self._batches = 0

    @property
    def place(self) -> Place:
        """Place of the run for a state."""
        if self._next is not None and not self._is_continued:
            return self._next
        assert self._now is not None, "one of both is always set"
        return self._now

    @property
    def is_begun(self) -> bool:
        """Whether an epoch is in progress or has ended, and no other was set since."""
        return self._next is None or self._is_continued

    @property
    def is_stopped(self) -> bool:
        """Whether the loader is closed."""
        return self._stopped

    @property
    def loaded_state(self) -> dict[str, Any] | None:
        """The loaded state, until the next batch."""
        return copy.deepcopy(self._loaded)

    def peek(self) -> Place:
        """Return the place that ``begin`` would return, without beginning it."""
        if self._next is None:
            assert self._now is not None, "one of both is always set"
            return self._unused[0] if self._unused is not None else Place(self._now.epoch + 1, 0)
        if self._next.finished and not self._is_epoch_set:
            return Place(self._next.epoch + 1, 0)
        return self._next

    def begin(self, *, repeats: bool) -> tuple[int, Place]:
        """Begin the next epoch, or the rest of one; return the token of its iterator, and its start.

        ``repeats``: whether an iterator that returns no batch, or one of several, is unused.
        """
        self._rewind_unused()
        place = self.peek()
        self._generation += 1
        if self._loaded is not None and place.epoch != self._loaded["epoch"]:
            self._loaded = None
        self._begun = (place, self._loaded) if repeats else None
        self._batches = 0
        self._now, self._next, self._is_epoch_set, self._is_continued = place, None, False, False
        return self._generation, place

    def start(self, token: int, place: Place, *, can_switch: bool) -> Place:
        """Return the start of an iterator that began at ``place``, when its first batch is requested.

        ``can_switch``: whether it can still switch to an epoch that was set since. Otherwise the epoch that it has gets
        that number.
        """
        if not self.is_current(token) or self._next is None:
            return place
        if self._next.epoch != place.epoch:
            place = self.peek() if can_switch else Place(self._next.epoch, place.position, place.finished)
            self._loaded = None
            self._begun = None if self._begun is None else (place, None)
        self._now, self._next, self._is_epoch_set = place, None, False
        return place

    def abandon(self, token: int) -> None:
        """End the iterator of ``token`` before the epoch's end."""
        if self.is_current(token):
            self._rewind_unused()

    @property
    def _unused(self) -> tuple[Place, dict[str, Any] | None] | None:
        """Start of the current iterator, while it is unused."""
        used = self._batches > 1 or self._now is None or self._now.finished
        return None if used else self._begun

    def _rewind_unused(self) -> None:
        """Return to the start of an unused iterator."""
        if self._next is None and self._unused is not None:
            self._next, self._loaded = self._unused

    def check(self, token: int) -> None:
        """Raise ``Closed`` if a newer iterator or a loaded state has replaced this one, or its loader is closed."""
        if self._stopped:
            raise Closed("the loader is closed")
        if token != self._generation:
            raise Closed(
                "this iterator was replaced by a newer iter() or by load_state_dict(); use the newer one, or a second "
                "loader for a loop within a loop"
            )

    def is_current(self, token: int) -> bool:
        """Whether no newer iterator has replaced that of ``token``."""
        return token == self._generation

    def record_batch(self, token: int, position: int, *, finished: bool) -> None:
        """Count a batch that the training loop received, which ends at ``position``."""
        self.check(token)
        assert self._now is not None, "a token comes from begin()"
        self._now = Place(self._now.epoch, position, finished)
        self._is_continued = self._next is not None
        self._batches += 1
        self._loaded = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next ``iter()``, 0 or more."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"set_epoch({epoch!r}): a whole number of 0 or more")
        self._rewind_unused()
        self._is_continued = False
        if self._loaded is not None and self._next is not None and self._next.epoch == epoch:
            self._is_epoch_set = True
            return
        self._warn_about_rest(epoch)
        self._next = Place(epoch, 0)
        self._loaded = None
        self._is_epoch_set = False

    def follow_sampler(self, epoch: int) -> None:
        """Set the epoch of the next ``iter()`` to that of a user's sampler; it may repeat."""
        self._is_continued = False
        ended = self._next is not None and self._next.finished and not self._is_epoch_set
        if ended or self._next is None or self._next.epoch != epoch or self._loaded is None:
            self._warn_about_rest(epoch)
            self._next, self._loaded, self._is_epoch_set = Place(epoch, 0), None, False
        else:
            self._is_epoch_set = True

    def _warn_about_rest(self, epoch: int) -> None:
        """Warn that the rest of a loaded epoch is skipped: frameworks count epochs by their own steps."""
        state = self._loaded
        if state is not None and state["epoch"] != epoch and state["position"] and not state["finished"]:
            _log.warning(
                "epoch %d was set after a state at position %d of epoch %d was loaded: the rest of that epoch is not "
                "read; set epoch %d, or load a state of an epoch's end",
                epoch,
                state["position"],
                state["epoch"],
                state["epoch"],
            )

    def load(self, place: Place, state: dict[str, Any]) -> None:
        """Begin the next ``iter()`` at ``place``; end older iterators."""
        self._next, self._loaded = place, copy.deepcopy(state)
        self._is_epoch_set = self._is_continued = False
        self._generation += 1

    def stop(self) -> None:
        """End all iterators of a closed loader."""
        self._stopped = True
        self._generation += 1
