# SPDX-License-Identifier: Apache-2.0
"""``foresee size``: its results, JSON object, figure and exit codes."""

from __future__ import annotations

import json

import pytest
from support import pictures
from support.small_job import SMALL, small

from foresee.cli import main
from foresee.planning import simulation

RAM = "cluster.tiers.ram.capacity"
READ = "cluster.origin.read"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(SMALL)
    return str(path)


def test_the_least_value_meets_the_goal_and_the_next_lower_does_not(file, capsys) -> None:
    within = simulation.Run(small(cluster__tiers__ram__capacity="150 MB"), "foresee").finish().total_s
    arguments = ["size", file, "--of", f"{RAM}=1..300MB", "--within", f"{within}"]
    assert main([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    (point,) = facts["points"]
    found = point["at"][RAM]
    assert 1 < found <= 153
    assert point["total_s"] <= within
    report = simulation.Run(small(cluster__tiers__ram__capacity=f"{found} MB"), "foresee").finish()
    assert point["total_s"] == report.total_s
    less = f"{found - 299 / 128} MB"
    assert simulation.Run(small(cluster__tiers__ram__capacity=less), "foresee").finish().total_s > within
    assert facts["simulated"] <= 9
    assert main(arguments) == 0
    result = capsys.readouterr().out
    assert f"{found:,.6g} MB" in result
    assert "cost" not in result


def test_two_keys_show_all_combinations_and_the_cheapest(file, tmp_path, capsys, monkeypatch) -> None:
    written = pictures.watch(monkeypatch)
    picture = tmp_path / "front.svg"
    of = ["--of", f"{RAM}=10..300 MB", "--of", f"{READ}=20..200 MB/s"]
    price = ["--price", f"{RAM}=0.01", "--price", f"{READ}=0.05"]
    arguments = ["size", file, *of, *price, "--within", "12 s", "--steps", "4"]
    assert main([*arguments, "--plot", str(picture), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    points = facts["points"]
    assert len(points) > 1
    rams = [point["at"][RAM] for point in points]
    rates = [point["at"][READ] for point in points]
    assert rams == sorted(set(rams))
    assert rates == sorted(set(rates), reverse=True)
    assert all(point["total_s"] <= 12 for point in points)
    costs = [point["cost"] for point in points]
    assert costs == pytest.approx([ram / 100 + rate / 20 for ram, rate in zip(rams, rates, strict=True)])
    assert facts["cheapest"] == costs.index(min(costs))
    assert {"300 MB", "200 MB/s", RAM, READ, "foresee"} <= set(pictures.texts(picture))
    # No line joins two points, since values between them were not simulated.
    (line,) = written[0].axes[0].lines
    assert line.get_xydata().tolist() == [[ram, rate] for ram, rate in zip(rams, rates, strict=True)]
    assert (line.get_marker(), line.get_linestyle()) == ("o", "None")
    # Both keys are minimal to 1 %, not only the last one.
    for place, (key, unit, span) in enumerate(((RAM, "MB", 290), (READ, "MB/s", 180))):
        for point in points:
            at = {
                name.replace(".", "__"): f"{point['at'][name]} {of}"
                for name, of in ((RAM, "MB"), (READ, "MB/s"))
            }
            less = point["at"][key] - span / 100
            if less > (10, 20)[place]:
                at[key.replace(".", "__")] = f"{less} {unit}"
                assert simulation.Run(small(**at), "foresee").finish().total_s > 12
    assert main(arguments) == 0
    result = capsys.readouterr().out.splitlines()
    assert [line for line in result if line.endswith("cheapest")] == [result[2 + facts["cheapest"]]]


def test_a_goal_may_be_the_share_of_time_that_ranks_compute(file, capsys) -> None:
    arguments = ["size", file, "--of", f"{RAM}=1..300MB", "--utilization", "0.5", "--json"]
    assert main(arguments) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert 0.5 <= point["utilization"] <= 1


def test_less_may_cost_more_and_counts_stay_whole(file, capsys) -> None:
    naive = ["--policy", "naive", "--json"]
    assert main(["size", file, "--of", "cluster.origin.latency=50..0ms", "--within", "60", *naive]) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert 0 < point["at"]["cluster.origin.latency"] < 50
    assert main(["size", file, "--of", "cluster.ranks=1..9", "--within", "12"]) in {0, 1}
    assert main(["size", file, "--of", "cluster.ranks=1..9", "--utilization", "0.01", "--json"]) == 0
    (point,) = json.loads(capsys.readouterr().out.splitlines()[-1])["points"]
    assert point["at"]["cluster.ranks"] == 1


def test_an_unreachable_goal_shows_the_result_of_the_most_expensive_values(file, capsys) -> None:
    arguments = ["size", file, "--of", f"{RAM}=1..300MB", "--within", "1 ms"]
    assert main(arguments) == 1
    result = capsys.readouterr().out
    assert f"not met: with {RAM} = 300 MB it takes" in result
    assert main([*arguments, "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert not facts["met"]
    assert facts["simulated"] == 1
    assert facts["dearest"]["at"] == {RAM: 300}


def test_all_faults_are_reported_at_once(file, capsys) -> None:
    words = [
        "--of",
        "x",
        "--of",
        f"{RAM}=1..2KB..",
        "--of",
        f"{RAM}=5..5MB",
        "--of",
        f"{READ}=1 MB/s..9 GB/s",
    ]
    more = ["--price", "a=-1", "--price", f"{READ}=1", "--within", "soon", "--steps", "0", "--threads", "0"]
    assert main(["size", file, *words, *more, "--policy", "bset", "--plot", "x.gif"]) == 2
    result = capsys.readouterr().err
    for fault in (
        "one of the suffixes .svg, .png, .pdf",
        "--of 'x'",
        f"--of '{RAM}=1..2KB..'",
        f"--of {RAM}: both ends are 5",
        f"--of '{READ}=1 MB/s..9 GB/s'",
        "--price 'a=-1'",
        f"--price {READ}: --of does not have this key",
        "--within 'soon'",
        "--policy bset",
        "--steps 0",
        "--threads 0",
        "--plot shows two keys; --of has 0",
    ):
        assert result.count(fault) == 1, (fault, result)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--of", "train.bach=1..9", "--within", "1"], "no key 'bach'"),
        (["--of", f"{RAM}=0..9MB", "--within", "1"], "capacity"),
        (["--of", f"{RAM}=1..9MB/s", "--within", "1"], "capacity"),
        (["--of", f"{RAM}=1..9MB", "--utilization", "1.5"], "--utilization 1.5"),
        (["--of", f"{RAM}=1..9MB", "--within", "-1"], "--within '-1'"),
        (
            ["--of", f"{RAM}=1..9MB", "--within", "1", "--policy", "lbann_preloading"],
            "no answer for this job",
        ),
        ([*(f"--of=cluster.{key}=1..9" for key in "abcde"), "--within", "1"], "4 keys at most"),
    ],
)
def test_bad_input_is_named(file, capsys, arguments, expected) -> None:
    assert main(["size", file, *arguments]) == 2
    assert expected in capsys.readouterr().err
