# SPDX-License-Identifier: Apache-2.0
"""``foresee cost``: its table, JSON object and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.house import ROOT

from foresee import _native, jobspec
from foresee.cli import _bucket_runs, main
from foresee.planning import cost, simulation

FOLDER = ROOT / "testdata" / "job"
JOB, PRICES = str(FOLDER / "cost.toml"), str(FOLDER / "prices.toml")
#: Has the keys that a simulation needs; no tier holds the reads of its rank.
SIMULATED = """
version = 1
[data]
samples = 3_000
size = "100 KB"
size_sigma = "80 KB"
seed = 5
[train]
batch = 16
epochs = 3
seed = 2
compute_rate = "50 MB/s"
[cluster]
ranks = 3
[cluster.staging]
capacity = "20 MB"
threads = 2
[[cluster.tiers]]
name = "ram"
capacity = "60 MB"
read = "10 GB/s"
[cluster.origin]
read = {1 = "40 MB/s", 2 = "60 MB/s"}
latency = "10 ms"
[cache.window]
capacity = 300
[cost]
provider = "deli"
region = "any"
vm = "vm"
disk = "disk"
bucket = "bucket"
"""
TARIFF = """
[[price]]
kind = "egress"
provider = "deli"
region = "any"
name = "internet"
unit = "USD/GB"
date = 2021-10-04
source = "made up"
tiers = [{up_to = "1 GB", price = 0.1}, {up_to = "10 GB", price = 0.01}, {price = 0.001}]
"""


def facts(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    """Return the JSON object."""
    assert main(["cost", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def arms(result: dict) -> dict[str, dict]:
    """Policies by name."""
    return {arm["policy"]: arm for arm in result["policies"]}


def changed(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """Write the job with some lines changed."""
    text = Path(JOB).read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "job.toml"
    path.write_text(text)
    return str(path)


def test_the_papers_table_to_the_cent(capsys) -> None:
    result = facts(capsys, JOB, "--prices", PRICES, "--compat", "paper")
    totals = {policy: arm["total"] for policy, arm in arms(result).items() if "total" in arm}
    assert totals == pytest.approx(
        {"direct": 2.676521, "disk": 2.0565495, "full_fetch": 2.17205094}, rel=1e-8
    )
    assert result["period"] == "month"
    assert "how long cache waits for data is not known" in arms(result)["cache"]["missing"]


def test_by_default_storage_is_paid_for_the_run_and_ranks_fetch_their_own(capsys) -> None:
    result = facts(capsys, JOB, "--prices", PRICES)
    policies = arms(result)
    assert policies["direct"]["storage"] == pytest.approx(0.00115334, rel=1e-5)
    assert policies["full_fetch"]["lists"] == 2 * 3 * 42 * 14
    assert policies["full_fetch"]["requests"] == pytest.approx(0.05124)
    assert (result["currency"], result["machines"], result["samples"]) == ("USD", 3, 42000)
    assert result["prices"][0] == {
        "kind": "vm",
        "name": "vm",
        "price": 0.546,
        "date": "2021-10-04",
        "source": "fitted",
    }


def test_break_even_is_where_both_cost_the_same(capsys, tmp_path: Path) -> None:
    result = facts(capsys, JOB, "--prices", PRICES)
    point = next(point for point in result["break_even"] if point["policy"] == "full_fetch")
    path = changed(tmp_path, ("full_fetch = 350.2", f"full_fetch = {point['wait_seconds']!r}"))
    policies = arms(facts(capsys, path, "--prices", PRICES))
    assert policies["full_fetch"]["total"] == pytest.approx(policies["disk"]["total"])
    size = point["bytes"] / 42000
    path = changed(tmp_path, ('"6428.571428571428 B"', repr(size)))
    policies = arms(facts(capsys, path, "--prices", PRICES))
    assert policies["full_fetch"]["total"] == pytest.approx(policies["disk"]["total"])
    assert point["runs_per_month"] > 0


def test_cache_misses_are_counted_in_the_known_order(capsys, tmp_path: Path) -> None:
    path = changed(tmp_path, ("wait_time = {disk = 228.9,", "wait_time = {cache = 1, disk = 228.9,"))
    policies = arms(facts(capsys, path, "--prices", PRICES))
    assert not policies["cache"]["estimated"]
    # Without a limit, two epochs of three ranks: a third of the second epoch is cached.
    gets = 0
    for rank in range(3):
        first, second = (
            set(_native.order_distributed(42000, 3, rank, seed=0, epoch=e).tolist()) for e in (0, 1)
        )
        gets += len(first | second)
    assert policies["cache"]["gets"] == gets
    assert policies["cache"]["lists"] == 2 * 3 * 42


def test_foresee_lists_once_and_reads_each_sample_once_per_rank(capsys, tmp_path: Path) -> None:
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


def written(tmp_path: Path, text: str, *changes: tuple[str, str]) -> str:
    """Write a job of this text, with some of it changed."""
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "written.toml"
    path.write_text(text)
    return str(path)


def write_prices(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """Write the test's prices and a tariff of egress, with some of them changed."""
    text = Path(PRICES).read_text() + TARIFF
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "prices.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("samples", "each"),
    [
        (
            127,
            32,
        ),  # padded to 32 of each rank: one whole batch, though there are fewer than four times 32 samples
        (130, 32),  # 33 of each rank, the last of which is left out
        (257, 64),
    ],
)
def test_a_dropped_last_batch_costs_nothing(capsys, tmp_path: Path, samples: int, each: int) -> None:
    path = changed(
        tmp_path,
        ("samples = 42_000", f"samples = {samples}"),
        ("batch = 512", 'batch = 32\ndrop_last = true\ncompute_step = "2 s"'),
        ("ranks = 3", 'ranks = 4\n[[cluster.tiers]]\nname = "ram"\ncapacity = "10 MB"'),
        (
            "compute_time = 0\nwait_time = {disk = 228.9, direct = 1574.2, full_fetch = 350.2}",
            "wait_time = 1",
        ),
        ("fetch = 1024", "fetch = 20"),
    )
    result = facts(capsys, path, "--prices", PRICES)
    policies = arms(result)
    assert result["compute_seconds"] == 2 * (each // 32) * 2.0
    assert policies["direct"]["gets"] == 2 * 4 * each
    assert (policies["full_fetch"]["gets"], policies["full_fetch"]["lists"]) == (
        2 * 4 * each,
        2 * 4 * -(-each // 20),
    )
    seen = sum(
        len(
            {
                sample
                for epoch in (0, 1)
                for sample in _native.order_distributed(samples, 4, rank, seed=0, epoch=epoch)[:each].tolist()
            }
        )
        for rank in range(4)
    )
    assert policies["cache"]["gets"] == policies["foresee"]["gets"] == seen


def test_no_whole_step_is_an_error_as_in_a_run(capsys, tmp_path: Path) -> None:
    path = changed(
        tmp_path, ("samples = 42_000", "samples = 127"), ("batch = 512", "batch = 64\ndrop_last = true")
    )
    assert main(["cost", path, "--prices", PRICES]) == 2
    assert "train.batch = 64; a rank's 43 samples make no whole step" in capsys.readouterr().err


def test_reads_and_waits_are_those_of_simulate(capsys, tmp_path: Path) -> None:
    path = written(tmp_path, SIMULATED)
    result = facts(capsys, path, "--prices", PRICES)
    policies = arms(result)
    assert main(["simulate", path, "--order", "distributed", "--policies", *policies, "--json"]) == 0
    for run in json.loads(capsys.readouterr().out)["runs"]:
        arm = policies[run["policy"]]
        assert not arm["estimated"]
        assert arm["gets"] == run["origin_requests"]
        assert arm["wait_from"] == "simulated"
        assert result["compute_seconds"] + arm["wait_seconds"] == pytest.approx(run["total_s"])
        lists = {"foresee": 3, "disk": 0, "direct": 27, "cache": 27}
        assert arm["lists"] == lists.get(run["policy"], run["listings"] * 3)
    # Late prefetches are read twice; cached samples are not fetched.
    assert policies["full_fetch"]["gets"] != 9000 != policies["fifty_fifty"]["gets"]
    assert policies["full_fetch"]["lists"] == 3 * 3 * 4 * 3
    assert policies["foresee"]["gets"] < policies["cache"]["gets"]


def test_with_large_tiers_simulation_and_order_agree(capsys, tmp_path: Path) -> None:
    full = ('capacity = "60 MB"', 'capacity = "1 GB"')
    simulated = arms(facts(capsys, written(tmp_path, SIMULATED, full), "--prices", PRICES))["foresee"]
    bare = written(
        tmp_path,
        SIMULATED,
        full,
        ('[cluster.staging]\ncapacity = "20 MB"\nthreads = 2\n', ""),
        ("[cost]", "[cost]\nwait_time = 1"),
    )
    counted = arms(facts(capsys, bare, "--prices", PRICES))["foresee"]
    assert (simulated["counted"], counted["counted"]) == ("simulated", "order")
    assert simulated["gets"] == counted["gets"]
    assert simulated["storage"] > 0


def test_a_given_wait_has_precedence_over_the_simulated_one(capsys, tmp_path: Path) -> None:
    path = written(tmp_path, SIMULATED, ("[cost]", "[cost]\nwait_time = {cache = 77}"))
    policies = arms(facts(capsys, path, "--prices", PRICES))
    assert (policies["cache"]["wait_seconds"], policies["cache"]["wait_from"]) == (77, "job")
    assert policies["cache"]["counted"] == "simulated"
    assert main(["cost", path, "--prices", PRICES]) == 0
    assert "waiting of direct, disk, full_fetch, fifty_fifty, foresee is simulated" in capsys.readouterr().out


def test_estimates_and_missing_rows_have_a_reason(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = arms(facts(capsys, JOB, "--prices", PRICES))
    assert (policies["full_fetch"]["gets"], policies["full_fetch"]["estimated"]) == (84000, True)
    assert "were not simulated: cluster.staging is missing" in policies["full_fetch"]["note"]
    assert main(["cost", JOB, "--prices", PRICES]) == 0
    out = capsys.readouterr().out
    assert "~84,000" in out
    assert "~ full_fetch: each sample fetched once an epoch" in out
    monkeypatch.setattr(_bucket_runs, "SIMULATED_MAX", 8999)
    path = written(tmp_path, SIMULATED, ("[cost]", "[cost]\nwait_time = 1"))
    policies = arms(facts(capsys, path, "--prices", PRICES))
    assert "9,000 reads are more than the 8,999 that are simulated here" in policies["fifty_fifty"]["note"]
    assert "the tiers have 60,000,000 bytes" in policies["foresee"]["missing"]
    full = written(
        tmp_path, Path(path).read_text(), ('capacity = "60 MB"', 'capacity = "1 GB"'), ("= 300", "= 900")
    )
    policies = arms(facts(capsys, full, "--prices", PRICES))
    for policy in ("foresee", "cache"):
        assert policies[policy]["counted"] == "limit"
        assert policies[policy]["estimated"]
    assert policies["foresee"]["gets"] == 3 * round(3000 * (1 - (2 / 3) ** 3))


def test_a_job_has_one_data_size(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, SIMULATED, ("[cost]", '[cost]\negress = "internet"'))
    result = facts(capsys, path, "--prices", write_prices(tmp_path))
    run = simulation.Run(jobspec.read(path), "direct", order="distributed").finish()
    # Each of three epochs reads every sample once. Redrawn sizes make the sum more than 300 MB.
    assert result["bytes"] == run.origin_bytes / 3 > 3000 * 100_000 * 1.05
    for policy in ("direct", "full_fetch", "foresee"):
        left = simulation.Run(jobspec.read(path), policy, order="distributed").finish().origin_bytes
        assert arms(result)[policy]["egress"] == pytest.approx(
            cost.egress_cost(left, ((1e9, 0.1), (1e10, 0.01)))
        )
    monkeypatch.setattr(_bucket_runs, "SIMULATED_MAX", 2999)
    assert _bucket_runs.drawn_bytes(jobspec.read(path).data) == pytest.approx(result["bytes"], rel=0.03)


def test_computing_at_a_rate_follows_the_bytes(capsys, tmp_path: Path) -> None:
    result = facts(capsys, written(tmp_path, SIMULATED), "--prices", PRICES)
    assert result["compute_seconds"] == pytest.approx(3 * result["bytes"] / 3 / 50e6)
    path = written(tmp_path, SIMULATED, ("epochs = 3", "epochs = 3\nsteps_per_epoch = 10"))
    result = facts(capsys, path, "--prices", PRICES)
    assert result["compute_seconds"] == pytest.approx(3 * 10 * 16 * result["bytes"] / 3000 / 50e6)


def test_runs_of_a_month_leave_through_one_tariff(capsys, tmp_path: Path) -> None:
    # Disks cost a lot, so that a bucket is cheaper for some runs; egress makes it more expensive in the end.
    expensive = ("price = 0.04\n", "price = 1\n")
    path = changed(
        tmp_path,
        ("[cost]", '[cost]\nperiod = "month"\negress = "internet"'),
        ('root_disk = "16 GB"', 'root_disk = "0 B"'),
    )
    result = facts(capsys, path, "--prices", write_prices(tmp_path, expensive))
    policies = arms(result)
    point = next(point for point in result["break_even"] if point["policy"] == "full_fetch")
    bucket, disk = policies["full_fetch"], policies["disk"]
    runs, each = point["runs_per_month"], 2 * result["bytes"]
    in_bucket = bucket["storage"] + runs * (bucket["machines"] + bucket["requests"])
    in_bucket += cost.egress_cost(runs * each, ((1e9, 0.1), (1e10, 0.01), (float("inf"), 0.001)))
    assert in_bucket == pytest.approx(disk["storage"] + runs * disk["machines"])
    # In the second tier, which no single run reaches.
    assert runs * each > 1e9 > each
    # The data size has a break-even point although the price of one run's bytes changes with it.
    size = ('"6428.571428571428 B"', repr(point["bytes"] / 42000))
    more = written(tmp_path, Path(path).read_text(), size)
    policies = arms(facts(capsys, more, "--prices", write_prices(tmp_path, expensive)))
    assert policies["full_fetch"]["total"] == pytest.approx(policies["disk"]["total"])


def test_beyond_the_last_tier_there_is_no_break_even(capsys, tmp_path: Path) -> None:
    path = changed(tmp_path, ("[cost]", '[cost]\nperiod = "month"\negress = "internet"'))
    ends = ('{up_to = "10 GB", price = 0.01}, {price = 0.001}]', '{up_to = "1.1 GB", price = 0}]')
    cheap = ("price = 0.1}", "price = 0}")
    prices = write_prices(tmp_path, ends, cheap, ("price = 0.04\n", "price = 1\n"))
    result = facts(capsys, path, "--prices", prices)
    point = next(point for point in result["break_even"] if point["policy"] == "full_fetch")
    assert point["runs_per_month"] is None
    assert point["runs_known_to"] == pytest.approx(1.1e9 / 0.54e9)
    assert point["bytes_known_to"] == pytest.approx(0.55e9)
    assert main(["cost", path, "--prices", prices]) == 0
    assert "no number of runs a month below 2.037, where it ends" in capsys.readouterr().out


def test_a_disk_price_is_required_only_with_a_disk(capsys, tmp_path: Path) -> None:
    bare = written(tmp_path, SIMULATED, ('disk = "disk"\n', ""))
    policies = arms(facts(capsys, bare, "--prices", PRICES))
    assert {policy for policy, arm in policies.items() if "total" in arm} == {"direct"}
    assert "what the disk of cache costs is not known" in policies["cache"]["missing"]
    for line in ('cache_in = "ram"', 'cache_in = "disk"', 'cache_in = "ram"\nroot_disk = "1 GB"'):
        path = written(
            tmp_path,
            SIMULATED,
            ('disk = "disk"', line),
            ("[cache.window]", '[cache]\npolicies = ["direct", "fifty_fifty", "foresee"]\n[cache.window]'),
        )
        code = main(["cost", path, "--prices", PRICES, "--json"])
        result = capsys.readouterr()
        if line == 'cache_in = "ram"':
            assert code == 0
            assert all("total" in arm for arm in json.loads(result.out)["policies"])
        else:
            assert code == 2
            assert "cost.disk is missing" in result.err


def test_a_job_at_azure_needs_a_machines_price_only(capsys, tmp_path: Path) -> None:
    machine = tmp_path / "machine.toml"
    machine.write_text(
        'version = 1\n[[price]]\nkind = "vm"\nprovider = "azure"\nregion = "westus2"\nname = "ours"\nprice = 3\n'
        'unit = "USD/h"\ndate = 2026-09-01\nsource = "our contract"\n'
    )
    path = written(
        tmp_path,
        SIMULATED,
        ('"deli"', '"azure"'),
        ('"any"', '"westus2"'),
        ('"vm"', '"ours"'),
        ('"bucket"', '"hot"'),
        ('disk = "disk"', 'cache_in = "ram"'),
        ("[cache.window]", '[cache]\npolicies = ["direct", "foresee"]\n[cache.window]'),
    )
    result = facts(capsys, path, "--prices", str(machine))
    assert all(arm["total"] > 0 for arm in result["policies"])


def test_a_large_run_is_marked_as_an_estimate(capsys, tmp_path: Path) -> None:
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


def test_compute_time_defaults_to_the_train_section(capsys, tmp_path: Path) -> None:
    path = changed(
        tmp_path, ("compute_time = 0\n", ""), ("batch = 512", 'batch = 512\ncompute_step = "0.5 s"')
    )
    assert facts(capsys, path, "--prices", PRICES)["compute_seconds"] == 2 * 28 * 0.5
    path = changed(tmp_path, ("compute_time = 0\n", ""))
    assert main(["cost", path, "--prices", PRICES]) == 2
    assert "are missing; one of them expected" in capsys.readouterr().err


def test_the_table_has_policies_points_and_dates(capsys) -> None:
    assert main(["cost", JOB, "--prices", PRICES]) == 0
    out, err = capsys.readouterr()
    assert "older than a year" in err
    assert "42,000 samples of 0.270 GB, 2 epochs, 3 machines" in out
    assert any(line.startswith("direct") and line.endswith("0.7523") for line in out.splitlines())
    assert "as much as disk, all else being equal, at" in out
    assert "prices of 2021-10-04" in out


def test_a_budget_below_all_policies_has_exit_code_1(capsys) -> None:
    assert main(["cost", JOB, "--prices", PRICES, "--budget", "0.2"]) == 0
    assert main(["cost", JOB, "--prices", PRICES, "--budget", "0.1"]) == 1
    assert main(["cost", JOB, "--prices", PRICES, "--budget", "-1"]) == 2
    assert "--budget -1.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([('provider = "deli"\n', "")], "cost.provider is missing"),
        ([('vm = "vm"', 'vm = "vn"')], "the price of vm vn at deli in any is not known; known names are vm"),
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
def test_missing_and_wrong_values_are_named(capsys, tmp_path: Path, changes: list, expected: str) -> None:
    assert main(["cost", changed(tmp_path, *changes), "--prices", PRICES]) == 2
    assert expected in capsys.readouterr().err


def test_two_currencies_are_not_added(capsys, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(Path(PRICES).read_text().replace("USD/GB-month", "EUR/GB-month"))
    assert main(["cost", JOB, "--prices", str(path)]) == 2
    assert "prices in EUR and USD: one currency expected" in capsys.readouterr().err


def test_missing_files_are_bad_input(capsys) -> None:
    assert main(["cost", "gone.toml"]) == 2
    assert main(["cost", JOB, "--prices", "gone.toml"]) == 2
    assert "gone.toml" in capsys.readouterr().err


def test_the_size_may_come_from_an_index(capsys, tmp_path: Path, folder: Path) -> None:
    assert main(["index", str(folder), "-o", str(tmp_path / "a.fidx")]) == 0
    capsys.readouterr()
    path = changed(
        tmp_path, ("samples = 42_000\n", 'index = "a.fidx"\n'), ('size = "6428.571428571428 B"\n', "")
    )
    result = facts(capsys, path, "--prices", PRICES)
    assert (result["samples"], result["bytes"]) == (23, 23 * 8)


def test_unpriced_policies_are_named(capsys, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    text = SIMULATED.replace(
        "[cache.window]", '[cache]\npolicies = ["naive", "direct", "nopfs"]\n[cache.window]'
    )
    path.write_text(text)
    assert facts(capsys, str(path), "--prices", PRICES)["left_out"] == ["naive", "nopfs"]
    assert main(["cost", str(path), "--prices", PRICES]) == 0
    assert "left out: naive, nopfs; priced policies are direct, disk," in capsys.readouterr().out
