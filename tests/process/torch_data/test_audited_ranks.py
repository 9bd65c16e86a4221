# SPDX-License-Identifier: Apache-2.0
"""``ft.audit`` under torchrun: two ranks detect each usual fault of a distributed run, without false alarms."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from support.audited_ranks import N
from support.gradients import under_torchrun

COUNTS = ("lost", "doubled", "padding", "dropped", "same_on_all_ranks")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The reports of two epochs of each scenario."""
    folder = tmp_path_factory.mktemp("data")
    for kind in "ab":
        (folder / kind).mkdir()
        for i in range(12):
            (folder / kind / f"{i}.jpg").write_bytes(bytes([i]) * 8)
    return {each["name"]: each["reports"] for each in lines(str(folder))}


def lines(*arguments: str) -> list[Any]:
    """Reports of two ranks that end without an error."""
    ranks = under_torchrun(2, "support.audited_ranks", *arguments)
    status, output, errors = ranks.end()
    ranks.close()
    assert status == 0, errors
    return [json.loads(line) for line in output.splitlines()]


def counts(report: dict[str, Any]) -> tuple[int, ...]:
    return tuple(report[name] for name in COUNTS)


def test_correct_loaders_are_ok_and_padding_is_named(reports: dict[str, list[dict[str, Any]]]) -> None:
    for name, padding in {"right": 1, "workers": 0, "ours": 0}.items():
        for report in reports[name]:
            assert counts(report) == (0, 0, padding, 0, 0), name
            assert (report["ok"], report["faults"], report["ranks"]) == (True, [], 2), name
    for report in reports["key"]:
        assert (report["faults"], report["samples"], report["doubled"]) == ([], N, 0)
    assert [report["ok"] for report in reports["one rank for all"]] == [True, True]


def test_a_missing_distributed_sampler_gives_every_rank_the_same_samples(
    reports: dict[str, list[dict[str, Any]]],
) -> None:
    for report in reports["no sampler"]:
        assert counts(report) == (0, N, 0, 0, N)
        assert "every rank read the same samples: pass sampler=DistributedSampler" in report["faults"][0]


def test_a_missing_set_epoch_repeats_the_order_of_the_previous_epoch(
    reports: dict[str, list[dict[str, Any]]],
) -> None:
    first, second = reports["no set_epoch"]
    assert (first["ok"], first["same_order"]) == (True, None)
    assert (second["ok"], second["same_order"]) == (False, True)
    assert "call sampler.set_epoch(epoch)" in second["faults"][0]


def test_shares_of_unequal_size_are_reported(
    reports: dict[str, list[dict[str, Any]]],
) -> None:
    for report in reports["uneven"]:
        assert (report["batches"], report["dropped"], report["expected"]) == ([4, 3], 3, N)
        assert "ranks had 3 to 4 batches" in report["faults"][0]


def test_a_stream_that_is_not_divided_among_workers_is_reported_as_read_twice(
    reports: dict[str, list[dict[str, Any]]],
) -> None:
    for report in reports["whole per worker"]:
        assert counts(report)[1:] == (N, 0, 0, 0)
        assert "each worker reads the whole IterableDataset" in report["faults"][0]
    for report in reports["whole per rank"]:
        assert (report["same_on_all_ranks"], report["samples"]) == (N, 2 * N)
    for report in reports["divided stream"]:
        assert (report["faults"], report["doubled"], report["samples"]) == ([], 0, N)


def test_ranks_with_different_data_are_not_auditable_by_index(
    reports: dict[str, list[dict[str, Any]]],
) -> None:
    for report in reports["other data"]:
        assert (report["auditable"], report["ok"]) == (False, None)
        assert "ranks hold different data sets" in report["notes"][0]


def test_an_early_break_is_partial_and_a_rank_without_answers_reports_alone(
    tmp_path: pathlib.Path,
) -> None:
    (end,) = lines(str(tmp_path), "early")
    assert (end["partial"]["whole"], end["partial"]["ranks"], end["partial"]["samples"]) == (False, 2, 12)
    assert end["partial"]["lost"] is None
    assert (end["alone"]["whole"], end["alone"]["ranks"]) == (True, 1)
    assert any("the other ranks did not answer" in note for note in end["alone"]["notes"])
