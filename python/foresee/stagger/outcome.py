# SPDX-License-Identifier: Apache-2.0
"""Outcome of a run of jobs: of each job, and of the starts that were decided again.

It is separate from the runner, because reports need it without a clock. It has measured values only; ``compared`` sets
them against the prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Moved", "Outcome", "Ran"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a job; moments are seconds after the leader's first step."""

    name: str
    """Which."""
    state: str
    """``done``, ``failed`` (another exit code than 0, or fewer steps than asked for), ``stopped`` (by us),
    ``not started``, or ``running`` (it is not ours, or has done its steps, and goes on).
    """
    code: int | None
    """Exit code, negative for a signal; None: it was not started, or not by us."""
    launched: float | None
    """Its start; None if it was not started, or by another program."""
    start: float | None
    """Start of its first step, or None."""
    end: float | None
    """End of the last step of its job file."""
    steps: int
    """That it did."""
    expected: int
    """That its job file asks for."""
    compute: float | None
    """Mean per step."""
    wait: float | None
    """Likewise."""
    holds: int
    """How often it was held because it came near to the leader."""
    held: float
    """Seconds that its gate was closed for that."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A start that was decided anew."""

    at: float
    """When; seconds after the leader's first step."""
    name: str
    """Of which job."""
    start: float
    """To what."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run."""

    outcomes: tuple[Outcome, ...]
    """The leader's, the followers'."""
    moved: tuple[Moved, ...]
    """In order of time."""
    doubts: tuple[str, ...]
    """Reasons to doubt that the prediction was about these jobs."""
    interrupted: bool
    """Whether we ended it."""
