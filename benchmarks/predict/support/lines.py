# SPDX-License-Identifier: Apache-2.0
"""Compare predictions with measurements: errors, acceptance lines, a table.

The stall of the mean rank is its time in ``next()``. The stall of the job is the epoch time beyond that of ``perfect`` in
the same repeat: it includes waits for data and for other ranks.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from common.verdicts import Line, judged

from .predictions import Times
from .setups import PERFECT

EPOCH_WITHIN, STALL_WITHIN, STALL_OF_EPOCH, APART = 0.05, 0.10, 0.02, 0.03
#: The first epoch, and the mean of the later ones.
PARTS = ("first", "later")


@dataclass(frozen=True)
class Stall:
    """Stall of one epoch in seconds: predicted, and in each repeat."""

    predicted: float
    repeats: tuple[float, ...]
    #: Allowed error of the prediction.
    allowed: float

    @property
    def measured(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.repeats)

    @property
    def error(self) -> float:
        """Error of the prediction, over the allowed error."""
        return (self.predicted - self.measured) / self.allowed

    @property
    def spread(self) -> float:
        """Largest distance of a repeat from the median, over the allowed error."""
        return max(abs(each - self.measured) for each in self.repeats) / self.allowed


@dataclass(frozen=True)
class Comparison:
    """Predicted and measured times of one policy of one set-up."""

    setup: str
    policy: str
    ranks: int
    predicted: Times
    #: By repeat.
    runs: Mapping[int, Times]
    #: ``perfect`` of the same set-up; None if it did not run, or is this one.
    perfect: Comparison | None = None
    void: str = ""

    @property
    def measured(self) -> Times:
        """The median of each time over the repeats."""
        return self._each(statistics.median)

    @property
    def low(self) -> Times:
        """The minimum of each time."""
        return self._each(min)

    @property
    def high(self) -> Times:
        """The maximum of each time."""
        return self._each(max)

    def epoch(self, part: str) -> float:
        """Return the error of the epoch time, as a share of the measured time."""
        found = _epoch(self.measured, part)
        return (_epoch(self.predicted, part) - found) / found

    def stall(self, part: str) -> Stall:
        """Return the stall of the mean rank, without its wait for other ranks."""
        key = f"{part}_stall_s"
        return self._stall(
            part, getattr(self.predicted, key), [getattr(run, key) for run in self.runs.values()]
        )

    def job_stall(self, part: str) -> Stall | None:
        """Return the stall of the job; None if no repeat has a run of ``perfect``."""
        perfect = self.perfect
        if perfect is None or self.runs.keys().isdisjoint(perfect.runs):
            return None
        return self._stall(
            part,
            _epoch(self.predicted, part) - _epoch(perfect.predicted, part),
            [
                _epoch(run, part) - _epoch(perfect.runs[repeat], part)
                for repeat, run in self.runs.items()
                if repeat in perfect.runs
            ],
        )

    def _stall(self, part: str, predicted: float, repeats: Sequence[float]) -> Stall:
        allowed = max(STALL_WITHIN * statistics.median(repeats), STALL_OF_EPOCH * _epoch(self.measured, part))
        return Stall(predicted, tuple(repeats), allowed)

    def _each(self, of: Any) -> Times:
        names = [field.name for field in dataclasses.fields(Times)]
        return Times(**{name: of([getattr(run, name) for run in self.runs.values()]) for name in names})


def _epoch(times: Times, part: str) -> float:
    found: float = getattr(times, f"{part}_s")
    return found


def comparisons(raw: Iterable[Mapping[str, Any]]) -> list[Comparison]:
    """Group raw lines by set-up and policy, in the order of the lines."""
    by: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in raw:
        by.setdefault((line["setup"]["name"], line["policy"]), []).append(line)
    made: dict[tuple[str, str], Comparison] = {}
    # `perfect` first, because the others refer to it.
    for setup, policy in sorted(by, key=lambda which: which[1] != PERFECT):
        lines = by[setup, policy]
        made[setup, policy] = Comparison(
            setup,
            policy,
            ranks=lines[0]["setup"]["ranks"],
            predicted=Times(**lines[0]["predicted"]),
            runs={line["repeat"]: Times(**line["measured"]) for line in lines if not line["void"]},
            perfect=made.get((setup, PERFECT)),
            void=next((line["void"] for line in lines if line["void"]), ""),
        )
    return [made[which] for which in by]


def judge(found: Sequence[Comparison], whole: int) -> list[Line]:
    """Return the acceptance lines; ``whole`` is the number of set-ups."""
    compared = [one for one in found if one.runs]
    why = "nothing was measured: " + next((one.void for one in found), "no set-up was available")
    of = f"of {len({one.setup for one in compared})} of {whole} set-ups"
    parts = [(one, part, f"{one.setup} {one.policy} {part}") for one in compared for part in PARTS]
    stalls = [(one, what, one.stall(part)) for one, part, what in parts]
    of_jobs = [(one, what, stall) for one, part, what in parts if (stall := one.job_stall(part))]
    times = [(abs(one.epoch(part)), f"{what} {one.epoch(part):+.1%}") for one, part, what in parts]
    errors, job_errors = (
        [(abs(stall.error), f"{what} {stall.error:+.2f}") for _, what, stall in each]
        for each in (stalls, of_jobs)
    )
    within = [error <= EPOCH_WITHIN for error, _ in times] + [error <= 1 for error, _ in errors]
    allowed = "share of what is allowed"
    return [
        _farthest("epoch_time_error", "share", EPOCH_WITHIN, times, of, why),
        _farthest("stall_time_error", allowed, 1, errors, of, why),
        _farthest(
            "job_stall_error", allowed, 1, job_errors, of, "no other policy ran in a repeat with perfect"
        ),
        _in_order(compared)
        if compared
        else judged("policies_out_of_order", "pairs", 0, below=True, value=why),
        judged("shares_within", "share", None, below=False, value=statistics.mean(within) if within else why),
        _repeating_share("stalls_that_repeat", stalls),
        _repeating_share("job_stalls_that_repeat", of_jobs),
    ]


def _farthest(
    name: str, unit: str, limit: float, errors: Sequence[tuple[float, str]], of: str, why: str
) -> Line:
    """Return the line of the largest error, with its prediction and the number within the limit."""
    if not errors:
        return judged(name, unit, limit, below=True, value=why)
    error, what = max(errors)
    within = sum(each <= limit for each, _ in errors)
    line = judged(name, unit, limit, below=True, value=error)
    return _with_reason(line, f"{what}; {within} of {len(errors)} within, {of}")


def _in_order(compared: Sequence[Comparison]) -> Line:
    wrong, pairs = out_of_order(compared)
    line = judged("policies_out_of_order", "pairs", 0, below=True, value=float(len(wrong)))
    return _with_reason(
        line, f"of {pairs} pairs that differ by more than 3 %{': ' if wrong else ''}{'; '.join(wrong)}"
    )


def _repeating_share(name: str, stalls: Sequence[tuple[Comparison, str, Stall]]) -> Line:
    """Return the line of the share of stalls of several ranks whose repeats are all within the allowed error."""
    spreads = [stall.spread for one, _, stall in stalls if one.ranks > 1 and len(stall.repeats) > 1]
    if not spreads:
        return judged(name, "share", None, below=False, value="no policy with several ranks has two repeats")
    within = sum(spread <= 1 for spread in spreads)
    line = judged(name, "share", None, below=False, value=within / len(spreads))
    return _with_reason(
        line,
        f"{within} of {len(spreads)} of several ranks, the farthest {max(spreads):.2f} times what is allowed",
    )


def out_of_order(compared: Sequence[Comparison]) -> tuple[list[str], int]:
    """Return the pairs whose order differs from the predicted one, and the number of compared pairs."""
    wrong, pairs = [], 0
    for one, other in combinations(compared, 2):
        if one.setup != other.setup:
            continue
        totals = one.measured.total_s, other.measured.total_s
        if max(totals) <= (1 + APART) * min(totals):
            continue
        pairs += 1
        if (totals[0] < totals[1]) != (one.predicted.total_s < other.predicted.total_s):
            wrong.append(f"{one.setup} {one.policy} {other.policy}")
    return wrong, pairs


def _with_reason(line: Line, why: str) -> Line:
    return dataclasses.replace(line, why=f"{line.why}; {why}")


def table(found: Sequence[Comparison]) -> str:
    """Return a table of every set-up and policy: measured seconds (minimum to maximum), predicted seconds, errors."""
    stalls = "stall measured, s | predicted, s | of allowed"
    lines = [
        f"| set-up | policy | epoch | measured, s | predicted, s | error | {stalls} | of the job: {stalls} |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        if not one.runs:
            lines.append(f"| {one.setup} | `{one.policy}` | void: {one.void} | | | | | | | | | |")
            continue
        for part in PARTS:
            error = one.epoch(part)
            took = [_epoch(times, part) for times in (one.measured, one.low, one.high, one.predicted)]
            lines.append(
                f"| {one.setup} | `{one.policy}` | {part} | {took[0]:.3f} ({took[1]:.3f} to {took[2]:.3f}) | {took[3]:.3f} "
                f"| {_bold(f'{error:+.1%}', wrong=abs(error) > EPOCH_WITHIN)} | {_cells(one.stall(part))} "
                f"| {_cells(one.job_stall(part))} |"
            )
    return "\n".join([*lines, ""])


def _cells(stall: Stall | None) -> str:
    if stall is None:
        return "| |"
    error = _bold(f"{stall.error:+.2f}", wrong=abs(stall.error) > 1)
    return f"{stall.measured:.3f} | {stall.predicted:.3f} | {error}"


def _bold(text: str, *, wrong: bool) -> str:
    return f"**{text}**" if wrong else text
