# SPDX-License-Identifier: Apache-2.0
"""The report of ``foresee stagger predict``: its figures as a table for a terminal.

Apart from the command, which makes the figures; whatever stands here stands in ``--json`` too.
"""

from __future__ import annotations

from typing import Any

__all__ = ["only", "report"]

_JOB_COLUMNS = (
    ("compute", 11),
    ("wait", 11),
    ("cached", 11),
    ("beside", 11),
    ("steps", 10),
    ("epochs", 8),
    ("alone", 13),
)
_START_COLUMNS = (
    ("start", 12),
    ("of first", 10),
    ("catches up", 13),
    ("first runs", 13),
    ("second runs", 13),
    ("makespan", 13),
    ("GPU-seconds", 15),
)
_PLAYED = ("played", 13)


def report(facts: dict[str, Any]) -> str:
    """Everything, as text."""
    return "\n".join([*_head(facts), "", *(_plan(facts) if "plan" in facts else _orders(facts))])


def _head(facts: dict[str, Any]) -> list[str]:
    kept = "all of it" if facts["cache"] == 1 else f"{100 * facts['cache']:.4g} % of it"
    how = "coalesces reads" if facts["coalesces"] else f"does not coalesce reads; compat {facts['compat']}"
    lines = [
        f"{len(facts['jobs'])} jobs that read {facts['data']}; the cache keeps {kept} and {how}",
        "",
        "".join([f"{'per step':24}", *(f"{head:>{room}}" for head, room in _JOB_COLUMNS)]),
    ]
    marked = False
    for job in facts["jobs"]:
        cells = ""
        for figure in ("compute", "wait", "wait_cached", "wait_conc"):
            value, guessed = job[f"{figure}_seconds"], figure in job["estimated"]
            marked |= guessed
            cells += f"{'-' if value is None else _step(value) + '*' * guessed:>11}"
        lines.append(
            f"{_cut(job['name'])}{cells}{job['steps']:>10}{job['epochs']:>8}{_time(job['alone_seconds']):>13}"
        )
    if marked:
        lines.append("* estimated, not measured")
    return lines


def _orders(facts: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    columns = (*_START_COLUMNS, _PLAYED) if facts["simulated"] else _START_COLUMNS
    for order in facts["orders"]:
        leader, follower = order["leader"], order["follower"]
        lines.append(f"{leader} first, then {follower}")
        lines.append("".join([" " * 14, *(f"{head:>{room}}" for head, room in columns)]))
        rows = [("", row) for row in order["table"]]
        if order["best"] is not None:
            rows.append(("best", order["best"]))
        # The best start stands in its place among the others, before one that is equal.
        for name, row in sorted(rows, key=lambda named: (named[1]["start"], not named[0])):
            lines.append(_row(name, row, simultaneous=row is order["simultaneous"]))
        if order["best"] is None:
            lines.append("the cache reaches back to the second at no start")
        last = order["sequential"]
        if last is not None:
            lines.append(
                f"{'sequential':14}{'':61}{_time(last['makespan']):>13}{last['gpu_seconds']:>15,.1f}"
            )
        lines.append("")
    return lines + _advice(facts)


def _row(name: str, row: dict[str, Any], *, simultaneous: bool) -> str:
    caught = "-" if row["catch_up"] is None else _time(row["catch_up"])
    played = f"{_time(row['played']['makespan']):>13}" if "played" in row else ""
    beyond = "" if row["within_cache"] else "  beyond the cache"
    shown = name or ("simultaneous" if simultaneous else "")
    return (
        f"{shown:14}{_time(row['start']):>12}{row['percent']:>8.1f} %"
        f"{caught:>13}{_time(row['leader_seconds']):>13}{_time(row['follower_seconds']):>13}{_time(row['makespan']):>13}"
        f"{row['gpu_seconds']:>15,.1f}{played}{beyond}"
    )


def _advice(facts: dict[str, Any]) -> list[str]:
    lines = []
    if facts["simulated"]:
        best = facts["best_played"]
        lines.append(
            f"best of those played: {best['follower']} {_time(best['start'])} after {best['leader']}, makespan "
            f"{_time(best['played']['makespan'])}, {best['played']['data_sets_read']:.2f} x the data read"
        )
    best = facts["best"]
    if best is None:
        return lines
    order = next(order for order in facts["orders"] if order["leader"] == best["leader"])
    lines += [
        f"best: {best['follower']} {_time(best['start'])} after {best['leader']}, makespan {_time(best['makespan'])}"
    ]
    at_once = order["simultaneous"]
    if at_once is not None:
        shorter = 100 * (1 - best["makespan"] / at_once["makespan"])
        less = 100 * (1 - best["follower_seconds"] / at_once["follower_seconds"])
        lines.append(
            f"      {shorter:.1f} % shorter than simultaneous, {less:.1f} % fewer GPU-seconds of {best['follower']}"
            + only(best["makespan"], at_once["makespan"], facts["slack"])
        )
    if order["sequential"] is not None:
        shorter = 100 * (1 - best["makespan"] / order["sequential"]["makespan"])
        lines.append(f"      {shorter:.1f} % shorter than sequential")
    return lines


def _plan(facts: dict[str, Any]) -> list[str]:
    plan = facts["plan"]
    lines = [f"{'':24}{'start':>13}{'run':>13}{'end':>13}"]
    for job, start, run, within in zip(
        facts["jobs"], plan["starts"], plan["runs"], plan["within_cache"], strict=True
    ):
        note = "  leads" if job["name"] == plan["leader"] else "" if within else "  beyond the cache"
        lines.append(f"{_cut(job['name'])}{_time(start):>13}{_time(run):>13}{_time(start + run):>13}{note}")
    shorter = 100 * (1 - plan["makespan"] / plan["sequential"])
    how = "nobody catches up" if plan["case"] == "behind" else "all as early as they can"
    lines += [
        "",
        f"makespan {_time(plan['makespan'])}, {shorter:.1f} % shorter than one after the other; {how}",
    ]
    if "played" in plan:
        played = plan["played"]
        lines.append(
            f"played step by step: makespan {_time(played['makespan'])}, GPU-seconds {played['gpu_seconds']:,.1f}, "
            f"{played['data_sets_read']:.2f} x the data read"
        )
    at_once = plan["at_once"]
    if at_once is None:
        return [*lines, f"GPU-seconds {plan['gpu_seconds']:,.1f}"]
    less = 100 * (1 - plan["gpu_seconds"] / at_once["gpu_seconds"])
    gained = only(plan["makespan"], at_once["makespan"], facts["slack"])
    return [*lines, f"GPU-seconds {plan['gpu_seconds']:,.1f}, {less:.1f} % less than all at once{gained}"]


def only(planned: float, at_once: float, slack: float) -> str:
    """What a makespan that is planned is good for, if all at once take no longer; else nothing."""
    if at_once > planned * (1 + slack) + 1e-9:
        return ""
    if planned > at_once * (1 + slack):
        return f", which take {_time(at_once)}"
    return "; only GPU-seconds are to be gained"


def _cut(name: str) -> str:
    return f"{name if len(name) <= 22 else name[:21] + '…':24}"


def _time(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 10 else _step(seconds)


def _step(seconds: float) -> str:
    """Three decimals of whichever unit has some before the point.

    >>> _step(0.4493), _step(2.5), _step(0.0), _step(3e-5)
    ('449.3 ms', '2.500 s', '0 s', '0.030 ms')
    """
    if seconds == 0:
        return "0 s"
    if seconds >= 1:
        return f"{seconds:.3f} s"
    return f"{1e3 * seconds:.1f} ms" if seconds >= 0.001 else f"{1e3 * seconds:.3f} ms"
