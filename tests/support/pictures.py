# SPDX-License-Identifier: Apache-2.0
"""Readers of figures in tests: the texts of an SVG file, the bars of a figure, and figures in place of their files."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from foresee.cli import _figures


def texts(path: Path) -> list[str]:
    """Return the texts of an SVG file in drawing order."""
    root = ET.fromstring(path.read_text())  # noqa: S314 - our own file
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


def watch(monkeypatch: pytest.MonkeyPatch, *, save: bool = True) -> list[Figure]:
    """Return a list to which every figure is added that a command writes; without ``save`` no file is written."""
    written: list[Figure] = []
    write = _figures.write

    def add(path: str, figure: Figure) -> None:
        written.append(figure)
        if save:
            write(path, figure)

    monkeypatch.setattr(_figures, "write", add)
    return written


def bars(figure: Figure, row: int = 0) -> dict[str, list[tuple[int, float]]]:
    """Return by class the group and the height of each stacked bar of one row, from left to right."""
    return {
        str(collection.get_label()): [
            (round((box.x0 + box.x1) / 2), box.height)
            for box in (path.get_extents() for path in collection.get_paths())
        ]
        for collection in figure.axes[row].collections
    }


def overlapping(figure: Figure) -> Iterator[tuple[str, str]]:
    """Yield each pair of visible, horizontal or vertical texts of a figure that cover one another."""
    figure.draw_without_rendering()
    hidden = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        for label in (tick.label1, tick.label2)
    }
    boxes = [
        (text.get_text(), text.get_window_extent())
        for text in figure.findobj(Text)
        if isinstance(text, Text)
        and text.get_visible()
        and text.get_text().strip()
        and text not in hidden
        and text.get_rotation() % 90 == 0
    ]
    for (one, box), (other, second) in itertools.combinations(boxes, 2):
        if one != other and box.overlaps(second):
            yield one, other
