# SPDX-License-Identifier: Apache-2.0
"""Gradients between hosts: ranks and servers that stop, die, or are cut off, each in a network namespace of its own.

Who is silent for longer than the timeout is lost and named; a shorter silence costs no bit. Nothing here is about time,
but for a bound against hanging: ten times the timeout.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from support import bare_ranks, gradients, lasting_ranks
from support.hosts import Hosts
from support.processes import Child, resident_bytes

pytestmark = pytest.mark.hosts

RANKS, SERVERS = ("r0", "r1"), ("s0", "s1")
TIMEOUT_S = 3.0
HANG_S = 10 * TIMEOUT_S
#: Where a silence must not count: far below the timeout, which grows with it on a busy machine.
PATIENT_S, SILENCE_S = 15.0, 1.5


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Four hosts on one switch."""
    with Hosts(*RANKS, *SERVERS, rate="200mbit") as made:
        yield made


@dataclass
class Scene:
    """Servers that run, and ranks of a job on them."""

    hosts: Hosts
    started: Callable[[Child], Child]
    on: dict[str, Child] = field(default_factory=dict)
    """The process on each host."""
    places: list[str] = field(default_factory=list)

    def serve(self, *names: str, timeout_s: float, **variables: str) -> None:
        """A server on each of these hosts."""
        for name in names:
            arguments = ("--bind", f"{self.hosts.address(name)}:7700", "--timeout", str(timeout_s))
            self.on[name] = self.started(
                gradients.serve(*arguments, within=self.hosts.within(name), **variables)
            )
            self.places.append(self.on[name].line()["address"])

    def train(self, **part: Any) -> None:
        """A rank on each of their hosts; when this returns the first round is over."""
        for number, name in enumerate(RANKS):
            within = self.hosts.within(name)
            self.on[name] = self.started(
                bare_ranks.rank(number, len(RANKS), self.places, within=within, **part)
            )
        for name in RANKS:
            assert self.on[name].line() == {"round": 0}

    def last(self, rounds: int, timeout_s: float) -> None:
        """Ranks that make connections again, on their hosts; when this returns the first round is over."""
        for number, name in enumerate(RANKS):
            within = self.hosts.within(name)
            self.on[name] = self.started(
                lasting_ranks.rank(
                    number, len(RANKS), self.places, rounds=rounds, timeout_s=timeout_s, within=within
                )
            )
        for name in RANKS:
            assert self.on[name].line() == {"round": 0}

    def lasts(self, rounds: int) -> int:
        """How often connections were made again, once every rank has the right bits."""
        said = [self.on[name].line() for name in RANKS]
        for one in said:
            assert one.get("digest") == lasting_ranks.expected(len(RANKS), rounds), one
            assert one["back"] == 0
        return sum(one["again"] for one in said)

    def silence(self, name: str, how: str) -> None:
        """From now on nothing comes from a host."""
        if how == "is cut off":
            self.hosts.cut(name)
        else:
            self.on[name].send(signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """Take the silence back."""
        self.hosts.mend(name)
        self.on[name].send(signal.SIGCONT)


@pytest.fixture
def scene(hosts: Hosts, started: Callable[[Child], Child]) -> Iterator[Scene]:
    yield Scene(hosts, started)
    hosts.mend()


def has_given_everything_back(rank: Child) -> None:
    """What a rank says last."""
    left = rank.line()
    assert left["threads"] == []
    assert left["grown_bytes"] < 16 << 20
    assert rank.end(30)[0] == 0


@pytest.mark.parametrize("how", ["is stopped", "is cut off"])
@pytest.mark.parametrize("who", ["r1", "s1"])
def test_who_is_silent_for_longer_than_the_timeout_is_named_and_the_next_start_works(
    scene: Scene, who: str, how: str
) -> None:
    scene.serve(*SERVERS, timeout_s=TIMEOUT_S)
    scene.train(timeout_s=TIMEOUT_S)
    scene.silence(who, how)
    began = time.monotonic()
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
    assert time.monotonic() - began < HANG_S

    scene.wake(who)
    if who in RANKS and how == "is stopped":
        assert "error" in scene.on[who].line()
        has_given_everything_back(scene.on[who])
    scene.train(timeout_s=TIMEOUT_S, rounds=3)
    for name in RANKS:
        assert "ended" in scene.on[name].line()


@pytest.mark.parametrize("how", ["is stopped", "is cut off"])
@pytest.mark.parametrize("who", ["r1", "s1"])
def test_a_silence_shorter_than_the_timeout_costs_no_bit(scene: Scene, who: str, how: str) -> None:
    scene.serve(*SERVERS, timeout_s=PATIENT_S)
    scene.train(timeout_s=PATIENT_S, rounds=25, pause_s=0.05)
    began = time.monotonic()
    scene.silence(who, how)
    silent = time.monotonic()
    time.sleep(SILENCE_S)
    woken = time.monotonic()
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
    own = [one for one in scene.hosts.connections("s1", 7700) if one[0] == scene.hosts.address("r1")]
    assert len(own) == 2
    _, port, _ = max(own, key=lambda one: one[2])
    name, which = ("r1", "sport") if way == "what the rank sends" else ("s1", "dport")
    scene.hosts.drop(name, which, port)
    began = time.monotonic()
    try:
        said = {name: scene.on[name].line() for name in RANKS}
    finally:
        scene.hosts.drop_no_more(name)
    assert time.monotonic() - began < HANG_S
    assert "has acknowledged nothing for" in said["r1"]["text"], said
    for name in RANKS:
        has_given_everything_back(scene.on[name])


@pytest.mark.parametrize("way", ["what the rank sends", "what the server sends"])
def test_a_data_connection_that_something_on_the_way_drops_is_made_again(scene: Scene, way: str) -> None:
    rounds = 60
    scene.serve(*SERVERS, timeout_s=TIMEOUT_S)
    scene.last(rounds, TIMEOUT_S)
    own = [one for one in scene.hosts.connections("s1", 7700) if one[0] == scene.hosts.address("r1")]
    _, port, _ = max(own, key=lambda one: one[2])
    name, which = ("r1", "sport") if way == "what the rank sends" else ("s1", "dport")
    scene.hosts.drop(name, which, port)
    try:
        assert scene.lasts(rounds) == 1
    finally:
        scene.hosts.drop_no_more(name)


@pytest.mark.parametrize("who", ["r1", "s1"])
def test_connections_that_the_network_resets_cost_no_bit(scene: Scene, who: str) -> None:
    rounds = 60
    scene.serve(*SERVERS, timeout_s=PATIENT_S)
    scene.last(rounds, PATIENT_S)
    for _ in range(5):
        scene.hosts.reset(who, 7700)
        time.sleep(0.3)
    assert scene.lasts(rounds) >= 2


@pytest.mark.parametrize("who", ["r1", "s1"])
def test_who_is_killed_on_another_host_is_named(scene: Scene, who: str) -> None:
    scene.serve(*SERVERS, timeout_s=TIMEOUT_S)
    scene.train(timeout_s=TIMEOUT_S)
    scene.on[who].send(signal.SIGKILL)
    began = time.monotonic()
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
    assert time.monotonic() - began < HANG_S


def test_a_server_is_back_to_base_after_ranks_that_vanished(scene: Scene) -> None:
    # Two rounds of it are summed at a time, so a job that is not forgotten cannot be overlooked.
    elements = (6_000_000,)
    # The allocator gives each packet's memory back at once, rather than when nothing lies above it any more.
    scene.serve("s0", timeout_s=TIMEOUT_S, MALLOC_MMAP_THRESHOLD_="1024")
    scene.train(timeout_s=TIMEOUT_S, rounds=1)
    for name in RANKS:
        assert scene.on[name].end(30)[0] == 0
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
