# SPDX-License-Identifier: Apache-2.0
"""The machine profile: written values are read back, and each fault is named."""

from __future__ import annotations

import datetime as dt
import doctest
import importlib
from pathlib import Path

import pytest
from support.house import ROOT

from foresee.errors import ConfigError
from foresee.jobspec import Figure, Profile, profile

GOLDEN = ROOT / "testdata" / "job" / "profile.toml"
PAGE = ROOT / "docs" / "formats" / "profile.md"
HEAD = 'version = 1\nmachine = "a"\ndate = 2026-11-22\n'


def test_the_examples_in_the_docstrings_are_true() -> None:
    result = doctest.testmod(importlib.import_module("foresee.jobspec.profile"))
    assert result.attempted
    assert not result.failed


def test_the_golden_profile_is_read_and_written_byte_for_byte(tmp_path: Path) -> None:
    read = profile.read(GOLDEN)
    assert (read.machine, read.date, len(read.figure)) == ("two cores", dt.date(2026, 11, 22), 7)
    assert read.get("tier.ram.capacity") == 10.5 * 2**30
    assert read.get("network.rate") == 125e6
    assert read.get("network.latency") is None
    assert read.curve("origin.read") == {1: 330e6, 8: 23e9 / 8}
    assert read.curve("tier.disk.read") == {}
    assert read.figure[1].spread == 0.25
    assert read.figure[1].date == dt.date(2026, 11, 21)
    profile.write(read, tmp_path / "profile.toml")
    assert profile.read(tmp_path / "profile.toml") == read
    whole = {
        "value = 12\n": "value = 12.0\n",
        "value = 330\n": "value = 330.0\n",
        "value = 1\n": "value = 1.0\n",
    }
    text = GOLDEN.read_text()
    for before, after in whole.items():
        text = text.replace(before, after)
    assert (tmp_path / "profile.toml").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["profile.toml"]


def test_texts_are_written_and_read_back() -> None:
    written = Profile(machine='a "b" \\ ü', date=dt.date(2026, 1, 2))
    assert profile.loads(profile.dumps(written)) == written


def test_the_page_has_every_name_and_its_example_is_a_profile() -> None:
    page = PAGE.read_text()
    for name, meaning in profile.NAMES.items():
        assert f"| `{name}` | {meaning.says} | {meaning.against or '-'} |" in page
    read = profile.loads(page.split("```toml\n")[1].split("```")[0])
    assert read.figure


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "version is missing"),
        ("version = 2", "version = 2; this program reads version 1 of a profile"),
        ('version = 1\nmachine = "a"', "date is missing; a date expected: 2026-11-22"),
        ("version = 1\ndate = 2026-11-22", "machine is missing"),
        ('version = 1\nmachine = "a"\ndate = 2026-11-22T10:00:00', "date = 2026-11-22T10:00:00; a date"),
        (HEAD + "figures = 1", "did you mean figure?"),
        (HEAD + "figure = 1", "figure = 1; a list of tables"),
        (HEAD + '[[figure]]\nvalue = 1\nunit = "B/s"', "figure[0].name is missing"),
        (HEAD + '[[figure]]\nname = "network.rat"\nvalue = 1\nunit = "B/s"', "one of tier.NAME.capacity"),
        (HEAD + '[[figure]]\nname = "tier.ram.speed"\nvalue = 1\nunit = "B/s"', 'name = "tier.ram.speed"'),
        (HEAD + '[[figure]]\nname = "network.rate"\nvalue = 1\nunit = "GB"', 'unit = "GB"; a rate above 0'),
        (HEAD + '[[figure]]\nname = "network.rate"\nvalue = 0\nunit = "GB/s"', "figure[0].value = 0"),
        (HEAD + '[[figure]]\nname = "network.rate"\nvalue = nan\nunit = "GB/s"', "figure[0].value = nan"),
        (HEAD + '[[figure]]\nname = "network.rate"\nvalue = 1e30\nunit = "GB/s"', "value = 1e+30 GB/s"),
        (HEAD + '[[figure]]\nname = "network.rate"\nvalue = 1\nunit = "GB/s"\nat = 2', "depends on no count"),
        (HEAD + '[[figure]]\nname = "origin.read"\nvalue = 1\nunit = "GB/s"', "is measured against readers"),
        (HEAD + '[[figure]]\nname = "origin.read"\nvalue = 1\nunit = "GB/s"\nat = 0', "figure[0].at = 0"),
        (
            HEAD + '[[figure]]\nname = "network.rate"\nvalue = 1\nunit = "GB/s"\nspread = -1',
            "figure[0].spread = -1",
        ),
        (HEAD + '[[figure]]\nname = "network.rate"\nvalue = 1\nunit = "GB/s"\n' * 2, "each figure once"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        profile.read(path)
    (fault,) = caught.value.faults
    assert fault.startswith(f"{path}: ")
    assert expected in fault


def test_a_figure_made_in_code_needs_its_count() -> None:
    with pytest.raises(ConfigError, match="measured against threads"):
        Figure(name="memcpy.rate", value=1.0, unit="GB/s")


def test_ranks_of_a_node_share_a_tier_equally() -> None:
    capacity = Figure(name="tier.ram.capacity", value=100.0, unit="GB")
    measured = Profile(machine="a", date=dt.date(2026, 11, 22), figure=(capacity,))
    tiers = [{"name": "ram"}, {"name": "disk", "capacity": "1 GB"}]
    assert measured.complete({"tiers": tiers})["tiers"][0]["capacity"] == 100e9
    shared = measured.complete({"tiers": tiers, "ranks_per_machine": 3})["tiers"]
    assert shared == [{"name": "ram", "capacity": 33_333_333_333}, {"name": "disk", "capacity": "1 GB"}]


def test_a_rate_by_requests_becomes_a_rate_by_ranks() -> None:
    rates = {1: 5.0, 4: 20.0, 16: 60.0, 24: 64.0}
    figures = tuple(
        Figure(name="origin.read", value=rate, unit="MB/s", at=count) for count, rate in rates.items()
    )
    measured = Profile(machine="a", date=dt.date(2026, 11, 22), figure=figures)
    assert measured.complete({})["origin"]["read"] == {count: rate * 1e6 for count, rate in rates.items()}
    by_rank = measured.complete({"staging": {"threads": 8}})["origin"]["read"]
    assert by_rank == {1: pytest.approx(20e6 + 40e6 / 3), 2: 60e6, 3: 64e6}
    assert measured.complete({"staging": {"threads": 100}})["origin"]["read"] == {1: 64e6}
    assert measured.complete({"staging": {"threads": 8}, "origin": {"read": 1.0}})["origin"]["read"] == 1.0
