# SPDX-License-Identifier: Apache-2.0
"""Ranks of a job that share the cache of their node return the same batches as ranks that read alone."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import pytest
from support.data import make_folder
from support.node_ranks import digests, expected, outcomes, ranks
from support.node_service import service

import foresee
from foresee import predict
from foresee._loading.summary import shown_bytes
from foresee.cli import main
from foresee.storage.analysis import ledger, node_caches

RANKS = 4
SAMPLES = 203
#: About 4 MB, which exceeds the memory of the tests that evict.
LARGE = [9000 + 1700 * (sample % 13) for sample in range(SAMPLES)]


def read_by_source(lines: list[Any], source: str) -> int:
    """Return the number of samples that a rank has had from a source."""
    ok = lines[-1]["stats"]["operations"][source]["read"]["ok"]
    return 0 if ok is None else int(ok["samples"])


def assert_same(
    job: pathlib.Path, root: pathlib.Path, plans: list[dict[str, Any]], *, epochs: int = 3
) -> list[list[Any]]:
    """Run a rank per plan, compare all batches with those of a rank that reads alone, and return the lines."""
    with ranks(job, [{"root": str(root), "epochs": epochs, **plan} for plan in plans]) as programs:
        found = outcomes(programs)
    for rank, ((lines, errors), plan) in enumerate(zip(found, plans, strict=True)):
        options = {name: plan[name] for name in ("batch_size", "shuffle") if name in plan}
        assert digests(lines) == expected(root, rank, len(plans), epochs, **options), f"rank {rank}"
        assert lines[-1]["ok"], f"rank {rank}"
        assert errors == "", f"rank {rank}"
        # A loader with caches of its own has tiers.
        assert lines[-1]["stats"]["tiers"] == [], f"rank {rank}"
    return [lines for lines, _ in found]


def test_four_ranks_read_each_sample_once_from_the_origin(job: pathlib.Path, tmp_path: pathlib.Path) -> None:
    root = make_folder(tmp_path / "data", LARGE)
    lines = assert_same(job, root, [{}] * RANKS)
    assert sum(read_by_source(one, "origin") for one in lines) == SAMPLES
    for one in lines:
        stats = one[-1]["stats"]
        assert stats["origin"]["in_flight"] == stats["origin"]["queued"] == 0
        assert read_by_source(one, "ram") + read_by_source(one, "origin") == 3 * math.ceil(SAMPLES / RANKS)


def test_ranks_report_the_cache_of_their_node(job: pathlib.Path, tmp_path: pathlib.Path) -> None:
    root = make_folder(tmp_path / "data", LARGE)
    lines = assert_same(job, root, [{"cache": {"ram": "64MB"}}] * RANKS)
    nodes = [one[-1]["stats"]["node"] for one in lines]
    assert [node["role"] for node in nodes] == ["host", *["rank_consumer"] * (RANKS - 1)]
    assert len({node["socket"] for node in nodes}) == 1
    for one, node in zip(lines, nodes, strict=True):
        assert (node["attached"], node["ram_bytes"], node["disk_bytes"]) == (True, 64_000_000, 0)
        assert node["host"]["pid"] == nodes[0]["host"]["pid"]
        for source in ("ram", "disk", "origin"):
            assert node["sources"][source]["samples"] == read_by_source(one, source)
    assert sum(node["sources"]["origin"]["bytes"] for node in nodes) == sum(LARGE)
    assert max(node["host"]["origin"]["bytes"] for node in nodes) == sum(LARGE)
    assert all(node["host"]["origin"]["retries"] == 0 for node in nodes)


def test_ledgers_show_the_shared_cache_and_time_each_instant_once(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root, run = make_folder(tmp_path / "data", LARGE), tmp_path / "run"
    with ranks(job, [{"root": str(root), "epochs": 2}] * 2, env={"FORESEE_TRACE": str(run)}) as programs:
        outcomes(programs)
    (cache,) = node_caches.read(run)
    assert (cache["ranks"], cache["host_rank"], cache["is_service"]) == ([0, 1], 0, False)
    assert (cache["ram_bytes"], cache["disk_bytes"]) == (64_000_000, 0)
    assert cache["origin_bytes"] == sum(LARGE)
    assert cache["delivered_bytes"] >= 2 * sum(LARGE)
    assert cache["saved_bytes"] == cache["delivered_bytes"] - sum(LARGE)
    for path, _ in ledger.files(run):
        until = 0
        for batch in ledger.batches(path):
            op, begin, duration = ledger.columns(batch, "op", "start_ns", "duration_ns")
            reads = sorted(zip(begin[op == "read"].tolist(), duration[op == "read"].tolist(), strict=True))
            for start, took in reads:
                assert start >= until or took == 0
                until = max(until, start + took)
        assert until > 0
    trace = predict.read(run)
    assert (trace.node_cache, trace.ranks, trace.epochs) == (True, 2, 2)


def test_memory_smaller_than_the_data_returns_the_same_batches(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = make_folder(tmp_path / "data", LARGE)
    assert_same(job, root, [{"cache": {"ram": "3MB"}}] * RANKS)


def test_a_disk_below_a_small_memory_returns_the_same_batches(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = make_folder(tmp_path / "data", LARGE)
    cache = {"ram": "3MB", "disk": str(tmp_path / "cache"), "disk_size": "3GB"}
    lines = assert_same(job, root, [{"cache": cache}] * RANKS)
    assert sum(read_by_source(one, "disk") for one in lines) > 0


def test_a_batch_larger_than_the_memory_of_the_host_is_complete(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = make_folder(tmp_path / "data", LARGE)
    small, large = {"ram": "2MB", "batch_size": 4}, {"ram": "64MB", "batch_size": 101}
    plans = [{"cache": {"ram": one["ram"]}, "batch_size": one["batch_size"]} for one in (small, large)]
    assert_same(job, root, plans)


def test_ranks_with_different_batch_sizes_get_their_own_batches(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = make_folder(tmp_path / "data", LARGE)
    assert_same(job, root, [{"batch_size": size, "shuffle": size != 5} for size in (3, 5, 16)])


def test_samples_of_zero_bytes_are_returned(job: pathlib.Path, tmp_path: pathlib.Path) -> None:
    root = make_folder(tmp_path / "data", [0 if sample % 3 else 500 for sample in range(90)])
    assert_same(job, root, [{}, {}])


SEEKS = """
    import itertools, json, sys
    import foresee
    from support.data import digest, epoch
    from support.node_ranks import meet
    from support.processes import print_json
    plan = json.loads(sys.argv[1])
    options = dict(batch_size=4, shuffle=True, seed=3)
    def loader():
        return foresee.Loader(plan["root"], **options, cache=foresee.Cache(ram=plan["ram"]))
    def read(batches):
        print_json(batch=digest([(int(b.ids[p]), bytes(b.sample(p))) for b in batches for p in range(len(b))]))
    with loader() as first:
        read(itertools.islice(first, 5))
        read(first)
        for batch in first:
            break
        iterator = iter(first)
        read(itertools.islice(iterator, 7))
        state = first.state_dict()
        read(iterator)
        first.load_state_dict(state)
        read(first)
        with loader() as second:
            second.load_state_dict(state)
            read(second)
            read(second)
        meet(plan["job"], "second")
        read(first)
        # A host that its last consumer has left starts again for the next loader.
        first.close()
        first.close()
    meet(plan["job"], "closed")
    with loader() as third:
        read(third)
        meet(plan["job"], "end")
        print_json(tiers=third.stats()["tiers"])
"""


def test_a_loader_continues_elsewhere_after_a_break_a_state_and_a_new_start(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = make_folder(tmp_path / "data", LARGE)
    found = {}
    for node in ("", "off"):
        plan = {"root": str(root), "ram": "6MB"}
        with ranks(job, [plan] * 2, source=SEEKS, env={"FORESEE_NODE": node}) as programs:
            found[node] = outcomes(programs)
        for file in job.glob("*-?"):
            file.unlink()
    for (shared, errors), (alone, _) in zip(found[""], found["off"], strict=True):
        assert digests(shared) == digests(alone)
        assert len(digests(shared)) == 9
        assert errors == ""
        assert shared[-1]["tiers"] == []
        assert alone[-1]["tiers"] != []


TWO_LOADERS = """
    import json, sys
    import foresee
    from support.data import digest, epoch
    from support.node_ranks import meet
    from support.processes import print_json
    plan = json.loads(sys.argv[1])
    cache = foresee.Cache(ram=plan["ram"])
    with (
        foresee.Loader(plan["root"], batch_size=8, shuffle=True, seed=3, cache=cache) as training,
        foresee.Loader(plan["held_out"], batch_size=5, cache=cache) as validation,
    ):
        for _ in range(3):
            print_json(batch=digest(epoch(training)))
            print_json(batch=digest(epoch(validation)))
        meet(plan["job"], "end")
        print_json(tiers=[training.stats()["tiers"], validation.stats()["tiers"]])
"""


def test_training_and_validation_share_the_cache_of_the_node(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = make_folder(tmp_path / "data", LARGE)
    plan = {"root": str(root), "held_out": str(make_folder(tmp_path / "held out", LARGE[:30])), "ram": "6MB"}
    found = {}
    for node in ("", "off"):
        with ranks(job, [plan] * 2, source=TWO_LOADERS, env={"FORESEE_NODE": node}) as programs:
            found[node] = outcomes(programs)
        for file in job.glob("*-?"):
            file.unlink()
    for (shared, errors), (alone, _) in zip(found[""], found["off"], strict=True):
        assert digests(shared) == digests(alone)
        assert errors == ""
        assert shared[-1]["tiers"] == [[], []]


def test_a_run_that_read_only_the_memory_of_a_service_is_analyzed(
    job: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, run, socket = make_folder(tmp_path / "data", LARGE), tmp_path / "run", job / "node.sock"
    # An index: the ledger has no listing.
    index = str(tmp_path / "data.fidx")
    foresee.Index.build(str(root), layout="folder").save(index)
    with service(socket) as warm:
        warm.line()
        for trace in ({}, {"FORESEE_TRACE": str(run)}):
            with ranks(job, [{"root": index}], env={"FORESEE_NODE": str(socket), **trace}) as programs:
                outcomes(programs)
    assert main(["analyze", str(run)]) == 0
    assert f"{shown_bytes(0)} read from the origin" in capsys.readouterr().out
