# SPDX-License-Identifier: Apache-2.0
"""Jobs of which a rank or a server is killed at a random moment, and their expected result."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

from support import bare_ranks, gradients, recovering_ranks
from support.processes import Child
from support.waiting import pause

Started = Callable[[Child], Child]


def _serving(started: Started, count: int) -> tuple[list[Child], list[str]]:
    """Start servers; returns them and their addresses."""
    servers = [started(gradients.serve("--bind", "127.0.0.1:0")) for _ in range(count)]
    return servers, [server.line()["address"] for server in servers]


def _trained(ranks: list[Child]) -> list[Child]:
    """Wait for the first round of each rank; returns the ranks."""
    for child in ranks:
        assert child.line() == {"round": 0}
    return ranks


def assert_killed_process_is_named(started: Started, victim: str, number: int, *, recover: bool) -> None:
    """Kill a ``rank`` or a ``server``: all remaining ranks name it."""
    rng = random.Random(number)
    serving, addresses = _serving(started, 2)
    ranks = _trained([started(bare_ranks.rank(one, 3, addresses, recover=recover)) for one in range(3)])
    pause(rng.uniform(0, 0.05))
    if victim == "server":
        lost = rng.randrange(2)
        serving[lost].send(signal.SIGKILL)
    else:
        lost = rng.randrange(3)
        ranks.pop(lost).send(signal.SIGKILL)
    for child in ranks:
        report = child.line()
        if victim == "server":
            # Detected by its silence, or reported earlier by another rank through the other server.
            assert report["error"] == "ServerLost", report
            assert addresses[lost] in report["text"]
        else:
            assert (report["error"], report["rank"]) == ("RankLost", lost), report
        assert child.end()[0] == 0


def assert_ranks_continue_without_a_killed_one(started: Started, number: int, *, recover: bool) -> None:
    """With ``on_rank_loss="continue"`` the remaining ranks agree on every bit and average without the lost one."""
    rng = random.Random(number)
    world, count = 2 + number % 3, 1 + number % 2
    _, addresses = _serving(started, count)
    lost = number % world
    ranks = _trained(
        [
            started(
                bare_ranks.rank(one, world, addresses, rounds=150, pause_s=0.005, lost=lost, recover=recover)
            )
            for one in range(world)
        ]
    )
    pause(rng.uniform(0, 0.3))
    ranks.pop(lost).send(signal.SIGKILL)
    ends = [child.line() for child in ranks]
    for report in ends:
        assert report.get("digest", report) == ends[0]["digest"], "the survivors have the same bits"
        assert report["without"], "the last average is that of the survivors"
        assert (report["ranks_lost"], report["first"]) == (1, 1 if lost == 0 else 0)
    for child in ranks:
        assert child.line()["threads"] == []
        assert child.end()[0] == 0


def assert_killed_servers_are_replaced(started: Started, number: int) -> None:
    """Kill and restart servers three times: the averages keep their bits."""
    rng = random.Random(number)
    world, count, rounds = 1 + number % 3, 1 + number // 3 % 2, 100
    serving, addresses = _serving(started, count)
    ranks = _trained(
        [started(recovering_ranks.rank(one, world, addresses, rounds=rounds)) for one in range(world)]
    )
    for _ in range(3):
        pause(rng.uniform(0, 0.2))
        lost = rng.sample(range(count), rng.randint(1, count))
        for one in lost:
            serving[one].send(signal.SIGKILL)
        for one in lost:
            serving[one] = started(gradients.serve("--bind", addresses[one]))
        for one in lost:
            # Sometimes it is killed again before any rank connects.
            if rng.random() < 0.7:
                assert serving[one].line()["address"] == addresses[one]
    for child in ranks:
        report = child.line()
        assert report.get("digest") == recovering_ranks.expected(world, rounds), report
        assert child.end()[0] == 0
