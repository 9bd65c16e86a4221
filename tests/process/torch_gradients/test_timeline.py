# SPDX-License-Identifier: Apache-2.0
"""The Chrome trace of a run: every tensor of every round, in a consistent order."""

from __future__ import annotations

import json
from collections import defaultdict

import pyarrow.ipc
import pytest
from support.exchanges import in_process, over_servers
from support.ranks import run
from support.small_models import HeadFirst, batch, sgd

import foresee.torch as ft
from foresee.errors import ConfigError

STEPS = 5


@pytest.fixture
def traces(tmp_path):
    """Return the events of two ranks, without those that describe tracks."""

    def train(exchange):
        model = HeadFirst()
        model, optimizer = ft.synchronize(
            model, sgd(model), servers=exchange, timeline=str(tmp_path / "step.json")
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            model(batch(step, exchange.rank)).square().mean().backward()
            optimizer.step()
        optimizer.close()

    with over_servers(2) as connect:
        run(connect(2, timeline=1 << 16), train)
    files = [json.loads((tmp_path / f"step.rank{rank}.json").read_text()) for rank in range(2)]
    assert [{event["pid"] for event in events} for events in files] == [{0}, {1}]
    assert [events[-1]["args"] for events in files] == [{"events": 0}, {"events": 0}]
    return [[event for event in events if event["ph"] != "M"] for events in files]


def test_every_tensor_of_every_round_is_pushed_summed_and_pulled_in_this_order(traces):
    tensors = {name for name, _ in HeadFirst().named_parameters()}
    for events in traces:
        spans = defaultdict(dict)
        for event in events:
            if event["ph"] in "be":
                spans[event["name"]][event["cat"], event["ph"]] = event["ts"]
        expected = {f"{name}, round {step}" for name in tensors for step in range(STEPS)}
        assert set(spans) == expected
        for times in spans.values():
            order = [times[cat, "b"] for cat in ("push", "sum", "pull")] + [times["pull", "e"]]
            assert order == sorted(order)
            assert times["push", "e"] == times["sum", "b"]
            assert times["sum", "e"] == times["pull", "b"]


@pytest.mark.usefixtures("slow_network")
def test_backward_waits_and_steps_have_a_track_each(traces):
    for events in traces:
        tracks = defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                assert event["dur"] >= 0
                tracks[event["tid"]].append(event["name"])
        backward, steps = tracks[1], tracks[3]
        # The last layer's gradient comes first, without a predecessor.
        assert set(backward) == {
            "first.bias",
            "first.weight",
            "second.bias",
            "second.weight",
            "head.bias",
            "head.weight",
        } - {backward_first(events)}
        assert {name for shown in steps for name in shown.split(", ")} >= {"first.weight", "head.weight"}


def backward_first(events):
    """Return the first tensor of each pass, which has no span of backward."""
    pushes = sorted(
        (event["ts"], event["name"]) for event in events if (event.get("cat"), event["ph"]) == ("push", "b")
    )
    return pushes[0][1].split(",")[0]


def test_an_exchange_without_a_timeline_is_refused_by_name(tmp_path):
    (exchange,) = in_process(1)
    model = HeadFirst()
    with pytest.raises(ConfigError, match="ThreadExchange does not log its packets"):
        ft.synchronize(model, sgd(model), servers=exchange, timeline="step.json")
    with pytest.raises(ConfigError, match="timeline=3; the path of a file"):
        ft.synchronize(model, sgd(model), servers=exchange, timeline=3)
    with over_servers() as connect:
        (exchange,) = connect(1, timeline=8)
        with pytest.raises(ConfigError, match="cannot be written: No such file"):
            ft.synchronize(model, sgd(model), servers=exchange, timeline=str(tmp_path / "no" / "step.json"))


def test_a_full_disk_ends_the_timeline_and_not_the_training(tmp_path, caplog):
    (tmp_path / "step.rank0.json").symlink_to("/dev/full")
    with over_servers() as connect:
        (exchange,) = connect(1, timeline=1 << 16)
        model = HeadFirst()
        model, optimizer = ft.synchronize(
            model, sgd(model), servers=exchange, timeline=str(tmp_path / "step.json")
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            model(batch(step, 0)).square().mean().backward()
            optimizer.step()
        optimizer.close()
    messages = [entry.message for entry in caplog.records if "timeline" in entry.message]
    assert messages == [f"the timeline {tmp_path / 'step.rank0.json'} ends here: No space left on device"]


def test_pushes_pulls_and_waits_are_entries_of_the_ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path))
    parameters = {name: tensor.nbytes for name, tensor in HeadFirst().named_parameters()}

    def train(exchange):
        model = HeadFirst()
        model, optimizer = ft.synchronize(model, sgd(model), servers=exchange)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(batch(step, exchange.rank)).square().mean().backward()
            optimizer.step()
        optimizer.close()

    with over_servers(2) as connect:
        run(connect(2, timeline=1 << 16), train)
    for rank in range(2):
        rows = []
        with pyarrow.ipc.open_stream((tmp_path / "ledger" / f"rank-{rank}.arrow").read_bytes()) as stream:
            rows = stream.read_all().to_pylist()
        assert {(row["rank"], row["epoch"], row["subject"], row["outcome"]) for row in rows} == {
            (rank, 0, "tensor", "ok")
        }
        for op in ("push", "pull"):
            moved = [row for row in rows if row["op"] == op]
            assert {row["source"] for row in moved} == {"server"}
            # Each tensor once per step, in the order of the clock.
            assert len({(row["step"], row["subject_id"]) for row in moved}) == len(moved)
            assert len(moved) == STEPS * len(parameters)
            assert sum(row["bytes"] for row in moved) == STEPS * sum(parameters.values())
        waits = [row for row in rows if row["op"] == "wait"]
        assert {(row["cause"], row["bytes"]) for row in waits} <= {("gradient", 0)}
        assert {row["op"] for row in rows} <= {"push", "pull", "wait"}


def test_a_run_folder_that_cannot_be_written_is_an_error_before_training(tmp_path, monkeypatch):
    (tmp_path / "run").write_text("")
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path / "run"))
    with over_servers() as connect:
        (exchange,) = connect(1, timeline=8)
        model = HeadFirst()
        with pytest.raises(ConfigError, match=r"FORESEE_TRACE: .*run/ledger"):
            ft.synchronize(model, sgd(model), servers=exchange)
