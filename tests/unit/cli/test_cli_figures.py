# SPDX-License-Identifier: Apache-2.0
"""Files of figures: their formats, equal bytes for equal inputs, and unchanged texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import pictures

from foresee.cli import _figures, _plot_option
from foresee.cli._figures import Axis, Line, Panel


def figure(name: str) -> _figures.Figure:
    line = Line(name, _figures.COLOURS[0], [0.0, 1.0], [1.0, 2.0])
    return _figures.panels("Title", ["below"], [[Panel("panel", Axis("x", unit="s"), Axis("y"), [line])]])


@pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("PDF", b"%PDF")])
def test_equal_figures_are_equal_files_in_each_format(tmp_path: Path, suffix: str, magic: bytes) -> None:
    paths = [tmp_path / f"{number}.{suffix}" for number in range(2)]
    for path in paths:
        assert _plot_option.check("--plot", str(path)) == []
        _figures.write(str(path), figure("line"))
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first.startswith(magic)


@pytest.mark.parametrize("name", ["_hidden", "$a_1$", "<b>&", "a  b"])
def test_a_legend_shows_every_name_as_it_is(tmp_path: Path, name: str) -> None:
    _figures.write(str(tmp_path / "a.svg"), figure(name))
    assert name.split() in [text.split() for text in pictures.texts(tmp_path / "a.svg")]


@pytest.mark.parametrize("path", ["a", "a.gif", "svg", "a.svg/"])
def test_another_format_is_a_fault_that_names_the_formats(path: str) -> None:
    (fault,) = _plot_option.check("--plot", path)
    assert fault == f"--plot {path!r}: a file with one of the suffixes .svg, .png, .pdf expected"


def test_long_lines_of_a_title_are_wrapped_and_cover_nothing() -> None:
    long = " ".join(["word"] * 120)
    line = Line("line", _figures.COLOURS[0], [0.0, 1.0], [1.0, 2.0])
    drawn = _figures.panels(long, [long], [[Panel("panel", Axis("x"), Axis("y"), [line])]])
    assert list(pictures.overlapping(drawn)) == []
    for text in drawn.texts:
        assert text.get_window_extent().x1 <= drawn.bbox.x1
