# SPDX-License-Identifier: Apache-2.0
"""Actions that the scheduler of a staggered run returns to its runner, one at a time.

Separate from ``supervise``, which decides, because ``running`` carries them out and needs no decision.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "TICK",
    "Action",
    "GiveUp",
    "Hold",
    "Launch",
    "Message",
    "Move",
    "Progress",
    "Read",
    "Release",
    "ReportEnd",
    "Stop",
]

TICK = 0.05
"""Seconds between two looks at the jobs."""


@dataclass(frozen=True)
class Launch:
    """Hand a job over; ``handle_launch`` or ``handle_launch_failure`` answers."""

    who: int
    held: bool
    """Whether its loader waits at the gate."""
    due: float
    """Seconds until it should run."""
    essential: bool
    """Whether there is no run without it."""


@dataclass(frozen=True)
class Release:
    """Open a job's gate; ``handle_gate`` answers."""

    who: int


@dataclass(frozen=True)
class Hold:
    """Close a job's gate between two steps; ``handle_gate`` answers."""

    who: int


@dataclass(frozen=True)
class Move:
    """Tell the launcher that a job should run in ``due`` seconds."""

    who: int
    due: float


@dataclass(frozen=True)
class Stop:
    """End a job."""

    who: int


@dataclass(frozen=True)
class Read:
    """The job's steps are needed; ``handle_steps`` answers."""

    who: int


@dataclass(frozen=True)
class ReportEnd:
    """Report that a job has ended too early."""

    who: int
    code: int


@dataclass(frozen=True)
class GiveUp:
    """Open the gate of a job that takes no steps, and report that it is given up; ``handle_gate`` answers."""

    who: int


@dataclass(frozen=True)
class Message:
    """A line for the user."""

    text: str


@dataclass(frozen=True)
class Progress:
    """A line of progress."""

    text: str


Action = Launch | Release | Hold | Move | Stop | Read | ReportEnd | GiveUp | Message | Progress
