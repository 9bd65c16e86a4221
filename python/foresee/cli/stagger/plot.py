# SPDX-License-Identifier: Apache-2.0
"""Figure of ``foresee stagger predict``: the paper's figures as far as a prediction has their numbers.

Each order of start has a column. From the top: makespan and runs by start, with the best start and the best of steps of
10 % (figures 3, 7 and 8); the follower's mean wait by start (8); each job's wait per step over time for some starts,
with the moment at which the follower catches up (4 and 9). A plan of many jobs is a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foresee.cli._figures import COLOURS, Axis, Line, Mark, Panel, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from foresee.stagger.model import Compat, JobTimes, Waits

_POINTS = 401
#: Starts whose waits are drawn, in percent of the leader's run alone.
_PROFILED = (0, 20, 40, 60, 80)


def figure(facts: dict[str, Any], jobs: Sequence[JobTimes], *, compat: Compat, cache: float) -> Figure:
    """Draw the orders of start of a pair, or the plan of many jobs."""
    title = f"When jobs that read {facts['data']} should start"
    if "plan" in facts:
        return panels(title, [_makespan(facts["plan"]["makespan"])], [[_schedule(facts)]])
    by_name = {job.name: job for job in jobs}
    columns = [
        _column(order, by_name[order["leader"]], by_name[order["follower"]], compat=compat, cache=cache)
        for order in facts["orders"]
    ]
    best = facts["best"]
    cache_text = f"the cache holds {100 * facts['cache']:.4g} % of the data"
    lines = [f"compat {facts['compat']}, {cache_text}; grey: the best of starts in steps of 10 %"]
    if best is not None:
        lines.append(
            f"best: {best['follower']} {best['start']:,.1f} s after {best['leader']}; {_makespan(best['makespan'])}"
        )
    return panels(title, lines, list(zip(*columns, strict=True)))


def _makespan(makespan: float) -> str:
    return f"makespan {makespan:,.1f} s"


def _column(
    order: dict[str, Any], leader: JobTimes, follower: JobTimes, *, compat: Compat, cache: float
) -> list[Panel]:
    import numpy as np

    from foresee import stagger

    alone = leader.alone(cache)
    low = min(order["earliest"] / alone, 1.0)
    # An odd number of points and the best start, so that the line includes its bends.
    bends = [] if order["best"] is None else [order["best"]["percent"] / 100]
    shares = np.unique(np.concatenate([np.linspace(low, max(1.0, low + 0.1), _POINTS), bends]))
    predicted = stagger.predict(leader, follower, shares * alone, compat=compat, cache=cache)
    if predicted.within_cache.any():
        # The model is not valid for starts that the cache does not cover.
        shares = shares[predicted.within_cache]
        predicted = stagger.predict(leader, follower, shares * alone, compat=compat, cache=cache)
    percents = (100 * shares).tolist()
    marks = [] if order["best"] is None else [Mark(order["best"]["percent"], "#333333", "best")]
    best_of_table = order["best_of_table"]
    if best_of_table is not None:
        marks.append(Mark(best_of_table["percent"], "#999999"))
    start = f"start of {follower.name}, % of {leader.name} alone"
    wait = 1e3 * (predicted.follower / (follower.steps * follower.epochs) - follower.compute)
    runs = [
        Line("makespan", "#333333", percents, predicted.makespan.tolist()),
        Line(leader.name, COLOURS[0], percents, predicted.leader.tolist(), "--"),
        Line(follower.name, COLOURS[1], percents, predicted.follower.tolist(), ":"),
    ]
    mean = Line(follower.name, COLOURS[1], percents, wait.tolist())
    profiles = [
        (percent, stagger.waits(leader, follower, percent / 100 * alone, compat=compat, cache=cache))
        for percent in _PROFILED
        if low * (1 - 1e-12) <= percent / 100 <= shares[-1] * (1 + 1e-12)
    ] or [(round(100 * low), stagger.waits(leader, follower, low * alone, compat=compat, cache=cache))]
    catch_ups = [
        Mark(float(moment), COLOURS[i])
        for i, (percent, _) in enumerate(profiles)
        if np.isfinite(
            moment := stagger.predict(
                leader, follower, percent / 100 * alone, compat=compat, cache=cache
            ).catch_up
        )
    ]
    over_time = [
        Panel(
            f"wait per step of {job.name}, by start of {follower.name}",
            Axis(f"seconds since the start of {leader.name}"),
            Axis("ms"),
            [
                Line(f"{percent} %", COLOURS[i], *_steps(profile[which]))
                for i, (percent, profile) in enumerate(profiles)
            ],
            catch_ups,
        )
        for which, job in enumerate((leader, follower))
    ]
    return [
        Panel(f"{leader.name} first, then {follower.name}", Axis(start), Axis("seconds"), runs, marks),
        Panel(f"mean wait per step of {follower.name}", Axis(start), Axis("ms"), [mean], marks),
        *over_time,
    ]


def _steps(profile: Waits) -> tuple[list[float], list[float]]:
    """Return the points of a line for a wait that is constant between edges, in milliseconds."""
    x, y = list[float](), list[float]()
    edges = profile.edges.tolist()
    for i, wait in enumerate(profile.wait.tolist()):
        x += [edges[i], edges[i + 1]]
        y += [1e3 * wait, 1e3 * wait]
    return x, y


def _schedule(facts: dict[str, Any]) -> Panel:
    plan = facts["plan"]
    lines = [
        Line(job["name"], COLOURS[i % len(COLOURS)], [start, start + run], [i + 1, i + 1])
        for i, (job, start, run) in enumerate(zip(facts["jobs"], plan["starts"], plan["runs"], strict=True))
    ]
    return Panel(
        "when each job runs",
        Axis("seconds"),
        Axis("job", 0.0, 1.2 * len(lines)),
        lines,
        [Mark(plan["makespan"], "#333333", "end")],
    )
