# SPDX-License-Identifier: Apache-2.0
"""``foresee cost``: its table, its figures as JSON, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from house import ROOT

from foresee import _native
from foresee.cli import main

FOLDER = ROOT / "testdata" / "job"
JOB, PRICES = str(FOLDER / "cost.toml"), str(FOLDER / "prices.toml")


def facts(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    """What ``--json`` says."""
    assert main(["cost", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def arms(told: dict) -> dict[str, dict]:
    """Policies by name."""
    return {arm["policy"]: arm for arm in told["policies"]}


def changed(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """The job with some lines changed."""
    text = Path(JOB).read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "job.toml"
    path.write_text(text)
    return str(path)


def test_the_papers_table_to_the_cent(capsys) -> None:
    told = facts(capsys, JOB, "--prices", PRICES, "--compat", "paper")
    totals = {policy: arm["total"] for policy, arm in arms(told).items() if "total" in arm}
    assert totals == pytest.approx(
        {"direct": 2.676521, "disk": 2.0565495, "full_fetch": 2.17205094}, rel=1e-8
    )
    assert told["period"] == "month"
    assert "how long cache waits for data is not known" in arms(told)["cache"]["missing"]


def test_by_default_storage_is_paid_for_the_run_and_ranks_fetch_their_own(capsys) -> None:
    told = facts(capsys, JOB, "--prices", PRICES)
    policies = arms(told)
    assert policies["direct"]["storage"] == pytest.approx(0.00115334, rel=1e-5)
    assert policies["full_fetch"]["lists"] == 2 * 3 * 42 * 14
    assert policies["full_fetch"]["requests"] == pytest.approx(0.05124)
    assert (told["currency"], told["machines"], told["samples"]) == ("USD", 3, 42000)
    assert told["prices"][0] == {
        "kind": "vm",
        "name": "vm",
        "price": 0.546,
        "date": "2021-10-04",
        "source": "fitted",
    }


def test_break_even_is_where_both_cost_the_same(capsys, tmp_path: Path) -> None:
    told = facts(capsys, JOB, "--prices", PRICES)
    point = next(point for point in told["break_even"] if point["policy"] == "full_fetch")
    path = changed(tmp_path, ("full_fetch = 350.2", f"full_fetch = {point['wait_seconds']!r}"))
    policies = arms(facts(capsys, path, "--prices", PRICES))
    assert policies["full_fetch"]["total"] == pytest.approx(policies["disk"]["total"])
    size = point["bytes"] / 42000
    path = changed(tmp_path, ('"6428.571428571428 B"', repr(size)))
    policies = arms(facts(capsys, path, "--prices", PRICES))
    assert policies["full_fetch"]["total"] == pytest.approx(policies["disk"]["total"])
    assert point["runs_per_month"] > 0


def test_what_a_cache_misses_is_counted_in_the_known_order(capsys, tmp_path: Path) -> None:
    path = changed(tmp_path, ("wait_time = {disk = 228.9,", "wait_time = {cache = 1, disk = 228.9,"))
    policies = arms(facts(capsys, path, "--prices", PRICES))
    assert not policies["cache"]["estimated"]
    # Without a limit, two epochs of three ranks: a third of the second epoch is there already.
    gets = 0
    for rank in range(3):
        first, second = (
            set(_native.order_distributed(42000, 3, rank, seed=0, epoch=e).tolist()) for e in (0, 1)
        )
        gets += len(first | second)
    assert policies["cache"]["gets"] == gets
    assert policies["cache"]["lists"] == 2 * 3 * 42


def test_foresee_lists_once_and_reads_what_its_ranks_have_not_seen(capsys, tmp_path: Path) -> None:
    tier = '[[cluster.tiers]]\nname = "disk"\ncapacity = "300 MB"\n\n[cache.window]'
    changes = ("wait_time = {disk", "wait_time = {foresee = 1, disk"), ("[cache.window]", tier)
    arm = arms(facts(capsys, changed(tmp_path, *changes), "--prices", PRICES))["foresee"]
    seen = [
        np.unique(
            np.concatenate([_native.order_distributed(42000, 3, rank, seed=0, epoch=e) for e in (0, 1)])
        ).size
        for rank in range(3)
    ]
    assert (arm["lists"], arm["gets"]) == (42, sum(seen))
    small = arms(facts(capsys, changed(tmp_path, changes[0]), "--prices", PRICES))["foresee"]
    assert "the tiers have 0 bytes" in small["missing"]


def test_a_large_run_is_estimated_and_says_so(capsys, tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        ("epochs = 2", "epochs = 600"),
        ("wait_time = {disk", "wait_time = {cache = 1, disk"),
        ("fetch = 1024", "capacity = 10500"),
    )
    arm = arms(facts(capsys, path, "--prices", PRICES))["cache"]
    assert arm["estimated"]
    assert arm["gets"] == pytest.approx(42000 * (1 + 599 * 0.8870), rel=1e-3)
    assert main(["cost", path, "--prices", PRICES]) == 0
    assert f"~{arm['gets']:,}" in capsys.readouterr().out


def test_computing_follows_from_train_where_it_is_not_given(capsys, tmp_path: Path) -> None:
    path = changed(
        tmp_path, ("compute_time = 0\n", ""), ("batch = 512", 'batch = 512\ncompute_step = "0.5 s"')
    )
    assert facts(capsys, path, "--prices", PRICES)["compute_seconds"] == 2 * 28 * 0.5
    path = changed(tmp_path, ("compute_time = 0\n", ""))
    assert main(["cost", path, "--prices", PRICES]) == 2
    assert "how long the run computes is not known" in capsys.readouterr().err


def test_the_table_has_policies_points_and_dates(capsys) -> None:
    assert main(["cost", JOB, "--prices", PRICES]) == 0
    out, err = capsys.readouterr()
    assert "older than a year" in err
    assert "42,000 samples of 0.270 GB, 2 epochs, 3 machines" in out
    assert any(line.startswith("direct") and line.endswith("0.7523") for line in out.splitlines())
    assert "as much as disk, all else being equal, at" in out
    assert "prices of 2021-10-04" in out


def test_a_budget_that_nothing_keeps_is_exit_code_1(capsys) -> None:
    assert main(["cost", JOB, "--prices", PRICES, "--budget", "0.2"]) == 0
    assert main(["cost", JOB, "--prices", PRICES, "--budget", "0.1"]) == 1
    assert main(["cost", JOB, "--prices", PRICES, "--budget", "-1"]) == 2
    assert "--budget -1.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([('provider = "deli"\n', "")], "cost.provider is missing"),
        ([('vm = "vm"', 'vm = "vn"')], "the price of vm vn at deli in any is not known; known there are vm"),
        ([('bucket = "bucket"\n', "")], "cost.bucket is missing"),
        ([("epochs = 2", "epoch = 2")], "did you mean epochs?"),
        ([("epochs = 2\n", "")], "train.epochs is missing"),
        ([("ranks = 3\n", "")], "cluster.ranks is missing"),
        ([("samples = 42_000\n", ""), ('size = "6428.571428571428 B"\n', "")], "data.samples is missing"),
        ([("[cost]", "[cost]\ngpus_per_machine = 2")], "cost.gpu is missing"),
        ([("[cost]", '[cost]\negress = "internet"')], "the price of egress internet"),
        ([("[cache.window]", '[cache]\npolicies = ["naive"]\n[cache.window]')], "cache.policies has none"),
        ([("wait_time = {disk = 228.9, direct = 1574.2, full_fetch = 350.2}", "")], "the cost of any policy"),
    ],
)
def test_what_is_missing_or_wrong_is_named(capsys, tmp_path: Path, changes: list, expected: str) -> None:
    assert main(["cost", changed(tmp_path, *changes), "--prices", PRICES]) == 2
    assert expected in capsys.readouterr().err


def test_two_currencies_are_not_added(capsys, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(Path(PRICES).read_text().replace("USD/GB-month", "EUR/GB-month"))
    assert main(["cost", JOB, "--prices", str(path)]) == 2
    assert "prices in EUR and USD: one currency expected" in capsys.readouterr().err


def test_files_that_are_not_there_are_bad_input(capsys) -> None:
    assert main(["cost", "gone.toml"]) == 2
    assert main(["cost", JOB, "--prices", "gone.toml"]) == 2
    assert "gone.toml" in capsys.readouterr().err


def test_the_size_may_come_from_an_index(capsys, tmp_path: Path, folder: Path) -> None:
    assert main(["index", str(folder), "-o", str(tmp_path / "a.fidx")]) == 0
    capsys.readouterr()
    path = changed(
        tmp_path, ("samples = 42_000\n", 'index = "a.fidx"\n'), ('size = "6428.571428571428 B"\n', "")
    )
    told = facts(capsys, path, "--prices", PRICES)
    assert (told["samples"], told["bytes"]) == (23, 23 * 8)
