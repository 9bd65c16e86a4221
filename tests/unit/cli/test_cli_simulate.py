# SPDX-License-Identifier: Apache-2.0
"""``foresee simulate``: its table, JSON object, figures and exit codes."""

from __future__ import annotations

import itertools
import json
import re
from types import SimpleNamespace

import pytest
from support import pictures
from support.house import ROOT
from support.pictures import texts
from support.small_job import SMALL, small

from foresee.cli import _simulate_plot, _simulate_run, main, simulate


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(SMALL)
    return str(path)


def test_a_table_has_a_row_for_every_policy(file, capsys) -> None:
    assert main(["simulate", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line and not line.startswith(("policy", file))}
    assert set(rows) >= {"perfect", "naive", "nopfs", "foresee", "lbann_dynamic"}
    assert "no answer" in rows["lbann_dynamic"]
    assert "100.0%" in rows["foresee"]


def test_one_object_and_nothing_else(file, capsys) -> None:
    assert main(["simulate", file, "--policies", "foresee", "fifty_fifty", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [one["policy"] for one in facts["runs"]] == ["foresee", "fifty_fifty"]
    assert facts["runs"][0]["total_s"] > 0
    assert not facts["interrupted"]


def test_ranks_of_a_node_share_one_cache_and_their_ledgers_show_it(file, tmp_path, capsys) -> None:
    job = tmp_path / "two.toml"
    job.write_text(SMALL.replace("[cluster]\n", "[cluster]\nranks_per_machine = 2\n"))
    run_dir = tmp_path / "run"
    command = ["simulate", str(job), "--policies", "foresee", "--json"]
    assert main([*command, "--node-cache", "--run-dir", str(run_dir)]) == 0
    shared = json.loads(capsys.readouterr().out)
    assert main(command) == 0
    alone = json.loads(capsys.readouterr().out)
    assert (shared["node_cache"], alone["node_cache"]) == (True, False)
    (one,), (other,) = shared["runs"], alone["runs"]
    assert one["origin_bytes"] <= other["origin_bytes"]
    assert main(["analyze", str(run_dir), "--json"]) == 0
    caches = json.loads(capsys.readouterr().out)["node_caches"]
    assert caches[0]["ranks"] == [0, 1]
    assert caches[0]["host_rank"] == 0
    assert sum(cache["origin_bytes"] for cache in caches) == one["origin_bytes"]
    assert main(["analyze", str(run_dir)]) == 0
    assert "2 ranks shared one cache (host: in rank 0)" in capsys.readouterr().out


def test_nodes_with_peers_read_each_sample_from_the_origin_once(file, capsys) -> None:
    command = ["simulate", file, "--policies", "foresee", "hash_owner", "--json"]
    assert main([*command, "--peers"]) == 0
    facts = json.loads(capsys.readouterr().out)
    foresee, owner = facts["runs"]
    assert facts["peers"]
    assert foresee["origin_requests"] == 3000
    assert foresee["total_s"] <= owner["total_s"]
    assert owner["pushed_samples"] > foresee["pushed_samples"]
    peers = [
        sum(reads["bytes"] for reads in run["reads"] if reads["source"].startswith("peer"))
        for run in (foresee, owner)
    ]
    assert 0 < peers[0] < peers[1]
    assert main(command) == 0
    alone = json.loads(capsys.readouterr().out)["runs"][0]
    assert alone["origin_requests"] > 3000


def test_a_published_scenario_is_found_by_its_name(capsys) -> None:
    assert main(["simulate", "--list", "--json"]) == 0
    assert "thesis_1" in json.loads(capsys.readouterr().out)
    assert main(["simulate", "thesis_1", "--policies", "perfect", "nopfs"]) == 0
    assert "nopfs" in capsys.readouterr().out


def test_two_keys_are_swept_and_drawn(file, tmp_path, capsys) -> None:
    sweep = ["--sweep", "cluster.tiers.ram.capacity=20 MB,80 MB,300 MB", "--sweep", "cluster.ranks=1,3"]
    picture = tmp_path / "heat.svg"
    assert main(["simulate", file, "--policies", "foresee", *sweep, "--plot", str(picture), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["runs"]) == 6
    assert facts["runs"][3]["at"] == {"cluster.tiers.ram.capacity": "80 MB", "cluster.ranks": "3"}
    drawn = texts(picture)
    assert {"20 MB", "80 MB", "300 MB", "1", "3", *facts["sweep"]} <= set(drawn)
    assert {f"{run['total_s']:.4g}" for run in facts["runs"]} <= set(drawn)
    assert main(["simulate", file, *sweep, "--plot", str(picture)]) == 2
    assert "choose one of" in capsys.readouterr().err
    bars = tmp_path / "bars.svg"
    assert main(["simulate", file, "--plot", str(bars)]) == 0
    assert "stall: origin" in texts(bars)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "a job file or a scenario's name is missing"),
        (["{file}", "--policies", "best"], "--policies best"),
        (["{file}", "--sweep", "train.batch"], "KEY=VALUE"),
        (["{file}", "--sweep", "train.batch="], "no values to sweep"),
        (["{file}", "--sweep", "train.bach=1"], "no key 'bach'"),
        (["{file}", "--sweep", "train.batch=1,nan"], "batch"),
        (["{file}", "--sweep", "cluster.tiers.ram.capacity=0"], "capacity"),
        (["{file}", "--threads", "0"], "--threads 0"),
        (["{file}", "--plot", "x.gif"], "one of the suffixes .svg, .png, .pdf"),
        (["nothing.toml"], "nothing.toml"),
    ],
)
def test_faults_are_reported_and_nothing_runs(file, capsys, arguments, expected) -> None:
    assert main(["simulate", *(word.format(file=file) for word in arguments)]) == 2
    assert expected in capsys.readouterr().err


def test_a_goal_that_no_policy_reaches_has_exit_code_1(file, capsys) -> None:
    assert main(["simulate", file, "--within", "1e9"]) == 0
    assert main(["simulate", file, "--within", "0.001"]) == 1
    capsys.readouterr()


def test_bounds_and_other_orders_do_not_reach_a_goal(file, capsys) -> None:
    others = ["perfect", "nopfs_prestaged", "deepio_optimistic", "parallel_staging"]
    others += ["locality_aware", "static_share"]
    assert main(["simulate", file, "--within", "1e9", "--policies", *others]) == 1
    assert main(["simulate", file, "--within", "1e9", "--policies", *others, "naive"]) == 0
    capsys.readouterr()


def test_policies_of_another_order_are_those_of_the_core() -> None:
    source = (ROOT / "crates" / "foresee-sim" / "src" / "loading" / "policy.rs").read_text()
    (body,) = re.findall(r"fn keeps_order.*?matches!\(\s*self,(.*?)\)", source, flags=re.DOTALL)
    names = [re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in re.findall(r"Self::(\w+)", body)]
    assert set(names) == simulate._OTHER_ORDER


def test_all_faults_are_reported_at_once(tmp_path, capsys) -> None:
    path = tmp_path / "job.toml"
    path.write_text(SMALL.replace("epochs = 3\n", "").replace('read = "400 MB/s"\n', ""))
    sweeps = ["--sweep", "x", "--sweep", "train.batch=0,1,-3"]
    arguments = [str(path), *sweeps, "--policies", "foresee", "bset", "--threads", "0", "--plot", "x.gif"]
    assert main(["simulate", *arguments]) == 2
    result = capsys.readouterr().err
    for fault in (
        "one of the suffixes .svg, .png, .pdf",
        "--threads 0",
        "--policies bset",
        "--sweep 'x'",
        f"{path}: train.batch = 0; a whole number of 1 or more",
        f"{path}: train.batch = -3; a whole number of 1 or more",
        f"{path}: train.epochs is missing",
        f"{path}: cluster.tiers[1].read is missing",
    ):
        assert result.count(fault) == 1, fault
    path.write_text(SMALL.replace("ranks = 3", "ranks = 0"))
    assert main(["simulate", str(path), "--sweep", "train.batch=1", "--threads", "0"]) == 2
    result = capsys.readouterr().err
    assert "--threads 0" in result
    assert f"{path}: cluster.ranks = 0; a whole number" in result
    # A swept key is not missing, even with invalid values.
    path.write_text(SMALL.replace("batch = 20\n", ""))
    assert main(["simulate", str(path), "--sweep", "train.batch=0"]) == 2
    assert "missing" not in capsys.readouterr().err


def test_faults_of_the_core_name_the_keys_of_the_job(tmp_path, capsys) -> None:
    path = tmp_path / "job.toml"
    path.write_text(SMALL.replace("[cluster.origin]", '[cluster.origin]\nreaders = "active"'))
    arguments = ["--compat", "paper", "--hand-over", "batch", "--policies", "naive", "foresee"]
    assert main(["simulate", str(path), *arguments]) == 2
    result = capsys.readouterr().err
    assert result.count(f"{path}: cluster.origin.readers = active; it must be all") == 1
    assert "- --hand-over = batch; it must be sample" in result
    assert "options." not in result
    assert _simulate_run._translate_faults(["rate is 0", f"{path}: known"], str(path)) == [
        f"{path}: rate is 0",
        f"{path}: known",
    ]


def test_more_ranks_than_an_index_has_samples_are_refused_by_file_and_key(tmp_path, capsys) -> None:
    from foresee._native import Index

    (tmp_path / "data").mkdir()
    for name in "ab":
        (tmp_path / "data" / name).write_bytes(b"x" * 1000)
    Index.build(str(tmp_path / "data"), layout="flat").save(tmp_path / "data.fidx")
    path = tmp_path / "job.toml"
    path.write_text(
        SMALL.replace('samples = 3000\nsize = "100 KB"\nsize_sigma = "30 KB"', 'index = "data.fidx"')
    )
    assert main(["simulate", str(path), "--policies", "naive"]) == 2
    assert (
        f"{path}: cluster.ranks = 3 ranks, one sample for each; it must be 1 to 2" in capsys.readouterr().err
    )


def test_a_sweep_has_what_the_profile_gives_at_each_point(tmp_path, capsys) -> None:
    figures = "".join(
        f'[[figure]]\nname = "origin.read"\nat = {at}\nvalue = {rate}\nunit = "MB/s"\n'
        for at, rate in ((1, 10), (64, 400))
    )
    (tmp_path / "p.toml").write_text(f'version = 1\nmachine = "a"\ndate = 2026-11-22\n{figures}')
    path = tmp_path / "job.toml"
    path.write_text(
        SMALL.replace("[cluster]", '[cluster]\nprofile = "p.toml"').replace(
            'read = {1 = "50 MB/s", 3 = "90 MB/s"}', ""
        )
    )
    sweep = ["--sweep", "cluster.staging.threads=1,64", "--policies", "staging_buffer", "--json"]
    assert main(["simulate", str(path), *sweep]) == 0
    few, many = (one["total_s"] for one in json.loads(capsys.readouterr().out)["runs"])
    # Three ranks with one request each reach 21 MB/s, with 64 each the whole rate.
    assert few > 5 * many


def test_a_row_has_first_and_later_epochs_and_origin_requests(file, capsys) -> None:
    arguments = ["simulate", file, "--policies", "foresee", "parallel_staging"]
    assert main([*arguments, "--json"]) == 0
    one, other = json.loads(capsys.readouterr().out)["runs"]
    assert main(arguments) == 0
    head, *rows = capsys.readouterr().out.splitlines()[-3:]
    assert " ".join(head.split()) == (
        "policy total init epoch 1 later stall others hits from origin requests coverage"
    )
    ends = [epoch["end_s"] for epoch in one["epochs"]]
    cells = rows[0].split()
    assert cells[3] == f"{ends[0] - one['init_s']:,.2f}"
    assert cells[4] == f"{(ends[-1] - ends[0]) / 2:,.2f}"
    assert cells[-2] == f"{one['origin_requests']:,}"
    assert other["init_s"] > 0
    cells = rows[1].split()
    total, init, first, later = (float(cell.replace(",", "")) for cell in cells[1:5])
    assert total == pytest.approx(init + first + 2 * later, abs=0.03)


def test_details_have_every_source_and_every_epoch(file, capsys) -> None:
    arguments = ["simulate", file, "--policies", "nopfs", "perfect"]
    assert main([*arguments, "--json"]) == 0
    one = json.loads(capsys.readouterr().out)["runs"][0]
    assert main([*arguments, "--details"]) == 0
    out = capsys.readouterr().out
    by_source, by_epoch = (part.splitlines()[2:] for part in out.split("\n\n")[2:4])
    for each in one["reads"]:
        (row,) = [row for row in by_source if re.match(rf"nopfs +{each['source']}  ", row)]
        assert f"{each['samples']:,}" in row.split()
        assert row.split()[-1] == f"{each['waited_s'] / 3:,.2f}"
    for each in one["loads"]:
        (row,) = [row for row in by_source if f"origin, into {each['source']} " in row]
        assert f"{each['samples']:,}" in row.split()
        assert row.split()[-2] == f"{each['seconds'] / 3:,.2f}"
    assert [row for row in by_source if row.split() == ["perfect", "none"]]
    covered = [row.split()[1] for row in by_epoch if row.startswith("nopfs")]
    ends = [int(end) for which in covered for end in (which.split("-")[0], which.split("-")[-1])]
    assert (ends[0], ends[-1]) == (1, 3)
    assert ends == sorted(ends)


def test_bars_are_stacked_by_where_the_time_went(file, tmp_path, capsys, monkeypatch) -> None:
    written = pictures.watch(monkeypatch)
    picture = tmp_path / "bars.svg"
    requested = ["--policies", "nopfs", "naive", "parallel_staging", "--plot", str(picture), "--json"]
    assert main(["simulate", file, *requested]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    (figure,) = written
    drawn = pictures.bars(figure)
    for place, one in enumerate(runs):
        heights = {name: [high for at, high in found if at == place] for name, found in drawn.items()}
        assert sum(itertools.chain(*heights.values())) == pytest.approx(one["total_s"])
        waited = sum(each["waited_s"] for each in one["reads"] if each["source"] == "origin") / 3
        assert heights["stall: origin"] == [pytest.approx(each) for each in [waited] if each]
    classes = list(drawn)
    assert classes[0] == "compute"
    assert classes[-3:] == ["stall: origin", "other ranks", "init"]
    assert {*classes, *(one["policy"] for one in runs)} <= set(texts(picture))


def test_a_cell_of_an_incomplete_run_is_marked() -> None:
    runs = [
        {"policy": "naive", "at": {"a": a, "b": "1"}, "total_s": 5.0, "ranks": 1, "finished": a == "1"}
        for a in ("1", "2")
    ]
    facts = {"job": "j", "data": None, "compat": "physical", "interrupted": True, "runs": runs}
    figure = _simulate_plot.figure(facts | {"sweep": {"a": ["1", "2"], "b": ["1"]}}, [])
    assert [text.get_text() for text in figure.axes[0].texts] == ["5", "~5"]
    assert "interrupted" in figure.texts[0].get_text()


def test_preparing_is_a_part_of_the_progress() -> None:
    shares = []
    task = _simulate_run.Task("foresee", (), small())

    def count_polls() -> bool:
        shares.append(task.share)
        return False

    options = SimpleNamespace(
        compat="physical", order="shuffled", hand_over="sample", node_cache=False, peers=False
    )
    _simulate_run.run(task, options, SimpleNamespace(is_set=count_polls))
    assert shares == sorted(shares)
    assert any(0 < share < 0.5 for share in shares)
    assert task.share == 1.0


def test_tasks_are_compared_by_identity() -> None:
    first, second = (_simulate_run.Task("foresee", (), job=SimpleNamespace(name="one")) for _ in range(2))
    running = [first, second]
    running.remove(second)
    assert running[0] is first
