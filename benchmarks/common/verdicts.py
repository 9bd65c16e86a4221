# SPDX-License-Identifier: Apache-2.0
"""Acceptance lines: a value, its limit, and whether the limit holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One acceptance line; ``holds`` is None if it was not measured or has no limit."""

    name: str
    value: float | None
    unit: str
    limit: float | None
    #: Whether the value must stay below the limit.
    below: bool
    holds: bool | None
    why: str


def judged(name: str, unit: str, limit: float | None, *, below: bool, value: float | str) -> Line:
    """Return the line of a value; a text as ``value`` is the reason why there is none."""
    if isinstance(value, str):
        return Line(name, None, unit, limit, below, None, value)
    if limit is None:
        return Line(
            name, round(value, 4), unit, None, below, None, f"{value:.4g} {unit}; stated, without a limit"
        )
    holds = value <= limit if below else value >= limit
    sign = "<=" if below else ">="
    return Line(name, round(value, 4), unit, limit, below, holds, f"{value:.4g} {sign} {limit:g} is {holds}")


def markdown(lines: Iterable[Line]) -> str:
    """Return a table; lines without a value have the reason instead."""
    words = {True: "holds", False: "**fails**", None: "not measured"}
    head = "| acceptance line | value | limit | |\n|---|---|---|---|\n"
    return head + "".join(
        f"| {line.name} | {line.why if line.value is None else f'{line.value:.3f}'} "
        f"| {_limit(line)} | {words[line.holds] if line.limit is not None else 'stated'} |\n"
        for line in lines
    )


def _limit(line: Line) -> str:
    return "" if line.limit is None else f"{'at most' if line.below else 'at least'} {line.limit:g}"
