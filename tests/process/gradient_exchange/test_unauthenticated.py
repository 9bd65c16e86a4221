# SPDX-License-Identifier: Apache-2.0
"""Connections without the secret get no data from a server and do not disturb its jobs."""

from __future__ import annotations

from support import bare_ranks, gradients
from support.processes import engine_threads, resident_bytes
from support.recording_proxy import RecordingProxy
from support.unauthenticated import (
    CHALLENGE,
    ERROR,
    UnauthenticatedClients,
    frame_bytes,
    kinds,
    messages_from,
)
from support.waiting import moment

#: Timeout of the server, after which it ends an unauthenticated connection.
TIMEOUT_S = 3.0
#: Unauthenticated connections that the server accepts at a time, and those that the test opens.
SLOTS, FLOOD = 64, 320


def run_job(started, address: str, job: str) -> None:
    """Run a job of one rank to its end."""
    child = started(bare_ranks.rank(0, 1, [address], job=job, rounds=2))
    assert child.line() == {"round": 0}
    assert "ended" in child.line()
    assert child.end()[0] == 0


def test_a_flood_of_unauthenticated_connections_does_not_disturb_a_job(started) -> None:
    server = started(gradients.serve("--bind", "127.0.0.1:0", "--timeout", str(TIMEOUT_S)))
    address = server.line()["address"]
    with RecordingProxy(address) as proxy:
        run_job(started, proxy.address, "recorded")
        conversations = [bytes(sent) for sent in proxy.sent]
    assert len(conversations) == 2, "one for messages, one for gradients"
    before, memory = gradients.at_rest(server), resident_bytes(server.pid)

    ranks = [started(bare_ranks.rank(one, 2, [address], rounds=150, pause_s=0.03)) for one in range(2)]
    for rank in ranks:
        assert rank.line() == {"round": 0}
    began = moment()
    with UnauthenticatedClients(address, FLOOD, messages_from(conversations[0]), slowly="a hello") as clients:
        # A thread releases its slot just before it ends, so there may be a few more threads than slots.
        assert engine_threads(server.pid).count("foresee-greet") < 2 * SLOTS < FLOOD / 2
        # Ranks of another host connect meanwhile.
        run_job(started, address, "newcomer")
        clients.read_answers()
        assert resident_bytes(server.pid) - memory < 64 << 20
    for what, answer in clients.answers:
        codes = kinds(bytes(answer))
        assert set(codes) <= {CHALLENGE, ERROR}, what
        if what in ("nothing", "noise", "an HTTP request", "half a hello", "a long hello"):
            assert codes == [], what
        if what == "a conversation":
            assert codes in ([CHALLENGE, ERROR], [CHALLENGE], []), what
            assert b"secret" in answer or ERROR not in codes
    assert [CHALLENGE, ERROR] in [kinds(bytes(answer)) for what, answer in clients.answers]

    for rank in ranks:
        ended = rank.line()["ended"]
        assert ended[0] < began < ended[-1], "the job did not run meanwhile"
        assert rank.end()[0] == 0
    assert gradients.at_rest(server) == before


def test_a_replayed_conversation_is_refused(started) -> None:
    address = started(gradients.serve("--bind", "127.0.0.1:0", "--timeout", str(TIMEOUT_S))).line()["address"]
    with RecordingProxy(address) as proxy:
        run_job(started, proxy.address, "recorded")
        conversations = [bytes(sent) for sent in proxy.sent]
    assert all(len(one) > frame_bytes(one) for one in conversations), "a hello, a proof, and more"
    with UnauthenticatedClients(
        address, 2, dict(zip(("messages", "gradients"), conversations, strict=True))
    ) as clients:
        clients.read_answers()
    for what, answer in clients.answers:
        assert kinds(bytes(answer)) == [CHALLENGE, ERROR], what
        assert b"the secrets differ" in answer
