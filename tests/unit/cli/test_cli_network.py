# SPDX-License-Identifier: Apache-2.0
"""``foresee network``: its table, JSON object, figures and exit codes."""

from __future__ import annotations

import doctest
import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from support import pictures
from support.house import ROOT

from foresee import network
from foresee.cli import main
from foresee.cli import network as command
from foresee.network import trace

FOLDER = ROOT / "testdata" / "network"
EXAMPLE = str(FOLDER / "trace.json")
VGG = str(FOLDER / "vgg16.json")


def facts(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    """Return the JSON object."""
    assert main(["network", *arguments, "--json"]) == code
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


@pytest.mark.parametrize("module", ["foresee.cli.network", "foresee.cli._terminal_plot"])
def test_the_examples_in_the_docstrings_are_true(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed


def test_json_has_the_figures_of_example_a(capsys) -> None:
    result = facts(capsys, EXAMPLE, "--bandwidth", "8bit/s", "--efficiency", "1")
    (row,) = result["table"]
    expected = {"oracle": 9, "mercury": 11, "barrier": 13, "fifo_packet": 13, "fifo_tensor": 17}
    assert row["t_iter"] == expected
    assert row["speed"] == pytest.approx({policy: 9 / time for policy, time in expected.items()})
    assert row["gain_over_fifo_tensor"] == 17 / 11
    assert (row["bandwidth"], row["exact_clipping_seconds"]) == (1.0, 2.0)
    assert result["minimum_bandwidth"] == pytest.approx(
        {"oracle": 0, "mercury": 11, "barrier": 11, "fifo_packet": 11, "fifo_tensor": 22}
    )
    assert (result["model"], result["tensors"], result["bytes"], result["oracle_seconds"]) == (
        "example",
        3,
        8,
        9.0,
    )
    assert (result["slack"], result["linear_scaling_samples_per_second"]) == (0.99, 1.0)


def test_the_papers_model_changes_fifo_tensor_and_omits_framing(capsys) -> None:
    result = facts(capsys, EXAMPLE, "--bandwidth", "1B/s", "--compat", "paper")
    assert result["table"][0]["t_iter"]["fifo_tensor"] == 15
    assert (result["compat"], result["framing"], result["ranks"]) == ("paper", 1.0, None)


def test_ranks_and_servers_take_their_share_of_the_link(capsys) -> None:
    alone = facts(capsys, VGG, "--bandwidth", "10gbit/s")
    shared = facts(capsys, VGG, "--bandwidth", "10gbit/s", "--ranks", "4")
    mixed = facts(capsys, VGG, "--bandwidth", "10gbit/s", "--ranks", "4", "--servers", "4")
    assert alone["framing"] == pytest.approx(30000 / 30032 * 1448 / 1514)
    assert (shared["of_link"], mixed["of_link"]) == (pytest.approx(2 / 3), 1.0)
    assert mixed["table"] == alone["table"]
    assert shared["minimum_bandwidth"]["mercury"] == pytest.approx(
        1.5 * alone["minimum_bandwidth"]["mercury"]
    )
    step = trace.read(VGG).step()
    expected = network.t_iter(
        step, "barrier", network.effective_bandwidth(1.25e9, 4, efficiency=alone["framing"])
    )
    assert shared["table"][0]["t_iter"]["barrier"] == pytest.approx(expected)
    assert shared["linear_scaling_samples_per_second"] == pytest.approx(4 * 32 / step.oracle)


def test_a_sweep_goes_from_one_bandwidth_to_the_other(capsys) -> None:
    result = facts(capsys, VGG, "--sweep", "100Mbit/s", "12.5GB/s")
    rates = [row["bandwidth"] for row in result["table"]]
    assert len(rates) == 13
    assert (rates[0], rates[-1]) == pytest.approx((12.5e6, 12.5e9))
    speeds = [row["speed"]["mercury"] for row in result["table"]]
    assert speeds == sorted(speeds)


@pytest.mark.parametrize(
    ("word", "rate"),
    [
        ("1gbit/s", 125e6),
        ("1Gbps", 125e6),
        ("2.5 Gbit/s", 312.5e6),
        ("100mbit", 12.5e6),
        ("8000bit/s", 1000.0),
        ("1MB/s", 1e6),
        ("1GBps", 1e9),
        ("1.5MiB/s", 1.5 * 2**20),
        ("7B/s", 7.0),
    ],
)
def test_bandwidths_have_common_spellings(capsys, word: str, rate: float) -> None:
    assert facts(capsys, EXAMPLE, "--bandwidth", word)["table"][0]["bandwidth"] == rate


def test_the_report_has_table_needs_and_curves(capsys) -> None:
    assert main(["network", VGG, "--bandwidth", "1gbit/s", "25gbit/s", "--ranks", "4"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith(
        "vgg16: 32 tensors, 553.4 MB of gradients, 148.64 ms per step without a network"
    )
    assert "0.667 (4 ranks, 0 dedicated servers)" in lines[1]
    (row,) = [line for line in lines if line.lstrip().startswith("1 Gbit/s") and " x" in line]
    result = facts(capsys, VGG, "--bandwidth", "1gbit/s", "--ranks", "4")["table"][0]
    assert f"{result['t_iter']['mercury']:.2f} s" in row
    assert f"{result['gain_over_fifo_tensor']:.2f} x" in row
    assert "needed for 99 % of the speed without a network" in out
    assert "less than WFBP" in out
    plot = out.split("speed against bandwidth\n")[1]
    assert plot.startswith("100 % |")
    for mark in "mbt":  # barrier covers fifo_packet
        assert re.search(rf"^[ 0-9%]+\|.*{mark}", plot, flags=re.MULTILINE), mark
    assert max(map(len, plot.splitlines())) <= 80


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "bert_base", "gpt2_small", "trace"])
def test_the_picture_has_a_curve_and_a_bar_for_each_policy(
    tmp_path: Path, capsys, monkeypatch, name: str
) -> None:
    written = pictures.watch(monkeypatch)
    path = tmp_path / "curves.svg"
    assert main(["network", str(FOLDER / f"{name}.json"), "--plot", str(path)]) == 0
    capsys.readouterr()
    left, right = written[0].axes
    assert [line.get_linestyle() for line in left.lines] == ["-", "--", ":", "-."]
    for line in left.lines:
        x, y = line.get_xdata(), line.get_ydata()
        assert (np.diff(x) > 0).all()
        assert (np.diff(y) >= -1e-12).all(), "more bandwidth is never slower"
        assert y[0] >= 0
        assert y[-1] <= 1
    assert [tick.get_text() for tick in right.get_yticklabels()] == list(command._STYLES)
    drawn = pictures.texts(path)
    assert {"fifo_tensor (WFBP)", "100 %", "1 Gbit/s", "bandwidth of one direction"} <= set(drawn)
    assert f"Speed of {trace.read(FOLDER / f'{name}.json').model} by bandwidth" in drawn
    assert list(pictures.overlapping(written[0])) == []


def test_a_name_cannot_break_the_picture(tmp_path: Path, capsys) -> None:
    model = trace.ModelTrace('<b>&" $x$', (trace.Tensor("w", 5, 1.0, 1.0),))
    trace.write(model, tmp_path / "model.json")
    path = tmp_path / "curves.svg"
    assert main(["network", str(tmp_path / "model.json"), "--plot", str(path)]) == 0
    assert 'Speed of <b>&" $x$ by bandwidth' in pictures.texts(path)
    assert "1 tensor," in capsys.readouterr().out


def test_a_slack_that_is_not_reached_has_exit_code_1(capsys) -> None:
    assert facts(capsys, VGG, "--bandwidth", "1gbit/s")["slack"] == 0.99
    facts(capsys, VGG, "--bandwidth", "1gbit/s", "100gbit/s", "--slack", "0.9")
    facts(capsys, VGG, "--bandwidth", "1gbit/s", "--slack", "0.9", code=1)
    result = facts(capsys, VGG, "--slack", "1", code=1)
    assert result["minimum_bandwidth"]["mercury"] is None
    assert main(["network", VGG, "--slack", "1"]) == 1
    assert "out of reach" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{folder}/nowhere.json"], "nowhere.json"),
        (["{folder}"], "directory"),
        (["{folder}/README.md"], "README.md: no JSON"),
        ([VGG, "--bandwidth", "1"], "--bandwidth '1': write a bandwidth"),
        ([VGG, "--bandwidth", "1gb/s"], "1gb/s"),
        ([VGG, "--bandwidth", "-1gbit/s"], ""),
        ([VGG, "--bandwidth", "0gbit/s"], "above 0"),
        ([VGG, "--bandwidth", f"{'9' * 400}gbit/s"], "above 0"),
        ([VGG, "--sweep", "2gbit/s", "1gbit/s"], "the lower one first expected"),
        ([VGG, "--sweep", "1gbit/s", "fast"], "--sweep 'fast'"),
        ([VGG, "--ranks", "1"], "ranks is 1"),
        ([VGG, "--ranks", "-4"], "ranks=-4"),
        ([VGG, "--servers", "2"], "--servers 2 without --ranks"),
        ([VGG, "--ranks", "4", "--servers", "-1"], "servers=-1"),
        ([VGG, "--slack", "0"], "goal is 0"),
        ([VGG, "--slack", "nan"], "goal is NaN"),
        ([VGG, "--efficiency", "1.2"], "--efficiency 1.2"),
        ([VGG, "--plot", "curves.gif"], "one of the suffixes .svg, .png, .pdf"),
        ([VGG, "--plot", "{folder}/nowhere/curves.svg"], "nowhere"),
    ],
)
def test_bad_input_has_exit_code_2_and_a_message(capsys, arguments: list[str], expected: str) -> None:
    try:
        code = main(["network", *(argument.format(folder=FOLDER) for argument in arguments)])
    except SystemExit as left:  # argparse refuses the option
        code = int(str(left.code))
    assert code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err


def test_an_unwritable_figure_has_exit_code_3(capsys, monkeypatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "curves.svg")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("foresee._schema.files.write", refuse)
    assert main(["network", VGG, "--plot", "curves.svg"]) == 3
    assert "Permission denied" in capsys.readouterr().err
