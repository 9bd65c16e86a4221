# SPDX-License-Identifier: Apache-2.0
"""The figures of ``foresee stagger predict``: panels, lines, and the marks of the paper's figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import pictures
from support.table_one import write

from foresee import jobspec
from foresee.cli import main
from foresee.cli._figures import Mark
from foresee.cli.stagger import plot
from foresee.stagger import inputs


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    return [write(tmp_path, "resnet"), write(tmp_path, "efficientnet")]


def facts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    """Return the JSON object."""
    assert main(["stagger", "predict", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "more", [[], ["--running", "85"], ["--running", "100"], ["--cache", "0.4"], ["--compat", "paper"]]
)
def test_the_picture_has_four_panels_for_each_order(
    tmp_path: Path, pair: list[str], capsys, monkeypatch, more: list[str]
) -> None:
    written = pictures.watch(monkeypatch, save=False)
    path = tmp_path / "curves.svg"
    assert main(["stagger", "predict", *pair, "--plot", str(path), *more]) == 0
    capsys.readouterr()
    (figure,) = written
    assert len(figure.axes) == (4 if "--running" in more else 8)
    for axes in figure.axes:
        assert axes.lines
        for line in axes.lines:
            x, y = line.get_data()
            assert list(x) == sorted(x)
            assert axes.get_xlim()[0] <= min(x) <= max(x) <= axes.get_xlim()[1]
            assert axes.get_ylim()[0] <= min(y) <= max(y) <= axes.get_ylim()[1]
    assert figure.axes[0].get_title(loc="left") == "resnet first, then efficientnet"


def test_curves_end_where_the_cache_is_too_small(pair: list[str], capsys) -> None:
    result = facts(capsys, *pair, "--cache", "0.4")
    times = {job.name: job for job in inputs.times([jobspec.read(path) for path in pair]).jobs}
    for order in result["orders"]:
        panels = plot._column(
            order, times[order["leader"]], times[order["follower"]], compat="physical", cache=0.4
        )
        within = [row["percent"] for row in order["table"] if row["within_cache"]]
        beyond = [row["percent"] for row in order["table"] if not row["within_cache"]]
        for line in [line for panel in panels[:2] for line in panel.lines]:
            assert max(within) <= line.x[-1] <= min(beyond)


def column(result: dict, at: int, pair: list[str], cache: float = 1.0) -> list:
    """The panels of one order of start."""
    times = {job.name: job for job in inputs.times([jobspec.read(path) for path in pair]).jobs}
    order = result["orders"][at]
    return plot._column(
        order, times[order["leader"]], times[order["follower"]], compat="physical", cache=cache
    )


def test_the_best_start_and_the_best_of_a_search_are_marked(pair: list[str], capsys) -> None:
    # Figures 7 and 8 of the paper.
    makespan, wait, *_ = column(facts(capsys, *pair), 0, pair)
    for panel in (makespan, wait):
        best, searched = panel.marks
        assert (best.x, best.name) == (pytest.approx(67.499, abs=5e-4), "best")
        assert searched == Mark(pytest.approx(60), searched.colour)
        assert searched.colour != best.colour
    # The minimum of the line.
    lowest = min(range(len(makespan.lines[0].y)), key=makespan.lines[0].y.__getitem__)
    assert makespan.lines[0].x[lowest] == pytest.approx(67.499, abs=0.3)
    # Without a start within the cache, no mark is beyond it.
    marks = column(facts(capsys, *pair, "--cache", "0.45"), 0, pair, 0.45)[0].marks
    assert [mark.x for mark in marks] == pytest.approx([45, 40])


def test_the_catch_up_is_marked_for_each_start_before_it(pair: list[str], capsys) -> None:
    # Figure 9: starts at 0, 20, 40 and 60 %; at 80 % everything is in the cache.
    _, _, leader, follower = column(facts(capsys, *pair), 0, pair)
    ratio = (204.7 + 40) / (303.6 + 449.3)
    expected = [share / 100 * 1174.524 / (1 - ratio) for share in (0, 20, 40, 60)]
    for panel in (leader, follower):
        assert [mark.x for mark in panel.marks] == pytest.approx(expected)
        # In the colour of the line of that start.
        assert [mark.colour for mark in panel.marks] == [line.colour for line in panel.lines[:4]]
        assert [line.name for line in panel.lines] == ["0 %", "20 %", "40 %", "60 %", "80 %"]
    # From there on the leader waits for wait_conc.
    for mark, line in zip(leader.marks[1:], leader.lines[1:4], strict=True):
        assert line.x[line.y.index(pytest.approx(600))] == pytest.approx(mark.x)


def test_marks_are_drawn(tmp_path: Path, pair: list[str], capsys, monkeypatch) -> None:
    written = pictures.watch(monkeypatch)
    path = tmp_path / "curves.svg"
    assert main(["stagger", "predict", *pair, "--plot", str(path)]) == 0
    capsys.readouterr()
    for axes in written[0].axes:
        upright = [line for line in axes.lines if len(set(line.get_xdata())) == 1]
        assert len([line for line in upright if line.get_linestyle() == ":"]) in {2, 3, 4}
    # Two panels of both orders of start.
    assert pictures.texts(path).count("best") == 4


def test_a_plans_picture_has_a_line_per_job_and_names_cannot_break_it(
    tmp_path: Path, pair: list[str], capsys
) -> None:
    odd = write(tmp_path, "resnet2", 'model = "<b>& $x$"\nwait_cached = 0')
    path = tmp_path / "plan.svg"
    arguments = [*pair, odd, "--coalesces", "--read", "1166 s", "--plot", str(path)]
    assert main(["stagger", "predict", *arguments]) == 0
    capsys.readouterr()
    drawn = pictures.texts(path)
    assert {"resnet", "efficientnet", "<b>& $x$", "end"} <= set(drawn)
