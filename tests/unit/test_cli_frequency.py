# SPDX-License-Identifier: Apache-2.0
"""``foresee frequency``: the published figure's numbers, by the exact distribution and in drawn orders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foresee.cli import main

FIGURE = ["--ranks", "16", "--epochs", "90", "--samples", "1281167", "--delta", "0.8"]
SMALL = ["--ranks", "4", "--epochs", "8", "--samples", "2000"]


def test_the_published_figure_comes_out(capsys: Any) -> None:
    assert main(["frequency", *FIGURE, "--draws", "0"]) == 0
    told = capsys.readouterr().out
    assert "11 times or more" in told
    assert "31,634.69 samples expected" in told
    assert "drawn order" not in told


def test_one_object_has_both_distributions_and_they_agree(capsys: Any) -> None:
    assert main(["frequency", *SMALL, "--draws", "5", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert sum(facts["expected"]) == pytest.approx(2000)
    assert [sum(each) for each in facts["drawn"]] == [2000] * 5
    assert len({tuple(each) for each in facts["drawn"]}) == 5
    assert facts["least_reads"] == 4
    often = sum(facts["expected"][4:])
    assert facts["expected_often"] == pytest.approx(often)
    # Five draws of 2000: their mean lies within five deviations of a binomial's.
    mean = sum(facts["drawn_often"]) / 5
    assert abs(mean - often) < 5 * (often * (1 - often / 2000) / 5) ** 0.5


def test_a_seed_repeats_its_draw(capsys: Any) -> None:
    drawn = []
    for seed in ("3", "3", "4"):
        assert main(["frequency", *SMALL, "--seed", seed, "--json"]) == 0
        drawn.append(json.loads(capsys.readouterr().out)["drawn"])
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_table_and_a_picture(tmp_path: Path, capsys: Any) -> None:
    picture = tmp_path / "figure.svg"
    assert main(["frequency", *SMALL, "--draws", "2", "--plot", str(picture)]) == 0
    told = capsys.readouterr().out
    assert "in the mean of 2 drawn orders" in told
    assert told.splitlines()[3].split() == ["reads", "expected", "drawn"]
    drawn = picture.read_text()
    assert drawn.startswith("<svg")
    assert all(word in drawn for word in (">samples</text>", ">often</text>", "reads by one rank"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ranks", "0"], "--ranks 0: 1 to"),
        (["--epochs", "-1"], "--epochs -1: 1 to"),
        (["--epochs", "65536"], "--epochs 65536: 1 to"),
        (["--samples", "4294967296"], "--samples 4294967296: 1 to"),
        (["--draws", "1001"], "--draws 1001: 0 to 1000"),
        (["--seed", "-2"], "--seed -2: 0 to"),
        (["--delta", "-0.5"], "-0.5"),
        (["--delta", "nan"], "nan"),
        (["--delta", "a/b"], "a/b"),
        (["--plot", "x.png"], "only .svg"),
    ],
)
def test_bad_input_ends_with_2(capsys: Any, arguments: list[str], told: str) -> None:
    assert main(["frequency", *SMALL, *(f"{arguments[0]}={value}" for value in arguments[1:])]) == 2
    assert told in capsys.readouterr().err
