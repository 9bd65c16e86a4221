# SPDX-License-Identifier: Apache-2.0
"""Gradients between hosts, each a network namespace: ranks and servers that stop, are killed or lose their link.

A rank or server that is silent for longer than the timeout is lost and named. A shorter silence changes no bit.
"""

from __future__ import annotations

import signal

import pytest
from support import gradients
from support.host_jobs import (
    PATIENT_S,
    RANKS,
    SERVERS,
    SILENCE_S,
    TIMEOUT_S,
    HostJob,
    assert_data_connection_reconnects,
    assert_everything_released,
    drop_data_connection,
)
from support.processes import resident_bytes
from support.waiting import moment, pause

pytestmark = pytest.mark.hosts


@pytest.mark.parametrize("how", ["is stopped", "is cut off"])
@pytest.mark.parametrize("who", ["r1", "s1"])
def test_a_process_silent_for_longer_than_the_timeout_is_named_and_the_next_job_works(
    host_job: HostJob, who: str, how: str
) -> None:
    host_job.serve(*SERVERS, timeout_s=TIMEOUT_S)
    host_job.train(timeout_s=TIMEOUT_S)
    host_job.silence(who, how)
    witnesses = RANKS if who in SERVERS else ("r0",)
    for name in witnesses:
        report = host_job.on[name].line()
        if who in SERVERS:
            assert report["error"] == "ServerLost", report
            assert host_job.places[1] in report["text"]
        else:
            assert (report["error"], report["rank"]) == ("RankLost", 1), report
            assert "lost rank 1" in report["text"]
        assert_everything_released(host_job.on[name])
    if who in RANKS and how == "is cut off":
        # It is unreachable, so it reports the first server that it lost.
        report = host_job.on[who].line()
        assert report["error"] == "ServerLost", report
        assert any(place in report["text"] for place in host_job.places)
        assert_everything_released(host_job.on[who])

    host_job.wake(who)
    if who in RANKS and how == "is stopped":
        assert "error" in host_job.on[who].line()
        assert_everything_released(host_job.on[who])
    host_job.train(timeout_s=TIMEOUT_S, rounds=3)
    for name in RANKS:
        assert "ended" in host_job.on[name].line()


@pytest.mark.parametrize("how", ["is stopped", "is cut off"])
@pytest.mark.parametrize("who", ["r1", "s1"])
def test_a_stop_shorter_than_the_timeout_changes_no_bit(host_job: HostJob, who: str, how: str) -> None:
    host_job.serve(*SERVERS, timeout_s=PATIENT_S)
    host_job.train(timeout_s=PATIENT_S, rounds=60, pause_s=0.05)
    began = moment()
    host_job.silence(who, how)
    silent = moment()
    pause(SILENCE_S)
    woken = moment()
    host_job.wake(who)
    for name in RANKS:
        report = host_job.on[name].line()
        assert "ended" in report, report
        assert report["ended"][0] < began
        assert woken < report["ended"][-1], "the ranks ended before the silence began"
        # Packets in flight may still arrive.
        assert sum(silent < moment < woken for moment in report["ended"]) <= 2, "the process was not silent"
        assert_everything_released(host_job.on[name])


@pytest.mark.parametrize("first", ["the rank", "the server", "either"])
@pytest.mark.parametrize("direction", ["what the rank sends", "what the server sends"])
def test_a_dropped_data_connection_ends_the_job_within_the_timeout(
    host_job: HostJob, direction: str, first: str
) -> None:
    """The control connections work, so all heartbeats arrive; only acknowledgments are missing.

    ``first``: the end that notices first. The error of the rank has the reason either direction.
    """
    host_job.serve(*SERVERS, timeout_s=PATIENT_S if first == "the rank" else TIMEOUT_S)
    host_job.train(timeout_s=PATIENT_S if first == "the server" else TIMEOUT_S)
    name = drop_data_connection(host_job, direction)
    try:
        report = {name: host_job.on[name].line() for name in RANKS}
    finally:
        host_job.hosts.stop_dropping(name)
    assert "has acknowledged nothing for" in report["r1"]["text"], report
    for name in RANKS:
        assert_everything_released(host_job.on[name])


@pytest.mark.parametrize("direction", ["what the rank sends", "what the server sends"])
def test_a_dropped_data_connection_is_reconnected(host_job: HostJob, direction: str) -> None:
    assert_data_connection_reconnects(host_job, direction)


@pytest.mark.parametrize("who", ["r1", "s1"])
def test_reset_connections_change_no_bit(host_job: HostJob, who: str) -> None:
    rounds = 60
    host_job.serve(*SERVERS, timeout_s=PATIENT_S)
    host_job.train_with_recovery(rounds, PATIENT_S)
    for _ in range(5):
        host_job.hosts.reset(who, 7700)
        pause(0.3)
    assert host_job.count_reconnects(rounds) >= 2


@pytest.mark.parametrize("who", ["r1", "s1"])
def test_a_process_killed_on_another_host_is_named(host_job: HostJob, who: str) -> None:
    host_job.serve(*SERVERS, timeout_s=TIMEOUT_S)
    host_job.train(timeout_s=TIMEOUT_S)
    host_job.on[who].send(signal.SIGKILL)
    for name in RANKS:
        if name == who:
            continue
        report = host_job.on[name].line()
        if who in SERVERS:
            assert report["error"] == "ServerLost", report
            assert host_job.places[1] in report["text"]
        else:
            assert (report["error"], report["rank"]) == ("RankLost", 1), report
        assert_everything_released(host_job.on[name])


def test_a_server_releases_everything_after_ranks_vanish(host_job: HostJob) -> None:
    # Large enough that an unreleased job shows in the memory of the server, which sums two rounds at a time.
    elements = (6_000_000,)
    # The allocator returns the memory of each packet at once.
    host_job.serve("s0", timeout_s=TIMEOUT_S, MALLOC_MMAP_THRESHOLD_="1024")
    host_job.train(timeout_s=TIMEOUT_S, rounds=1)
    for name in RANKS:
        assert host_job.on[name].end()[0] == 0
    base, memory = gradients.at_rest(host_job.on["s0"]), []
    for _ in range(2):
        host_job.train(timeout_s=TIMEOUT_S, elements=elements)
        for name in RANKS:
            host_job.hosts.cut(name)
        for name in RANKS:
            assert host_job.on[name].line()["error"] == "ServerLost"
            assert_everything_released(host_job.on[name])
        host_job.hosts.restore()
        assert gradients.at_rest(host_job.on["s0"]) == base
        memory.append(resident_bytes(host_job.on["s0"].pid))
    assert memory[1] - memory[0] < 4 * elements[0]
