# SPDX-License-Identifier: Apache-2.0
"""A process on one host: servers, or a rank whose layers sleep. It runs one job per line of standard input.

It returns times and costs, and has no policy. It does not import torch, so that many processes start fast on few cores.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.commands import answer_commands

from foresee._native import (
    TIMELINE_KINDS,
    GradientExchange,
    GradientLeader,
    GradientNode,
    GradientServer,
)

F32 = NDArray[np.float32]
#: A secret of this benchmark; the hosts are not reachable from outside.
SECRET = "gradients of a benchmark"  # noqa: S105 - it protects only these hosts
#: One of this many packets is checked.
CHECK_INTERVAL = 16
#: A sleep ends this much early, and a busy wait fills the rest.
EARLY_S = 3e-5
#: Duration of a call that does not wait; the clock of the layers subtracts it.
CALL_S = 3e-5

ARRIVED = TIMELINE_KINDS.index("arrived")


def cpu_s() -> float:
    """Return the user and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def sleep_until(moment: float) -> None:
    """Wait until ``moment`` of ``time.monotonic``, with an accuracy of microseconds."""
    left = moment - time.monotonic() - EARLY_S
    if left > 0:
        time.sleep(left)
    while time.monotonic() < moment:
        pass


def pattern(rank: int, layer: int, count: int) -> F32:
    """Return the gradient of round 0, with values of many magnitudes, so that the order of a sum changes its bits."""
    places = np.arange(count, dtype=np.uint64)
    mixed = (places * np.uint64(2654435761) + np.uint64(rank * 7919 + layer * 104729)) & np.uint64(0xFFFF)
    signed = mixed.astype(np.float32) - np.float32(32768)
    sizes = np.exp2((mixed % np.uint64(13)).astype(np.float32))
    return np.asarray(signed * sizes / np.float32(3), np.float32)


def factor(number: int) -> Any:
    """Return the factor between the gradients of round ``number`` and those of round 0."""
    return np.float32(1 + (number % 7) / 5)


def mean(parts: Sequence[F32]) -> F32:
    """Return the mean: sequential additions, then one division."""
    return np.asarray(functools.reduce(np.add, parts) / np.float32(len(parts)), np.float32)


class Server:
    """The servers of this host."""

    def __init__(self) -> None:
        """Start without servers."""
        self.running: list[GradientServer] = []
        self.began = 0.0

    def serve(self, job: dict[str, Any]) -> dict[str, Any]:
        """Start ``count`` servers and return their addresses; ``colocated`` servers serve the rank of this process."""
        self.began = cpu_s()
        for _ in range(job["count"]):
            server = GradientServer.start(
                f"{job['address']}:{job['port']}",
                timeout_s=job["timeout_s"],
                early_buffer_bytes=256 << 20,
                secret=SECRET,
                policy=job["policy"],
                timeline=job["timeline"],
                colocated=job["colocated"],
            )
            self.running.append(server)
        return {"servers": [server.address for server in self.running]}

    def stop(self, _job: dict[str, Any]) -> dict[str, Any]:
        """Stop the servers; return their CPU time, and by round the arrival of the last packet of tensor 0."""
        arrived: dict[int, int] = {}
        for server in self.running:
            columns, _ = server.timeline()
            chosen = (columns["kind"] == ARRIVED) & (columns["tensor"] == 0)
            for number, at in zip(
                columns["round"][chosen].tolist(), columns["at_ns"][chosen].tolist(), strict=True
            ):
                arrived[number] = max(at, arrived.get(number, 0))
            server.close()
        self.running.clear()
        return {"cpu_s": cpu_s() - self.began, "arrived_ns": arrived}


class Layers:
    """Gradients of one rank, and a check of the received means."""

    def __init__(self, job: dict[str, Any]) -> None:
        """Allocate memory for two rounds: a round is written while the last one may still be sent."""
        self.elements: list[int] = job["elements"]
        self.world, self.packet = job["world"], job["packet_bytes"] // 4
        #: Ranks per node; the mean of a node is computed first.
        self.local: int = job.get("local", 1)
        self.bases = [
            [pattern(rank, layer, count) for layer, count in enumerate(self.elements)]
            for rank in range(self.world)
        ]
        self.base = self.bases[job["rank"]]
        self.memory: list[list[F32]] = [[np.empty_like(one) for one in self.base] for _ in range(2)]
        self.rng = np.random.default_rng(job["seed"])
        self.wrong = 0

    def make(self, layer: int, number: int) -> F32:
        """Write and return the gradient of a layer in a round."""
        into = self.memory[number % 2][layer]
        np.multiply(self.base[layer], factor(number), out=into)
        return into

    def check(self, layer: int, number: int, received: NDArray[np.uint8]) -> None:
        """Compare randomly chosen packets with the sum in rank order."""
        means = received.view(np.float32)
        for first in range(0, len(means), self.packet):
            if self.rng.integers(CHECK_INTERVAL):
                continue
            count = min(self.packet, len(means) - first)
            parts = [base[layer][first : first + count] * factor(number) for base in self.bases]
            nodes = [parts[at : at + self.local] for at in range(0, self.world, self.local)]
            expected = mean([mean(node) for node in nodes])
            self.wrong += int(not np.array_equal(expected, means[first : first + count]))


class Node:
    """The ranks of this host, if they exchange through a leader."""

    def __init__(self) -> None:
        """Start without a leader."""
        self.leader: GradientLeader | None = None

    def listen(self, job: dict[str, Any]) -> dict[str, Any]:
        """Start the leader and return its address."""
        self.leader = self._of(job).listen()
        return {"leader": self.leader.address}

    def join(self, job: dict[str, Any]) -> GradientExchange:
        """Join the exchange through the leader."""
        leader, self.leader = self.leader, None
        if leader:
            leader.connect(job["servers"], policy=job["policy"], packet_bytes=job["packet_bytes"])
        return self._of(job).join(job["rank"], job["leader"], leader=leader)

    @staticmethod
    def _of(job: dict[str, Any]) -> GradientNode:
        return GradientNode(
            job=job["job"],
            first=job["rank"] // job["local"] * job["local"],
            local_world=job["local"],
            world=job["world"],
            timeout_s=job["timeout_s"],
            secret=SECRET,
        )


def connect(job: dict[str, Any], server: Server, node: Node) -> GradientExchange:
    """Open this rank's exchange and agree on its tensors."""
    if job.get("leader"):
        exchange = node.join(job)
    else:
        exchange = GradientExchange.open(
            job["servers"],
            job=job["job"],
            rank=job["rank"],
            world=job["world"],
            timeout_s=job["timeout_s"],
            secret=SECRET,
            policy=job["policy"],
            packet_bytes=job["packet_bytes"],
            colocated_server=server.running[0] if job["colocated"] else None,
        )
    specs = [
        (f"{layer:04}", "float32", [count], [1], class_, "mean")
        for layer, (count, class_) in enumerate(zip(job["elements"], job["classes"], strict=True))
    ]
    exchange.agree(specs)
    return exchange


def nothing() -> None:
    """Do nothing: no wait is interrupted."""


@contextlib.contextmanager
def as_a_device() -> Iterator[bool]:
    """Give this thread real-time priority, because it simulates a device; yield whether the system allows that.

    Eight simulated hosts share the cores of one host, so without priority a sleep would end late. Threads that start
    inside this block do not inherit the priority: threads that carry packets compete for cores as usual.
    """
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, *before)


def train(server: Server, node: Node, job: dict[str, Any]) -> dict[str, Any]:
    """Run steps over servers; without servers, run the same steps without sending."""
    layers, began = Layers(job), []
    exchange = connect(job, server, node) if job["servers"] else None
    before = cpu_s()
    with as_a_device() as is_device:
        for number in range(job["warmup"] + job["rounds"] + 1):
            began.append(time.monotonic())
            step(job, layers, exchange, number, began[-1])
    used = cpu_s() - before
    if exchange:
        exchange.close()
    return {**result_of(job, began, used, layers.wrong), "as_a_device": is_device}


def step(
    job: dict[str, Any], layers: Layers, exchange: GradientExchange | None, number: int, moment: float
) -> None:
    """Run one step from ``moment`` on: backward pushes the last layer first, forward waits for each layer in order.

    With ``barrier`` the forward pass starts after everything was received.
    """
    every = list(range(len(layers.elements)))
    for layer in reversed(every):
        moment += job["backward"][layer]
        gradient = layers.make(layer, number)
        sleep_until(moment)
        if exchange:
            exchange.push(layer, gradient.ctypes.data, gradient.nbytes, gradient)
    if exchange:
        exchange.end_round()
        if job.get("barrier"):
            exchange.wait(every, nothing)
            moment = max(moment, time.monotonic() - CALL_S)
    for layer in every:
        if exchange:
            exchange.wait([layer], nothing)
        # Without a wait the clock continues from the previous layer, so that errors of the sleeps do not add up.
        moment = max(moment, time.monotonic() - CALL_S) + job["forward"][layer] + job["update"][layer]
        if exchange:
            layers.check(layer, number, exchange.received(layer))
        sleep_until(moment)


def bulk(server: Server, node: Node, job: dict[str, Any]) -> dict[str, Any]:
    """Saturate both directions: push each tensor again as soon as its average was received.

    With ``urgent`` tensor 0 is pushed at the end of each round, behind all queued packets.
    """
    layers, exchange, began = Layers(job), connect(job, server, node), []
    pushed: dict[int, float] = {}
    first = 1 if job["urgent"] else 0
    before = cpu_s()
    for number in range(job["warmup"] + job["rounds"] + 1):
        began.append(time.monotonic())
        for layer in range(first, len(layers.elements)):
            if number > 0:
                exchange.wait([layer], nothing)
                layers.check(layer, number - 1, exchange.received(layer))
            gradient = layers.make(layer, number)
            exchange.push(layer, gradient.ctypes.data, gradient.nbytes, gradient)
        if job["urgent"]:
            if number > 0:
                exchange.wait([0], nothing)
            gradient = layers.make(0, number)
            pushed[number] = time.monotonic_ns()
            exchange.push(0, gradient.ctypes.data, gradient.nbytes, gradient)
        exchange.end_round()
    exchange.wait(list(range(len(layers.elements))), nothing)
    used = cpu_s() - before
    exchange.close()
    return {**result_of(job, began, used, layers.wrong), "pushed_ns": pushed}


def result_of(job: dict[str, Any], began: list[float], used: float, wrong: int) -> dict[str, Any]:
    """Return the times of the measured rounds, from one start of backward to the next, and the cost of all rounds."""
    times = np.diff(np.array(began[job["warmup"] :])).tolist()
    return {
        "began_s": began[job["warmup"] :],
        "steps_s": times,
        "cpu_s": used,
        "rounds": len(began),
        "wrong": wrong,
    }


def main() -> int:
    """Run one job per line, and print one result line each."""
    server, node = Server(), Node()
    actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "serve": server.serve,
        "stop": server.stop,
        "listen": node.listen,
        "train": functools.partial(train, server, node),
        "bulk": functools.partial(bulk, server, node),
    }
    answer_commands(lambda job: actions[job["do"]](job))
    return 0


if __name__ == "__main__":
    sys.exit(main())
