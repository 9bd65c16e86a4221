# SPDX-License-Identifier: Apache-2.0
"""The next epoch, and how much of it was returned.

Only batches that the training loop received count, not those in flight. Both loaders share this answer to what the next
``iter()`` returns, and resume rests on it.
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
    """The hand-out so far, and what comes next.

    The rules, each of them a test:

    - An epoch that was begun is followed by the next one, whether it was finished or not.
    - Where epochs may repeat, an iterator that handed out no batch, or one of several, costs nothing: the next
      ``iter()`` begins at the same place.
    - ``set_epoch`` starts its epoch at 0, except that the epoch of a loaded state keeps its position.
    - A state loaded at an epoch's end leaves nothing of that epoch, and a plain ``iter()`` then gives the next.
    - ``set_epoch`` between ``iter()`` and the first batch counts for that iterator, as in torch, whose samplers are
      asked at the first ``next()``. Lightning calls it there. Later calls name the epoch after.
    """

    def __init__(self) -> None:
        self._now: Place | None = None
        self._next: Place | None = Place(0, 0)
        self._loaded: dict[str, Any] | None = None
        self._epoch_asked = False
        # Whether the iterator that was begun last handed out a batch after `_next` was named.
        self._goes_on = False
        self._generation = 0
        self._stopped = False
        # The iterator that was begun last, if it may cost nothing: where it began, and the loaded state of that place.
        self._begun: tuple[Place, dict[str, Any] | None] | None = None
        self._batches = 0

    @property
    def place(self) -> Place:
        """Where the run stands, as a state would keep it."""
        if self._next is not None and not self._goes_on:
            return self._next
        assert self._now is not None, "one of both is always set"
        return self._now

    @property
    def begun(self) -> bool:
        """Whether an epoch is under way or over, and no other was named since."""
        return self._next is None or self._goes_on

    @property
    def is_stopped(self) -> bool:
        """Whether the loader is closed."""
        return self._stopped

    @property
    def loaded(self) -> dict[str, Any] | None:
        """The state that was loaded, while nothing was handed out since."""
        return copy.deepcopy(self._loaded)

    def peek(self) -> Place:
        """What ``begin`` would give, without beginning it."""
        if self._next is None:
            assert self._now is not None, "one of both is always set"
            return self._unused[0] if self._unused is not None else Place(self._now.epoch + 1, 0)
        if self._next.finished and not self._epoch_asked:
            return Place(self._next.epoch + 1, 0)
        return self._next

    def begin(self, *, repeats: bool) -> tuple[int, Place]:
        """Start the next epoch, or the rest of one; returns the token of its iterator, and where it
        starts.

        ``repeats``: whether the iterator costs nothing if it hands out no batch, or one of several.
        """
        self._take_back()
        place = self.peek()
        self._generation += 1
        if self._loaded is not None and place.epoch != self._loaded["epoch"]:
            self._loaded = None
        self._begun = (place, self._loaded) if repeats else None
        self._batches = 0
        self._now, self._next, self._epoch_asked, self._goes_on = place, None, False, False
        return self._generation, place

    def start(self, token: int, place: Place, *, turns: bool) -> Place:
        """Return where the iterator of ``token`` starts, which began at ``place``: its first batch is requested.

        ``turns``: whether it can still go to another epoch that was named since. Otherwise that number is given to the
        epoch which it has.
        """
        if not self.is_current(token) or self._next is None:
            return place
        if self._next.epoch != place.epoch:
            place = self.peek() if turns else Place(self._next.epoch, place.position, place.finished)
            self._loaded = None
            self._begun = None if self._begun is None else (place, None)
        self._now, self._next, self._epoch_asked = place, None, False
        return place

    def leave(self, token: int) -> None:
        """The iterator of ``token`` was left before the epoch's end."""
        if self.is_current(token):
            self._take_back()

    @property
    def _unused(self) -> tuple[Place, dict[str, Any] | None] | None:
        """Where the iterator that was begun last began, while it costs nothing."""
        used = self._batches > 1 or self._now is None or self._now.finished
        return None if used else self._begun

    def _take_back(self) -> None:
        """Go back to where an iterator that costs nothing began."""
        if self._next is None and self._unused is not None:
            self._next, self._loaded = self._unused

    def check(self, token: int) -> None:
        """Refuse an iterator that a newer one, or a loaded state, has replaced, or whose loader is closed."""
        if self._stopped:
            raise Closed("the loader is closed")
        if token != self._generation:
            raise Closed(
                "this iterator was replaced by a newer iter() or by load_state_dict(); use the newer one, or a second "
                "loader for a loop within a loop"
            )

    def is_current(self, token: int) -> bool:
        """Whether the iterator of ``token`` is still the one that counts."""
        return token == self._generation

    def handed(self, token: int, position: int, *, finished: bool) -> None:
        """A batch reached the training loop: the epoch now stands at ``position``."""
        self.check(token)
        assert self._now is not None, "a token comes from begin()"
        self._now = Place(self._now.epoch, position, finished)
        self._goes_on = self._next is not None
        self._batches += 1
        self._loaded = None

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` give ``epoch``, 0 or more."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"set_epoch({epoch!r}): a whole number of 0 or more")
        self._take_back()
        self._goes_on = False
        if self._loaded is not None and self._next is not None and self._next.epoch == epoch:
            self._epoch_asked = True
            return
        self._warn_of_rest(epoch)
        self._next = Place(epoch, 0)
        self._loaded = None
        self._epoch_asked = False

    def follow(self, epoch: int) -> None:
        """Let the next ``iter()`` give ``epoch``, which a sampler of the user's has; it may repeat."""
        self._goes_on = False
        ended = self._next is not None and self._next.finished and not self._epoch_asked
        if ended or self._next is None or self._next.epoch != epoch or self._loaded is None:
            self._warn_of_rest(epoch)
            self._next, self._loaded, self._epoch_asked = Place(epoch, 0), None, False
        else:
            self._epoch_asked = True

    def _warn_of_rest(self, epoch: int) -> None:
        """Say that the rest of a loaded epoch is left: frameworks count epochs by their own steps."""
        state = self._loaded
        if state is not None and state["epoch"] != epoch and state["position"] and not state["finished"]:
            _log.warning(
                "epoch %d was named after a state at position %d of epoch %d was loaded: the rest of that epoch is not "
                "read; name epoch %d, or load a state of an epoch's end",
                epoch,
                state["position"],
                state["epoch"],
                state["epoch"],
            )

    def load(self, place: Place, state: dict[str, Any]) -> None:
        """Go on at ``place`` with the next ``iter()``; older iterators end."""
        self._next, self._loaded = place, copy.deepcopy(state)
        self._epoch_asked = self._goes_on = False
        self._generation += 1

    def stop(self) -> None:
        """End all iterators: the loader is closed."""
        self._stopped = True
        self._generation += 1
