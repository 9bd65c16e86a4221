# SPDX-License-Identifier: Apache-2.0
"""Jobs of which a rank or a server is killed at a random moment, and their expected result."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

from support import bare_ranks, gradients, lasting_ranks
from support.processes import Child
from support.waiting import pause

Started = Callable[[Child], Child]


def _serving(started: Started, count: int) -> tuple[list[Child], list[str]]:
    """Servers, and where each listens."""
    servers = [started(gradients.serve("--bind", "127.0.0.1:0")) for _ in range(count)]
    return servers, [server.line()["address"] for server in servers]


def _trained(ranks: list[Child]) -> list[Child]:
    """The ranks, once each has had its first round."""
    for child in ranks:
        assert child.line() == {"round": 0}
    return ranks


def name_the_killed(started: Started, victim: str, number: int, *, recover: bool) -> None:
    """Whoever is killed, a ``rank`` or a ``server``, is named by all ranks that are left."""
    dice = random.Random(number)
    serving, places = _serving(started, 2)
    ranks = _trained([started(bare_ranks.rank(one, 3, places, recover=recover)) for one in range(3)])
    pause(dice.uniform(0, 0.05))
    if victim == "server":
        lost = dice.randrange(2)
        serving[lost].send(signal.SIGKILL)
    else:
        lost = dice.randrange(3)
        ranks.pop(lost).send(signal.SIGKILL)
    for child in ranks:
        report = child.line()
        if victim == "server":
            # From the server's own silence, or from a rank that noticed before, through the other server.
            assert report["error"] == "ServerLost", report
            assert places[lost] in report["text"]
        else:
            assert (report["error"], report["rank"]) == ("RankLost", lost), report
        assert child.end()[0] == 0


def go_on_without_a_rank(started: Started, number: int, *, recover: bool) -> None:
    """With ``on_rank_loss="continue"`` the ranks that are left agree on every bit, and average without the lost one."""
    dice = random.Random(number)
    world, count = 2 + number % 3, 1 + number % 2
    _, places = _serving(started, count)
    lost = number % world
    ranks = _trained(
        [
            started(
                bare_ranks.rank(one, world, places, rounds=150, pause_s=0.005, lost=lost, recover=recover)
            )
            for one in range(world)
        ]
    )
    pause(dice.uniform(0, 0.3))
    ranks.pop(lost).send(signal.SIGKILL)
    ends = [child.line() for child in ranks]
    for report in ends:
        assert report.get("digest", report) == ends[0]["digest"], "the survivors have the same bits"
        assert report["without"], "the last average is that of the survivors"
        assert (report["ranks_lost"], report["first"]) == (1, 1 if lost == 0 else 0)
    for child in ranks:
        assert child.line()["threads"] == []
        assert child.end()[0] == 0


def replace_servers(started: Started, number: int) -> None:
    """Servers that are killed and started again, three times, cost no bit."""
    dice = random.Random(number)
    world, count, rounds = 1 + number % 3, 1 + number // 3 % 2, 100
    serving, places = _serving(started, count)
    ranks = _trained([started(lasting_ranks.rank(one, world, places, rounds=rounds)) for one in range(world)])
    for _ in range(3):
        pause(dice.uniform(0, 0.2))
        lost = dice.sample(range(count), dice.randint(1, count))
        for one in lost:
            serving[one].send(signal.SIGKILL)
        for one in lost:
            serving[one] = started(gradients.serve("--bind", places[one]))
        for one in lost:
            # Sometimes it is killed again before any rank has come to it.
            if dice.random() < 0.7:
                assert serving[one].line()["address"] == places[one]
    for child in ranks:
        report = child.line()
        assert report.get("digest") == lasting_ranks.expected(world, rounds), report
        assert child.end()[0] == 0
