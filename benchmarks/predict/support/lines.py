# SPDX-License-Identifier: Apache-2.0
"""Predictions beside what was measured: errors, verdicts, a table.

A stall is of the mean rank, its time in ``next()``; or of the job, which is what its epoch takes longer than that of
``perfect`` in the same repeat, however its ranks share that among waiting for data and for each other.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from common.verdicts import Line, judged

from .forecasts import Times
from .setups import PERFECT

EPOCH_WITHIN, STALL_WITHIN, STALL_OF_EPOCH, APART = 0.05, 0.10, 0.02, 0.03
#: The first epoch, and the mean of the later ones.
PARTS = ("first", "later")


@dataclass(frozen=True)
class Stall:
    """What waiting for data costs in one epoch, in seconds: predicted, and in each repeat."""

    predicted: float
    repeats: tuple[float, ...]
    #: How far a prediction may be off.
    allowed: float

    @property
    def measured(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.repeats)

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what is allowed."""
        return (self.predicted - self.measured) / self.allowed

    @property
    def stray(self) -> float:
        """How far the farthest repeat is from the median, likewise."""
        return max(abs(each - self.measured) for each in self.repeats) / self.allowed


@dataclass(frozen=True)
class Beside:
    """One policy of one set-up: predicted, and what was measured."""

    setup: str
    policy: str
    ranks: int
    predicted: Times
    #: By repeat.
    runs: Mapping[int, Times]
    #: The same of ``perfect``.
    predicted_perfect: Times
    perfect: Mapping[int, Times]
    void: str = ""

    @property
    def measured(self) -> Times:
        """The median of each time."""
        return self._each(statistics.median)

    @property
    def low(self) -> Times:
        """The least of each."""
        return self._each(min)

    @property
    def high(self) -> Times:
        """The most of each."""
        return self._each(max)

    def epochs(self) -> Iterator[tuple[str, float]]:
        """Which epochs, and the error of their time."""
        for part in PARTS:
            found, said = _epoch(self.measured, part), _epoch(self.predicted, part)
            yield part, (said - found) / found

    def stall(self, part: str) -> Stall:
        """Of the mean rank; what it waits for other ranks is not in it."""
        key = f"{part}_stall_s"
        return self._stall(
            part, getattr(self.predicted, key), [getattr(run, key) for run in self.runs.values()]
        )

    def job_stall(self, part: str) -> Stall | None:
        """Of the job; None: ``perfect`` ran in none of the repeats."""
        both = [repeat for repeat in self.runs if repeat in self.perfect]
        if not both:
            return None
        return self._stall(
            part,
            _epoch(self.predicted, part) - _epoch(self.predicted_perfect, part),
            [_epoch(self.runs[repeat], part) - _epoch(self.perfect[repeat], part) for repeat in both],
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


def gathered(raw: Iterable[Mapping[str, Any]]) -> list[Beside]:
    """Runs by set-up and policy, in the order in which they were made."""
    by: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in raw:
        by.setdefault((line["setup"]["name"], line["policy"]), []).append(line)
    said = {which: Times(**lines[0]["predicted"]) for which, lines in by.items()}
    runs = {
        which: {line["repeat"]: Times(**line["measured"]) for line in lines if not line["void"]}
        for which, lines in by.items()
    }
    return [
        Beside(
            setup,
            policy,
            ranks=lines[0]["setup"]["ranks"],
            predicted=said[setup, policy],
            runs=runs[setup, policy],
            predicted_perfect=said.get((setup, PERFECT), said[setup, policy]),
            perfect=runs.get((setup, PERFECT), {}),
            void=next((line["void"] for line in lines if line["void"]), ""),
        )
        for (setup, policy), lines in by.items()
    ]


def judge(found: Sequence[Beside], whole: int) -> list[Line]:
    """The lines; ``whole``: how many set-ups there are."""
    told = [one for one in found if one.runs]
    why = "nothing was measured: " + next((one.void for one in found), "no set-up could be had")
    if told:
        why = "no repeat had perfect beside another policy"
    of = f"of {len({one.setup for one in told})} of {whole} set-ups"
    epochs = [
        (abs(error) / EPOCH_WITHIN, abs(error), f"{one.setup} {one.policy} {part} {error:+.1%}")
        for one in told
        for part, error in one.epochs()
    ]
    stalls, of_jobs = list(_stalls(told)), list(_job_stalls(told))
    errors, job_errors = _errors(stalls), _errors(of_jobs)
    wrong, pairs = out_of_order(told)
    order = judged("policies_out_of_order", "pairs", 0, below=True, value=float(len(wrong)) if told else why)
    within = [share <= 1 for share, *_ in (*epochs, *errors)]
    allowed = "share of what is allowed"
    return [
        _farthest(
            judged("epoch_time_error", "share", EPOCH_WITHIN, below=True, value=_most(epochs, why)),
            epochs,
            of,
        ),
        _farthest(judged("stall_time_error", allowed, 1, below=True, value=_most(errors, why)), errors, of),
        _farthest(
            judged("job_stall_error", allowed, 1, below=True, value=_most(job_errors, why)), job_errors, of
        ),
        _because(
            order, f"of {pairs} pairs that differ by more than 3 %{': ' if wrong else ''}{'; '.join(wrong)}"
        ),
        judged("shares_within", "share", None, below=False, value=statistics.mean(within) if within else why),
        _that_repeat("stalls_that_repeat", stalls),
        _that_repeat("job_stalls_that_repeat", of_jobs),
    ]


#: Of a prediction: the share of what is allowed that it is off, the value of the line, and of what and by how much in words.
_Error = tuple[float, float, str]


def _stalls(told: Sequence[Beside]) -> Iterator[tuple[Beside, str, Stall]]:
    for one in told:
        for part in PARTS:
            yield one, part, one.stall(part)


def _job_stalls(told: Sequence[Beside]) -> Iterator[tuple[Beside, str, Stall]]:
    for one in told:
        for part in PARTS:
            stall = one.job_stall(part)
            # Its own is none, by what the word means.
            if stall is not None and one.policy != PERFECT:
                yield one, part, stall


def _errors(stalls: Sequence[tuple[Beside, str, Stall]]) -> list[_Error]:
    return [
        (abs(stall.error), abs(stall.error), f"{one.setup} {one.policy} {part} {stall.error:+.2f}")
        for one, part, stall in stalls
    ]


def _most(errors: Sequence[_Error], why: str) -> float | str:
    return max(errors)[1] if errors else why


def _farthest(line: Line, errors: Sequence[_Error], of: str) -> Line:
    """With which prediction is the farthest off, and how many are within what is allowed."""
    if not errors:
        return line
    return _because(
        line, f"{max(errors)[2]}; {sum(error[0] <= 1 for error in errors)} of {len(errors)} within, {of}"
    )


def _that_repeat(name: str, stalls: Sequence[tuple[Beside, str, Stall]]) -> Line:
    """How many stalls of several ranks no repeat misses by more than a prediction may."""
    strays = [stall.stray for one, _, stall in stalls if one.ranks > 1 and len(stall.repeats) > 1]
    within = sum(stray <= 1 for stray in strays)
    value = within / len(strays) if strays else "no policy of several ranks ran twice"
    line = judged(name, "share", None, below=False, value=value)
    if not strays:
        return line
    return _because(
        line,
        f"{within} of {len(strays)} of several ranks, the farthest {max(strays):.2f} times what is allowed",
    )


def out_of_order(told: Sequence[Beside]) -> tuple[list[str], int]:
    """Pairs whose order is not the predicted one, and how many pairs count."""
    wrong, pairs = [], 0
    for one, other in combinations(told, 2):
        if one.setup != other.setup:
            continue
        totals = one.measured.total_s, other.measured.total_s
        if max(totals) <= (1 + APART) * min(totals):
            continue
        pairs += 1
        if (totals[0] < totals[1]) != (one.predicted.total_s < other.predicted.total_s):
            wrong.append(f"{one.setup} {one.policy} {other.policy}")
    return wrong, pairs


def _because(line: Line, why: str) -> Line:
    return dataclasses.replace(line, why=f"{line.why}; {why}")


def table(found: Sequence[Beside]) -> str:
    """Every set-up and policy: seconds measured (least to most) and predicted, errors."""
    stalls = "stall measured, s | predicted, s | of allowed"
    lines = [
        f"| set-up | policy | epoch | measured, s | predicted, s | error | {stalls} | of the job: {stalls} |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        if not one.runs:
            lines.append(f"| {one.setup} | `{one.policy}` | void: {one.void} | | | | | | | | | |")
            continue
        for part, error in one.epochs():
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
