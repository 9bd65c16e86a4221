# SPDX-License-Identifier: Apache-2.0
"""Trace here, predict there: what a run folder tells, what it does not, and what becomes of it on another machine."""

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
    written,
)

from foresee import predict
from foresee.cli import main
from foresee.errors import ConfigError
from foresee.jobspec import profile


def there(origin: float = 500.0) -> profile.Profile:
    return profile.loads(THERE.format(origin=origin))


def test_a_trace_tells_the_runs_shape_and_what_a_step_computes(tmp_path: Path) -> None:
    trace = predict.read(folder(tmp_path, run()))
    assert (trace.ranks, trace.epochs, trace.steps, trace.batch) == (RANKS, EPOCHS, STEPS, BATCH)
    assert (trace.samples, trace.drop_last, trace.order) == (40, False, "distributed")
    assert trace.sizes.tolist() == [SIZE + one for one in range(40)]
    assert trace.compute.tolist() == pytest.approx([COMPUTE_NS / 1e9] * EPOCHS * (STEPS - 1))
    assert trace.waits == pytest.approx({"origin_read": RANKS * EPOCHS * STEPS * WAIT_NS / 1e9})
    assert trace.epoch_s == pytest.approx([STEPS * (WAIT_NS + COMPUTE_NS) / 1e9] * EPOCHS)
    assert (trace.fetches, trace.preprocess_rate, trace.limits) == (BATCH, None, ())


def test_waiting_for_other_ranks_is_no_computing(tmp_path: Path) -> None:
    """Rank 0 has its batches early and waits for rank 1 within its steps: only rank 1 tells what a step computes."""
    trace = predict.read(folder(tmp_path, run(slow=9 * MS)))
    assert trace.compute.tolist() == pytest.approx([COMPUTE_NS / 1e9] * EPOCHS * (STEPS - 1))


def test_ascending_samples_are_a_sequential_order(tmp_path: Path) -> None:
    made: dict[int, list[dict[str, Any]]] = {0: []}
    for step in range(3):
        made[0].append(entry(0, 0, step, "wait", start_ns=step * 5 * MS, duration_ns=MS))
        made[0] += [
            entry(0, 0, step, "read", subject="sample", subject_id=step * BATCH + nth, bytes=SIZE, samples=1)
            for nth in range(BATCH)
        ]
    assert predict.read(folder(tmp_path, made)).order == "sequential"


def test_what_ledgers_leave_open_is_told(tmp_path: Path) -> None:
    made = run(epochs=1)
    written(tmp_path / "ledger" / "rank-2.arrow", made[1])
    tensor = [entry(0, 0, 0, "wait", subject="tensor", subject_id=0, cause="gradient")]
    written(tmp_path / "ledger" / "rank-0.arrow", tensor)
    written(tmp_path / "ledger" / "rank-0.2.arrow", made[0])
    written(tmp_path / "ledger" / "rank-0.3.arrow", made[0], cut=40)
    trace = predict.read(tmp_path)
    assert trace.ranks == 3
    told = "\n".join(trace.limits)
    assert "rank 1 left no ledger" in told
    assert "rank-0.3.arrow ends early" in told
    assert "rank-0.3.arrow: of a further loader" in told
    assert "data.samples" in told


def test_a_run_that_was_broken_off_says_how_its_samples_were_counted(tmp_path: Path) -> None:
    made = {rank: entries[:-3] for rank, entries in run(epochs=1).items()}
    trace = predict.read(folder(tmp_path, made))
    assert trace.epoch_s == () or len(trace.epoch_s) == 1
    assert trace.samples <= 40


def test_decoding_is_a_rate_of_its_own(tmp_path: Path) -> None:
    made = run()
    made[0].append(entry(0, 0, 0, "decode", bytes=10**6, duration_ns=10 * MS))
    asked = predict.task(predict.read(folder(tmp_path, made)), there())
    assert asked.job.train.preprocess_rate == pytest.approx(1e8)
    assert "train.preprocess_rate" not in asked.untold


def test_a_run_that_only_computes_takes_its_steps_there(tmp_path: Path) -> None:
    trace = predict.read(folder(tmp_path, run()))
    asked = predict.task(trace, there(), compute_factor=0.5)
    (perfect,) = predict.predict(asked, ["perfect"])
    assert perfect.total_s is not None
    assert perfect.total_s.value == pytest.approx(EPOCHS * STEPS * COMPUTE_NS / 2e9, rel=0.01)
    assert asked.job.cluster.tiers[0].name == "ram"
    assert len(asked.job.cluster.tiers) == 1, "nobody measured the disk's room"
    made = predict.predict(asked)
    assert all(each.reason is not None or each.total_s is not None for each in made)
    assert {each.policy for each in made} >= {"naive", "foresee", "nopfs"}


def test_a_folder_there_serves_reads_one_after_the_other_and_anything_else_shares(tmp_path: Path) -> None:
    """What a page cache answers is measured of folders alone."""
    trace = predict.read(folder(tmp_path, run()))
    cached = '[[figure]]\nname = "origin.cached_read"\nat = 1\nvalue = 2.0\nunit = "GB/s"\n'
    of_folder = profile.loads(THERE.format(origin=500.0) + cached)
    assert predict.task(trace, of_folder).job.cluster.origin.readers == "queue"
    assert predict.task(trace, there()).job.cluster.origin.readers == "demand"


def scattered() -> dict[int, list[dict[str, Any]]]:
    """A run whose samples scatter as pictures do: half of them small, a few ten times as large."""
    made = run()
    for entries in made.values():
        for one in entries:
            if one["op"] == "read":
                one["bytes"] = 20_000 + 10_000 * one["subject_id"] ** 2 // 30
    return made


def test_sizes_and_computing_are_those_of_the_trace(tmp_path: Path) -> None:
    """Sizes that scatter widely are neither larger there than here, nor does a step compute longer for it."""
    trace = predict.read(folder(tmp_path, scattered()))
    assert trace.sizes.std() > 0.8 * trace.sizes.mean()
    asked = predict.task(trace, there())
    (perfect, naive) = predict.predict(asked, ["perfect", "naive"])
    assert perfect.report is not None
    assert naive.report is not None
    assert perfect.report.compute_s == pytest.approx(RANKS * EPOCHS * STEPS * COMPUTE_NS / 1e9, rel=0.001)
    assert naive.report.origin_bytes == EPOCHS * int(trace.sizes.sum())
    assert "data.index" not in asked.untold


def test_sizes_that_no_ledger_has_are_drawn_from_those_of_the_others(tmp_path: Path) -> None:
    made = scattered()
    without = {
        rank: [one for one in each if one["subject_id"] not in (3, 5, 39)] for rank, each in made.items()
    }
    asked = predict.task(predict.read(folder(tmp_path, without)), there())
    assert "sizes of 3 samples" in asked.untold["data.index"]
    whole = predict.read(folder(tmp_path / "whole", made))
    assert asked.sizes is not None
    assert np.flatnonzero(asked.sizes != whole.sizes).tolist() == [3, 5, 39]
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[data]\nsize = "1 KB"\n')
    assert predict.task(whole, there(), job_file=file).sizes is None
    file.write_text("version = 1\n[data]\nsamples = 30\n")
    fewer = predict.task(whole, there(), job_file=file)
    assert fewer.sizes is not None
    assert fewer.sizes.tolist() == whole.sizes[:30].tolist()


def test_ranks_share_the_memory_of_the_machine_that_is_asked_about(tmp_path: Path) -> None:
    """2 MB for two ranks; a job file may say that each has a machine of its own, or that there are four."""
    trace = predict.read(folder(tmp_path, run()))
    asked = predict.task(trace, there())
    assert asked.job.cluster.tiers[0].capacity == 1_000_000
    assert "2 ranks share a node" in asked.untold["cluster.ranks_per_machine"]
    file = tmp_path / "job.toml"
    for text, room in (
        ("ranks_per_machine = 1", 2_000_000),
        ("ranks = 4", 500_000),
        ("ranks = 1", 2_000_000),
    ):
        file.write_text(f"version = 1\n[cluster]\n{text}\n")
        alone = predict.task(trace, there(), job_file=file)
        assert alone.job.cluster.tiers[0].capacity == room
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


def test_who_downloads_one_after_the_other_has_the_rate_of_one_request(tmp_path: Path) -> None:
    """A latency is that of a small read; of a large sample the bytes are what takes long."""
    made = run(epochs=1)
    for entries in made.values():
        for one in entries:
            if one["op"] == "read":
                one["bytes"] = 2_000_000
    trace = predict.read(folder(tmp_path, made))
    remote = profile.loads(THERE.format(origin=50.0) + REMOTE)
    (direct,) = predict.predict(predict.task(trace, remote), ["direct"])
    assert direct.report is not None
    # Two ranks, so two requests: between 50 MB/s of one and 400 MB/s of 32.
    rate = 50e6 + (400e6 - 50e6) / 31
    waited = RANKS * STEPS * BATCH * (0.02 + 2e6 / (rate / 2))
    assert direct.report.stall_s == pytest.approx(waited, rel=0.01)
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[cluster.origin]\nread = "10 MB/s"\n')
    (told,) = predict.predict(predict.task(trace, remote, job_file=file), ["direct"])
    assert told.report is not None
    assert told.report.stall_s == pytest.approx(RANKS * STEPS * BATCH * (0.02 + 2e6 / 5e6), rel=0.01)


def test_a_slower_origin_takes_longer_there_and_intervals_hold_their_value(tmp_path: Path) -> None:
    made = run()
    for number, one in enumerate(made[1]):
        if one["op"] == "wait" and number % 3 == 0:
            one["duration_ns"] += 5 * MS
    trace = predict.read(folder(tmp_path, made))
    totals = []
    for origin in (500.0, 20.0, 2.0):
        (each,) = predict.predict(predict.task(trace, there(origin)), ["foresee"])
        assert each.total_s is not None
        assert each.total_s.low <= each.total_s.value <= each.total_s.high
        totals.append(each.total_s.value)
    assert totals == sorted(totals)
    assert totals[0] < totals[2]


def test_a_job_file_goes_before_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        'version = 1\n[train]\nepochs = 1\ncompute_rate = "1 MB/s"\n[data]\nsize = "1 KB"\n'
        '[cluster.staging]\nthreads = 2\ncapacity = "3 MB"\n[cluster]\nprofile = "nowhere.toml"\n'
    )
    trace = predict.read(folder(tmp_path, run()))
    asked = predict.task(trace, there(), job_file=file)
    job = asked.job
    assert (job.train.epochs, job.train.batch, job.data.size, job.data.size_sigma) == (1, BATCH, 1000, 0)
    assert job.cluster.staging is not None
    assert (job.cluster.staging.threads, job.cluster.staging.capacity) == (2, 3_000_000)
    assert asked.compute_s is None
    (perfect,) = predict.predict(asked, ["perfect"])
    assert perfect.total_s is not None
    assert perfect.total_s.value == pytest.approx(STEPS * BATCH * 1000 / 1e6)
    assert perfect.later_epoch_s is None
    with pytest.raises(ConfigError, match="compute_factor=2 is given"):
        predict.task(trace, there(), job_file=file, compute_factor=2)


@properties(soak=25)
@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=40))
def test_an_interval_is_repeatable_and_within_the_values(values: list[float]) -> None:
    array = np.array(values)
    low, high = predict.interval(array)
    assert min(values) <= low * (1 + 1e-12)
    assert low <= high <= max(values) * (1 + 1e-12)
    assert predict.interval(array) == (low, high)


@pytest.mark.parametrize("factor", [0, -1.0, float("nan"), float("inf"), "2"])
def test_a_wrong_factor_is_shown(tmp_path: Path, factor: Any) -> None:
    trace = predict.read(folder(tmp_path, run()))
    with pytest.raises(ConfigError, match="compute_factor="):
        predict.task(trace, there(), compute_factor=factor)


def test_runs_that_tell_too_little_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder ledger"):
        predict.read(tmp_path)
    tensor = entry(0, 0, 0, "wait", subject="tensor", subject_id=0, cause="gradient")
    for name, entries, told in (
        ("gradients", [tensor], "no wait for a batch"),
        ("nothing", [], "no wait for a batch"),
        ("one", [entry(0, 0, 0, "wait")], "no two consecutive steps"),
        ("hits", [entry(0, 0, step, "wait", start_ns=step) for step in (0, 1)], "read individually"),
    ):
        written(tmp_path / name / "ledger" / "rank-0.arrow", entries)
        with pytest.raises(ConfigError, match=told):
            predict.read(tmp_path / name)


def test_what_nobody_measured_is_named(tmp_path: Path) -> None:
    bare = profile.loads('version = 1\nmachine = "a"\ndate = 2026-11-22')
    asked = predict.task(predict.read(folder(tmp_path, run())), bare)
    assert "nothing is cached" in asked.untold["cluster.tiers"]
    with pytest.raises(ConfigError, match=r"cluster\.origin\.read is missing"):
        predict.predict(asked, ["naive"])


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
    ("arguments", "told"),
    [
        (["--policies", "best"], "--policies best"),
        (["--plot", "x.gif"], "one of the suffixes .svg, .png, .pdf"),
        (["--compute-factor", "0"], "compute_factor=0"),
        (["--profile", "nothing.toml"], "nothing.toml"),
        (["--job", "nothing.toml"], "nothing.toml"),
    ],
)
def test_bad_input_ends_with_2(tmp_path: Path, capsys: Any, arguments: list[str], told: str) -> None:
    traced = str(folder(tmp_path, run()))
    (tmp_path / "there.toml").write_text(THERE.format(origin=5.0))
    assert main(["predict", traced, "--profile", str(tmp_path / "there.toml"), *arguments]) == 2
    assert told in capsys.readouterr().err
