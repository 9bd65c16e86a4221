# SPDX-License-Identifier: Apache-2.0
"""Predictions beside what was measured: errors, verdicts, a table."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from common.verdicts import Line, judged

from .forecasts import Times

EPOCH_WITHIN, STALL_WITHIN, STALL_OF_EPOCH, APART = 0.05, 0.10, 0.02, 0.03


@dataclass(frozen=True)
class Beside:
    """One policy of one set-up: predicted, and the median of what was measured."""

    setup: str
    policy: str
    predicted: Times
    measured: Times
    low: Times
    high: Times
    repeats: int
    ranks: int
    void: str = ""

    def epochs(self) -> Iterator[tuple[str, float]]:
        """Which epochs, and the error of their time."""
        for part in ("first", "later"):
            found, said = getattr(self.measured, f"{part}_s"), getattr(self.predicted, f"{part}_s")
            yield part, (said - found) / found

    def stalls(self) -> Iterator[tuple[str, float]]:
        """Which epochs, and the error of their stall as a share of what is allowed."""
        for part in ("first", "later"):
            yield part, self._of_allowed(part, self.predicted)

    def strays(self) -> Iterator[float]:
        """Of the first epoch and of the later ones, how far a repeat's stall is from the median's, as a share of what is allowed."""
        for part in ("first", "later"):
            yield max(self._of_allowed(part, self.high), -self._of_allowed(part, self.low))

    def _of_allowed(self, part: str, times: Times) -> float:
        found, said = (getattr(of, f"{part}_stall_s") for of in (self.measured, times))
        allowed = max(STALL_WITHIN * found, STALL_OF_EPOCH * getattr(self.measured, f"{part}_s"))
        share: float = (said - found) / allowed
        return share


def gathered(raw: Iterable[Mapping[str, Any]]) -> list[Beside]:
    """Runs by set-up and policy, in the order in which they were made."""
    by: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in raw:
        by.setdefault((line["setup"]["name"], line["policy"]), []).append(line)
    made = []
    for (setup, policy), lines in by.items():
        void = next((line["void"] for line in lines if line["void"]), "")
        runs = [Times(**line["measured"]) for line in lines if not line["void"]]
        predicted, ranks = Times(**lines[0]["predicted"]), lines[0]["setup"]["ranks"]
        if not runs:
            made.append(Beside(setup, policy, predicted, predicted, predicted, predicted, 0, ranks, void))
            continue
        made.append(
            Beside(
                setup,
                policy,
                predicted,
                _each(runs, statistics.median),
                _each(runs, min),
                _each(runs, max),
                len(runs),
                ranks,
                void,
            )
        )
    return made


def _each(runs: Sequence[Times], of: Any) -> Times:
    names = [field.name for field in dataclasses.fields(Times)]
    return Times(**{name: of([getattr(run, name) for run in runs]) for name in names})


def judge(found: Sequence[Beside], whole: int) -> list[Line]:
    """The acceptance lines; ``whole``: how many set-ups there are."""
    told = [one for one in found if one.repeats]
    setups = len({one.setup for one in told})
    of = f"of {setups} of {whole} set-ups"
    if not told:
        why = "nothing was measured: " + next((one.void for one in found), "no set-up could be had")
        return [
            judged("epoch_time_error", "share", EPOCH_WITHIN, below=True, value=why),
            judged("stall_time_error", "share of what is allowed", 1, below=True, value=why),
            judged("policies_out_of_order", "pairs", 0, below=True, value=why),
            judged("shares_within", "share", None, below=False, value=why),
            judged("stalls_that_repeat", "share", None, below=False, value=why),
        ]
    epochs = [
        (abs(error), f"{one.setup} {one.policy} {part}", error)
        for one in told
        for part, error in one.epochs()
    ]
    stalls = [
        (abs(error), f"{one.setup} {one.policy} {part}", error)
        for one in told
        for part, error in one.stalls()
    ]
    wrong, pairs = out_of_order(told)
    within = [error <= EPOCH_WITHIN for error, _, _ in epochs], [error <= 1 for error, _, _ in stalls]
    share = sum(map(sum, within)) / sum(map(len, within))
    return [
        _because(
            judged("epoch_time_error", "share", EPOCH_WITHIN, below=True, value=max(epochs)[0]),
            f"{max(epochs)[1]} {max(epochs)[2]:+.1%}; {sum(within[0])} of {len(epochs)} within, {of}",
        ),
        _because(
            judged("stall_time_error", "share of what is allowed", 1, below=True, value=max(stalls)[0]),
            f"{max(stalls)[1]} {max(stalls)[2]:+.2f}; {sum(within[1])} of {len(stalls)} within, {of}",
        ),
        _because(
            judged("policies_out_of_order", "pairs", 0, below=True, value=float(len(wrong))),
            f"of {pairs} pairs that differ by more than 3 %{': ' if wrong else ''}{'; '.join(wrong)}",
        ),
        judged("shares_within", "share", None, below=False, value=share),
        _that_repeat(told),
    ]


def _that_repeat(told: Sequence[Beside]) -> Line:
    """How many stalls of several ranks no repeat misses by more than a prediction may."""
    strays = [stray for one in told if one.ranks > 1 and one.repeats > 1 for stray in one.strays()]
    within = sum(stray <= 1 for stray in strays)
    line = judged(
        "stalls_that_repeat",
        "share",
        None,
        below=False,
        value=within / len(strays) if strays else "no policy of several ranks ran twice",
    )
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
    lines = [
        "| set-up | policy | epoch | measured, s | predicted, s | error | stall measured, s | predicted, s | of allowed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        if not one.repeats:
            lines.append(f"| {one.setup} | `{one.policy}` | void: {one.void} | | | | | | |")
            continue
        for (part, error), (_, stall) in zip(one.epochs(), one.stalls(), strict=True):
            took = [getattr(times, f"{part}_s") for times in (one.measured, one.low, one.high, one.predicted)]
            stood = [getattr(times, f"{part}_stall_s") for times in (one.measured, one.predicted)]
            lines.append(
                f"| {one.setup} | `{one.policy}` | {part} | {took[0]:.3f} ({took[1]:.3f} to {took[2]:.3f}) "
                f"| {took[3]:.3f} | {_bold(error, EPOCH_WITHIN):}{error:+.1%}{_bold(error, EPOCH_WITHIN)} | {stood[0]:.3f} "
                f"| {stood[1]:.3f} | {_bold(stall, 1)}{stall:+.2f}{_bold(stall, 1)} |"
            )
    return "\n".join([*lines, ""])


def _bold(error: float, limit: float) -> str:
    return "**" if abs(error) > limit else ""
