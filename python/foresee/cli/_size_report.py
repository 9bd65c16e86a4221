# SPDX-License-Identifier: Apache-2.0
"""Report of ``foresee size`` as text, and the figure of two keys; both show the numbers of the JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMN_MIN = 14
_SIZE = 7.6, 4.6
"""Inches."""


def text(facts: dict[str, Any]) -> str:
    """Return a table with a row per point; the cheapest point is marked."""
    goal, keys = facts["goal"], facts["keys"]
    target = (
        f"to be done within {goal['within_s']:,.6g} s"
        if goal["within_s"] is not None
        else f"to compute {goal['utilization']:.1%} of the time"
    )
    lines = [f"{facts['job']}: the least that {facts['policy']} needs {target}"]
    if facts["interrupted"]:
        lines.append("interrupted: what was found so far")
    elif not facts["met"]:
        dearest = facts["dearest"]
        values = ", ".join(f"{key['key']} = {_amount(key, dearest)}" for key in keys)
        lines.append(
            f"not met: with {values} it takes {dearest['total_s']:,.2f} s and computes "
            f"{dearest['utilization']:.1%} of them"
        )
    if not facts["points"]:
        return "\n".join(lines)
    has_prices = facts["cheapest"] is not None
    widths = [max(len(key["key"]), _COLUMN_MIN) + 2 for key in keys]
    heads = "".join(f"{key['key']:>{width}}" for key, width in zip(keys, widths, strict=True))
    lines.append(f"{heads}{'total':>14}{'computing':>11}{'cost' if has_prices else '':>14}".rstrip())
    for number, point in enumerate(facts["points"]):
        cells = "".join(f"{_amount(key, point):>{width}}" for key, width in zip(keys, widths, strict=True))
        cost = f"{point['cost']:>14,.2f}" if has_prices else ""
        mark = "  cheapest" if number == facts["cheapest"] else ""
        lines.append(f"{cells}{point['total_s']:>12,.2f} s{point['utilization']:>11.1%}{cost}{mark}")
    return "\n".join(lines)


def figure(facts: dict[str, Any]) -> Figure:
    """Draw the combinations of two keys that meet the goal as points; values between them were not simulated."""
    from foresee.cli import _figures

    first, second = (
        _figures.Axis(key["key"], min(key["from"], key["to"]), max(key["from"], key["to"]), key["unit"] or "")
        for key in facts["keys"]
    )
    names = [key["key"] for key in facts["keys"]]
    points = sorted((point["at"][names[0]], point["at"][names[1]]) for point in facts["points"])
    line = _figures.Line(
        facts["policy"], _figures.COLOURS[0], [x for x, _ in points], [y for _, y in points], "none", "o"
    )
    title = f"{facts['job']}: each point was simulated and meets the goal"
    return _figures.panels(title, (), [[_figures.Panel("", first, second, [line])]], size=_SIZE)


def _amount(key: dict[str, Any], point: dict[str, Any]) -> str:
    return f"{point['at'][key['key']]:,.6g} {key['unit'] or ''}".rstrip()
