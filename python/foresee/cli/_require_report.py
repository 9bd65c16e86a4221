# SPDX-License-Identifier: Apache-2.0
"""What ``foresee require`` prints for people, and draws of two keys.

Apart from the command, whose one object has the same figures.
"""

from __future__ import annotations

from typing import Any

from foresee.cli import _front

__all__ = ["svg", "text"]

_LEAST_WIDTH = 14


def text(facts: dict[str, Any]) -> str:
    """A row per point, the cheapest marked."""
    goal, keys = facts["goal"], facts["keys"]
    asked = (
        f"to be done within {goal['within_s']:,.6g} s"
        if goal["within_s"] is not None
        else f"to compute {goal['utilization']:.1%} of the time"
    )
    lines = [f"{facts['job']}: the least that {facts['policy']} needs {asked}"]
    if facts["interrupted"]:
        lines.append("interrupted: what was found so far")
    elif not facts["met"]:
        top = facts["dearest"]
        at = ", ".join(f"{key['key']} = {_amount(key, top)}" for key in keys)
        lines.append(
            f"not met: with {at} it takes {top['total_s']:,.2f} s and computes {top['utilization']:.1%} of them"
        )
    if not facts["points"]:
        return "\n".join(lines)
    priced = facts["cheapest"] is not None
    widths = [max(len(key["key"]), _LEAST_WIDTH) + 2 for key in keys]
    heads = "".join(f"{key['key']:>{width}}" for key, width in zip(keys, widths, strict=True))
    lines.append(f"{heads}{'total':>14}{'computing':>11}{'cost' if priced else '':>14}".rstrip())
    for number, point in enumerate(facts["points"]):
        cells = "".join(f"{_amount(key, point):>{width}}" for key, width in zip(keys, widths, strict=True))
        cost = f"{point['cost']:>14,.2f}" if priced else ""
        mark = "  cheapest" if number == facts["cheapest"] else ""
        lines.append(f"{cells}{point['total_s']:>12,.2f} s{point['utilization']:>11.1%}{cost}{mark}")
    return "\n".join(lines)


def svg(facts: dict[str, Any]) -> str:
    """Of two keys: the mixes that meet the goal, as points; what lies between them was not simulated."""
    first, second = (
        _front.Axis(key["key"], min(key["from"], key["to"]), max(key["from"], key["to"]), key["unit"] or "")
        for key in facts["keys"]
    )
    names = [key["key"] for key in facts["keys"]]
    points = sorted((point["at"][names[0]], point["at"][names[1]]) for point in facts["points"])
    title = f"{facts['job']}: each point was simulated and meets the goal"
    return _front.svg(title, (first, second), [_front.Curve(facts["policy"], points, joined=False)])


def _amount(key: dict[str, Any], point: dict[str, Any]) -> str:
    return f"{point['at'][key['key']]:,.6g} {key['unit'] or ''}".rstrip()
