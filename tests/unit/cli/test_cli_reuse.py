# SPDX-License-Identifier: Apache-2.0
"""``foresee reuse``: the numbers of the published figure, by the exact distribution, in the order of a run, and drawn."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import pictures

from foresee._native import order_distributed
from foresee.cli import _figures, main, reuse
from foresee.planning import simulation

FIGURE = ["--ranks", "16", "--epochs", "90", "--samples", "1281167", "--delta", "0.8"]
SMALL = ["--ranks", "4", "--epochs", "8", "--samples", "2001"]


def test_the_published_figure_is_reproduced(capsys: Any) -> None:
    assert main(["reuse", *FIGURE, "--draws", "0", "--no-order"]) == 0
    result = capsys.readouterr().out
    assert "11 times or more" in result
    assert "31,634.69 samples expected\n" in result
    assert all(line.split()[2:] == ["-", "-"] for line in result.splitlines()[4:])


def test_counted_reads_follow_the_order_of_a_run(capsys: Any) -> None:
    for rank in (0, 3):
        assert main(["reuse", *SMALL, "--seed", "7", f"--rank={rank}", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        reads = np.zeros(2001, int)
        for epoch in range(8):
            # 2,001 samples among four ranks are padded to 2,004.
            np.add.at(reads, order_distributed(2001, 4, rank, seed=7, epoch=epoch), 1)
        assert facts["counted"] == np.bincount(reads, minlength=9).tolist()
        assert facts["counted_often"] == (reads >= facts["least_reads"]).sum()
        assert (facts["seed"], facts["rank"]) == (7, rank)


def test_one_object_has_all_distributions_and_they_agree(capsys: Any) -> None:
    assert main(["reuse", *SMALL, "--draws", "5", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert sum(facts["expected"]) == pytest.approx(2001)
    assert [sum(each) for each in (facts["counted"], *facts["drawn"])] == [2001] * 6
    assert len({tuple(each) for each in facts["drawn"]}) == 5
    assert facts["least_reads"] == 4
    often = sum(facts["expected"][4:])
    assert facts["expected_often"] == pytest.approx(often)
    # Five draws of 2001: their mean lies within five deviations of a binomial's, and so does one order.
    deviation = (often * (1 - often / 2001)) ** 0.5
    assert abs(sum(facts["drawn_often"]) / 5 - often) < 5 * deviation / 5**0.5
    assert abs(facts["counted_often"] - often) < 5 * deviation


@pytest.mark.parametrize("which", ["counted", "drawn"])
def test_a_seed_repeats_its_draw(capsys: Any, which: str) -> None:
    given = []
    for seed in ("3", "3", "4"):
        assert main(["reuse", *SMALL, "--seed", seed, "--json"]) == 0
        given.append(json.loads(capsys.readouterr().out)[which])
    assert given[0] == given[1] != given[2]


def test_a_table_and_a_picture(tmp_path: Path, capsys: Any) -> None:
    picture = tmp_path / "figure.svg"
    assert main(["reuse", *SMALL, "--draws", "2", "--plot", str(picture)]) == 0
    result = capsys.readouterr().out
    assert "by rank 0 in the order of seed 0" in result
    assert "in the mean of 2 draws" in result
    assert result.splitlines()[3].split() == ["reads", "expected", "counted", "drawn"]
    drawn = pictures.texts(picture)
    assert {"samples", "seldom", "often", "reads by one rank"} <= set(drawn)
    assert "dark: expected; light: counted in the order, then drawn at random" in drawn


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--ranks", "0"], "--ranks 0: 1 to"),
        (["--epochs", "-1"], "--epochs -1: 1 to"),
        (["--epochs", "65536"], "--epochs 65536: 1 to"),
        (["--samples", "4294967296"], "--samples 4294967296: 1 to"),
        (["--draws", "1001"], "--draws 1001: 0 to 1000"),
        (["--seed", "-2"], "--seed -2: 0 to"),
        (["--rank", "4"], "--rank 4: below --ranks"),
        (["--rank", "-1"], "--rank -1: below --ranks"),
        (["--delta", "-0.5"], "-0.5"),
        (["--delta", "nan"], "nan"),
        (["--delta", "a/b"], "a/b"),
        (["--plot", "x.gif"], "one of the suffixes .svg, .png, .pdf"),
    ],
)
def test_invalid_input_exits_with_status_2(capsys: Any, arguments: list[str], expected: str) -> None:
    assert main(["reuse", *SMALL, *(f"{arguments[0]}={value}" for value in arguments[1:])]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("samples", [1_000, 1_281_167, 2**32 - 1])
@pytest.mark.parametrize("counts", [3, 21, 60, 400])
def test_no_label_of_the_picture_overlaps_another(samples: int, counts: int) -> None:
    each = [samples / counts] * counts
    shape = {"samples": samples, "ranks": 16, "epochs": 90, "rank": 0, "seed": 0}
    often = {"least_reads": 11, "expected_often": 31634.69, "counted_often": 31502, "drawn_often": [1.0, 2.0]}
    facts = {**shape, **often, "expected": each, "counted": each, "drawn": [each, each]}
    assert list(pictures.overlapping(reuse._figure(facts))) == []


def test_names_below_bars_do_not_overlap() -> None:
    groups = [_figures.Group(name, [_figures.Stack((1.0,))]) for name in simulation.POLICIES]
    figure = _figures.bars("t", [], "policy", ["a"], {"": groups})
    assert list(pictures.overlapping(figure)) == []
    labels = figure.axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == list(simulation.POLICIES)
    # Slanted names are parallel: they do not overlap if the next one begins beyond the height of this one.
    starts = [label.get_transform().transform(label.get_position())[0] for label in labels]
    height = labels[0].get_fontsize() * figure.dpi / 72
    slant = math.radians(labels[0].get_rotation())
    assert min(np.diff(starts)) * math.sin(slant) > height
