# SPDX-License-Identifier: Apache-2.0
"""The picture of ``foresee stagger predict``: as far as prediction alone can draw them, the paper's figures.

Per order of start, from above: makespan and runs by start, with the best start and the best of steps of 10 % (figures
3, 7 and 8); the follower's mean wait by start (8); each job's wait per step over time for some starts, with the
moment at which the follower catches up (4 and 9). A plan of many jobs is drawn as when each of them runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foresee.cli._panels import Line, Mark, Panel, svg
from foresee.cli._svg import COLOURS

if TYPE_CHECKING:
    from foresee.stagger.model import Compat, JobTimes, Waits

__all__ = ["picture"]

_POINTS = 401
#: Starts whose waits are drawn, in percent of the leader's run alone.
_SOME = (0, 20, 40, 60, 80)


def picture(facts: dict[str, Any], jobs: Sequence[JobTimes], *, compat: Compat, cache: float) -> str:
    """A page of SVG."""
    title = f"When jobs that read {facts['data']} should start"
    if "plan" in facts:
        return svg(title, [_words(facts["plan"]["makespan"])], [[_bars(facts)]])
    by_name = {job.name: job for job in jobs}
    columns = [
        _column(order, by_name[order["leader"]], by_name[order["follower"]], compat=compat, cache=cache)
        for order in facts["orders"]
    ]
    best = facts["best"]
    kept = f"the cache keeps {100 * facts['cache']:.4g} % of the data"
    words = [f"compat {facts['compat']}, {kept}; grey: the best of starts in steps of 10 %"]
    if best is not None:
        words.append(
            f"best: {best['follower']} {best['start']:,.1f} s after {best['leader']}; {_words(best['makespan'])}"
        )
    return svg(title, words, list(zip(*columns, strict=True)))


def _words(makespan: float) -> str:
    return f"makespan {makespan:,.1f} s"


def _column(
    order: dict[str, Any], leader: JobTimes, follower: JobTimes, *, compat: Compat, cache: float
) -> list[Panel]:
    import numpy as np

    from foresee import stagger

    alone = leader.alone(cache)
    low = min(order["earliest"] / alone, 1.0)
    # An odd number of points and the best start, so that the bends are in it.
    bends = [] if order["best"] is None else [order["best"]["percent"] / 100]
    shares = np.unique(np.concatenate([np.linspace(low, max(1.0, low + 0.1), _POINTS), bends]))
    told = stagger.predict(leader, follower, shares * alone, compat=compat, cache=cache)
    if told.within_cache.any():
        # Beyond that no figure holds.
        shares = shares[told.within_cache]
        told = stagger.predict(leader, follower, shares * alone, compat=compat, cache=cache)
    percents = (100 * shares).tolist()
    marks = [] if order["best"] is None else [Mark(order["best"]["percent"], "#333333", "best")]
    found = order["best_of_table"]
    if found is not None:
        marks.append(Mark(found["percent"], "#999999"))
    start = f"start of {follower.name}, % of {leader.name} alone"
    wait = 1e3 * (told.follower / (follower.steps * follower.epochs) - follower.compute)
    runs = [
        Line("makespan", "#333333", percents, told.makespan.tolist()),
        Line(leader.name, COLOURS[0], percents, told.leader.tolist(), "9 3"),
        Line(follower.name, COLOURS[1], percents, told.follower.tolist(), "3 3"),
    ]
    mean = Line(follower.name, COLOURS[1], percents, wait.tolist())
    profiles = [
        (percent, stagger.waits(leader, follower, percent / 100 * alone, compat=compat, cache=cache))
        for percent in _SOME
        if low * (1 - 1e-12) <= percent / 100 <= shares[-1] * (1 + 1e-12)
    ] or [(round(100 * low), stagger.waits(leader, follower, low * alone, compat=compat, cache=cache))]
    caught = [
        Mark(float(moment), COLOURS[i])
        for i, (percent, _) in enumerate(profiles)
        if np.isfinite(
            moment := stagger.predict(
                leader, follower, percent / 100 * alone, compat=compat, cache=cache
            ).catch_up
        )
    ]
    over = [
        Panel(
            f"wait per step of {job.name}, by start of {follower.name}",
            f"seconds since the start of {leader.name}",
            "ms",
            [
                Line(f"{percent} %", COLOURS[i], *_steps(profile[which]))
                for i, (percent, profile) in enumerate(profiles)
            ],
            caught,
        )
        for which, job in enumerate((leader, follower))
    ]
    return [
        Panel(f"{leader.name} first, then {follower.name}", start, "seconds", runs, marks),
        Panel(f"mean wait per step of {follower.name}", start, "ms", [mean], marks),
        *over,
    ]


def _steps(profile: Waits) -> tuple[list[float], list[float]]:
    """A wait that is constant between edges, as the points of a line, milliseconds."""
    x, y = list[float](), list[float]()
    edges = profile.edges.tolist()
    for i, wait in enumerate(profile.wait.tolist()):
        x += [edges[i], edges[i + 1]]
        y += [1e3 * wait, 1e3 * wait]
    return x, y


def _bars(facts: dict[str, Any]) -> Panel:
    plan = facts["plan"]
    lines = [
        Line(job["name"], COLOURS[i % len(COLOURS)], [start, start + run], [i + 1, i + 1])
        for i, (job, start, run) in enumerate(zip(facts["jobs"], plan["starts"], plan["runs"], strict=True))
    ]
    return Panel("when each job runs", "seconds", "job", lines, [Mark(plan["makespan"], "#333333", "end")])
