# SPDX-License-Identifier: Apache-2.0
"""The rule by which a follower is held when it comes too near to the leader, the job that reads the data in.

It goes beyond the paper. A follower that catches up needs the very bytes that the leader waits for: both wait longer,
and nothing ends earlier than if the follower had continued at the leader's rate. So the follower is held between two
steps until the leader is some steps ahead again. The runner closes the gate of the follower's steps, which holds all
its ranks before their next step, opens when the launcher dies, and needs nothing but the job's loader. Stopping its
processes instead would also stop heartbeats between ranks.

The rule is pure (counts of steps in, held jobs out) and the same as the simulator's (``Correction::Hold``). A job is
held only if it can catch up and company would cost it more. No job is held for one that stands still, for the last
steps of an epoch, once one job has read everything, or behind one that finds in the cache what an ended job has read.
The rule does not apply next to a job whose steps are not visible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from foresee.stagger.model import JobTimes

__all__ = ["AHEAD", "Pace"]

#: Steps of its own that a follower keeps from the leader, at least: what loaders read ahead, and some.
AHEAD = 8
#: The distance shrinks with what a follower has left: it is held for this share of it at the most.
_LEFT_SHARE = 4
#: How often the distance has to be there before a follower that is held goes on.
_FREE = 2
#: A leader that stands still is no longer waited for after the time of this many of its steps, and these seconds.
_STILL_STEPS = 10
_STILL_SECONDS = 1.0


class Pace:
    """The jobs that are held.

    Args:
        jobs: as predicted.
        look: seconds between two polls.
    """

    def __init__(self, jobs: Sequence[JobTimes], look: float) -> None:
        self._jobs = list(jobs)
        self._look = look
        self._done: list[int | None] = [None] * len(jobs)
        self._last = [0.0] * len(jobs)
        self._over = [False] * len(jobs)
        self._held = [False] * len(jobs)

    def handle_figures(self, jobs: Sequence[JobTimes]) -> None:
        """The jobs have shown themselves to be so."""
        self._jobs = list(jobs)

    def handle_progress(self, who: int, done: int, now: float) -> None:
        """A job, which has been let go, has done ``done`` steps."""
        if done != self._done[who]:
            self._done[who], self._last[who] = done, now

    def handle_end(self, who: int) -> None:
        """A job has ended, or failed; what it had read by then is in the cache."""
        self._over[who] = True

    def margin(self, who: int) -> int:
        """Steps of its own that a job keeps from the one who reads, with what it has left."""
        job = self._jobs[who]
        base = AHEAD + math.ceil(2 * self._look / (job.compute + job.wait_cached))
        return min(base, (job.steps - (self._done[who] or 0)) // _LEFT_SHARE)

    def poll_held(self, now: float) -> tuple[bool, ...]:
        """Whether each job is held, now."""
        reader = self._reader()
        self._held = [
            reader is not None and who != reader and self._waits(who, reader, now)
            for who in range(len(self._jobs))
        ]
        return tuple(self._held)

    def _reader(self) -> int | None:
        """Return the job that reads from the origin, the furthest in its first epoch.

        It is None if the data of the furthest were read before.
        """
        shares = {
            who: done / self._jobs[who].steps for who, done in enumerate(self._done) if done is not None
        }
        if any(share >= 1 for share in shares.values()):
            return None
        reader = max(
            (who for who in shares if not self._over[who]), key=lambda who: (shares[who], -who), default=None
        )
        left = max((share for who, share in shares.items() if self._over[who]), default=0.0)
        return None if reader is None or shares[reader] < left else reader

    def _waits(self, who: int, reader: int, now: float) -> bool:
        done, ahead = self._done[who], self._done[reader]
        if done is None or ahead is None or self._over[who]:
            return False
        me, first = self._jobs[who], self._jobs[reader]
        if me.cached_epoch() >= first.cold_epoch():
            return False  # it drops behind by itself
        if me.wait_conc is not None and first.cold_epoch() > me.conc_epoch():
            return False  # beside it, it would be faster
        patience = max(_STILL_STEPS * first.cold_epoch() / first.steps, _STILL_SECONDS)
        if now - self._last[reader] > patience:
            return False
        gap = ahead * me.steps / first.steps - done
        return gap < self.margin(who) * (_FREE if self._held[who] else 1)
