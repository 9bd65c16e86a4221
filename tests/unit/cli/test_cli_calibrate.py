# SPDX-License-Identifier: Apache-2.0
"""``foresee calibrate`` on a temporary folder: every figure has its unit and conditions; no value is compared."""

from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foresee.cli import main
from foresee.jobspec import Profile, profile

FIO = {
    "fio version": "fio-3.33",
    "jobs": [
        {
            "jobname": "r",
            "job options": {"rw": "randread", "bs": "128k", "direct": "1", "numjobs": "1"},
            "read": {"bw_bytes": 1000000000, "total_ios": 10, "lat_ns": {"mean": 100000.0}},
        }
    ],
}


def calibrate(tmp_path: Path, *arguments: object) -> Profile:
    """Return the profile of a successful run."""
    path = tmp_path / "profile.toml"
    assert main(["calibrate", "--seconds", "0.3", "-o", str(path), *map(str, arguments)]) == 0
    return profile.read(path)


def names(calibrated: Profile) -> set[str]:
    return {figure.name for figure in calibrated.figure}


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    path = tmp_path / "scratch"
    path.mkdir()
    return path


def test_a_folder_and_a_disk_give_every_figure_with_its_unit_spread_conditions_and_date(
    folder: Path, scratch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrated = calibrate(tmp_path, "--disk", f"nvme={scratch}", "--origin", folder, "--json")
    shown = json.loads(capsys.readouterr().out)
    # A limit of requests is reported only if one is found.
    assert names(calibrated) - {"origin.requests"} == {
        "memcpy.rate",
        "checksum.rate",
        *(f"tier.ram.{quantity}" for quantity in ("capacity", "read", "write", "latency")),
        *(f"tier.nvme.{quantity}" for quantity in ("capacity", "read", "write", "latency", "cached_read")),
        *(f"origin.{quantity}" for quantity in ("read", "latency", "cached_read")),
    }
    for figure in calibrated.figure:
        measured = not figure.name.endswith("capacity")
        assert figure.base > 0
        assert figure.unit == {"capacity": "B", "latency": "us", "requests": "/s"}.get(
            figure.name.rpartition(".")[2], "MB/s"
        )
        assert figure.conditions
        assert (figure.spread is not None) == measured
        assert not measured or "load" in figure.conditions
        if figure.name == "origin.cached_read":
            assert "page-cache hits" in figure.conditions
        elif figure.name == "origin.read":
            assert "pages dropped before (posix_fadvise)" in figure.conditions
        elif figure.name == "tier.nvme.read":
            assert "O_DIRECT" in figure.conditions
    assert abs(calibrated.date - dt.datetime.now().astimezone().date()) <= dt.timedelta(days=1)
    for curve in ("tier.ram.read", "tier.nvme.write", "origin.read"):
        assert 1 in calibrated.curve(curve)
    assert shown["figure"] == [
        {
            key: value
            for key in ("name", "at", "value", "unit", "spread", "conditions")
            if (value := getattr(figure, key)) is not None
        }
        for figure in calibrated.figure
    ]
    assert shown["version"] == calibrated.version
    assert shown["machine"] == calibrated.machine
    assert [line.partition(":")[0] for line in shown["left_out"]][:1] == ["network"]
    assert any(line.startswith("decode.rate: samples are no pictures") for line in shown["left_out"])
    assert list(scratch.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"data", "scratch", "profile.toml"}


def test_pictures_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for nth in range(3):
        picture = Image.fromarray(np.full((20, 30, 3), 80 * nth, dtype=np.uint8))
        content = io.BytesIO()
        picture.save(content, "JPEG")
        (tmp_path / "pictures" / f"{nth}.jpg").write_bytes(content.getvalue())
    calibrated = calibrate(tmp_path, "--origin", tmp_path / "pictures", "--only", "decode")
    assert names(calibrated) == {"decode.rate"}
    assert calibrated.figure[0].conditions is not None
    assert calibrated.figure[0].conditions.startswith("3 pictures of the origin to RGB by Pillow")


def test_an_index_is_an_origin(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "x.fidx"
    assert main(["index", str(folder), "-o", str(index)]) == 0
    calibrated = calibrate(tmp_path, "--origin", index, "--only", "origin")
    assert calibrated.curve("origin.read")
    again = calibrate(tmp_path, "--origin", folder, "--index", index, "--only", "origin", "--force")
    assert again.curve("origin.read")


def test_results_of_fio_are_not_measured_again(
    scratch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "fio.json"
    results.write_text(json.dumps(FIO))
    calibrated = calibrate(
        tmp_path, "--fio", results, "--disk", scratch, "--only", "disk", "--machine", "mine"
    )
    assert calibrated.machine == "mine"
    assert calibrated.curve("tier.disk.read") == {1: 1e9}
    assert calibrated.curve("tier.disk.latency") == {1: 1e-4}
    assert {"tier.disk.write", "tier.disk.cached_read", "tier.disk.capacity"} <= names(calibrated)
    capsys.readouterr()
    calibrated = calibrate(tmp_path, "--fio", f"origin={results}", "--only", "memcpy", "--force")
    assert calibrated.curve("origin.read") == {1: 1e9}
    assert "memcpy.rate" in capsys.readouterr().out


def test_only_force_overwrites_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.toml"
    path.write_text("mine")
    command = ["calibrate", "--seconds", "0.1", "--only", "memcpy", "-o", str(path)]
    assert main(command) == 2
    assert f"-o {path}: it exists; --force overwrites it" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main([*command, "--force"]) == 0
    assert profile.read(path).curve("memcpy.rate")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--seconds", "0"], 2, "--seconds 0: seconds above 0"),
        (["--only", "disc"], 2, "--only disc: no such part or tier; known are memcpy"),
        (["--disk", "{tmp}/nowhere"], 2, "no such folder"),
        (["--disk", "/proc", "--only", "disk"], 3, "/proc: No such file or directory"),
        (["--origin", "{tmp}/nowhere"], 2, "{tmp}/nowhere does not exist; {tmp} has the folders"),
        (["--origin", "{tmp}/empty"], 2, "{tmp}/empty"),
        (["--origin", "{tmp}/hollow"], 2, "all samples have 0 bytes"),
        (["--origin", "gopher://x"], 3, "gopher:// is not supported"),
        (["--origin", "{tmp}/hollow", "--option", "region"], 2, "write KEY=VALUE"),
        (["--origin", "{tmp}/hollow", "--keys", "a", "--index", "b"], 2, "give one of them"),
        (["--option", "a=b", "--keys", "x"], 2, "--keys, --option: of which origin? Add --origin URI"),
        (["--fio", "{tmp}/hollow/a"], 2, "no JSON"),
        (["--machine", "a\nb"], 2, "a text expected, printable"),
        (["--only", "decode"], 2, "nothing was measured: decode: no --origin"),
        (["-o", "{tmp}/empty"], 2, "it is a folder"),
        (["-o", "/proc/x.toml", "--only", "memcpy"], 2, "/proc cannot be written to ("),
        (["-o", "{tmp}/no/x.toml", "--only", "memcpy"], 2, "{tmp}/no cannot be written to ("),
    ],
)
def test_bad_input_is_named_and_leaves_no_file(
    tmp_path: Path,
    arguments: list[str],
    code: int,
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow" / "a").touch()
    before = sorted(tmp_path.rglob("*"))
    words = [word.format(tmp=tmp_path) for word in arguments]
    assert main(["calibrate", "--seconds", "0.05", "-o", str(tmp_path / "x.toml"), *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert expected.format(tmp=tmp_path) in err
    assert sorted(tmp_path.rglob("*")) == before
