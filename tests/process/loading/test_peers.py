# SPDX-License-Identifier: Apache-2.0
"""Nodes of a job that exchange samples return the same batches, and read each sample once from the origin."""

from __future__ import annotations

import math
import pathlib
import signal
from collections.abc import Mapping
from typing import Any

import pytest
from support.data import make_folder
from support.node_ranks import digests, expected, outcomes, read_until_hold
from support.peer_ranks import MET, nodes_of_ranks

SAMPLES = 601
SIZES = [4000 + 170 * (sample % 13) for sample in range(SAMPLES)]
#: Two nodes have space for all samples, and a loader stages at most the first epoch of its rank before the nodes have met.
RAM = "2870KB"
BATCH = 4


def run(
    job: pathlib.Path,
    root: pathlib.Path,
    *,
    nodes: int,
    per_node: int,
    epochs: int,
    ends: Mapping[str, int] | None = None,
    cache: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    meets: bool = True,
    options: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Run a job, compare all batches with those of ranks that read alone, and return the last line of each rank."""
    plan = {
        "root": str(root),
        "epochs": epochs,
        "ends": ends or {},
        "cache": {"ram": RAM, **(cache or {})},
        "meets": meets,
        "batch_size": BATCH,
        **(options or {}),
    }
    with nodes_of_ranks(job, plan, nodes=nodes, per_node=per_node, env=env) as programs:
        found = [lines for lines, _ in outcomes(programs)]
    world = nodes * per_node
    steps = math.ceil(math.ceil(SAMPLES / world) / BATCH)
    for rank, lines in enumerate(found):
        whole, wanted = expected(root, rank, world, epochs, batch_size=BATCH, **(options or {})), []
        for epoch in range(epochs):
            wanted += whole[epoch * steps : epoch * steps + (ends or {}).get(str(epoch), steps)]
        assert digests(lines) == wanted, f"rank {rank}"
        assert lines[-1]["ok"], f"rank {rank}"
    return [lines[-1] for lines in found]


def peers_of(last: list[Any], per_node: int) -> list[Any]:
    """Return what each node has exchanged."""
    return [rank["stats"]["node"]["host"]["peers"] for rank in last[::per_node]]


def read_at_origin(last: list[Any]) -> int:
    """Return the number of samples that all ranks together have had from the origin."""
    return sum(rank["stats"]["node"]["sources"]["origin"]["samples"] for rank in last)


def test_two_nodes_read_each_sample_once_from_the_origin(job: pathlib.Path, tmp_path: pathlib.Path) -> None:
    root = make_folder(tmp_path / "data", SIZES)
    last = run(job, root, nodes=2, per_node=2, epochs=4)
    peers = peers_of(last, 2)
    again = sum(one["missing"] + one["late"] + one["silent"] for one in peers)
    assert read_at_origin(last) <= SAMPLES + again
    assert min(one["received"]["samples"] for one in peers) > 0
    assert sum(rank["stats"]["node"]["sources"]["peer"]["samples"] for rank in last) > 0


def test_nodes_of_one_rank_have_a_host_each_and_meet_again_after_an_early_end(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = make_folder(tmp_path / "data", SIZES)
    last = run(job, root, nodes=2, per_node=1, epochs=4, ends={"1": 5})
    for rank in last:
        assert rank["stats"]["node"]["role"] == "host"
        assert sum(text.startswith(MET) for text in rank["messages"]) == 2
        assert rank["stats"]["node"]["host"]["peers"]["received"]["samples"] > 0


def test_a_job_goes_on_from_a_state_on_another_number_of_nodes(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root, ram = make_folder(tmp_path / "data", SIZES), {"ram": RAM}
    last = run(job, root, nodes=2, per_node=1, epochs=2, ends={"1": 40})
    state = last[0]["state"]
    assert (state["epoch"], state["position"]) == (1, 40 * 2 * BATCH)
    plan = {
        "root": str(root),
        "epochs": 4,
        "ends": {},
        "cache": ram,
        "meets": True,
        "batch_size": BATCH,
        "state": state,
    }
    with nodes_of_ranks(job, plan, nodes=3, per_node=1) as programs:
        found = [lines for lines, _ in outcomes(programs)]
    for rank, lines in enumerate(found):
        whole = expected(root, rank, 3, 4, batch_size=BATCH, state=state)
        assert digests(lines) == whole, f"rank {rank}"
        assert lines[-1]["ok"]
    assert sum(one["received"]["samples"] for one in peers_of([lines[-1] for lines in found], 1)) > 0


def test_what_is_on_the_disk_of_one_node_serves_all_nodes_of_the_next_run(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = make_folder(tmp_path / "data", SIZES)
    cache = {"ram": "1200KB", "disk": str(tmp_path / "disk"), "disk_size": "8MB"}
    run(job, root, nodes=2, per_node=1, epochs=2, cache=cache)
    last = run(job, root, nodes=2, per_node=1, epochs=1, cache=cache, options={"seed": 8})
    # What a consumer waits for before the nodes have met is read at once: the first batches.
    assert read_at_origin(last) <= 4 * BATCH
    assert all(rank["stats"]["node"]["sources"]["peer"]["samples"] > 0 for rank in last)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_node_that_stands_still_or_is_killed_costs_no_sample(
    job: pathlib.Path, tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    root, epochs = make_folder(tmp_path / "data", SIZES), 4
    plan = {
        "root": str(root),
        "epochs": epochs,
        "ends": {},
        "cache": {"ram": RAM},
        "meets": True,
        "batch_size": BATCH,
        "alone_from": 2,
        "go": str(tmp_path / "go"),
    }
    with nodes_of_ranks(job, plan, nodes=2, per_node=1) as (first, second):
        read_until_hold(second)
        second.send(number)
        ((lines, _),) = outcomes([first])
        assert digests(lines) == expected(root, 0, 2, epochs, batch_size=BATCH)
        (peers,) = peers_of(lines[-1:], 1)
        # What the other node had was read from the origin again.
        assert peers["received"]["samples"] > 0
        assert read_at_origin(lines[-1:]) > SAMPLES / 2
        if number == signal.SIGSTOP:
            second.send(signal.SIGCONT)
            (tmp_path / "go").touch()
            ((lines, _),) = outcomes([second])
            assert digests(lines) == expected(root, 1, 2, epochs, batch_size=BATCH)[-len(digests(lines)) :]
            assert lines[-1]["ok"]


@pytest.mark.parametrize(
    ("cache", "env"), [({"peers": False}, {}), ({}, {"FORESEE_PEERS": "0"})], ids=["argument", "variable"]
)
def test_nodes_exchange_nothing_if_the_user_says_so(
    job: pathlib.Path, tmp_path: pathlib.Path, cache: Mapping[str, Any], env: Mapping[str, str]
) -> None:
    root = make_folder(tmp_path / "data", SIZES)
    last = run(job, root, nodes=2, per_node=2, epochs=2, cache=cache, env=env, meets=False)
    assert peers_of(last, 2) == [None, None]
    assert not any("samples" in text for rank in last for text in rank["messages"])
