# SPDX-License-Identifier: Apache-2.0
"""Outcome of a staggered run: of each job, and of the starts that changed.

It is separate from the runner, because reports need it without a clock. It has measured values only.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Outcome", "RunResult", "StartChange"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a job; times are seconds after the leader's first step."""

    name: str
    state: str
    """``done``, ``failed`` (exit code other than 0, or fewer steps than expected), ``stopped`` (by this run),
    ``not started``, or ``running`` (it has done its steps, or another program started it).
    """
    code: int | None
    """Exit code, negative for a signal; None: not started by this run."""
    launched: float | None
    """Its launch; None if not started by this run."""
    start: float | None
    """Start of its first step, or None."""
    end: float | None
    """End of the last step of its job file."""
    steps: int
    expected: int
    """Steps of its job file."""
    compute: float | None
    """Mean per step."""
    wait: float | None
    """Likewise."""
    holds: int
    """Times that it was held because it came near to the leader."""
    held: float
    """Seconds of these holds."""


@dataclass(frozen=True, kw_only=True)
class StartChange:
    """A changed start; times are seconds after the leader's first step."""

    at: float
    """Time of the decision."""
    name: str
    start: float
    """The new start."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a run."""

    outcomes: tuple[Outcome, ...]
    """The leader's first."""
    start_changes: tuple[StartChange, ...]
    """In order of time."""
    doubts: tuple[str, ...]
    """Reasons to doubt that the prediction applies to these jobs."""
    interrupted: bool
    """Whether a signal ended it."""
