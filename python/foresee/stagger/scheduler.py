# SPDX-License-Identifier: Apache-2.0
"""Decisions of a staggered run: when each job is launched, released, held or given up, and which messages are printed.

Pure: it takes facts about the jobs along with the time, and returns actions one at a time. ``timing`` decides when each
job starts, ``spacing`` which jobs are held; ``runner`` executes the actions. Times are those of the runner's clock,
except starts, which count from the leader's first step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from foresee.errors import ConfigError
from foresee.jobspec import Job
from foresee.stagger.actions import (
    TICK,
    Action,
    GiveUp,
    Hold,
    Launch,
    Message,
    Move,
    Progress,
    Read,
    Release,
    ReportEnd,
    Stop,
)
from foresee.stagger.managed_job import ManagedJob, Snapshot, step_ends
from foresee.stagger.outcome import Outcome, StartChange
from foresee.stagger.reports import agree, order_doubt
from foresee.stagger.spacing import Spacing
from foresee.stagger.timing import Timing

__all__ = ["Scheduler"]

#: Seconds between two computations of the starts, and between two lines of progress.
_UPDATE_SECONDS = 0.5
#: A change of a start is announced from this share of the predicted run.
_ANNOUNCED_CHANGE = 0.01
#: Time that a follower may take to load, in terms of its leader's.
_LOAD_FACTOR = 1.25
#: Seconds to load if no load was observed. A job that is ready sooner waits at the gate: half a minute of a GPU,
#: against a late start.
_DEFAULT_LOAD = 30.0


class Scheduler:
    """The decisions of one run.

    Args:
        jobs: with their names, the leader first.
        timing: decides the starts.
        should_launch: of the launcher: whether to submit a follower now.
        spacing: decides which jobs are held; None: none. Unused if the leader's steps are not visible.
        delay: seconds for which the leader waits.
        is_leader_running: whether the leader runs before this call.
        elapsed: with ``is_leader_running``, the seconds that the leader has run, if its steps are not visible.
        patience: seconds for the leader's first step, between two of its steps, and from a job's last step to its end.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[Job, str]],
        timing: Timing,
        *,
        should_launch: Callable[..., bool],
        spacing: Spacing | None = None,
        delay: float = 0.0,
        is_leader_running: bool = False,
        elapsed: float | None = None,
        patience: float = 300.0,
    ) -> None:
        self._jobs = [
            ManagedJob(
                job, name, timing.poll_start(index, 0.0), is_started_here=index > 0 or not is_leader_running
            )
            for index, (job, name) in enumerate(jobs)
        ]
        self._is_leader_unmonitored = elapsed is not None
        self._timing, self._should_launch = timing, should_launch
        self._spacing = None if self._is_leader_unmonitored else spacing
        self._delay, self._is_leader_running, self._elapsed, self._patience = (
            delay,
            is_leader_running,
            elapsed,
            patience,
        )
        #: Jobs that are released together with the leader.
        self._released_with_leader = [job for job in self._jobs if job.start == 0 and not is_leader_running]
        self._jobs[0].is_released = is_leader_running
        self._run_start: float | None = None
        self._first_step: float | None = None
        self._time = 0.0
        self._last_update: float | None = None
        self._has_changed = False
        self._pending: deque[Action] = deque()
        self._current: Iterator[Action] = iter(())
        self._start_changes: list[StartChange] = []
        self._doubts: list[str] = []

    def handle_start(self, now: float) -> None:
        """Handle the begin of the run."""
        self._time = self._run_start = now
        if self._elapsed is not None:
            self._first_step = now - self._elapsed
        if self._delay and not self._is_leader_running:
            self._pending.append(Message(f"{self._jobs[0].name} starts in {self._delay:.1f} s"))

    def handle_snapshots(self, snapshots: Sequence[Snapshot | None], now: float) -> None:
        """Handle the snapshots of all jobs, None without one, and begin to decide."""
        self._time = now
        for index, (job, snapshot) in enumerate(zip(self._jobs, snapshots, strict=True)):
            if snapshot is None or job.is_over:
                continue
            job.record_snapshot(snapshot, now)
            if job.code is not None:
                self._has_changed = True
                whole = Message(f"{job.name} has ended")
                self._pending.append(whole if job.is_complete else ReportEnd(index, job.code))
        self._current = self._decisions()

    def handle_launch(self, index: int, snapshot: Snapshot, now: float) -> None:
        """Handle the launch of a job."""
        self._time = now
        self._jobs[index].record_snapshot(snapshot, now)

    def handle_launch_failure(self, index: int, why: str, now: float) -> None:
        """Handle a job that cannot be started; the others continue."""
        self._time = now
        self._fail(index, f"cannot be started: {why}")

    def handle_unreadable(self, index: int, why: str, now: float) -> None:
        """Handle a follower whose steps cannot be read; the others continue."""
        self._time = now
        self._pending.append(Stop(index))
        self._fail(index, f"was stopped, since its steps cannot be read: {why}")

    def handle_gate(self, index: int, closed: bool, now: float) -> None:
        """Handle the state of a job's gate."""
        self._time = now
        self._jobs[index].record_gate(closed, now)

    def handle_steps(self, index: int, steps: NDArray[np.float64], now: float) -> None:
        """Handle the steps of a job, as of ``JobMonitor.steps``."""
        self._time = now
        self._jobs[index].steps = steps

    def handle_stop(self, index: int, now: float) -> None:
        """Handle a job that still runs at the end of the run and is stopped."""
        self._time = now
        self._jobs[index].is_stopped = True

    def handle_result(self, index: int, snapshot: Snapshot, steps: NDArray[np.float64], now: float) -> None:
        """Handle the last snapshot and steps of a job."""
        self._time = now
        job = self._jobs[index]
        job.snapshot, job.steps = snapshot, steps
        job.code = job.code if snapshot.code is None else snapshot.code

    def poll_action(self, now: float) -> Action | None:
        """Return the next action; None until the next snapshots.

        Raises:
            ConfigError: the leader's loader is not that of its job file.
        """
        self._time = now
        return self._pending.popleft() if self._pending else next(self._current, None)

    def poll_next_snapshot(self, now: float) -> float:
        """Return the seconds until the next snapshots, which are taken at each start at the latest."""
        self._time = now
        if (wait := self._delay_left()) > 0:
            return wait
        if self._first_step is None:
            return TICK
        left = [job.start - self._now() for job in self._jobs if not (job.is_released or job.is_over)]
        return min(TICK, *(max(each, 0.001) for each in left)) if left else TICK

    @property
    def is_over(self) -> bool:
        """Whether all jobs have ended."""
        return all(job.is_over for job in self._jobs[self._is_leader_unmonitored :])

    @property
    def starts(self) -> tuple[float, ...]:
        """Planned start of each job, seconds after the leader's first step."""
        return tuple(job.start for job in self._jobs)

    @property
    def start_changes(self) -> tuple[StartChange, ...]:
        """Changed starts, in order of time."""
        return tuple(self._start_changes)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons to doubt that the prediction applies to these jobs."""
        return tuple(self._doubts)

    def is_job_over(self, index: int) -> bool:
        """Whether a job has ended and needs no snapshot."""
        return self._jobs[index].is_over

    def is_detached(self, index: int) -> bool:
        """Whether a job continues after its steps and must not be stopped."""
        return self._jobs[index].is_detached

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return the outcome of the jobs."""
        zero = self._origin()
        return tuple(
            job.outcome(zero, is_unmonitored=self._is_leader_unmonitored and index == 0)
            for index, job in enumerate(self._jobs)
        )

    def _decisions(self) -> Iterator[Action]:
        """Decide once by the last snapshots."""
        leader = self._jobs[0]
        if self._delay_left() > 0:
            return
        if leader.snapshot is None and not self._is_leader_running:
            for index, job in enumerate(self._jobs):
                if job in self._released_with_leader:
                    yield Launch(index, held=len(self._released_with_leader) > 1, due=0.0, essential=True)
        yield from self._detach_finished()
        yield from self._check_leader()
        if self.is_over:
            return
        if self._first_step is None and not leader.is_gone:
            yield from self._release_first()
        # Jobs no longer wait for a leader that is gone.
        urgent = leader.is_gone and not all(job.is_released or job.is_over for job in self._jobs)
        again = self._last_update is None or self._time - self._last_update >= _UPDATE_SECONDS
        if (self._first_step is not None or leader.is_gone) and (self._has_changed or urgent or again):
            self._last_update, self._has_changed = self._time, False
            yield from self._update_starts()
        for index in range(1, len(self._jobs)):
            yield from self._advance_follower(index)
        yield from self._apply_spacing()
        yield from self._check_reports()

    def _delay_left(self) -> float:
        """Return the seconds until the leader's launch."""
        if self._is_leader_running or self._run_start is None or self._jobs[0].snapshot is not None:
            return 0.0
        return self._run_start + self._delay - self._time

    def _detach_finished(self) -> Iterator[Action]:
        """Stop monitoring a job that continues after its steps: it saves a model, or trains more than its file says."""
        for index, job in enumerate(self._jobs):
            if job.seconds_after_last_step(self._time) > self._patience:
                if job.is_gate_closed:
                    yield Release(index)
                job.is_detached = self._has_changed = True
                yield Message(
                    f"{job.name} has done {job.done} of {job.expected} steps and has not ended within "
                    f"{self._patience:g} s: it continues without being monitored"
                )

    def _check_leader(self) -> Iterator[Action]:
        """Give up a leader without a step for ``patience``; it is not stopped."""
        leader = self._jobs[0]
        if (
            leader.snapshot is None
            or leader.is_gone
            or not leader.is_released
            or leader.is_gate_closed
            or not leader.done
        ):
            return
        if self._time - leader.snapshot.last_step > self._patience:
            yield self._give_up(0)

    def _give_up(self, index: int) -> GiveUp:
        """Give up a job without steps; the others do not wait for it."""
        job = self._jobs[index]
        job.is_lost = self._has_changed = job.is_released = True
        return GiveUp(index)

    def _fail(self, index: int, why: str) -> None:
        """Mark a follower as failed; the others continue."""
        job = self._jobs[index]
        job.code, self._has_changed = 1, True
        self._pending.append(Message(f"{job.name} {why}"))

    def _release_first(self) -> Iterator[Action]:
        """Release the leader, and the jobs that start with it, once all are before their first step."""
        missing = False
        for job in self._released_with_leader or self._jobs[:1]:
            snapshot = job.snapshot
            if snapshot is None or snapshot.head is not None or job.is_gone:
                continue
            missing = True
            if not snapshot.queued and self._time - snapshot.started > self._patience:
                yield self._give_up(self._jobs.index(job))
        leader = self._jobs[0]
        if missing or leader.snapshot is None:
            return
        agree([leader])
        for index, job in enumerate(self._jobs):
            if job in self._released_with_leader:
                job.is_released = True
                yield Release(index)
        self._first_step = self._time

    def _update_starts(self) -> Iterator[Action]:
        """Report progress to ``timing`` and get the new starts."""
        leader = self._jobs[0]
        for index, job in enumerate(self._jobs):
            if job.snapshot is not None and (index == 0 or (job.is_released and not job.is_gone)):
                yield Read(index)
        if len(leader.steps):
            self._first_step = float(leader.steps[0, 0])
        for index, job in enumerate(self._jobs):
            self._update_timing(index, job)
        if self._spacing is not None:
            self._spacing.handle_times(self._timing.times)
        far = _ANNOUNCED_CHANGE * self._timing.leader.alone()
        for index, job in enumerate(self._jobs):
            if job.is_released or job.is_over:
                continue
            now = self._now()
            job.start = self._timing.poll_start(index, now)
            job.start = max(job.start, now) if leader.is_gone else job.start
            before = job.announced_start
            # A change after few steps is uncertain: it is announced only if it keeps a follower from its old start.
            if abs(job.start - before) > far and (
                self._timing.is_rate_known or leader.is_gone or now >= before
            ):
                job.announced_start = job.start
                self._start_changes.append(StartChange(at=now, name=job.name, start=job.start))
                new, old = _distinct(job.start, before)
                yield Message(
                    f"{leader.name} is not as predicted: {job.name} starts at {new} s, not at {old} s"
                )
        yield Progress(", ".join(filter(None, (job.progress_line(self._now()) for job in self._jobs))))

    def _update_timing(self, index: int, job: ManagedJob) -> None:
        """Report the progress of one job to ``timing``."""
        if job.is_gone:
            self._timing.handle_end(index, is_complete=job.is_complete)
            return
        if job.snapshot is None or not job.is_released:
            return
        if not len(job.steps):
            if index == 0:
                self._timing.handle_progress(0, np.zeros(0), self._now())
            return
        first = float(job.steps[0, 0])
        zero = first if self._first_step is None else self._first_step
        self._timing.handle_start(index, first - zero)
        # Steps do not contain the time that a follower was held; the leader's count by the clock.
        done = step_ends(job.steps) - first if index == 0 else np.cumsum(job.steps[:, 1:].sum(axis=1))
        self._timing.handle_progress(index, done, self._time - first)

    def _advance_follower(self, index: int) -> Iterator[Action]:
        """Launch and release a follower when it is due."""
        leader, job = self._jobs[0], self._jobs[index]
        if job.is_over:
            return
        if job.is_released:
            if job.snapshot is not None and job.snapshot.queued:
                # The launcher may still have a later start.
                yield Move(index, 0.0)
            return
        begun = self._first_step is not None or leader.is_gone
        now = self._now() if begun else 0.0
        due = job.start - self._load_seconds() - now
        if job.snapshot is None:
            if not self._should_launch(leader_started=begun, due=due):
                return
            yield Launch(index, held=True, due=max(due, 0.0), essential=False)
            if not job.is_over and leader.is_gone and not leader.is_complete:
                others = any(not each.is_over for each in self._jobs if each is not job)
                how = f"without {leader.name}" if others else "at once, alone"
                yield Message(f"{job.name} starts {how}")
        elif begun and now >= job.start:
            yield Release(index)
            job.is_released = True
            self._timing.handle_start(index, now)
            yield Message(f"{job.name} starts at {now:.1f} s")
        elif begun:
            yield Move(index, due)

    def _load_seconds(self) -> float:
        """Return the seconds from a follower's launch to its first step: the leader's, times ``_LOAD_FACTOR``.

        The follower loads next to a job that computes, and one that is ready too soon only waits at the gate. If the
        leader ran before, the followers that have loaded count instead.
        """
        leader = self._jobs[0]
        if self._is_leader_running:
            loads = [job.loaded for job in self._jobs if job.loaded is not None]
            return _LOAD_FACTOR * max(loads) if loads else _DEFAULT_LOAD
        if self._first_step is None or leader.snapshot is None:
            return 0.0
        return _LOAD_FACTOR * max(self._first_step - leader.snapshot.started, 0.0)

    def _apply_spacing(self) -> Iterator[Action]:
        """Hold followers that come too near to the reading job, and release those far enough behind."""
        if self._spacing is None or self._first_step is None:
            return
        now = self._now()
        for index, job in enumerate(self._jobs):
            if job.is_gone:
                self._spacing.handle_end(index)
            elif job.is_released and job.snapshot is not None:
                self._spacing.handle_progress(index, job.done, now)
        for index, (job, wanted) in enumerate(zip(self._jobs, self._spacing.poll_held(now), strict=True)):
            if job.snapshot is not None and job.is_released and job.is_started_here and not job.is_over:
                if wanted != job.is_gate_closed:
                    yield Hold(index) if wanted else Release(index)

    def _check_reports(self) -> Iterator[Action]:
        """Report loaders that contradict their job files; followers run all the same, since their results are right."""
        leader = self._jobs[0]
        for job in self._jobs:
            if job.is_checked or job.head is None:
                continue
            job.is_checked = True
            doubt = order_doubt(job)
            found = [] if doubt is None else [doubt]
            if job is not leader:
                try:
                    agree([leader, job])
                except ConfigError as error:
                    found += error.faults
            self._doubts += found
            for each in found:
                yield Message(each)

    def _now(self) -> float:
        """Return the seconds since the leader's first step, or since its launch without one."""
        return self._time - self._origin()

    def _origin(self) -> float:
        if self._first_step is not None:
            return self._first_step
        leader = self._jobs[0].snapshot
        return self._time if leader is None else leader.started


def _distinct(one: float, other: float) -> tuple[str, str]:
    """Format two times with the fewest decimals that tell them apart.

    >>> _distinct(4.93, 4.87), _distinct(12.0, 3.0)
    (('4.93', '4.87'), ('12.0', '3.0'))
    """
    pairs = ((f"{one:.{digits}f}", f"{other:.{digits}f}") for digits in range(1, 9))
    return next((pair for pair in pairs if pair[0] != pair[1]), (f"{one}", f"{other}"))
