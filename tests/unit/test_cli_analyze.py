# SPDX-License-Identifier: Apache-2.0
"""``foresee analyze``: its table, its figures as JSON, its pictures, its exit codes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from foresee import storage
from foresee.cli import main
from foresee.storage import analysis
from foresee.storage.analysis import IoTable

MEASURED = np.array([[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]])


def table(seconds: np.ndarray) -> IoTable:
    """A table by hand."""
    names = tuple(f"rank {at}" for at in range(len(seconds)))
    return IoTable(seconds.astype(float), storage.CLASSES, names, (0.0,) * 4, ("what a log cannot tell",))


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run folders a (the worked example), b (half of it), c (with something not measured)."""
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
    return tmp_path


def facts(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    """What ``--json`` says."""
    assert main(["analyze", *arguments, "--json"]) == code
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_json_has_every_process_and_the_slowest(capsys, folders: Path) -> None:
    told = facts(capsys, str(folders / "a"))
    (at,) = told["tables"]
    assert at["seconds"] == MEASURED.tolist()
    assert at["slowest"] == {
        "process": "rank 0",
        "seconds": 6.5,
        "by_class": {"GFS-READ": 1.0, "GFS-META": 3.0, "LFS-READ": 2.0, "LFS-META": 0.5},
        "bottleneck": "GFS-META",
    }
    assert (told["best_rate"], told["goal"], told["what_if"]) == (None, None, None)
    assert told["limits"] == ["what a log cannot tell"]


def test_what_if_and_goal_are_answered(capsys, folders: Path) -> None:
    arguments = [str(folders / "a"), "--what-if", "gfs-meta=+50", "LFS-READ=50%", "--goal", "5"]
    told = facts(capsys, *arguments)
    assert told["tables"][0]["what_if"]["seconds"] == pytest.approx(4.866667, abs=1e-6)
    assert told["goal"]["met"]
    assert facts(capsys, str(folders / "a"), "--goal", "5 s", code=1)["goal"]["best"] == 6.5


def test_rates_are_compared(capsys, folders: Path) -> None:
    told = facts(capsys, f"0.75={folders / 'b'}", f"0.5={folders / 'a'}", "--goal", "4")
    assert [at["rate"] for at in told["tables"]] == [0.5, 0.75]
    assert told["best_rate"] == told["goal"]["minimum_rate"] == 0.75
    told = facts(capsys, f"0.5={folders / 'a'}", f"0.75={folders / 'b'}", "--hit-rate", "0.625")
    assert told["tables"][0]["slowest"]["seconds"] == pytest.approx(0.75 * 6.5)
    assert "seconds at 0.625 lie on lines" in told["limits"][0]
    joined = facts(capsys, f"0.5={folders / 'a'}", f"0.5={folders / 'b'}")
    assert len(joined["tables"][0]["processes"]) == 6


def test_a_run_folders_epochs_are_told_apart(capsys, folders: Path) -> None:
    told = facts(capsys, str(folders / "a"))["epochs"]
    assert [(each["epoch"], each["slowest"]["seconds"]) for each in told] == [
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
    told = facts(capsys, *arguments)["goal"]
    assert told["offers"]["cheapest"]["price"] == 120
    assert told["pair"][0]["corners"][0] == pytest.approx([0, 300])
    assert main(["analyze", *arguments]) == 0
    out = capsys.readouterr().out
    assert "cheapest: 120 for GFS-META +50 %, LFS-READ +50 %: 4.867 s" in out
    assert "goal 5 s: not met, 6.5 s at best" in out
    assert "GFS-META and LFS-READ: +0 % with +300 %" in out
    told = facts(capsys, *arguments[:2], "1", *arguments[3:], code=1)["goal"]
    assert "best" in told["offers"]
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


def test_of_several_rates_the_slowest_few_are_shown_and_the_others_counted(
    capsys, folders: Path, monkeypatch
) -> None:
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
    told = facts(capsys, str(folders / "a"), *change)["tables"][0]
    assert [len(told["what_if"][key]) for key in ("totals", "seconds_by_process")] == [21, 21]


def test_offers_and_changes_meet_a_goal_together(capsys, folders: Path, tmp_path: Path) -> None:
    path = tmp_path / "offers.toml"
    path.write_text('version = 1\n[[offer]]\nname = "gfs-read"\nimprovement = 10\nprice = 7\n')
    changes = ["--what-if", "gfs-meta=+140", "lfs-read=+120"]
    asked = [str(folders / "a"), *changes, "--offers", str(path), "--goal"]
    assert main(["analyze", *asked, "4"]) == 0
    out = capsys.readouterr().out
    assert "goal 4 s: met" in out
    assert "cheapest: 0 for no change: 3.942 s" in out
    assert "no offers meet it" not in out
    assert main(["analyze", *asked, "3.8"]) == 0
    out = capsys.readouterr().out
    assert "goal 3.8 s: not met, 3.942 s at best" in out
    assert "cheapest: 7 for GFS-READ +10 % on top of the changes: 3.761 s" in out
    assert main(["analyze", *asked, "3.5"]) == 1
    assert "no offers meet it; 3.761 s at best" in capsys.readouterr().out


def test_the_fewest_changes_come_first_and_more_where_they_are_smaller(capsys, folders: Path) -> None:
    assert main(["analyze", str(folders / "a"), "--goal", "5.5"]) == 1
    out = capsys.readouterr().out
    assert "fewest changes: LFS-READ +100 %\nor 2 classes: GFS-META and LFS-READ +25 % each\n" in out
    assert "or 4 classes: GFS-READ, GFS-META, LFS-READ and LFS-META +18.18 % each\n" in out
    assert main(["analyze", f"0.5={folders / 'a'}", f"0.75={folders / 'b'}", "--goal", "3"]) == 1
    assert "fewest changes, at a cache rate of 0.75: LFS-READ +" in capsys.readouterr().out
    assert main(["analyze", str(folders / "a"), "--goal", "7"]) == 0
    assert "fewest" not in capsys.readouterr().out


def test_what_was_not_measured_is_shown_as_such_and_not_computed_with(capsys, folders: Path) -> None:
    assert main(["analyze", str(folders / "c")]) == 0
    out = capsys.readouterr().out
    assert "?" in out.splitlines()[1]
    assert "GFS-META: not measured by process" in out
    assert facts(capsys, str(folders / "c"))["tables"][0]["slowest"] is None
    for question in (["--goal", "3"], ["--what-if", "gfs-read=+3"]):
        assert main(["analyze", str(folders / "c"), *question]) == 2
        assert "GFS-META of each process is not known" in capsys.readouterr().err


@pytest.mark.parametrize("rates", [False, True])
def test_a_picture_is_well_formed_and_has_a_bar_for_each(
    capsys, folders: Path, tmp_path: Path, rates: bool
) -> None:
    path = tmp_path / "a.svg"
    inputs = [f"0.5={folders / 'a'}", f"0.75={folders / 'b'}"] if rates else [str(folders / "a")]
    assert main(["analyze", *inputs, "--what-if", "gfs-meta=+50", "--goal", "7", "--plot", str(path)]) == 0
    root = ET.fromstring(path.read_text())  # noqa: S314 - our own
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text for title in root.iter(f"{space}title")]
    assert sum("GFS-META" in (title or "") for title in titles) == (4 if rates else 6)
    heights = {
        title.text: float(bar.get("height", "nan"))
        for bar in root.iter(f"{space}rect")
        if (title := bar.find(f"{space}title")) is not None
    }
    first = "0.5 " if rates else "0 "
    assert heights[f"{first}GFS-META: 3 s"] == pytest.approx(3 * heights[f"{first}GFS-READ: 1 s"], rel=1e-2)
    assert "goal" in [text.text for text in root.iter(f"{space}text")]


@pytest.mark.parametrize("rates", [False, True])
def test_a_picture_of_a_pair_has_a_curve_per_rate(capsys, folders: Path, tmp_path: Path, rates: bool) -> None:
    path = tmp_path / "a.svg"
    inputs = [f"0.5={folders / 'a'}", f"0.75={folders / 'b'}"] if rates else [str(folders / "a")]
    arguments = ["--goal", "3", "--pair", "gfs-meta", "lfs-read", "--plot-pair", str(path)]
    main(["analyze", *inputs, *arguments])
    root = ET.fromstring(path.read_text())  # noqa: S314 - our own
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == (2 if rates else 1)
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
        assert [x for x, _ in points] == sorted(x for x, _ in points)
        assert [y for _, y in points] == sorted(y for _, y in points)  # y grows downwards
    assert "GFS-META faster by" in path.read_text()


def drawn(path: Path) -> list[str]:
    """Names of what is in a picture, in order."""
    root = ET.fromstring(path.read_text())  # noqa: S314 - our own
    return [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]


def test_epochs_have_pictures_of_their_own(capsys, folders: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(analysis.ledger, "epoch_seconds", lambda path: {0: 9.0, 1: 8.0})
    lines, bars = tmp_path / "lines.svg", tmp_path / "bars.svg"
    inputs = [f"0.5={folders / 'a'}", f"0.75={folders / 'b'}"]
    pictures = ["--plot-epochs", str(lines), "--plot-epoch-bars", str(bars)]
    assert main(["analyze", *inputs, *pictures, "--what-if", "gfs-meta=+50", "--goal", "7"]) == 0
    assert drawn(lines) == ["Epochs and their I/O time", *["the epoch", "I/O of the slowest process"] * 2]
    text = lines.read_text()
    # A round mark and a triangle for each of two epochs and two rates, and in the legends.
    assert (text.count("<circle"), text.count("<path")) == (6, 6)
    assert "cache rate" in text
    told = drawn(bars)
    assert told[0] == "I/O time of the slowest process by epoch"
    assert told.count("0.5 GFS-META: 2.25 s") == 1  # epoch 0 is three quarters of the example
    assert told.count("0.5 GFS-META: 0.75 s") == 1
    assert told.count("0.75 GFS-META: 1.5 s") == 1  # an epoch that memory answered has no bar
    assert sum(name.startswith("0.5 ") for name in told) == 16  # four classes, two epochs, before and after
    assert "faint: with GFS-META +50 %" in bars.read_text()
    assert bars.read_text().count(">goal<") == 2
    assert main(["analyze", *inputs, "--epoch", "1", "--plot-epochs", str(lines)]) == 0
    assert "epoch 0" not in lines.read_text()
    assert "epoch 1" in lines.read_text()
    monkeypatch.setattr(analysis.ledger, "epoch_seconds", lambda path: dict.fromkeys(range(90), 1.0))
    assert main(["analyze", *inputs, *pictures]) == 0
    capsys.readouterr()
    for path in (lines, bars):
        assert "the first 12 of 90 epochs" in path.read_text()
        assert ET.fromstring(path.read_text()).tag.endswith("svg")  # noqa: S314 - our own
    assert drawn(lines).count("the epoch") == 12


def test_a_log_has_no_pictures_of_epochs(capsys, folders: Path, tmp_path: Path) -> None:
    (tmp_path / "a.darshan").write_bytes(b"")
    inputs = [f"0.5={tmp_path / 'a.darshan'}", f"0.75={folders / 'a'}"]
    assert main(["analyze", *inputs, "--plot-epoch-bars", str(tmp_path / "a.svg")]) == 2
    assert "of run folders only, and" in capsys.readouterr().err
    assert not (tmp_path / "a.svg").exists()


def test_a_pair_that_cannot_meet_a_goal_has_an_empty_picture(capsys, folders: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    arguments = ["--goal", "0.1", "--pair", "gfs-meta", "lfs-read", "--plot-pair", str(path)]
    assert main(["analyze", str(folders / "a"), *arguments]) == 1
    assert "polyline" not in path.read_text()
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
        (["a", "--tier", "lfs=/a", "--tier", "gfs=/a"], "/a stands twice"),
        (["a", "--between", "0", "1"], "--between is of Darshan logs"),
        (["gone.darshan", "--epoch", "1"], "--epoch is of run folders"),
        (["gone.darshan"], "gone.darshan"),
        (["a", "--plot", "a.png"], "only .svg is written"),
        (["a", "--plot-pair", "a.png"], "--plot-pair 'a.png': only .svg"),
        (["a", "--plot-pair", "a.svg"], "--plot-pair without --pair"),
        (["a", "--plot-epochs", "a.png"], "--plot-epochs 'a.png': only .svg"),
        (["a", "--plot-epoch-bars", "a.png"], "--plot-epoch-bars 'a.png': only .svg"),
        (
            ["0.5=a", "0.75=b", "--hit-rate", "0.6", "--plot-epochs", "a.svg"],
            "of measured cache rates only; leave --hit-rate out",
        ),
    ],
)
def test_bad_input_is_named(capsys, folders: Path, monkeypatch, arguments: list[str], expected: str) -> None:
    monkeypatch.chdir(folders)
    assert main(["analyze", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_a_package_that_is_missing_is_the_environments_fault(capsys, tmp_path: Path, monkeypatch) -> None:
    import importlib.util

    (tmp_path / "a.darshan").write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["analyze", str(tmp_path / "a.darshan"), "--tier", "gfs=/"]) == 3
    assert "foresee[darshan]" in capsys.readouterr().err


def test_the_loop_that_waited_longest_says_for_what(capsys, folders: Path) -> None:
    told = facts(capsys, str(folders / "a"), str(folders / "b"))
    assert [each["path"] for each in told["waits"]] == [str(folders / "a"), str(folders / "b")]
    assert told["waits"][0]["ranks"]["rank 1"]["transform"] == 4.0
    assert told["waits"][1]["ranks"] == {}
    assert main(["analyze", str(folders / "a")]) == 0
    assert "waited longest: rank 1, 6.001 s (transform 4, origin_read 2)" in capsys.readouterr().out
