# SPDX-License-Identifier: Apache-2.0
"""Predictions for another machine: the facts that a run folder gives, those that it lacks, and the predicted run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pictures import texts
from support.properties import properties
from support.traced_runs import (
    BATCH,
    COMPUTE_NS,
    EPOCHS,
    MS,
    RANKS,
    SIZE,
    STEPS,
    THERE,
    WAIT_NS,
    entry,
    folder,
    run,
    through_node,
    written,
)

from foresee import predict
from foresee.cli import main
from foresee.errors import ConfigError
from foresee.jobspec import profile


def target_profile(origin: float = 500.0) -> profile.Profile:
    return profile.loads(THERE.format(origin=origin))


def test_a_trace_gives_the_shape_of_the_run_and_the_compute_time_of_a_step(tmp_path: Path) -> None:
    trace = predict.read(folder(tmp_path, run()))
    assert (trace.ranks, trace.epochs, trace.steps, trace.batch) == (RANKS, EPOCHS, STEPS, BATCH)
    assert (trace.samples, trace.drop_last, trace.order) == (40, False, "distributed")
    assert trace.sizes.tolist() == [SIZE + one for one in range(40)]
    assert trace.compute.tolist() == pytest.approx([COMPUTE_NS / 1e9] * EPOCHS * (STEPS - 1))
    assert trace.waits == pytest.approx({"origin_read": RANKS * EPOCHS * STEPS * WAIT_NS / 1e9})
    assert trace.epoch_s == pytest.approx([STEPS * (WAIT_NS + COMPUTE_NS) / 1e9] * EPOCHS)
    assert (trace.fetches, trace.preprocess_rate, trace.limits) == (BATCH, None, ())


def test_waiting_for_other_ranks_does_not_count_as_computing(tmp_path: Path) -> None:
    """Rank 0 has its batches early and waits for rank 1 in its steps: only rank 1 gives the compute time."""
    trace = predict.read(folder(tmp_path, run(slow=9 * MS)))
    assert trace.compute.tolist() == pytest.approx([COMPUTE_NS / 1e9] * EPOCHS * (STEPS - 1))


def test_ascending_samples_are_a_sequential_order(tmp_path: Path) -> None:
    entries_by_rank: dict[int, list[dict[str, Any]]] = {0: []}
    for step in range(3):
        entries_by_rank[0].append(entry(0, 0, step, "wait", start_ns=step * 5 * MS, duration_ns=MS))
        entries_by_rank[0] += [
            entry(0, 0, step, "read", subject="sample", subject_id=step * BATCH + nth, bytes=SIZE, samples=1)
            for nth in range(BATCH)
        ]
    assert predict.read(folder(tmp_path, entries_by_rank)).order == "sequential"


def test_missing_facts_of_ledgers_are_reported(tmp_path: Path) -> None:
    entries_by_rank = run(epochs=1)
    written(tmp_path / "ledger" / "rank-2.arrow", entries_by_rank[1])
    tensor = [entry(0, 0, 0, "wait", subject="tensor", subject_id=0, cause="gradient")]
    written(tmp_path / "ledger" / "rank-0.arrow", tensor)
    written(tmp_path / "ledger" / "rank-0.2.arrow", entries_by_rank[0])
    written(tmp_path / "ledger" / "rank-0.3.arrow", entries_by_rank[0], cut=40)
    trace = predict.read(tmp_path)
    assert trace.ranks == 3
    limits = "\n".join(trace.limits)
    assert "rank 1 left no ledger" in limits
    assert "rank-0.3.arrow ends early" in limits
    assert "rank-0.3.arrow: of a further loader" in limits
    assert "data.samples" in limits


NODE = {"foresee.node.id": "a", "foresee.node.role": "rank_consumer"}


def test_a_run_through_the_cache_of_a_node_has_mean_sizes(tmp_path: Path) -> None:
    trace = predict.read(folder(tmp_path, through_node(run()), NODE))
    assert (trace.node_cache, trace.samples, trace.order, trace.fetches) == (True, 40, "distributed", BATCH)
    assert (trace.sizes.tolist(), trace.ids.tolist()) == ([SIZE], [])
    assert "whole batches through the cache of their node" in "\n".join(trace.limits)
    task = predict.task(trace, target_profile())
    assert (task.node_cache, task.sizes, task.job.data.size) == (True, None, SIZE)
    assert "the ranks of a node share theirs, as traced" in task.untold["cluster.tiers"]
    assert not predict.task(trace, target_profile(), node_cache=False).node_cache


def test_ranks_that_share_the_cache_of_a_node_read_the_origin_once(tmp_path: Path) -> None:
    trace = predict.read(folder(tmp_path, run()))
    assert not trace.node_cache
    reports = {}
    for node_cache in (None, True):
        (forecast,) = predict.predict(
            predict.task(trace, target_profile(), node_cache=node_cache), ["foresee"]
        )
        assert forecast.report is not None
        reports[node_cache] = forecast.report
    # 2 MB of memory in the node: 20 of 40 samples, for each rank 10 without sharing.
    assert reports[True].epochs[0].origin_samples == 40
    assert reports[True].origin_bytes < reports[None].origin_bytes


def test_an_interrupted_run_gives_a_trace(tmp_path: Path) -> None:
    entries_by_rank = {rank: entries[:-3] for rank, entries in run(epochs=1).items()}
    trace = predict.read(folder(tmp_path, entries_by_rank))
    assert trace.epoch_s == () or len(trace.epoch_s) == 1
    assert trace.samples <= 40


def test_decoding_has_its_own_rate(tmp_path: Path) -> None:
    entries_by_rank = run()
    entries_by_rank[0].append(entry(0, 0, 0, "decode", bytes=10**6, duration_ns=10 * MS))
    task = predict.task(predict.read(folder(tmp_path, entries_by_rank)), target_profile())
    assert task.job.train.preprocess_rate == pytest.approx(1e8)
    assert "train.preprocess_rate" not in task.untold


def test_a_perfect_loader_takes_the_compute_time_of_the_steps(tmp_path: Path) -> None:
    trace = predict.read(folder(tmp_path, run()))
    task = predict.task(trace, target_profile(), compute_factor=0.5)
    (perfect,) = predict.predict(task, ["perfect"])
    assert perfect.total_s is not None
    assert perfect.total_s.value == pytest.approx(EPOCHS * STEPS * COMPUTE_NS / 2e9, rel=0.01)
    assert task.job.cluster.tiers[0].name == "ram"
    assert len(task.job.cluster.tiers) == 1, "the profile has no disk capacity"
    predictions = predict.predict(task)
    assert all(each.reason is not None or each.total_s is not None for each in predictions)
    assert {each.policy for each in predictions} >= {"naive", "foresee", "nopfs"}


def test_a_folder_serves_one_read_at_a_time_and_other_origins_share_their_rate(tmp_path: Path) -> None:
    """Only profiles of folders have a page cache rate."""
    trace = predict.read(folder(tmp_path, run()))
    cached = '[[figure]]\nname = "origin.cached_read"\nat = 1\nvalue = 2.0\nunit = "GB/s"\n'
    of_folder = profile.loads(THERE.format(origin=500.0) + cached)
    assert predict.task(trace, of_folder).job.cluster.origin.readers == "queue"
    assert predict.task(trace, target_profile()).job.cluster.origin.readers == "demand"


def run_with_varying_sizes() -> dict[int, list[dict[str, Any]]]:
    """Return a run with the sizes of pictures: half of them small, a few ten times as large."""
    entries_by_rank = run()
    for entries in entries_by_rank.values():
        for one in entries:
            if one["op"] == "read":
                one["bytes"] = 20_000 + 10_000 * one["subject_id"] ** 2 // 30
    return entries_by_rank


def test_sizes_and_compute_times_equal_those_of_the_trace(tmp_path: Path) -> None:
    """Widely varying sizes change neither the predicted bytes nor the compute time of a step."""
    trace = predict.read(folder(tmp_path, run_with_varying_sizes()))
    assert trace.sizes.std() > 0.8 * trace.sizes.mean()
    task = predict.task(trace, target_profile())
    (perfect, naive) = predict.predict(task, ["perfect", "naive"])
    assert perfect.report is not None
    assert naive.report is not None
    assert perfect.report.compute_s == pytest.approx(RANKS * EPOCHS * STEPS * COMPUTE_NS / 1e9, rel=0.001)
    assert naive.report.origin_bytes == EPOCHS * int(trace.sizes.sum())
    assert "data.index" not in task.untold


def test_unknown_sizes_are_drawn_from_the_known_ones(tmp_path: Path) -> None:
    entries_by_rank = run_with_varying_sizes()
    without = {
        rank: [one for one in each if one["subject_id"] not in (3, 5, 39)]
        for rank, each in entries_by_rank.items()
    }
    task = predict.task(predict.read(folder(tmp_path, without)), target_profile())
    assert "sizes of 3 samples" in task.untold["data.index"]
    whole = predict.read(folder(tmp_path / "whole", entries_by_rank))
    assert task.sizes is not None
    assert np.flatnonzero(task.sizes != whole.sizes).tolist() == [3, 5, 39]
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[data]\nsize = "1 KB"\n')
    assert predict.task(whole, target_profile(), job_file=file).sizes is None
    file.write_text("version = 1\n[data]\nsamples = 30\n")
    fewer = predict.task(whole, target_profile(), job_file=file)
    assert fewer.sizes is not None
    assert fewer.sizes.tolist() == whole.sizes[:30].tolist()


def test_ranks_share_the_memory_of_the_target_node(tmp_path: Path) -> None:
    """2 MB for two ranks; a job file may configure one rank per node, or four ranks."""
    trace = predict.read(folder(tmp_path, run()))
    task = predict.task(trace, target_profile())
    assert task.job.cluster.tiers[0].capacity == 1_000_000
    assert "2 ranks share a node" in task.untold["cluster.ranks_per_machine"]
    file = tmp_path / "job.toml"
    for text, capacity in (
        ("ranks_per_machine = 1", 2_000_000),
        ("ranks = 4", 500_000),
        ("ranks = 1", 2_000_000),
    ):
        file.write_text(f"version = 1\n[cluster]\n{text}\n")
        alone = predict.task(trace, target_profile(), job_file=file)
        assert alone.job.cluster.tiers[0].capacity == capacity
        assert ("cluster.ranks_per_machine" in alone.untold) == (text == "ranks = 4")


REMOTE = """
[[figure]]
name = "origin.latency"
at = 1
value = 20.0
unit = "ms"
[[figure]]
name = "origin.read"
at = 32
value = 400.0
unit = "MB/s"
"""


def test_sequential_downloads_have_the_rate_of_one_request(tmp_path: Path) -> None:
    """The latency is that of a small read; for a large sample the transfer dominates."""
    entries_by_rank = run(epochs=1)
    for entries in entries_by_rank.values():
        for one in entries:
            if one["op"] == "read":
                one["bytes"] = 2_000_000
    trace = predict.read(folder(tmp_path, entries_by_rank))
    remote = profile.loads(THERE.format(origin=50.0) + REMOTE)
    (direct,) = predict.predict(predict.task(trace, remote), ["direct"])
    assert direct.report is not None
    # Two ranks, so two requests: between the 50 MB/s of one request and the 400 MB/s of 32.
    rate = 50e6 + (400e6 - 50e6) / 31
    waited = RANKS * STEPS * BATCH * (0.02 + 2e6 / (rate / 2))
    assert direct.report.stall_s == pytest.approx(waited, rel=0.01)
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[cluster.origin]\nread = "10 MB/s"\n')
    (configured,) = predict.predict(predict.task(trace, remote, job_file=file), ["direct"])
    assert configured.report is not None
    assert configured.report.stall_s == pytest.approx(RANKS * STEPS * BATCH * (0.02 + 2e6 / 5e6), rel=0.01)


def test_a_slower_origin_takes_longer_and_intervals_contain_their_value(tmp_path: Path) -> None:
    entries_by_rank = run()
    for number, one in enumerate(entries_by_rank[1]):
        if one["op"] == "wait" and number % 3 == 0:
            one["duration_ns"] += 5 * MS
    trace = predict.read(folder(tmp_path, entries_by_rank))
    totals = []
    for origin in (500.0, 20.0, 2.0):
        (each,) = predict.predict(predict.task(trace, target_profile(origin)), ["foresee"])
        assert each.total_s is not None
        assert each.total_s.low <= each.total_s.value <= each.total_s.high
        totals.append(each.total_s.value)
    assert totals == sorted(totals)
    assert totals[0] < totals[2]


def test_a_job_file_takes_precedence_over_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        'version = 1\n[train]\nepochs = 1\ncompute_rate = "1 MB/s"\n[data]\nsize = "1 KB"\n'
        '[cluster.staging]\nthreads = 2\ncapacity = "3 MB"\n[cluster]\nprofile = "nowhere.toml"\n'
    )
    trace = predict.read(folder(tmp_path, run()))
    task = predict.task(trace, target_profile(), job_file=file)
    job = task.job
    assert (job.train.epochs, job.train.batch, job.data.size, job.data.size_sigma) == (1, BATCH, 1000, 0)
    assert job.cluster.staging is not None
    assert (job.cluster.staging.threads, job.cluster.staging.capacity) == (2, 3_000_000)
    assert task.compute_s is None
    (perfect,) = predict.predict(task, ["perfect"])
    assert perfect.total_s is not None
    assert perfect.total_s.value == pytest.approx(STEPS * BATCH * 1000 / 1e6)
    assert perfect.later_epoch_s is None
    with pytest.raises(ConfigError, match="compute_factor=2 is given"):
        predict.task(trace, target_profile(), job_file=file, compute_factor=2)


@properties(soak=25)
@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=40))
def test_an_interval_is_repeatable_and_within_the_values(values: list[float]) -> None:
    array = np.array(values)
    low, high = predict.interval(array)
    assert min(values) <= low * (1 + 1e-12)
    assert low <= high <= max(values) * (1 + 1e-12)
    assert predict.interval(array) == (low, high)


@pytest.mark.parametrize("factor", [0, -1.0, float("nan"), float("inf"), "2"])
def test_an_invalid_factor_is_named(tmp_path: Path, factor: Any) -> None:
    trace = predict.read(folder(tmp_path, run()))
    with pytest.raises(ConfigError, match="compute_factor="):
        predict.task(trace, target_profile(), compute_factor=factor)


def test_runs_with_too_few_facts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder ledger"):
        predict.read(tmp_path)
    tensor = entry(0, 0, 0, "wait", subject="tensor", subject_id=0, cause="gradient")
    for name, entries, expected in (
        ("gradients", [tensor], "no wait for a batch"),
        ("nothing", [], "no wait for a batch"),
        ("one", [entry(0, 0, 0, "wait")], "no two consecutive steps"),
        ("hits", [entry(0, 0, step, "wait", start_ns=step) for step in (0, 1)], "read individually"),
    ):
        written(tmp_path / name / "ledger" / "rank-0.arrow", entries)
        with pytest.raises(ConfigError, match=expected):
            predict.read(tmp_path / name)


def test_missing_measurements_are_named(tmp_path: Path) -> None:
    bare = profile.loads('version = 1\nmachine = "a"\ndate = 2026-11-22')
    task = predict.task(predict.read(folder(tmp_path, run())), bare)
    assert "nothing is cached" in task.untold["cluster.tiers"]
    with pytest.raises(ConfigError, match=r"cluster\.origin\.read is missing"):
        predict.predict(task, ["naive"])


def test_the_command_prints_a_table_one_object_and_a_picture(tmp_path: Path, capsys: Any) -> None:
    traced = str(folder(tmp_path, run()))
    (tmp_path / "there.toml").write_text(THERE.format(origin=5.0))
    arguments = ["predict", traced, "--profile", str(tmp_path / "there.toml")]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "measured here" in table
    assert "train.seed" in table
    picture = tmp_path / "there.svg"
    assert main([*arguments, "--policies", "naive", "nopfs", "--json", "--plot", str(picture)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [one["policy"] for one in facts["policies"]] == ["naive", "nopfs"]
    assert facts["policies"][1]["reason"]
    assert facts["traced"]["compute_step_s"] == pytest.approx(COMPUTE_NS / 1e9)
    assert {"naive", "compute", "init", "seconds"} <= set(texts(picture))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--policies", "best"], "--policies best"),
        (["--plot", "x.gif"], "one of the suffixes .svg, .png, .pdf"),
        (["--compute-factor", "0"], "compute_factor=0"),
        (["--profile", "nothing.toml"], "nothing.toml"),
        (["--job", "nothing.toml"], "nothing.toml"),
    ],
)
def test_invalid_input_exits_with_status_2(
    tmp_path: Path, capsys: Any, arguments: list[str], expected: str
) -> None:
    traced = str(folder(tmp_path, run()))
    (tmp_path / "there.toml").write_text(THERE.format(origin=5.0))
    assert main(["predict", traced, "--profile", str(tmp_path / "there.toml"), *arguments]) == 2
    assert expected in capsys.readouterr().err
