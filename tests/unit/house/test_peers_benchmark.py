# SPDX-License-Identifier: Apache-2.0
"""The pure parts of benchmarks/peers: sizes, bounds, values, and acceptance lines."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.benchmark_modules import Run, Runs, module_of, proof, run

arms, lines, loops, measures, sizes, table, task = (
    module_of("peers", name) for name in ("arms", "lines", "loops", "measures", "sizes", "table", "task")
)
SIZE = sizes.Size("nodes_2", 2, 32, 1000, 4, 3, 16_000, 500)


def epoch(began: float, ended: float, waits: list[float], **values: Any) -> Any:
    return task.Epoch(began=began, ended=ended, waits_s=waits, **values)


def line_of(found: list[Run], name: str) -> Any:
    return next(line for line in lines.judge(Runs(found)) if line.name == name)


def test_every_rank_has_the_same_number_of_whole_batches() -> None:
    for size in (*sizes.FULL, *sizes.QUICK):
        assert size.samples == size.steps * size.nodes * size.batch, size.part


def test_links_of_all_nodes_together_have_at_most_2_gbit_per_second() -> None:
    assert all(size.nodes * size.link_mbit <= 2000 for size in (*sizes.FULL, *sizes.QUICK))


def test_what_all_nodes_reserve_is_the_capacity_over_the_data() -> None:
    for size in (*sizes.FULL, *sizes.QUICK):
        # By `NodeHost::reservable`, with the roundings of its shares.
        memory = size.ram_bytes - size.ram_bytes // 8
        reserved = memory - memory // 4 - memory // 8
        assert size.nodes * reserved == pytest.approx(size.capacity * size.data_bytes, rel=1e-3)
    links = next(size for size in sizes.FULL if size.part == "links")
    assert links.ram_bytes * sizes.RESERVED_SHARE == pytest.approx(links.data_bytes / 3, rel=1e-3)


def test_the_bound_of_a_slow_bucket_has_the_data_once_and_the_compute_of_later_epochs() -> None:
    assert SIZE.first_epoch_bound_s == pytest.approx(2 + 2 / 1.3 / 4)
    assert SIZE.later_epoch_bound_s == pytest.approx(2 / 1.3)
    assert SIZE.bound_s == pytest.approx(2 + 2 / 1.3 / 4 + 2 * 2 / 1.3)


def test_a_slow_link_bounds_later_epochs_by_the_samples_of_other_nodes() -> None:
    slow = dataclasses.replace(SIZE, samples=3_200_000, origin_bytes_per_s=10**12)
    assert slow.later_epoch_bound_s == pytest.approx(1_600_000_000 / 2 / (0.956 * 62_500_000))


def test_nodes_of_part_links_consume_60_percent_of_their_links() -> None:
    links = next(size for size in sizes.QUICK if size.part == "links")
    consumed = links.batch * links.sample_bytes / links.step_s
    assert consumed == pytest.approx(0.6 * 25_000_000)


def test_a_part_without_rates_has_no_bound() -> None:
    assert next(size for size in sizes.FULL if size.part == "small").bound_s == 0


def test_the_quick_run_judges_at_least_half_of_the_lines() -> None:
    names = ("origin_over_data", "run_over_bound", "seconds", "later_wait_share")
    found = [
        run(size.part, arm, **dict.fromkeys(names, 1.0))
        for size in sizes.QUICK
        for arm in size.arms(quick=True)
    ]
    judged = lines.judge(Runs(found))
    assert 2 * sum(line.holds is not None for line in judged) >= len(judged)


def test_a_step_waits_for_the_rank_that_waits_longest() -> None:
    epochs = [
        (epoch(0.0, 9.0, [1.0, 0.0, 0.25]), epoch(1.0, 10.0, [0.0, 0.5, 0.5])),
        (epoch(10.0, 20.0, [0.0, 0.0, 0.0]), epoch(10.0, 20.0, [0.0, 1.0, 0.0])),
    ]
    assert measures.wait_share(epochs) == pytest.approx(3.0 / 20)


def test_values_of_a_run_are_those_of_all_ranks() -> None:
    first = task.Result(
        epochs=[epoch(1.0, 3.0, [0.5], samples=4, received_bytes=8), epoch(3.0, 4.0, [0.0], samples=4)],
        cpu_s=1.0,
        counts={"from_peer": 3.0},
        met_s=0.1,
    )
    second = task.Result(
        epochs=[
            epoch(0.5, 3.5, [1.5], samples=4),
            epoch(3.5, 4.5, [0.0], samples=4, received_bytes=16_000),
        ],
        cpu_s=0.6,
        counts={"from_peer": 2.0, "hedges": 1.0},
    )
    values = measures.values_of(SIZE, [first, second], {"requests_total": 9, "body_bytes": 32_320})
    assert values["seconds"] == 4.0
    assert values["run_over_bound"] == pytest.approx(4.0 / SIZE.bound_s)
    assert values["waited_s"] == 1.0
    assert values["origin_over_data"] == pytest.approx(1.01)
    assert values["link_over_data"] == pytest.approx(0.5)
    assert values["cpu_s_per_sample"] == pytest.approx(0.1)
    assert (values["from_peer"], values["hedges"], values["nodes_that_met"]) == (5.0, 1.0, 1)
    assert (values["epoch_1_s"], values["epoch_2_s"]) == (3.0, 1.5)


def test_samples_from_the_origin_are_counted_by_epoch() -> None:
    counts = [({"from_origin": 4.0}, {"from_origin": 3.0}), ({"from_origin": 4.0}, {"from_origin": 5.0})]
    by_epoch = [[epoch(0.0, 1.0, [], counts=one) for one in each] for each in counts]
    assert measures.origin_samples(by_epoch) == {"origin_samples_1": 7.0, "origin_samples_2": 2.0}
    assert measures.origin_samples([[epoch(0.0, 1.0, [])]]) == {}


def test_counts_of_a_node_name_the_sources_and_the_exchange() -> None:
    moved = {"samples": 2, "bytes": 20}
    host = {
        "origin": {"requests": 5, "bytes": 50, "retries": 1, "throttles": 0, "hedges": 2},
        "peers": {"received": moved, "sent": moved, "missing": 1, "late": 0, "silent": 3},
    }
    sources = {"ram": moved, "peer": moved, "origin": {"samples": 5, "bytes": 50}}
    counts = arms.counts_of({"node": {"sources": sources, "host": host}})
    assert (counts["from_ram"], counts["from_peer"], counts["from_origin"]) == (2, 2, 5)
    assert (counts["hedges"], counts["peers_missing"], counts["peers_silent"]) == (2, 1, 3)
    assert (counts["received_bytes"], counts["sent_samples"]) == (20, 2)


def test_counts_of_a_rank_with_a_cache_of_its_own_name_the_sources() -> None:
    operations = {"ram": {"read": {"ok": {"samples": 3}}}, "disk": {"read": {"ok": None}}}
    assert arms.counts_of({"node": None, "operations": operations}) == {"from_ram": 3}


def test_a_line_is_the_median_of_the_repeats_of_arm_exact() -> None:
    found = [
        run("nodes_4", "exact", at, origin_over_data=value) for at, value in enumerate((1.0, 1.001, 1.2))
    ]
    line = line_of([*found, run("nodes_4", "alone", origin_over_data=4.0)], "nodes_4_origin_over_data")
    assert (line.value, line.holds) == (1.001, True)


def test_the_ratio_to_nodes_without_exchange_is_stated_within_a_repeat() -> None:
    found = [run("nodes_2", "exact", at, seconds=seconds) for at, seconds in enumerate((1.0, 3.0))]
    found += [run("nodes_2", "alone", at, seconds=seconds) for at, seconds in enumerate((2.0, 4.0))]
    line = line_of(found, "nodes_2_over_alone")
    assert (line.value, line.holds, line.limit) == (0.625, None, None)


def test_a_void_run_gives_its_line_the_reason() -> None:
    line = line_of([Run("links", "exact", 0, 4, 1, void="rank 1, epoch 0: order 3")], "links_wait_share")
    assert (line.value, line.holds) == (None, None)
    assert "order 3" in line.why


def test_each_rank_has_its_own_part_of_torchs_order() -> None:
    by_rank = [proof.orders(8, ranks=2, rank=rank, seed=1, epochs=2) for rank in range(2)]
    for number in range(2):
        assert sorted(np.concatenate([epochs[number] for epochs in by_rank])) == list(range(8))
    assert not np.array_equal(by_rank[0][0], by_rank[0][1])


def test_received_bytes_are_those_of_one_interface(tmp_path: Path) -> None:
    counters = tmp_path / "dev"
    counters.write_text("Inter-|   Receive\n face |bytes packets\n    lo:  11 1\n  eth0: 123456 7 0\n")
    assert loops.received_bytes("eth0", counters) == 123_456
    assert loops.received_bytes("", counters) == 0
    with pytest.raises(ValueError, match="eth1"):
        loops.received_bytes("eth1", counters)


def test_tasks_and_results_survive_the_way_between_processes() -> None:
    one = task.Task("exact", "http://127.0.0.1:1", "data", "x/", 8, 8, 2, 1, 0, 64, 0.5, "eth0")
    assert task.Task.from_json(one.to_json()) == one
    result = task.Result(epochs=[task.Epoch(samples=3)], counts={"hedges": 1.0}, met_s=0.5, messages=["a"])
    assert task.Result.from_json(result.to_json()) == result


def test_a_row_of_the_table_has_the_spread_and_the_counts() -> None:
    found = [
        run(
            "nodes_2",
            "exact",
            at,
            seconds=seconds,
            epoch_1_s=1.0,
            epoch_2_s=2.0,
            origin_samples_1=8.0,
            from_peer=4.0,
        )
        for at, seconds in enumerate((1, 3))
    ]
    row = table.markdown(Runs(found)).splitlines()[2]
    assert row.startswith("| nodes_2 | exact | 1 | 2.00 (1.00 to 3.00) |  | 1.00, 2.00 |")
    assert "| 8 | 4 |" in row
