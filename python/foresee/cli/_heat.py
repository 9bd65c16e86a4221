# SPDX-License-Identifier: Apache-2.0
"""A table of numbers as SVG, dark where they are large: two parameters that were swept, and what came of each pair.

Separate from the command, which knows what the numbers mean. One size of a cell, one scale of grey and blue.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from foresee.cli._svg import label, page

__all__ = ["svg"]

_CELL, _LEFT, _TOP = (92, 34), 150, 96
_LIGHT, _DARK = (239, 243, 255), (8, 69, 148)


def svg(
    title: str,
    lines: Sequence[str],
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
    values: Sequence[Sequence[float | None]],
    partly: Collection[tuple[int, int]] = (),
) -> str:
    """A page of its own.

    Args:
        title: above all.
        lines: below it.
        rows: what goes down, and its values.
        columns: what goes across, and its values.
        values: by row and column; None where there is none.
        partly: places of those, by row and column, that are not of the whole; ``~`` marks them.
    """
    wide, high = _CELL
    width = max(640, _LEFT + wide * len(columns[1]) + 40)
    height = _TOP + high * len(rows[1]) + 60
    known = [value for row in values for value in row if value is not None]
    least, most = (min(known), max(known)) if known else (0.0, 1.0)
    parts = [
        label(20, _TOP + high * len(rows[1]) + 24, f"down: {rows[0]}; across: {columns[0]}"),
    ]
    parts += [
        label(_LEFT + (at + 0.5) * wide, _TOP - 8, name, anchor="middle")
        for at, name in enumerate(columns[1])
    ]
    for down, (name, row) in enumerate(zip(rows[1], values, strict=True)):
        y = _TOP + down * high
        parts.append(label(_LEFT - 8, y + high / 2 + 4, name, anchor="end"))
        for across, value in enumerate(row):
            x = _LEFT + across * wide
            share = 0.0 if value is None or most == least else (value - least) / (most - least)
            fill = "#ffffff" if value is None else _colour(share)
            ink = "#ffffff" if share > 0.55 else None
            parts.append(
                f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{fill}" stroke="#ffffff"/>'
            )
            mark = "~" if (down, across) in partly else ""
            shown = "-" if value is None else f"{mark}{value:.4g}"
            parts.append(label(x + wide / 2, y + high / 2 + 4, shown, anchor="middle", ink=ink))
    return page((width, height), 20, title, lines, parts)


def _colour(share: float) -> str:
    mixed = (round(light + share * (dark - light)) for light, dark in zip(_LIGHT, _DARK, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
