# SPDX-License-Identifier: Apache-2.0
"""The rule that holds a follower that comes too near to the leader, the job that reads the data in.

It goes beyond the paper. A follower that catches up needs the bytes that the leader waits for: both wait longer, and
nothing ends earlier. So the follower is held between two steps until the leader is some steps ahead again. The runner
closes the gate of the follower's steps, which holds all its ranks and opens if the launcher dies. A stopped process
would also stop heartbeats between ranks.

The rule is pure, and the same as the simulator's (``Correction::Hold``). A job is held only if it can catch up and
company costs it more. No job is held for a leader that stands still, for the last steps of an epoch, once one job has
read everything, or behind a job that finds in the cache what an ended job has read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from foresee.stagger.model import JobTimes

__all__ = ["LEAST_LEAD", "Spacing"]

#: Fewest steps of its own that a follower stays behind the leader: more than loaders prefetch.
LEAST_LEAD = 8
#: The distance is at most this fraction of the steps that a follower has left.
_LEFT_SHARE = 4
#: A held follower continues at this multiple of the distance.
_RELEASE_FACTOR = 2
#: A leader without a step for the time of so many steps, and so many seconds, is not waited for.
_STILL_STEPS = 10
_STILL_SECONDS = 1.0


class Spacing:
    """The jobs that are held.

    Args:
        jobs: as predicted.
        poll_seconds: seconds between two polls.
    """

    def __init__(self, jobs: Sequence[JobTimes], poll_seconds: float) -> None:
        self._jobs = list(jobs)
        self._poll_seconds = poll_seconds
        self._done: list[int | None] = [None] * len(jobs)
        self._last = [0.0] * len(jobs)
        self._is_over = [False] * len(jobs)
        self._is_held = [False] * len(jobs)

    def handle_times(self, jobs: Sequence[JobTimes]) -> None:
        """Replace the predicted times by measured ones."""
        self._jobs = list(jobs)

    def handle_progress(self, index: int, done: int, now: float) -> None:
        """Handle the number of steps that a released job has done."""
        if done != self._done[index]:
            self._done[index], self._last[index] = done, now

    def handle_end(self, index: int) -> None:
        """Handle the end of a job; the data that it has read are in the cache."""
        self._is_over[index] = True

    def margin(self, index: int) -> int:
        """Return the steps of its own that a job stays behind the reading job."""
        job = self._jobs[index]
        base = LEAST_LEAD + math.ceil(2 * self._poll_seconds / (job.compute + job.wait_cached))
        return min(base, (job.steps - (self._done[index] or 0)) // _LEFT_SHARE)

    def poll_held(self, now: float) -> tuple[bool, ...]:
        """Return for each job whether it is held."""
        reader = self._reader()
        self._is_held = [
            reader is not None and index != reader and self._is_too_near(index, reader, now)
            for index in range(len(self._jobs))
        ]
        return tuple(self._is_held)

    def _reader(self) -> int | None:
        """Return the job that reads from the origin, the furthest in its lead epoch.

        It is None if the data of the furthest were read before.
        """
        shares = {
            index: done / self._jobs[index].steps for index, done in enumerate(self._done) if done is not None
        }
        if any(share >= 1 for share in shares.values()):
            return None
        reader = max(
            (index for index in shares if not self._is_over[index]),
            key=lambda index: (shares[index], -index),
            default=None,
        )
        left = max((share for index, share in shares.items() if self._is_over[index]), default=0.0)
        return None if reader is None or shares[reader] < left else reader

    def _is_too_near(self, index: int, reader: int, now: float) -> bool:
        done, ahead = self._done[index], self._done[reader]
        if done is None or ahead is None or self._is_over[index]:
            return False
        follower, lead = self._jobs[index], self._jobs[reader]
        if follower.cached_epoch() >= lead.cold_epoch():
            return False  # it falls behind by itself
        if follower.wait_conc is not None and lead.cold_epoch() > follower.conc_epoch():
            return False  # company makes it faster
        patience = max(_STILL_STEPS * lead.cold_epoch() / lead.steps, _STILL_SECONDS)
        if now - self._last[reader] > patience:
            return False
        gap = ahead * follower.steps / lead.steps - done
        return gap < self.margin(index) * (_RELEASE_FACTOR if self._is_held[index] else 1)
