# SPDX-License-Identifier: Apache-2.0
"""Servers and ranks of a job, each in a separate network namespace that acts as a host."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from support import bare_ranks, gradients, recovering_ranks
from support.hosts import Hosts
from support.processes import Child

RANKS, SERVERS = ("r0", "r1"), ("s0", "s1")
TIMEOUT_S = 3.0
#: A timeout that a silence of ``SILENCE_S`` does not reach, even on a busy machine.
PATIENT_S, SILENCE_S = 15.0, 1.5


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Four hosts on one switch."""
    with Hosts(*RANKS, *SERVERS, rate="200mbit") as made:
        yield made


@dataclass
class HostJob:
    """Running servers, and the ranks of a job on them."""

    hosts: Hosts
    started: Callable[[Child], Child]
    on: dict[str, Child] = field(default_factory=dict)
    """The process on each host."""
    places: list[str] = field(default_factory=list)

    def serve(self, *names: str, timeout_s: float, **variables: str) -> None:
        """Start a server on each of these hosts."""
        for name in names:
            arguments = ("--bind", f"{self.hosts.address(name)}:7700", "--timeout", str(timeout_s))
            self.on[name] = self.started(
                gradients.serve(*arguments, within=self.hosts.within(name), **variables)
            )
            self.places.append(self.on[name].line()["address"])

    def train(self, **options: Any) -> None:
        """Start a rank on each rank host, and wait for the first round."""
        for number, name in enumerate(RANKS):
            within = self.hosts.within(name)
            self.on[name] = self.started(
                bare_ranks.rank(number, len(RANKS), self.places, within=within, **options)
            )
        for name in RANKS:
            assert self.on[name].line() == {"round": 0}

    def train_with_recovery(self, rounds: int, timeout_s: float) -> None:
        """Start ranks that reconnect, on their hosts, and wait for the first round."""
        for number, name in enumerate(RANKS):
            within = self.hosts.within(name)
            self.on[name] = self.started(
                recovering_ranks.rank(
                    number, len(RANKS), self.places, rounds=rounds, timeout_s=timeout_s, within=within
                )
            )
        for name in RANKS:
            assert self.on[name].line() == {"round": 0}

    def count_reconnects(self, rounds: int) -> int:
        """Check the bits of every rank; returns the number of reconnects."""
        reports = [self.on[name].line() for name in RANKS]
        for one in reports:
            assert one.get("digest") == recovering_ranks.expected(len(RANKS), rounds), one
            assert one["servers_back"] == 0
        return sum(one["reconnects"] for one in reports)

    def silence(self, name: str, how: str) -> None:
        """Silence a host: cut its link, or stop its process."""
        if how == "is cut off":
            self.hosts.cut(name)
        else:
            self.on[name].send(signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """End the silence of a host."""
        self.hosts.restore(name)
        self.on[name].send(signal.SIGCONT)


@pytest.fixture
def host_job(hosts: Hosts, started: Callable[[Child], Child]) -> Iterator[HostJob]:
    yield HostJob(hosts, started)
    hosts.restore()


def assert_everything_released(rank: Child) -> None:
    """Check the last report of a rank: it has released its threads and memory."""
    left = rank.line()
    assert left["threads"] == []
    assert left["grown_bytes"] < 16 << 20
    assert rank.end()[0] == 0


def drop_data_connection(host_job: HostJob, direction: str) -> str:
    """Drop one direction of the gradient connection between r1 and s1; returns the host whose packets are dropped."""
    own = [one for one in host_job.hosts.connections("s1", 7700) if one[0] == host_job.hosts.address("r1")]
    assert len(own) == 2, "one for messages, one for gradients"
    _, port, _ = max(own, key=lambda one: one[2])
    name, which = ("r1", "sport") if direction == "what the rank sends" else ("s1", "dport")
    host_job.hosts.drop(name, which, port)
    return name


def assert_data_connection_reconnects(host_job: HostJob, direction: str) -> None:
    """A data connection that loses one direction is reconnected once, and the averages keep their bits."""
    rounds = 60
    host_job.serve(*SERVERS, timeout_s=TIMEOUT_S)
    host_job.train_with_recovery(rounds, TIMEOUT_S)
    name = drop_data_connection(host_job, direction)
    try:
        assert host_job.count_reconnects(rounds) == 1
    finally:
        host_job.hosts.stop_dropping(name)
