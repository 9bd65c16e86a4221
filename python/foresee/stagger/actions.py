# SPDX-License-Identifier: Apache-2.0
"""Actions that the scheduler of a staggered run returns to its runner, one at a time.

Separate from ``scheduler``, because ``runner`` executes them and needs no decision.
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
"""Seconds between two snapshots of the jobs."""


@dataclass(frozen=True)
class Launch:
    """Launch a job; ``handle_launch`` or ``handle_launch_failure`` answers."""

    index: int
    held: bool
    """Whether its loader waits at the gate."""
    due: float
    """Seconds until it should run."""
    essential: bool
    """Whether its failure ends the run."""


@dataclass(frozen=True)
class Release:
    """Open a job's gate; ``handle_gate`` answers."""

    index: int


@dataclass(frozen=True)
class Hold:
    """Close a job's gate between two steps; ``handle_gate`` answers."""

    index: int


@dataclass(frozen=True)
class Move:
    """Move a job's start to ``due`` seconds from now."""

    index: int
    due: float


@dataclass(frozen=True)
class Stop:
    """Stop a job."""

    index: int


@dataclass(frozen=True)
class Read:
    """Read the job's steps; ``handle_steps`` answers."""

    index: int


@dataclass(frozen=True)
class ReportEnd:
    """Report that a job has ended too early."""

    index: int
    code: int


@dataclass(frozen=True)
class GiveUp:
    """Open the gate of a job without steps, and report that it is given up; ``handle_gate`` answers."""

    index: int


@dataclass(frozen=True)
class Message:
    """A line for the user."""

    text: str


@dataclass(frozen=True)
class Progress:
    """A line of progress."""

    text: str


Action = Launch | Release | Hold | Move | Stop | Read | ReportEnd | GiveUp | Message | Progress
