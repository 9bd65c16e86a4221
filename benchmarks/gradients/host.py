# SPDX-License-Identifier: Apache-2.0
"""A process on one host: a server, or a rank whose layers sleep. It does what each line of standard input says.

Knows no policy and judges nothing: it runs what it is told and says how long it took. Without torch, so that many of
them start quickly on few cores.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee._native import (
    TIMELINE_KINDS,
    GradientExchange,
    GradientLeader,
    GradientNode,
    GradientServer,
)

F32 = NDArray[np.float32]
#: A secret of this benchmark; nobody else can reach the hosts.
SECRET = "gradients of a benchmark"  # noqa: S105 - it guards nothing but these hosts
#: How many packets are looked at: one in so many.
CHECKED = 16
#: A sleep ends this much early, and the rest is waited for awake.
EARLY_S = 3e-5
#: What a call takes that need not wait: a layer that follows so soon goes on without a pause.
CALL_S = 3e-5

ARRIVED = TIMELINE_KINDS.index("arrived")


def cpu_s() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def sleep_until(moment: float) -> None:
    """Until ``moment`` of ``time.monotonic``, to some microseconds."""
    left = moment - time.monotonic() - EARLY_S
    if left > 0:
        time.sleep(left)
    while time.monotonic() < moment:
        pass


def pattern(rank: int, layer: int, count: int) -> F32:
    """Gradient of round 0: of all sizes, so that the order of a sum shows in its bits."""
    places = np.arange(count, dtype=np.uint64)
    mixed = (places * np.uint64(2654435761) + np.uint64(rank * 7919 + layer * 104729)) & np.uint64(0xFFFF)
    signed = mixed.astype(np.float32) - np.float32(32768)
    sizes = np.exp2((mixed % np.uint64(13)).astype(np.float32))
    return np.asarray(signed * sizes / np.float32(3), np.float32)


def factor(number: int) -> Any:
    """By what the gradients of round ``number`` are larger than those of round 0."""
    return np.float32(1 + (number % 7) / 5)


def mean(parts: Sequence[F32]) -> F32:
    """Added one by one, then one division."""
    return np.asarray(functools.reduce(np.add, parts) / np.float32(len(parts)), np.float32)


class Server:
    """What this host serves."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.running: list[GradientServer] = []
        self.began = 0.0

    def serve(self, job: dict[str, Any]) -> dict[str, Any]:
        """Start ``count`` servers at an address; where they listen. ``beside``: it is for the rank of this process."""
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
        """End them; what they cost, and when the last packet of tensor 0 arrived, by round."""
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
    """Gradients of one rank, and a check of what comes back."""

    def __init__(self, job: dict[str, Any]) -> None:
        """Takes memory for two rounds: one is being made while the other may still leave."""
        self.elements: list[int] = job["elements"]
        self.world, self.packet = job["world"], job["packet_bytes"] // 4
        #: Ranks of each node whose mean comes first.
        self.local: int = job.get("local", 1)
        self.bases = [
            [pattern(rank, layer, count) for layer, count in enumerate(self.elements)]
            for rank in range(self.world)
        ]
        self.base = self.bases[job["rank"]]
        self.memory: list[list[F32]] = [[np.empty_like(one) for one in self.base] for _ in range(2)]
        self.dice = np.random.default_rng(job["seed"])
        self.wrong = 0

    def make(self, layer: int, number: int) -> F32:
        """The gradient of a layer in a round."""
        into = self.memory[number % 2][layer]
        np.multiply(self.base[layer], factor(number), out=into)
        return into

    def check(self, layer: int, number: int, received: NDArray[np.uint8]) -> None:
        """Compare packets drawn by chance with the sum in rank order."""
        means = received.view(np.float32)
        for first in range(0, len(means), self.packet):
            if self.dice.integers(CHECKED):
                continue
            count = min(self.packet, len(means) - first)
            parts = [base[layer][first : first + count] * factor(number) for base in self.bases]
            nodes = [parts[at : at + self.local] for at in range(0, self.world, self.local)]
            expected = mean([mean(node) for node in nodes])
            self.wrong += int(not np.array_equal(expected, means[first : first + count]))


class Node:
    """The ranks of this host that exchange as one, where they do."""

    def __init__(self) -> None:
        """Has no leader yet."""
        self.leader: GradientLeader | None = None

    def listen(self, job: dict[str, Any]) -> dict[str, Any]:
        """Be the leader; returns its address."""
        self.leader = self._of(job).listen()
        return {"leader": self.leader.address}

    def join(self, job: dict[str, Any]) -> GradientExchange:
        """Exchange through the leader."""
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
    """This rank's exchange, with its plan."""
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
    """Nobody interrupts."""


@contextlib.contextmanager
def as_a_device() -> Iterator[bool]:
    """This thread stands for a device, which computes whatever the cores of its machine do: it runs as soon as it can.

    Eight hosts share the cores of one machine here, and its pauses would end when another host lets it. Threads that
    begin meanwhile are none: what carries packets waits for a core like everybody. Whether the machine allows that.
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
    """Steps over servers, or without any the same steps, and nothing is sent."""
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
    """From ``moment`` on: backward pushes last layer first, forward waits for each layer, first layer first.

    ``barrier``: forward begins when everything was received.
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
        # Without a wait the clock goes on from the layer before: sleeps must not add up their inaccuracy.
        moment = max(moment, time.monotonic() - CALL_S) + job["forward"][layer] + job["update"][layer]
        if exchange:
            layers.check(layer, number, exchange.received(layer))
        sleep_until(moment)


def bulk(server: Server, node: Node, job: dict[str, Any]) -> dict[str, Any]:
    """Both directions as full as they get: each tensor is pushed again as soon as its average was received.

    With ``urgent`` tensor 0 is pushed at the end of each round, behind what waits then.
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
    """The measured rounds' times, from the start of one backward to the next; what all of them cost."""
    times = np.diff(np.array(began[job["warmup"] :])).tolist()
    return {
        "began_s": began[job["warmup"] :],
        "steps_s": times,
        "cpu_s": used,
        "rounds": len(began),
        "wrong": wrong,
    }


def main() -> int:
    """One answer for each line."""
    server, node = Server(), Node()
    actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "serve": server.serve,
        "stop": server.stop,
        "listen": node.listen,
        "train": functools.partial(train, server, node),
        "bulk": functools.partial(bulk, server, node),
    }
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = actions[job["do"]](job)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
