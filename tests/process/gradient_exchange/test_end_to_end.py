# SPDX-License-Identifier: Apache-2.0
"""Gradients end to end: processes of `foresee serve` and ranks, over real sockets."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import bare_ranks, gradients, kills, recovering_ranks
from support.processes import Child
from support.reference import WIDTH
from support.waiting import pause


@pytest.fixture
def servers(started: Callable[[Child], Child]) -> Callable[[int], list[str]]:
    """Start servers; returns their addresses."""

    def start(count: int) -> list[str]:
        children = [started(gradients.serve("--bind", "127.0.0.1:0")) for _ in range(count)]
        return [child.line()["address"] for child in children]

    return start


def last_report(child: Child) -> dict[str, Any]:
    """The last report of a rank."""
    while True:
        line: dict[str, Any] = child.line()
        if "step" not in line:
            return line


@pytest.mark.parametrize(("ranks", "count"), [(1, 1), (2, 1), (3, 2)])
def test_ranks_train_to_the_bits_of_one_process(started, servers, ranks: int, count: int) -> None:
    addresses = servers(count)
    children = [started(gradients.rank(one, ranks, addresses)) for one in range(ranks)]
    expected = started(gradients.reference(ranks)).line()["digest"]
    for child in children:
        report = last_report(child)
        assert report.get("digest") == expected, report
        assert report["stats"]["rounds"] == 5
        assert report["stats"]["sent_bytes"] > 5 * 4 * WIDTH**2
        assert child.end()[0] == 0


def test_a_rank_that_exits_without_close_finishes_its_last_round(started, servers) -> None:
    addresses = servers(1)
    quiet = started(gradients.rank(0, 2, addresses, mode="leave"))
    other = started(gradients.rank(1, 2, addresses))
    report = last_report(other)
    assert report.get("digest") == started(gradients.reference(2)).line()["digest"], report
    assert quiet.end()[0] == 0


def test_another_secret_is_refused(started, servers) -> None:
    report = last_report(started(gradients.rank(0, 1, servers(1), token="another secret, as long")))
    assert report["error"] == "ConfigError"
    assert "the secret of 127.0.0.1" in report["text"]


def test_ranks_with_different_shapes_get_an_error_that_names_the_tensor(started, servers) -> None:
    addresses = servers(2)
    children = [started(gradients.rank(one, 2, addresses, mode="other shape")) for one in range(2)]
    for child in children:
        report = last_report(child)
        assert report["error"] == "ConfigError", report
        for part in ("'first.weight'", "rank 0", "rank 1", str(WIDTH), str(WIDTH + 1)):
            assert part in report["text"]


def test_a_killed_rank_is_named_by_all_others(started, servers) -> None:
    addresses = servers(2)
    children = [started(gradients.rank(one, 3, addresses, mode="forever")) for one in range(3)]
    while children[1].line().get("step", 0) < 3:
        pass
    children[1].send(signal.SIGKILL)
    for one in (0, 2):
        report = last_report(children[one])
        assert (report["error"], report["rank"]) == ("RankLost", 1), report
        assert "lost rank 1" in report["text"]


def test_a_server_that_ends_is_named(started) -> None:
    server = started(gradients.serve("--bind", "127.0.0.1:0"))
    address = server.line()["address"]
    child = started(gradients.rank(0, 1, [address], mode="forever", recover=False))
    while child.line().get("step", 0) < 2:
        pass
    server.send(signal.SIGTERM)
    report = last_report(child)
    assert report["error"] == "ServerLost", report
    assert address in report["text"]
    assert server.end()[0] == 0


@pytest.mark.parametrize(("ranks", "others"), [(2, 0), (3, 1)])
def test_ranks_under_torchrun_train_over_their_colocated_servers(
    started, servers, ranks: int, others: int
) -> None:
    # The group's store carries the secret if no rank has one; dedicated servers get it separately.
    env = {"FORESEE_TOKEN": gradients.TOKEN} if others else None
    group = started(gradients.torchrun(ranks, ["colocated", *servers(others)], env))
    expected = started(gradients.reference(ranks)).line()["digest"]
    for _ in range(ranks):
        report = group.line()
        assert report.get("digest") == expected, report
    status, output, errors = group.end()
    assert status == 0, output + errors


@pytest.mark.parametrize("others", [0, 1])
def test_ranks_without_a_launcher_find_each_other_in_the_store_of_the_group(
    started, servers, others: int
) -> None:
    # Two concurrent runs with the same secret and servers.
    env = {"FORESEE_TOKEN": gradients.TOKEN, "FORESEE_ADDRESS": "127.0.0.1"}
    addresses = servers(others) or ["colocated"]
    stores = [
        torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)
    ]
    ranks = [
        started(gradients.in_a_store(one, 2, store.port, addresses, env))
        for store in stores
        for one in range(2)
    ]
    for child in ranks:
        report = last_report(child)
        assert report.get("digest") == gradients.expected(2), report
        assert child.end()[0] == 0


def test_colocated_servers_need_a_store(started) -> None:
    report = last_report(started(gradients.rank(0, 2, ["colocated"])))
    assert report["error"] == "ConfigError"
    assert "init_process_group() first" in report["text"]


def test_a_rank_that_computes_for_longer_than_the_timeout_is_slow_and_not_lost(started) -> None:
    server = started(gradients.serve("--bind", "127.0.0.1:0", "--timeout", "2"))
    address = server.line()["address"]
    ranks = [
        started(bare_ranks.rank(one, 2, [address], rounds=2, timeout_s=2.0, pause_s=3.0 * one))
        for one in range(2)
    ]
    for child in ranks:
        assert child.line() == {"round": 0}
        assert "ended" in child.line()
        assert child.end()[0] == 0


def test_a_server_that_is_started_again_at_its_address_serves_the_next_attempt(started) -> None:
    address = "127.0.0.1:0"
    for attempt in range(2):
        # A killed process has not closed the address of the first.
        server = started(gradients.serve("--bind", address))
        address = server.line()["address"]
        rounds = 3 if attempt else None
        ranks = [
            started(bare_ranks.rank(one, 2, [address], rounds=rounds, timeout_s=5.0)) for one in range(2)
        ]
        for child in ranks:
            assert child.line() == {"round": 0}
        if attempt == 0:
            server.send(signal.SIGKILL)
        for child in ranks:
            report = child.line()
            assert report.get("error", "ended") == ("ended" if attempt else "ServerLost"), report


@pytest.mark.parametrize("recover", [False, True])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_all_other_ranks_report_a_lost_rank(started, end: signal.Signals, recover: bool) -> None:
    timeout_s = 2.0
    address = started(gradients.serve("--bind", "127.0.0.1:0", "--timeout", str(timeout_s))).line()["address"]
    ranks = [
        started(bare_ranks.rank(one, 4, [address], timeout_s=timeout_s, recover=recover)) for one in range(4)
    ]
    for child in ranks:
        assert child.line() == {"round": 0}
    ranks.pop(2).send(end)
    for child in ranks:
        report = child.line()
        assert (report["error"], report["rank"]) == ("RankLost", 2), report


@pytest.mark.parametrize("lost", [0, 1])
def test_training_continues_with_one_model_when_a_rank_is_killed(started, servers, lost: int) -> None:
    addresses = servers(2)
    children = [started(gradients.rank(one, 3, addresses, mode="continue")) for one in range(3)]
    while children[lost].line() != {"step": 5}:
        pass
    children.pop(lost).send(signal.SIGKILL)
    ends = [last_report(child) for child in children]
    for report in ends:
        assert report.get("digest", report) == ends[0]["digest"], (
            "parameters, buffers and optimizer, in every bit"
        )
        assert report["stats"]["ranks_lost"] == 1
        assert report["least_variance"] > 0.01, (
            "statistics of a batch, and not zeros in place of lost packets"
        )
    for child in children:
        status, _, errors = child.end()
        assert status == 0
        assert f"rank {lost} is lost" in errors


@pytest.mark.parametrize(("ranks", "count"), [(1, 1), (2, 1), (3, 2)])
def test_restarted_servers_keep_the_bits_of_one_process(started, ranks: int, count: int) -> None:
    rng = random.Random(ranks)
    serving = [started(gradients.serve("--bind", "127.0.0.1:0")) for _ in range(count)]
    addresses = [server.line()["address"] for server in serving]
    children = [started(gradients.rank(one, ranks, addresses, mode="report")) for one in range(ranks)]
    expected = started(gradients.reference(ranks)).line()["digest"]
    assert children[0].line() == {"step": 0}
    for lost in range(count):
        pause(rng.uniform(0, 0.01))
        serving[lost].send(signal.SIGKILL)
        started(gradients.serve("--bind", addresses[lost]))
    for child in children:
        report = last_report(child)
        assert report.get("digest") == expected, report
        assert child.end()[0] == 0


def test_a_killed_server_without_a_replacement_is_named_within_the_timeout(started) -> None:
    server = started(gradients.serve("--bind", "127.0.0.1:0"))
    address = server.line()["address"]
    ranks = [
        started(recovering_ranks.rank(one, 2, [address], rounds=10**6, timeout_s=2.0)) for one in range(2)
    ]
    for child in ranks:
        assert child.line() == {"round": 0}
    server.send(signal.SIGKILL)
    for child in ranks:
        report = child.line()
        assert report["error"] == "ServerLost", report
        for part in (address, "no server replaced it within 2", "missing"):
            assert part in report["text"]


def test_a_rank_lost_together_with_the_server_is_an_error_within_the_timeout(started) -> None:
    server = started(gradients.serve("--bind", "127.0.0.1:0"))
    address = server.line()["address"]
    ranks = [
        started(recovering_ranks.rank(one, 3, [address], rounds=10**6, timeout_s=3.0)) for one in range(3)
    ]
    for child in ranks:
        assert child.line() == {"round": 0}
    server.send(signal.SIGKILL)
    ranks.pop(1).send(signal.SIGKILL)
    started(gradients.serve("--bind", address))
    for child in ranks:
        report = child.line()
        # The error depends on which rank gives up first.
        assert report["error"] in ("ServerLost", "RankLost"), report
        assert address in report["text"]


# ---- One fixed moment of each kind; `make soak` tests many random ones.


@pytest.mark.parametrize(("victim", "recover"), [("rank", False), ("rank", True), ("server", False)])
def test_a_killed_rank_or_server_is_named_by_all_ranks(started, victim: str, recover: bool) -> None:
    kills.assert_killed_process_is_named(started, victim, 0, recover=recover)


@pytest.mark.parametrize(("recover", "number"), [(False, 1), (True, 2)])
def test_ranks_continue_without_a_killed_one(started, recover: bool, number: int) -> None:
    kills.assert_ranks_continue_without_a_killed_one(started, number, recover=recover)


@pytest.mark.parametrize("number", [1, 3])
def test_killed_servers_are_replaced_with_the_same_bits(started, number: int) -> None:
    kills.assert_killed_servers_are_replaced(started, number)
