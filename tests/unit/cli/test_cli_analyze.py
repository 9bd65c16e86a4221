# SPDX-License-Identifier: Apache-2.0
"""``foresee analyze``: its table, JSON object, figures and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support import pictures

from foresee import storage
from foresee.cli import _analysis_plots, main
from foresee.storage import analysis
from foresee.storage.analysis import IoTable

MEASURED = np.array([[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]])


def table(seconds: np.ndarray) -> IoTable:
    """A table by hand."""
    names = tuple(f"rank {at}" for at in range(len(seconds)))
    return IoTable(seconds.astype(float), storage.CLASSES, names, (0.0,) * 4, ("what a log cannot tell",))


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run folders a (the worked example), b (half of it), c (with missing values)."""
    unknown = MEASURED.copy()
    unknown[:, 1] = np.nan
    tables = {"a": table(MEASURED), "b": table(MEASURED / 2), "c": table(unknown)}
    for name in tables:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(analysis.ledger, "read", lambda path, *, epoch: tables[Path(path).name])
    epochs = {
        "a": {0: table(MEASURED * 0.75), 1: table(MEASURED * 0.25)},
        "b": {0: table(MEASURED / 2)},
        "c": {},
    }
    monkeypatch.setattr(analysis.ledger, "read_epochs", lambda path: epochs[Path(path).name])
    waited = {"a": {"rank 0": {"copy": 0.1}, "rank 1": {"transform": 4.0, "origin_read": 2.0, "copy": 0.001}}}
    monkeypatch.setattr(analysis.waits, "read", lambda path, *, epoch: waited.get(Path(path).name, {}))
    cache = {"ranks": [0, 1], "is_service": False, "host_rank": 0, "delivered_bytes": 4 * 10**9}
    cache |= {"origin_bytes": 10**9, "saved_bytes": 3 * 10**9}
    shared = {"a": [cache], "b": [cache | {"ranks": [0], "is_service": True, "host_rank": None}]}
    monkeypatch.setattr(analysis.node_caches, "read", lambda path, *, epoch: shared.get(Path(path).name, []))
    return tmp_path


def facts(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    """Return the JSON object."""
    assert main(["analyze", *arguments, "--json"]) == code
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_json_has_every_process_and_the_slowest(capsys, folders: Path) -> None:
    result = facts(capsys, str(folders / "a"))
    (at,) = result["tables"]
    assert at["seconds"] == MEASURED.tolist()
    assert at["slowest"] == {
        "process": "rank 0",
        "seconds": 6.5,
        "by_class": {"GFS-READ": 1.0, "GFS-META": 3.0, "LFS-READ": 2.0, "LFS-META": 0.5},
        "bottleneck": "GFS-META",
    }
    assert (result["best_rate"], result["goal"], result["what_if"]) == (None, None, None)
    assert result["limits"] == ["what a log cannot tell"]


def test_what_if_and_goal_are_answered(capsys, folders: Path) -> None:
    arguments = [str(folders / "a"), "--what-if", "gfs-meta=+50", "LFS-READ=50%", "--goal", "5"]
    result = facts(capsys, *arguments)
    assert result["tables"][0]["what_if"]["seconds"] == pytest.approx(4.866667, abs=1e-6)
    assert result["goal"]["met"]
    assert facts(capsys, str(folders / "a"), "--goal", "5 s", code=1)["goal"]["best"] == 6.5


def test_rates_are_compared(capsys, folders: Path) -> None:
    result = facts(capsys, f"0.75={folders / 'b'}", f"0.5={folders / 'a'}", "--goal", "4")
    assert [at["rate"] for at in result["tables"]] == [0.5, 0.75]
    assert result["best_rate"] == result["goal"]["minimum_rate"] == 0.75
    result = facts(capsys, f"0.5={folders / 'a'}", f"0.75={folders / 'b'}", "--hit-rate", "0.625")
    assert result["tables"][0]["slowest"]["seconds"] == pytest.approx(0.75 * 6.5)
    assert "seconds at 0.625 are interpolated" in result["limits"][0]
    joined = facts(capsys, f"0.5={folders / 'a'}", f"0.5={folders / 'b'}")
    assert len(joined["tables"][0]["processes"]) == 6


def test_epochs_of_a_run_folder_are_separate(capsys, folders: Path) -> None:
    result = facts(capsys, str(folders / "a"))["epochs"]
    assert [(each["epoch"], each["slowest"]["seconds"]) for each in result] == [
        (0, 0.75 * 6.5),
        (1, 0.25 * 6.5),
    ]
    assert main(["analyze", str(folders / "a")]) == 0
    assert "slowest in epoch 1" in capsys.readouterr().out
    assert facts(capsys, str(folders / "b"))["epochs"] is None
    assert facts(capsys, str(folders / "a"), "--epoch", "1")["epochs"] is None
    assert facts(capsys, f"0.5={folders / 'a'}", f"0.75={folders / 'b'}")["epochs"] is None


def test_a_pair_and_offers(capsys, folders: Path, tmp_path: Path) -> None:
    path = tmp_path / "offers.toml"
    path.write_text(
        'version = 1\n[[offer]]\nname = "gfs-meta"\nimprovement = 50\nprice = 40\n'
        '[[offer]]\nname = "lfs-read"\nimprovement = 50\nprice = 80\n'
    )
    arguments = [str(folders / "a"), "--goal", "5", "--offers", str(path), "--pair", "gfs-meta", "lfs-read"]
    result = facts(capsys, *arguments)["goal"]
    assert result["offers"]["cheapest"]["price"] == 120
    assert result["pair"][0]["corners"][0] == pytest.approx([0, 300])
    assert main(["analyze", *arguments]) == 0
    out = capsys.readouterr().out
    assert "cheapest: 120 for GFS-META +50 %, LFS-READ +50 %: 4.867 s" in out
    assert "goal 5 s: not met, 6.5 s at best" in out
    assert "GFS-META and LFS-READ: +0 % with +300 %" in out
    result = facts(capsys, *arguments[:2], "1", *arguments[3:], code=1)["goal"]
    assert "best" in result["offers"]
    assert main(["analyze", *arguments[:2], "1", *arguments[3:]]) == 1
    assert "no offers meet it; 4.867 s at best" in capsys.readouterr().out


def test_the_table_has_the_slowest_first(capsys, folders: Path) -> None:
    assert main(["analyze", str(folders / "a"), "--what-if", "gfs-meta=+50"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert [line.split()[1] for line in lines[1:4]] == ["0", "1", "2"]
    assert lines[1].split()[-2:] == ["6.5", "GFS-META"]
    assert lines[4] == "with the changes:"
    assert [line.split()[1] for line in lines[5:8]] == ["1", "2", "0"]
    assert lines[5].endswith("6.067  LFS-READ (was 6.4)")
    assert lines[7].endswith("5.5  GFS-META (was 6.5)")
    assert "- what a log cannot tell" in lines
    assert main(["analyze", f"0.5={folders / 'a'}", f"0.75={folders / 'b'}", "--goal", "4"]) == 0
    out = capsys.readouterr().out
    assert "slowest at 0.5" in out
    assert "fastest at a cache rate of 0.75" in out
    assert "goal 4 s: met, at a cache rate of 0.75 and maybe at higher ones" in out


def test_several_rates_show_the_slowest_and_count_the_others(capsys, folders: Path, monkeypatch) -> None:
    many = {name: table(np.tile(MEASURED, (7, 1))) for name in ("a", "b")}
    monkeypatch.setattr(analysis.ledger, "read", lambda path, *, epoch: many[Path(path).name])
    change = ["--what-if", "gfs-meta=+50"]
    assert main(["analyze", f"0.5={folders / 'a'}", f"0.75={folders / 'b'}", *change]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:7]] == ["slowest", "with", "rank", "rank", "rank", "and"]
    assert lines[6] == "and 18 more that are not slower (--json has them)"
    monkeypatch.setattr(analysis.ledger, "read_epochs", lambda path: {})
    assert main(["analyze", str(folders / "a"), *change]) == 0
    assert capsys.readouterr().out.count("and 11 more that are not slower") == 2
    result = facts(capsys, str(folders / "a"), *change)["tables"][0]
    assert [len(result["what_if"][key]) for key in ("totals", "seconds_by_process")] == [21, 21]


def test_offers_and_changes_meet_a_goal_together(capsys, folders: Path, tmp_path: Path) -> None:
    path = tmp_path / "offers.toml"
    path.write_text('version = 1\n[[offer]]\nname = "gfs-read"\nimprovement = 10\nprice = 7\n')
    changes = ["--what-if", "gfs-meta=+140", "lfs-read=+120"]
    requested = [str(folders / "a"), *changes, "--offers", str(path), "--goal"]
    assert main(["analyze", *requested, "4"]) == 0
    out = capsys.readouterr().out
    assert "goal 4 s: met" in out
    assert "cheapest: 0 for no change: 3.942 s" in out
    assert "no offers meet it" not in out
    assert main(["analyze", *requested, "3.8"]) == 0
    out = capsys.readouterr().out
    assert "goal 3.8 s: not met, 3.942 s at best" in out
    assert "cheapest: 7 for GFS-READ +10 % on top of the changes: 3.761 s" in out
    assert main(["analyze", *requested, "3.5"]) == 1
    assert "no offers meet it; 3.761 s at best" in capsys.readouterr().out


def test_sets_are_ordered_by_classes_then_by_gain(capsys, folders: Path) -> None:
    assert main(["analyze", str(folders / "a"), "--goal", "5.5"]) == 1
    out = capsys.readouterr().out
    assert "fewest changes: LFS-READ +100 %\nor 2 classes: GFS-META and LFS-READ +25 % each\n" in out
    assert "or 4 classes: GFS-READ, GFS-META, LFS-READ and LFS-META +18.18 % each\n" in out
    assert main(["analyze", f"0.5={folders / 'a'}", f"0.75={folders / 'b'}", "--goal", "3"]) == 1
    assert "fewest changes, at a cache rate of 0.75: LFS-READ +" in capsys.readouterr().out
    assert main(["analyze", str(folders / "a"), "--goal", "7"]) == 0
    assert "fewest" not in capsys.readouterr().out


def test_missing_values_are_shown_and_not_computed_with(capsys, folders: Path) -> None:
    assert main(["analyze", str(folders / "c")]) == 0
    out = capsys.readouterr().out
    assert "?" in out.splitlines()[1]
    assert "GFS-META: not measured by process" in out
    assert facts(capsys, str(folders / "c"))["tables"][0]["slowest"] is None
    for question in (["--goal", "3"], ["--what-if", "gfs-read=+3"]):
        assert main(["analyze", str(folders / "c"), *question]) == 2
        assert "GFS-META of each process is not known" in capsys.readouterr().err


@pytest.mark.parametrize("rates", [False, True])
def test_a_picture_has_a_bar_for_each_class_before_and_after(
    capsys, folders: Path, tmp_path: Path, monkeypatch, rates: bool
) -> None:
    written = pictures.watch(monkeypatch)
    path = tmp_path / "a.svg"
    inputs = [f"0.5={folders / 'a'}", f"0.75={folders / 'b'}"] if rates else [str(folders / "a")]
    assert main(["analyze", *inputs, "--what-if", "gfs-meta=+50", "--goal", "7", "--plot", str(path)]) == 0
    drawn = pictures.bars(written[0])
    assert {name: len(found) for name, found in drawn.items()} == dict.fromkeys(
        storage.CLASSES, 4 if rates else 6
    )
    # The process of the worked example with 3 s takes 2 s with 50 % more; then another process is the slowest.
    assert [high for at, high in drawn["GFS-META"] if at == 0] == pytest.approx([3, 2 / 3 if rates else 2])
    assert {"goal", "seconds", *storage.CLASSES, *(["0.5", "0.75"] if rates else ["0", "1", "2"])} <= set(
        pictures.texts(path)
    )


@pytest.mark.parametrize("rates", [False, True])
def test_a_picture_of_a_pair_has_a_curve_per_rate(
    capsys, folders: Path, tmp_path: Path, monkeypatch, rates: bool
) -> None:
    written = pictures.watch(monkeypatch)
    path = tmp_path / "a.svg"
    inputs = [f"0.5={folders / 'a'}", f"0.75={folders / 'b'}"] if rates else [str(folders / "a")]
    arguments = ["--goal", "3", "--pair", "gfs-meta", "lfs-read", "--plot-pair", str(path)]
    main(["analyze", *inputs, *arguments])
    lines = written[0].axes[0].lines
    assert len(lines) == (2 if rates else 1)
    for line in lines:
        assert (np.diff(line.get_xdata()) >= 0).all()
        assert (np.diff(line.get_ydata()) <= 0).all()
    assert {"GFS-META faster by", "LFS-READ faster by", "0 %"} <= set(pictures.texts(path))


def test_epochs_have_figures(capsys, folders: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(analysis.ledger, "epoch_seconds", lambda path: {0: 9.0, 1: 8.0})
    written = pictures.watch(monkeypatch)
    lines, bars = tmp_path / "lines.svg", tmp_path / "bars.svg"
    inputs = [f"0.5={folders / 'a'}", f"0.75={folders / 'b'}"]
    plots = ["--plot-epochs", str(lines), "--plot-epoch-bars", str(bars)]
    assert main(["analyze", *inputs, *plots, "--what-if", "gfs-meta=+50", "--goal", "7"]) == 0
    curves, stacks = written
    drawn = pictures.texts(lines)
    assert "Epochs and their I/O time" in drawn
    assert {"epoch 0", "epoch 1", "cache rate"} <= set(drawn)
    assert drawn.count("I/O of the slowest process") == 2
    for axes in curves.axes:
        assert [line.get_marker() for line in axes.lines] == ["o", "^"]
    assert [len(line.get_xdata()) for axes in curves.axes for line in axes.lines] == [2, 2, 2, 2]
    drawn = pictures.texts(bars)
    assert "I/O time of the slowest process by epoch" in drawn
    # Epoch 0 is three quarters of the example; a rate at which memory answered an epoch has no bar.
    heights = [dict(reversed(pictures.bars(stacks, row)["GFS-META"])) for row in (0, 1)]
    assert heights == [pytest.approx({0: 2.25, 1: 1.5}), pytest.approx({0: 0.75})]
    assert any("faint: with GFS-META +50 %" in text for text in drawn)
    assert drawn.count("goal") == 2
    assert list(pictures.overlapping(stacks)) == []
    assert main(["analyze", *inputs, "--epoch", "1", "--plot-epochs", str(lines)]) == 0
    assert "epoch 0" not in pictures.texts(lines)
    assert "epoch 1" in pictures.texts(lines)
    capsys.readouterr()


def test_a_figure_of_many_epochs_shows_the_first_and_states_that() -> None:
    slowest = {"seconds": 1.0, "by_class": {"GFS-READ": 1.0}}
    epochs = [{"epoch": epoch, "seconds": 2.0, "slowest": slowest} for epoch in range(90)]
    for draw in (_analysis_plots.epochs, _analysis_plots.epoch_bars):
        figure = draw([{"rate": 0.5, "epochs": epochs}], ["a"])
        assert len(figure.axes) == 12
        assert any("the first 12 of 90 epochs" in text.get_text() for text in figure.texts)


def test_a_log_has_no_pictures_of_epochs(capsys, folders: Path, tmp_path: Path) -> None:
    (tmp_path / "a.darshan").write_bytes(b"")
    inputs = [f"0.5={tmp_path / 'a.darshan'}", f"0.75={folders / 'a'}"]
    assert main(["analyze", *inputs, "--plot-epoch-bars", str(tmp_path / "a.svg")]) == 2
    assert "only for run folders, but" in capsys.readouterr().err
    assert not (tmp_path / "a.svg").exists()


def test_a_pair_that_cannot_meet_a_goal_has_an_empty_picture(
    capsys, folders: Path, tmp_path: Path, monkeypatch
) -> None:
    written = pictures.watch(monkeypatch)
    path = tmp_path / "a.svg"
    arguments = ["--goal", "0.1", "--pair", "gfs-meta", "lfs-read", "--plot-pair", str(path)]
    assert main(["analyze", str(folders / "a"), *arguments]) == 1
    assert not written[0].axes[0].lines
    assert "cannot; the rest takes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a", "--what-if", "gfs-meta"], "--what-if gfs-meta: CLASS=+N expected"),
        (["a", "--what-if", "gfs-meta=-100"], "percent above -100"),
        (["a", "--what-if", "moon=+5"], "--what-if moon=+5: classes are GFS-READ"),
        (["a", "--goal", "0"], "--goal '0': seconds above 0"),
        (["a", "--goal", "nan"], "--goal 'nan'"),
        (["a", "--goal", "5 fortnights"], "--goal '5 fortnights'"),
        (["a", "--pair", "gfs-meta", "lfs-read"], "--pair without --goal"),
        (["a", "--offers", "offers.toml"], "--offers without --goal"),
        (["a", "--goal", "5", "--offers", "offers.toml"], "offers.toml"),
        (["a", "--goal", "5", "--pair", "gfs-meta", "moon"], "moon is no class of this table"),
        (["a", "--goal", "5", "--pair", "gfs-meta", "gfs-meta"], "two classes expected"),
        (["0.5=a", "b"], "either every input has its cache rate, or none"),
        (["1.5=a"], "a cache rate from 0 to 1"),
        (["a", "--hit-rate", "0.5"], "runs at two cache rates or more expected"),
        (["0.5=a", "0.75=b", "--hit-rate", "0.9"], "measured are 0.5 to 0.75"),
        (["0.5=a", "0.75=c", "--hit-rate", "0.6"], "is not known"),
        (["a", "--tier", "lfs"], "--tier lfs: NAME=PREFIX expected"),
        (["a", "--tier", "lfs=/a", "--tier", "gfs=/a"], "/a is given twice"),
        (["a", "--between", "0", "1"], "--between needs a Darshan log"),
        (["gone.darshan", "--epoch", "1"], "--epoch needs a run folder"),
        (["gone.darshan"], "gone.darshan"),
        (["a", "--plot", "a.gif"], "one of the suffixes .svg, .png, .pdf expected"),
        (["a", "--plot-pair", "a.gif"], "--plot-pair 'a.gif': a file with one of the suffixes"),
        (["a", "--plot-pair", "a.svg"], "--plot-pair without --pair"),
        (["a", "--plot-epochs", "a.gif"], "--plot-epochs 'a.gif': a file with one of the suffixes"),
        (["a", "--plot-epoch-bars", "a.gif"], "--plot-epoch-bars 'a.gif': a file with one of the suffixes"),
        (
            ["0.5=a", "0.75=b", "--hit-rate", "0.6", "--plot-epochs", "a.svg"],
            "only for measured cache rates; leave --hit-rate out",
        ),
    ],
)
def test_bad_input_is_named(capsys, folders: Path, monkeypatch, arguments: list[str], expected: str) -> None:
    monkeypatch.chdir(folders)
    assert main(["analyze", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_a_missing_package_has_exit_code_3(capsys, tmp_path: Path, monkeypatch) -> None:
    import importlib.util

    (tmp_path / "a.darshan").write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["analyze", str(tmp_path / "a.darshan"), "--tier", "gfs=/"]) == 3
    assert "foresee[darshan]" in capsys.readouterr().err


def test_shared_caches_are_shown_with_the_bytes_that_they_saved(capsys, folders: Path) -> None:
    result = facts(capsys, str(folders / "a"), str(folders / "b"))
    assert [each["saved_bytes"] for each in result["node_caches"]] == [3 * 10**9] * 2
    assert main(["analyze", str(folders / "a")]) == 0
    text = "2 ranks shared one cache (host: in rank 0): 4 GB delivered, 1 GB read from the origin, 3 GB saved"
    assert text in capsys.readouterr().out
    assert main(["analyze", f"0={folders / 'a'}", f"1={folders / 'b'}"]) == 0
    assert f"1 rank shared one cache in {folders / 'b'} (host: a service): 4 GB" in capsys.readouterr().out


def test_the_longest_wait_is_shown_by_cause(capsys, folders: Path) -> None:
    result = facts(capsys, str(folders / "a"), str(folders / "b"))
    assert [each["path"] for each in result["waits"]] == [str(folders / "a"), str(folders / "b")]
    assert result["waits"][0]["ranks"]["rank 1"]["transform"] == 4.0
    assert result["waits"][1]["ranks"] == {}
    assert main(["analyze", str(folders / "a")]) == 0
    assert "waited longest: rank 1, 6.001 s (transform 4, origin_read 2)" in capsys.readouterr().out
