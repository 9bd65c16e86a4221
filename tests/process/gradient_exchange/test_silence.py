# SPDX-License-Identifier: Apache-2.0
"""Silent ranks and servers: shorter than the timeout, longer, and behind a dropped connection.

`tests/soak/test_gradients_hosts.py` has all variants, between separate hosts.
"""

from __future__ import annotations

import signal

import pytest
from support import bare_ranks, gradients
from support.host_jobs import PATIENT_S, SILENCE_S, TIMEOUT_S, HostJob, assert_data_connection_reconnects
from support.waiting import moment, pause


def test_a_server_that_is_stopped_for_longer_than_the_timeout_is_named(started) -> None:
    serving = [
        started(gradients.serve("--bind", "127.0.0.1:0", "--timeout", str(TIMEOUT_S))) for _ in range(2)
    ]
    addresses = [server.line()["address"] for server in serving]
    ranks = [started(bare_ranks.rank(one, 2, addresses, timeout_s=TIMEOUT_S)) for one in range(2)]
    for child in ranks:
        assert child.line() == {"round": 0}
    serving[1].send(signal.SIGSTOP)
    for child in ranks:
        report = child.line()
        assert report["error"] == "ServerLost", report
        assert addresses[1] in report["text"]
        assert child.line()["threads"] == []


@pytest.mark.parametrize("who", ["rank", "server"])
def test_a_stop_shorter_than_the_timeout_changes_no_bit(started, who: str) -> None:
    server = started(gradients.serve("--bind", "127.0.0.1:0", "--timeout", str(PATIENT_S)))
    address = server.line()["address"]
    ranks = [
        started(bare_ranks.rank(one, 2, [address], timeout_s=PATIENT_S, rounds=60, pause_s=0.05))
        for one in range(2)
    ]
    for child in ranks:
        assert child.line() == {"round": 0}
    stopped = server if who == "server" else ranks[1]
    stopped.send(signal.SIGSTOP)
    silent = moment()
    pause(SILENCE_S)
    woken = moment()
    stopped.send(signal.SIGCONT)
    for child in ranks:
        report = child.line()
        assert "ended" in report, report
        assert report["ended"][0] < silent
        assert woken < report["ended"][-1], "the ranks ended before the stop"
        # Packets in flight may still arrive.
        assert sum(silent < ended < woken for ended in report["ended"]) <= 2, "the process was not stopped"
        assert child.line()["threads"] == []


@pytest.mark.hosts
def test_a_dropped_data_connection_is_reconnected_with_the_same_bits(
    host_job: HostJob,
) -> None:
    assert_data_connection_reconnects(host_job, "what the rank sends")
