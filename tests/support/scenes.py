# SPDX-License-Identifier: Apache-2.0
"""Servers and ranks of a job, each on a host of its own, which is a network namespace."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from support import bare_ranks, gradients, lasting_ranks
from support.hosts import Hosts
from support.processes import Child

RANKS, SERVERS = ("r0", "r1"), ("s0", "s1")
TIMEOUT_S = 3.0
#: A timeout for jobs in which a silence of ``SILENCE_S`` must not count, on a busy machine either.
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
    assert rank.end()[0] == 0


def drop_data_connection(scene: Scene, way: str) -> str:
    """Lose one way of the connection that carries gradients between r1 and s1; the host whose packets are lost."""
    own = [one for one in scene.hosts.connections("s1", 7700) if one[0] == scene.hosts.address("r1")]
    assert len(own) == 2, "one for messages, one for gradients"
    _, port, _ = max(own, key=lambda one: one[2])
    name, which = ("r1", "sport") if way == "what the rank sends" else ("s1", "dport")
    scene.hosts.drop(name, which, port)
    return name


def is_made_again(scene: Scene, way: str) -> None:
    """A data connection of which one way is lost is made again, once, and costs no bit."""
    rounds = 60
    scene.serve(*SERVERS, timeout_s=TIMEOUT_S)
    scene.last(rounds, TIMEOUT_S)
    name = drop_data_connection(scene, way)
    try:
        assert scene.lasts(rounds) == 1
    finally:
        scene.hosts.drop_no_more(name)
