# SPDX-License-Identifier: Apache-2.0
"""Text report of ``foresee stagger predict``; the JSON object has all its numbers."""

from __future__ import annotations

from typing import Any

_JOB_COLUMNS = (
    ("compute", 11),
    ("wait", 11),
    ("cached", 11),
    ("concurrent", 11),
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
#: Smaller percentages are shown as 0.0.
_SHOWN_MIN = 0.05


def report(facts: dict[str, Any]) -> str:
    """Return the whole report."""
    return "\n".join([*_head(facts), "", *(_plan(facts) if "plan" in facts else _orders(facts))])


def _head(facts: dict[str, Any]) -> list[str]:
    cached = "all of it" if facts["cache"] == 1 else f"{100 * facts['cache']:.4g} % of it"
    how = "coalesces reads" if facts["coalesces"] else f"does not coalesce reads; compat {facts['compat']}"
    lines = [
        f"{len(facts['jobs'])} jobs that read {facts['data']}; the cache holds {cached} and {how}",
        "",
        "".join([f"{'per step':24}", *(f"{head:>{width}}" for head, width in _JOB_COLUMNS)]),
    ]
    has_estimates = False
    for job in facts["jobs"]:
        cells = ""
        for figure in ("compute", "wait", "wait_cached", "wait_conc"):
            value, is_estimated = job[f"{figure}_seconds"], figure in job["estimated"]
            has_estimates |= is_estimated
            cells += f"{'-' if value is None else _step(value) + '*' * is_estimated:>11}"
        lines.append(
            f"{_name_cell(job['name'])}{cells}{job['steps']:>10}{job['epochs']:>8}{_time(job['alone_seconds']):>13}"
        )
    if has_estimates:
        lines.append("* estimated, not measured")
    return lines


def _orders(facts: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    columns = (*_START_COLUMNS, _PLAYED) if facts["simulated"] else _START_COLUMNS
    for order in facts["orders"]:
        leader, follower = order["leader"], order["follower"]
        lines.append(f"{leader} first, then {follower}")
        lines.append("".join([" " * 14, *(f"{head:>{width}}" for head, width in columns)]))
        best = order["best"]
        rows = [(_row_name(row, order), row) for row in order["table"]]
        if best is not None and all(row["start"] != best["start"] for row in order["table"]):
            rows.append(("best", best))
        lines += [_row(name, row) for name, row in sorted(rows, key=lambda named: named[1]["start"])]
        if best is None:
            lines.append("the cache is too small for the second job at any start")
        if (last := order["sequential"]) is not None:
            lines.append(
                f"{'sequential':14}{'':61}{_time(last['makespan']):>13}{last['gpu_seconds']:>15,.1f}"
            )
        lines.append("")
    return lines + _advice(facts)


def _row_name(row: dict[str, Any], order: dict[str, Any]) -> str:
    """Return the name of a row of the table."""
    is_simultaneous, best = row is order["simultaneous"], order["best"]
    if best is not None and row["start"] == best["start"]:
        return "best, at once" if is_simultaneous else "best"
    return "simultaneous" if is_simultaneous else ""


def _row(name: str, row: dict[str, Any]) -> str:
    catch_up = "-" if row["catch_up"] is None else _time(row["catch_up"])
    played = f"{_time(row['played']['makespan']):>13}" if "played" in row else ""
    beyond = "" if row["within_cache"] else "  beyond the cache"
    return (
        f"{name:14}{_time(row['start']):>12}{row['percent']:>8.1f} %"
        f"{catch_up:>13}{_time(row['leader_seconds']):>13}{_time(row['follower_seconds']):>13}{_time(row['makespan']):>13}"
        f"{row['gpu_seconds']:>15,.1f}{played}{beyond}"
    )


def _advice(facts: dict[str, Any]) -> list[str]:
    lines = []
    best = facts["best"]
    played = facts["best_played"] if facts["simulated"] else None
    is_same = (
        played is not None
        and best is not None
        and all(played[key] == best[key] for key in ("leader", "start"))
    )
    if played is not None and not is_same:
        lines.append(
            f"best of those played: {played['follower']} {_start(played)}, makespan {_played(played)}"
        )
    if best is None:
        return lines
    order = next(order for order in facts["orders"] if order["leader"] == best["leader"])
    how = f" by the model; played step by step {_played(played)}" if played is not None and is_same else ""
    lines.append(f"best: {best['follower']} {_start(best)}, makespan {_time(best['makespan'])}{how}")
    at_once = order["simultaneous"]
    if at_once is not None:
        shorter = 100 * (1 - best["makespan"] / at_once["makespan"])
        less = 100 * (1 - best["follower_seconds"] / at_once["follower_seconds"])
        lines.append(
            f"      {shorter:.1f} % shorter than simultaneous, {less:.1f} % fewer GPU-seconds of {best['follower']}"
            + describe_gain(best["makespan"], at_once["makespan"], facts["slack"], less)
        )
    if order["sequential"] is not None:
        shorter = 100 * (1 - best["makespan"] / order["sequential"]["makespan"])
        lines.append(f"      {shorter:.1f} % shorter than sequential")
    return lines


def _played(played: dict[str, Any]) -> str:
    return f"{_time(played['played']['makespan'])}, {played['played']['data_sets_read']:.2f} x the data read"


def _start(best: dict[str, Any]) -> str:
    """Format the start of the follower; if the leader runs already, also from now on."""
    now = "" if best["from_now"] is None else f" ({_time(best['from_now'])} from now)"
    return f"{_time(best['start'])} after {best['leader']}{now}"


def _plan(facts: dict[str, Any]) -> list[str]:
    plan = facts["plan"]
    lines = [f"{'':24}{'start':>13}{'run':>13}{'end':>13}"]
    if plan["from_now"] is not None:
        lines[0] += f"{'from now':>13}"
    rows = zip(facts["jobs"], plan["starts"], plan["runs"], plan["within_cache"], strict=True)
    for at, (job, start, run, within) in enumerate(rows):
        note = "  leads" if job["name"] == plan["leader"] else "" if within else "  beyond the cache"
        if plan["from_now"] is not None:
            note = f"{_time(plan['from_now'][at]):>13}{note}" if at else f"{'runs':>13}{note}"
        lines.append(
            f"{_name_cell(job['name'])}{_time(start):>13}{_time(run):>13}{_time(start + run):>13}{note}"
        )
    shorter = 100 * (1 - plan["makespan"] / plan["sequential"])
    how = "no job catches up" if plan["case"] == "behind" else "all as early as they can"
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
    gain = describe_gain(plan["makespan"], at_once["makespan"], facts["slack"], less)
    return [*lines, f"GPU-seconds {plan['gpu_seconds']:,.1f}, {less:.1f} % less than all at once{gain}"]


def describe_gain(planned: float, at_once: float, slack: float, less: float) -> str:
    """Describe the gain of a plan if all jobs at once take no longer; else return an empty text.

    ``less`` is the percentage of GPU-seconds that the plan saves.
    """
    if at_once > planned * (1 + slack) + 1e-9:
        return ""
    if planned > at_once * (1 + slack):
        return f", which take {_time(at_once)}"
    return "; only GPU-seconds are to be gained" if less >= _SHOWN_MIN else "; there is nothing to gain"


def _name_cell(name: str) -> str:
    return f"{name if len(name) <= 22 else name[:21] + '…':24}"


def _time(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 10 else _step(seconds)


def _step(seconds: float) -> str:
    """Format seconds with three decimals, or one or three of a millisecond.

    >>> _step(0.4493), _step(2.5), _step(0.0), _step(3e-5)
    ('449.3 ms', '2.500 s', '0 s', '0.030 ms')
    """
    if seconds == 0:
        return "0 s"
    if seconds >= 1:
        return f"{seconds:.3f} s"
    return f"{1e3 * seconds:.1f} ms" if seconds >= 0.001 else f"{1e3 * seconds:.3f} ms"
