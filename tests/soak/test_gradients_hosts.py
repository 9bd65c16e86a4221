# SPDX-License-Identifier: Apache-2.0
"""Gradients between hosts: ranks and servers that stop, die, or are cut off, each in a network namespace of its own.

A rank or server that is silent for longer than the timeout is lost and named; a shorter silence costs no bit.
"""

from __future__ import annotations

import signal

import pytest
from support import gradients
from support.processes import resident_bytes
from support.scenes import (
    PATIENT_S,
    RANKS,
    SERVERS,
    SILENCE_S,
    TIMEOUT_S,
    Scene,
    drop_data_connection,
    has_given_everything_back,
    is_made_again,
)
from support.waiting import moment, pause

pytestmark = pytest.mark.hosts


@pytest.mark.parametrize("how", ["is stopped", "is cut off"])
@pytest.mark.parametrize("who", ["r1", "s1"])
def test_who_is_silent_for_longer_than_the_timeout_is_named_and_the_next_start_works(
    scene: Scene, who: str, how: str
) -> None:
    scene.serve(*SERVERS, timeout_s=TIMEOUT_S)
    scene.train(timeout_s=TIMEOUT_S)
    scene.silence(who, how)
    witnesses = RANKS if who in SERVERS else ("r0",)
    for name in witnesses:
        said = scene.on[name].line()
        if who in SERVERS:
            assert said["error"] == "ServerLost", said
            assert scene.places[1] in said["text"]
        else:
            assert (said["error"], said["rank"]) == ("RankLost", 1), said
            assert "lost rank 1" in said["text"]
        has_given_everything_back(scene.on[name])
    if who in RANKS and how == "is cut off":
        # Nobody can tell it anything: it has lost the servers, and says which it missed first.
        said = scene.on[who].line()
        assert said["error"] == "ServerLost", said
        assert any(place in said["text"] for place in scene.places)
        has_given_everything_back(scene.on[who])

    scene.wake(who)
    if who in RANKS and how == "is stopped":
        assert "error" in scene.on[who].line()
        has_given_everything_back(scene.on[who])
    scene.train(timeout_s=TIMEOUT_S, rounds=3)
    for name in RANKS:
        assert "ended" in scene.on[name].line()


@pytest.mark.parametrize("how", ["is stopped", "is cut off"])
@pytest.mark.parametrize("who", ["r1", "s1"])
def test_a_stop_shorter_than_the_timeout_changes_no_bit(scene: Scene, who: str, how: str) -> None:
    scene.serve(*SERVERS, timeout_s=PATIENT_S)
    scene.train(timeout_s=PATIENT_S, rounds=60, pause_s=0.05)
    began = moment()
    scene.silence(who, how)
    silent = moment()
    pause(SILENCE_S)
    woken = moment()
    scene.wake(who)
    for name in RANKS:
        said = scene.on[name].line()
        assert "ended" in said, said
        assert said["ended"][0] < began
        assert woken < said["ended"][-1], "the ranks were done before the silence began"
        # What had left already may still have come.
        assert sum(silent < moment < woken for moment in said["ended"]) <= 2, "nobody was silent"
        has_given_everything_back(scene.on[name])


@pytest.mark.parametrize("first", ["the rank", "the server", "whoever does"])
@pytest.mark.parametrize("way", ["what the rank sends", "what the server sends"])
def test_a_data_connection_that_something_on_the_way_drops_ends_the_job_within_the_timeout(
    scene: Scene, way: str, first: str
) -> None:
    """The control connections are well, so every sign of life comes; only acknowledgments fail to.

    ``first``: who notices before the other end does. The rank's text has the reason either way.
    """
    scene.serve(*SERVERS, timeout_s=PATIENT_S if first == "the rank" else TIMEOUT_S)
    scene.train(timeout_s=PATIENT_S if first == "the server" else TIMEOUT_S)
    name = drop_data_connection(scene, way)
    try:
        said = {name: scene.on[name].line() for name in RANKS}
    finally:
        scene.hosts.drop_no_more(name)
    assert "has acknowledged nothing for" in said["r1"]["text"], said
    for name in RANKS:
        has_given_everything_back(scene.on[name])


@pytest.mark.parametrize("way", ["what the rank sends", "what the server sends"])
def test_a_data_connection_that_something_on_the_way_drops_is_made_again(scene: Scene, way: str) -> None:
    is_made_again(scene, way)


@pytest.mark.parametrize("who", ["r1", "s1"])
def test_connections_that_the_network_resets_cost_no_bit(scene: Scene, who: str) -> None:
    rounds = 60
    scene.serve(*SERVERS, timeout_s=PATIENT_S)
    scene.last(rounds, PATIENT_S)
    for _ in range(5):
        scene.hosts.reset(who, 7700)
        pause(0.3)
    assert scene.lasts(rounds) >= 2


@pytest.mark.parametrize("who", ["r1", "s1"])
def test_who_is_killed_on_another_host_is_named(scene: Scene, who: str) -> None:
    scene.serve(*SERVERS, timeout_s=TIMEOUT_S)
    scene.train(timeout_s=TIMEOUT_S)
    scene.on[who].send(signal.SIGKILL)
    for name in RANKS:
        if name == who:
            continue
        said = scene.on[name].line()
        if who in SERVERS:
            assert said["error"] == "ServerLost", said
            assert scene.places[1] in said["text"]
        else:
            assert (said["error"], said["rank"]) == ("RankLost", 1), said
        has_given_everything_back(scene.on[name])


def test_a_server_is_back_to_base_after_ranks_that_vanished(scene: Scene) -> None:
    # Two rounds of it are summed at a time, so a job that is not forgotten cannot be overlooked.
    elements = (6_000_000,)
    # The allocator gives each packet's memory back at once, rather than when nothing lies above it any more.
    scene.serve("s0", timeout_s=TIMEOUT_S, MALLOC_MMAP_THRESHOLD_="1024")
    scene.train(timeout_s=TIMEOUT_S, rounds=1)
    for name in RANKS:
        assert scene.on[name].end()[0] == 0
    base, memory = gradients.at_rest(scene.on["s0"]), []
    for _ in range(2):
        scene.train(timeout_s=TIMEOUT_S, elements=elements)
        for name in RANKS:
            scene.hosts.cut(name)
        for name in RANKS:
            assert scene.on[name].line()["error"] == "ServerLost"
            has_given_everything_back(scene.on[name])
        scene.hosts.mend()
        assert gradients.at_rest(scene.on["s0"]) == base
        memory.append(resident_bytes(scene.on["s0"].pid))
    assert memory[1] - memory[0] < 4 * elements[0]
