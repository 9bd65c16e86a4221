# SPDX-License-Identifier: Apache-2.0
"""Connections without the secret get no data of a server, and cost its jobs neither time nor memory."""

from __future__ import annotations

from support import bare_ranks, gradients
from support.between import Between
from support.processes import engine_threads, resident_bytes
from support.strangers import CHALLENGE, ERROR, Strangers, frame_bytes, kinds, words
from support.waiting import moment

#: Timeout of the server, after which a stranger's connection ends.
TIMEOUT_S = 3.0
#: Connections of strangers that the server accepts at a time, and those that the test opens.
PLACES, FLOOD = 64, 320


def finished(started, place: str, job: str) -> None:
    """Run a job of one rank to its end."""
    child = started(bare_ranks.rank(0, 1, [place], job=job, rounds=2))
    assert child.line() == {"round": 0}
    assert "ended" in child.line()
    assert child.end()[0] == 0


def test_a_flood_of_unauthenticated_connections_does_not_disturb_a_job(started) -> None:
    server = started(gradients.serve("--bind", "127.0.0.1:0", "--timeout", str(TIMEOUT_S)))
    place = server.line()["address"]
    with Between(place) as between:
        finished(started, between.address, "heard")
        conversations = [bytes(said) for said in between.said]
    assert len(conversations) == 2, "one for messages, one for gradients"
    before, memory = gradients.at_rest(server), resident_bytes(server.pid)

    ranks = [started(bare_ranks.rank(one, 2, [place], rounds=150, pause_s=0.03)) for one in range(2)]
    for rank in ranks:
        assert rank.line() == {"round": 0}
    began = moment()
    with Strangers(place, FLOOD, words(conversations[0]), slowly="a hello") as strangers:
        # A thread releases its place just before it ends, so there may be a few more threads than places.
        assert engine_threads(server.pid).count("foresee-greet") < 2 * PLACES < FLOOD / 2
        # Ranks of another host than the strangers' connect meanwhile.
        finished(started, place, "newcomer")
        strangers.listen()
        assert resident_bytes(server.pid) - memory < 64 << 20
    for what, answer in strangers.answers:
        spoken = kinds(bytes(answer))
        assert set(spoken) <= {CHALLENGE, ERROR}, what
        if what in ("nothing", "noise", "an HTTP request", "half a hello", "a long hello"):
            assert spoken == [], what
        if what == "a conversation":
            assert spoken in ([CHALLENGE, ERROR], [CHALLENGE], []), what
            assert b"secret" in answer or ERROR not in spoken
    assert [CHALLENGE, ERROR] in [kinds(bytes(answer)) for what, answer in strangers.answers]

    for rank in ranks:
        ended = rank.line()["ended"]
        assert ended[0] < began < ended[-1], "the job did not run meanwhile"
        assert rank.end()[0] == 0
    assert gradients.at_rest(server) == before


def test_a_replayed_conversation_is_refused(started) -> None:
    place = started(gradients.serve("--bind", "127.0.0.1:0", "--timeout", str(TIMEOUT_S))).line()["address"]
    with Between(place) as between:
        finished(started, between.address, "heard")
        conversations = [bytes(said) for said in between.said]
    assert all(len(one) > frame_bytes(one) for one in conversations), "a hello, a proof, and more"
    with Strangers(place, 2, dict(zip(("messages", "gradients"), conversations, strict=True))) as strangers:
        strangers.listen()
    for what, answer in strangers.answers:
        assert kinds(bytes(answer)) == [CHALLENGE, ERROR], what
        assert b"the secrets differ" in answer
