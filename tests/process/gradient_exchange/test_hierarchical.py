# SPDX-License-Identifier: Apache-2.0
"""Ranks of one machine that exchange as one, each a process of its own, over real servers.

A machine is what the launcher's variables say: here two of them share this one, and nothing else.
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
    """Meetings of these tests are in a folder of their own: tests that run at the same time have theirs elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("meetings")))
        yield


@pytest.fixture
def server(started: Callable[[Child], Child]) -> str:
    """A server; where it listens."""
    address: str = started(gradients.serve("--bind", "127.0.0.1:0")).line()["address"]
    return address


def left_behind() -> list[str]:
    """Files of meetings that are over."""
    folder = Path(os.environ["TMPDIR"]) / f"foresee-{os.getuid()}"
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("machines", "local"), [(1, 2), (2, 2), (1, 3)])
def test_the_bits_are_those_of_the_nested_reference(started, server: str, machines: int, local: int) -> None:
    world = machines * local
    children = [started(gradients.rank(one, world, [server], local=local)) for one in range(world)]
    expected = started(gradients.reference(world, local)).line()["digest"]
    for number, child in enumerate(children):
        said = child.line()
        assert said.get("digest") == expected, said
        # The first of each machine exchanges for the others.
        assert (said["stats"]["sent_bytes"] > 0) == (number % local == 0)
        assert said["stats"]["rounds"] == 5
    for child in children:
        status, _, errors = child.end()
        assert status == 0, errors
    assert left_behind() == []


def test_under_torchrun_a_machine_needs_no_other(started) -> None:
    ranks = 2
    group = started(gradients.torchrun(ranks, ["colocated"], mode="node"))
    expected = started(gradients.reference(ranks)).line()["digest"]
    for _ in range(ranks):
        said = group.line()
        assert said.get("digest") == expected, said
    status, output, errors = group.end()
    assert status == 0, output + errors


@pytest.mark.parametrize("victim", range(4))
def test_whoever_is_killed_is_named_on_both_machines(started, server: str, victim: int) -> None:
    children = [started(gradients.rank(one, 4, [server], mode="forever", local=2)) for one in range(4)]
    while children[victim].line().get("step", 0) < 3:
        pass
    children[victim].send(signal.SIGKILL)
    for number, child in enumerate(children):
        if number == victim:
            continue
        while "step" in (said := child.line()):
            pass
        assert (said["error"], said["rank"]) == ("RankLost", victim), (number, said)
        assert f"lost rank {victim}" in said["text"]


def test_a_server_that_is_killed_and_started_again_leaves_the_bits_of_the_nested_reference(started) -> None:
    serving = started(gradients.serve("--bind", "127.0.0.1:0"))
    place = serving.line()["address"]
    children = [started(gradients.rank(one, 4, [place], mode="report", local=2)) for one in range(4)]
    expected = started(gradients.reference(4, 2)).line()["digest"]
    assert children[3].line() == {"step": 0}
    serving.send(signal.SIGKILL)
    started(gradients.serve("--bind", place))
    for child in children:
        while "step" in (said := child.line()):
            pass
        assert said.get("digest") == expected, said
        assert child.end()[0] == 0
