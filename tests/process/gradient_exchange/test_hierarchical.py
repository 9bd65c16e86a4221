# SPDX-License-Identifier: Apache-2.0
"""Hierarchical exchange over real servers: the ranks of a node, each a process, are averaged before the exchange.

The launcher's variables define the nodes; in these tests all nodes share one host.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import gradients
from support.processes import Child


@pytest.fixture(scope="module", autouse=True)
def _own_temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give these tests a separate folder for leader files, apart from tests that run at the same time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("leaders")))
        yield


@pytest.fixture
def server(started: Callable[[Child], Child]) -> str:
    """The address of a started server."""
    address: str = started(gradients.serve("--bind", "127.0.0.1:0")).line()["address"]
    return address


def left_behind() -> list[str]:
    """Return the leader files that are left."""
    folder = Path(os.environ["TMPDIR"]) / f"foresee-{os.getuid()}"
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("nodes", "local"), [(1, 2), (2, 2), (1, 3)])
def test_the_bits_are_those_of_the_nested_reference(started, server: str, nodes: int, local: int) -> None:
    world = nodes * local
    children = [started(gradients.rank(one, world, [server], local=local)) for one in range(world)]
    expected = started(gradients.reference(world, local)).line()["digest"]
    for number, child in enumerate(children):
        report = child.line()
        assert report.get("digest") == expected, report
        # The first rank of each node exchanges for the others.
        assert (report["stats"]["sent_bytes"] > 0) == (number % local == 0)
        assert report["stats"]["rounds"] == 5
    for child in children:
        status, _, errors = child.end()
        assert status == 0, errors
    assert left_behind() == []


def test_a_single_node_under_torchrun_trains_hierarchically(started) -> None:
    ranks = 2
    group = started(gradients.torchrun(ranks, ["colocated"], mode="node"))
    expected = started(gradients.reference(ranks)).line()["digest"]
    for _ in range(ranks):
        report = group.line()
        assert report.get("digest") == expected, report
    status, output, errors = group.end()
    assert status == 0, output + errors


@pytest.mark.parametrize("victim", range(4))
def test_a_killed_rank_is_named_on_both_nodes(started, server: str, victim: int) -> None:
    children = [started(gradients.rank(one, 4, [server], mode="forever", local=2)) for one in range(4)]
    while children[victim].line().get("step", 0) < 3:
        pass
    children[victim].send(signal.SIGKILL)
    for number, child in enumerate(children):
        if number == victim:
            continue
        while "step" in (report := child.line()):
            pass
        assert (report["error"], report["rank"]) == ("RankLost", victim), (number, report)
        assert f"lost rank {victim}" in report["text"]


def test_a_restarted_server_keeps_the_bits_of_the_nested_reference(started) -> None:
    serving = started(gradients.serve("--bind", "127.0.0.1:0"))
    address = serving.line()["address"]
    children = [started(gradients.rank(one, 4, [address], mode="report", local=2)) for one in range(4)]
    expected = started(gradients.reference(4, 2)).line()["digest"]
    assert children[3].line() == {"step": 0}
    serving.send(signal.SIGKILL)
    started(gradients.serve("--bind", address))
    for child in children:
        while "step" in (report := child.line()):
            pass
        assert report.get("digest") == expected, report
        assert child.end()[0] == 0
