# SPDX-License-Identifier: Apache-2.0
"""The simulator through Python: sums, bounds, and refused arguments."""

from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.house import ROOT
from support.properties import properties
from support.small_job import SMALL, small

from foresee import jobspec
from foresee.errors import ConfigError, Unsupported
from foresee.jobspec import vary
from foresee.planning import simulation

VECTORS = json.loads((ROOT / "testdata" / "models" / "reads.json").read_text())

ORDER_KEPT = ("naive", "staging_buffer", "deepio_ordered", "nopfs", "foresee")


@pytest.mark.parametrize("compat", ["physical", "paper"])
@pytest.mark.parametrize("policy", simulation.POLICIES)
def test_every_second_and_every_read_of_every_rank_is_in_the_report(policy, compat) -> None:
    if policy.startswith("lbann"):
        with pytest.raises(Unsupported, match=r"more than 3 times 60\.0 MB"):
            simulation.Run(small(), policy, compat=compat)
        return
    report = simulation.Run(small(), policy, compat=compat).finish()
    assert report.finished
    spent = report.ranks * report.init_s + report.compute_s + report.stall_s + report.barrier_s
    assert spent == pytest.approx(report.ranks * report.total_s, rel=1e-9)
    assert sum(each.waited_s for each in report.reads) == pytest.approx(report.stall_s, rel=1e-9, abs=1e-9)
    assert len(report.epochs) == 3
    assert report.epochs[-1].end_s == pytest.approx(report.total_s)
    if policy not in {"perfect", "disk"}:
        assert sum(each.samples for each in report.reads) == 3 * 3000
        from_origin = sum(each.bytes for each in (*report.reads, *report.loads) if each.source == "origin")
        assert report.origin_bytes >= from_origin
    assert 0 < report.coverage <= 1


@properties(soak=30)
@given(
    ranks=st.integers(1, 4),
    batch=st.integers(1, 40),
    ram=st.integers(1, 300),
    origin=st.integers(5, 400),
    seed=st.integers(0, 99),
)
def test_no_policy_in_order_beats_perfect_or_the_origin(ranks, batch, ram, origin, seed) -> None:
    job = small(
        cluster__ranks=ranks,
        train__batch=batch,
        train__seed=seed,
        cluster__tiers__ram__capacity=f"{ram} MB",
        cluster__origin__read=f"{origin} MB/s",
    )
    perfect = simulation.Run(job, "perfect").finish().total_s
    for policy in ORDER_KEPT:
        report = simulation.Run(job, policy).finish()
        assert report.total_s >= perfect * (1 - 1e-9), policy
        assert report.total_s >= report.origin_bytes / (origin * 1e6) * (1 - 1e-9), policy


def test_a_run_can_be_reported_and_closed_at_any_time() -> None:
    run = simulation.Run(small(), "foresee")
    assert run.report().total_s == 0
    stages = {run.advance(1)[0] for _ in range(40)}
    report = run.report()
    assert stages <= {"preparing", "training"}
    assert not report.finished
    assert 0 < report.total_s < simulation.Run(small(), "foresee").finish().total_s

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.finish(stop)


def test_an_index_gives_the_sizes(tmp_path) -> None:
    for name, size in (("a", 1000), ("b", 3000), ("c", 5000)):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_bytes(b"x" * size)
    from foresee._native import Index

    Index.build(str(tmp_path / "data"), layout="flat").save(tmp_path / "data.fidx")
    table = SMALL.replace(
        'samples = 3000\nsize = "100 KB"\nsize_sigma = "30 KB"', f'index = "{tmp_path}/data.fidx"'
    )
    report = simulation.Run(jobspec.loads(table), "staging_buffer").finish()
    assert report.origin_bytes == 3 * 9000


def test_all_missing_keys_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        simulation.Run(jobspec.loads("version = 1\n[train]\nbatch = 3"), "foresee")
    text = str(caught.value)
    for key in ("train.epochs", "cluster.ranks", "cluster.staging", "data.samples", "cluster.origin.read"):
        assert f"{key} is missing" in text
    sparse = jobspec.loads(
        "version = 1\n[train]\nbatch = 3\nepochs = 1\n[cluster]\nranks = 1\n[cluster.staging]\ncapacity = 9"
    )
    with pytest.raises(ConfigError) as caught:
        simulation.Run(sparse, "fifty_fifty")
    for key in ("data.samples", "train.compute_rate", "cluster.origin.read", "cluster.origin.latency"):
        assert f"{key} is missing" in str(caught.value)


def test_impossible_machines_are_refused_by_field_and_rule() -> None:
    with pytest.raises(ConfigError, match="at most one rank per sample"):
        small(cluster__ranks=4000)
    with pytest.raises(ConfigError, match="policy='nofps'; one of perfect"):
        simulation.Run(small(), "nofps")
    with pytest.raises(ConfigError, match="readers"):
        simulation.Run(small(cluster__origin__readers="active"), "foresee", compat="paper")
    with pytest.raises(ConfigError, match=r"ranks times training\.batch"):
        simulation.Run(small(train__batch=2000, train__drop_last=True), "foresee")
    with pytest.raises(Unsupported, match="lbann_dynamic has no answer") as caught:
        simulation.Run(small(), "lbann_dynamic")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.policy, str(again)) == ("lbann_dynamic", str(caught.value))


@pytest.mark.parametrize("case", VECTORS["expected_above"], ids=lambda case: case["id"])
def test_reads_follow_the_vectors_that_the_core_follows(case) -> None:
    often = simulation.read_often(
        ranks=case["ranks"],
        epochs=case["epochs"],
        samples=case["samples"],
        delta=case["delta"],
        compat=case["compat"],
    )
    assert often == (case["reads"], pytest.approx(case["expected"], rel=case["tolerance"]))


def test_reads_without_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match="ranks"):
        simulation.read_often(ranks=0, epochs=1, samples=1, delta="0")
    with pytest.raises(ConfigError, match=r"-0\.5"):
        simulation.read_often(ranks=1, epochs=1, samples=1, delta="-0.5")


def test_a_drawn_order_is_near_the_expected_numbers() -> None:
    expected = simulation.reads_by_count(ranks=16, epochs=90, samples=200_000)
    drawn = simulation.reads_by_count(ranks=16, epochs=90, samples=200_000, seed=7)
    assert drawn.sum() == 200_000
    assert expected.sum() == pytest.approx(200_000)
    assert np.abs(drawn - expected).max() < 6 * np.sqrt(expected.max())
    with pytest.raises(ConfigError, match=r"below 2\^32"):
        simulation.reads_by_count(ranks=2, epochs=2, samples=2**32, seed=1)


def test_a_job_is_varied_by_the_keys_of_its_file() -> None:
    job = small(cluster__tiers__disk__capacity="1 GB", train__epochs=7)
    assert [tier.capacity for tier in job.cluster.tiers] == [60_000_000, 10**9]
    assert job.train.epochs == 7
    assert small() == jobspec.loads(SMALL)
    points = list(vary.points(small(), {"train.batch": [1, 2], "train.epochs": [3, 4, 5]}))
    assert [values for values, _ in points] == [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]
    assert [dataclasses.astuple(job.train)[:2] for _, job in points] == [values for values, _ in points]
    for key, result in (
        ("train.bach", "no key 'bach' there; one of batch"),
        ("cluster.tiers.rma.capacity", "no tier 'rma'; this job has ram, disk"),
        ("train.batch.size", "batch has no keys below it"),
        ("cluster.tiers.ram", "no tier 'ram'"),
    ):
        with pytest.raises(ConfigError, match=result):
            vary.with_value(small(), key, 1)
    with pytest.raises(ConfigError, match="batch"):
        vary.with_value(small(), "train.batch", 0)
    with pytest.raises(ConfigError, match="no values to sweep"):
        list(vary.points(small(), {"train.batch": []}))


def test_a_rank_waits_for_whole_batches_if_they_are_delivered_whole() -> None:
    given = jobspec.loads(SMALL)
    by_sample = simulation.Run(given, "staging_buffer").finish()
    by_batch = simulation.Run(given, "staging_buffer", hand_over="batch").finish()
    assert by_batch.origin_bytes == by_sample.origin_bytes
    assert by_batch.total_s > by_sample.total_s
    assert by_batch.ranks * by_batch.total_s == pytest.approx(
        by_batch.compute_s + by_batch.stall_s + by_batch.barrier_s
    )
    with pytest.raises(ConfigError, match=r"options\.hand_over is batch; it must be sample"):
        simulation.Run(given, "staging_buffer", hand_over="batch", compat="paper")
    with pytest.raises(ConfigError, match="hand_over='step'; one of sample, batch"):
        simulation.Run(given, "staging_buffer", hand_over="step")  # type: ignore[arg-type]


def test_latency_slows_sequential_readers() -> None:
    near, far = (jobspec.loads(SMALL.replace('latency = "2 ms"', f'latency = "{ms} ms"')) for ms in (10, 60))
    naive = [simulation.Run(each, "naive").finish() for each in (near, far)]
    assert naive[1].stall_s - naive[0].stall_s == pytest.approx(9000 * 0.05)
    paper = [simulation.Run(each, "naive", compat="paper").finish() for each in (near, far)]
    assert paper[0] == paper[1]


@pytest.mark.parametrize("readers", ["all", "demand", "queue"])
def test_an_origin_limits_requests_per_second(readers) -> None:
    given = small(cluster__origin__readers=readers)
    limited = small(cluster__origin__readers=readers, cluster__origin__requests=50)
    for policy in ("naive", "staging_buffer", "foresee"):
        free, held = (simulation.Run(each, policy).finish() for each in (given, limited))
        assert held.origin_requests == free.origin_requests
        assert held.total_s >= max(free.total_s, held.origin_requests / 50 * (1 - 1e-9))
    if readers == "all":
        to_the_letter = [simulation.Run(each, "naive", compat="paper").finish() for each in (given, limited)]
        assert to_the_letter[0] == to_the_letter[1]


@pytest.mark.parametrize("sigma", ["0 B", "30 KB", "100 KB", "300 KB"])
def test_a_step_takes_its_given_time_for_any_drawn_sizes(sigma) -> None:
    """Sizes of 0 and less are redrawn, so the mean of the reads differs from that of the distribution."""
    text = SMALL.replace('compute_rate = "40 MB/s"', 'compute_step = "50 ms"').replace(
        'size_sigma = "30 KB"', f'size_sigma = "{sigma}"'
    )
    report = simulation.Run(
        jobspec.loads(text.replace("samples = 3000", "samples = 60000")), "perfect"
    ).finish()
    # Three ranks, batches of twenty, three epochs.
    assert report.compute_s == pytest.approx(3 * 3 * 1000 * 0.05, rel=0.005)


def test_given_sizes_are_simulated_and_a_step_takes_its_given_time() -> None:
    sizes = np.random.default_rng(1).integers(1, 500_000, 3000).astype(np.uint64)
    given = jobspec.loads(SMALL.replace('compute_rate = "40 MB/s"', 'compute_step = "50 ms"'))
    report = simulation.Run(given, "staging_buffer", sizes=sizes).finish()
    assert report.origin_bytes == 3 * int(sizes.sum())
    assert report.compute_s == pytest.approx(3 * 3 * 50 * 0.05)
    for wrong in (sizes[1:], sizes.reshape(2, -1)):
        with pytest.raises(ConfigError, match=r"data\.samples = 3000"):
            simulation.Run(given, "staging_buffer", sizes=wrong)


@pytest.mark.parametrize("policy", ["direct", "cache", "full_fetch", "fifty_fifty"])
def test_no_window_exceeds_the_rate_of_the_origin(policy) -> None:
    """A profile's latency is that of a small read; the bytes take additional time."""
    given = small(data__size="2 MB", data__size_sigma="0 B", cache__window__capacity=4000)
    report = simulation.Run(given, policy).finish()
    assert report.total_s >= report.origin_bytes / 90e6


def bucket_of(given: jobspec.Job, policy: str = "fifty_fifty", **options: str) -> dict[str, int]:
    return simulation.scenario_of(given, policy, **options)["bucket"]


def test_a_miss_is_a_latency_and_its_own_bytes_and_a_download_shares_the_rate_with_fifteen_more() -> None:
    given = small(data__size="2 MB", data__size_sigma="0 B", cluster__ranks=1)
    result = bucket_of(given)
    assert result["miss_ns"] == pytest.approx(2e6 + 2e6 / 50e6 * 1e9)
    assert result["download_ns"] == pytest.approx(2e6 + 16 * 2e6 / 50e6 * 1e9)
    assert result["link_ns"] == pytest.approx(2e6 / 50e6 * 1e9)
    linked = vary.with_value(given, "cluster.origin.link", "10 MB/s")
    assert bucket_of(linked, "direct")["miss_ns"] == pytest.approx(2e6 + 0.2e9)
    paper = bucket_of(given, compat="paper")
    assert (paper["miss_ns"], paper["download_ns"], paper["link_ns"]) == (2e6, 2e6, 0)
    bare = jobspec.loads(SMALL.replace('read = {1 = "50 MB/s", 3 = "90 MB/s"}', ""))
    assert bucket_of(bare)["miss_ns"] == bucket_of(bare)["download_ns"] == 2e6


def test_given_times_of_a_miss_and_of_a_download_need_neither_rate_nor_latency() -> None:
    table = SMALL.replace('read = {1 = "50 MB/s", 3 = "90 MB/s"}', "").replace('latency = "2 ms"', "")
    timed = jobspec.loads(f'{table}miss_time = "60 ms"\ndownload_time = "175 ms"\n')
    result = bucket_of(timed)
    assert (result["miss_ns"], result["download_ns"], result["link_ns"]) == (60e6, 175e6, 0)
    assert not simulation.missing(timed, "fifty_fifty")
    lone = jobspec.loads(f'{table}miss_time = "60 ms"\n')
    assert not simulation.missing(lone, "direct")
    assert any("miss_time and download_time" in fault for fault in simulation.missing(lone, "fifty_fifty"))


def test_a_miss_of_the_deli_paper_pays_its_own_download() -> None:
    """CIFAR-10 with the latencies of Table I: of a sample of 3,072 bytes, 61.7 ms alone and 174.5 ms as one of 16."""
    table = """
    version = 1
    data = {samples = 35_000, size = 3_072}
    train = {batch = 512, epochs = 1, compute_step = 6.4}
    [cluster]
    ranks = 3
    staging = {capacity = "1 GB"}
    [cache.window]
    miss_time = "61.7 ms"
    download_time = "174.5 ms"
    fetch = 1024
    capacity = 1024
    """

    def missed(policy: str, capacity: int) -> float:
        requested = vary.with_value(jobspec.loads(table), "cache.window.capacity", capacity)
        reads = simulation.Run(requested, policy, order="distributed").finish().reads
        return reads[0].samples / sum(each.samples for each in reads)

    assert missed("full_fetch", 1024) == pytest.approx(0.178, abs=0.001)
    assert missed("fifty_fifty", 2048) == pytest.approx(0.016, abs=0.001)
    assert missed("full_fetch", 512) == pytest.approx(0.488, abs=0.002)


@pytest.mark.parametrize("policy", ["full_fetch", "fifty_fifty"])
@pytest.mark.parametrize("compute", ["40 MB/s", "4 GB/s"])
def test_misses_and_prefetches_together_do_not_exceed_the_origin(policy, compute) -> None:
    given = small(data__size="2 MB", data__size_sigma="0 B", train__compute_rate=compute)
    report = simulation.Run(given, policy).finish()
    assert report.total_s >= report.origin_bytes / 90e6
