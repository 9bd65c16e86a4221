# SPDX-License-Identifier: Apache-2.0
"""One run: servers and ranks on their hosts are told what to do, and what they say becomes a line.

Knows every workload and no plan of a benchmark: which arms run where, and how often, is `parts`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common.report import show

from foresee import network

from .cluster import Cluster, Process, ProcessFailed, cluster
from .runs import Run, Runs, remove_lines, write
from .workloads import UNSHAPED, bytes_per_s, packet_bytes

#: What the model calls the schedule of an arm.
IN_MODEL: dict[str, network.Policy] = {
    "foresee": "mercury",
    "fifo_packet": "fifo_packet",
    "fifo_tensor": "fifo_tensor",
    "barrier": "barrier",
}
#: How long a link has each of its rates, where they change.
STRETCH_S = 5.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much of everything."""

    repeats: int
    warmup: int
    rounds: int
    compute_s: float
    #: Wire time of a step over its compute.
    wire_over_compute: float


@dataclasses.dataclass
class Session:
    """What one call of this program keeps."""

    seed: int
    timeout_s: float
    plan: Plan
    about: dict[str, Any]
    save: Path | None
    logs: Path
    runs: list[Run] = dataclasses.field(default_factory=list)
    count: int = 0
    part: str = ""

    def begin(self, part: str) -> None:
        """What follows is of this part; what was written of it before is dropped."""
        self.part = part
        if self.save:
            remove_lines(self.save, part)

    @contextlib.contextmanager
    def planned(self, plan: Plan) -> Iterator[None]:
        """What is measured inside goes by this plan."""
        usual, self.plan = self.plan, plan
        try:
            yield
        finally:
            self.plan = usual

    def record(self, run: Run) -> Run:
        """Count a run, write it down, and say how it went."""
        run.part = self.part
        run.machine = {**self.about, "load": os.getloadavg(), "time": time.time()}
        self.runs.append(run)
        if self.save:
            write(self.save, run)
        said = f"void: {run.void}" if run.void else f"{1e3 * run.t_iter_s:.1f} ms"
        show(f"{run.workload:<11} {run.cluster:<5} {run.rate:<8} {run.arm:<34} {said}")
        return run

    def predicted(self, hosts: Hosts, step: network.Step) -> dict[str, float]:
        """What the model says of each schedule it knows: its bandwidth is the median of what bulk got in this part so far,
        answered as the schedule answers; nothing else is fitted. Nothing where that is not known.
        """
        runs = Runs(run for run in self.runs if run.part == self.part)
        both_ways = [run.goodput for run in runs.of("bulk", "foresee", hosts.name, hosts.rate)]
        # There and back, one after the other.
        one_way = [2 * run.goodput for run in runs.of("bulk", "fifo_tensor", hosts.name, hosts.rate)]
        found = {arm: one_way if arm == "fifo_tensor" else both_ways for arm in IN_MODEL}
        return {
            arm: network.t_iter(step, policy, statistics.median(found[arm]))
            for arm, policy in IN_MODEL.items()
            if found[arm]
        }


@dataclasses.dataclass
class Hosts:
    """A cluster, with who does what on it."""

    name: str
    rate: str
    cluster: Cluster
    ranks: list[str]
    servers: list[str]


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What is unusual about a run."""

    program: str = "host.py"
    #: Servers on each host of servers: so many connections has each rank.
    servers_per_host: int = 1
    #: A server beside each rank as well, in its process.
    colocated: bool = False
    #: Ranks start the servers that they need.
    own_servers: bool = False
    #: Shares of the rate, each for a stretch, while it runs.
    meanwhile: Sequence[float] = ()
    #: By what the compute of each rank is longer; empty: all alike.
    skew: Sequence[float] = ()
    #: Ranks train so many models of their own, over the same servers.
    jobs: int = 1
    #: Ranks on each of their hosts, and whether they exchange as one.
    local: int = 1
    as_one: bool = False
    #: When the first server is killed, in seconds from the ranks' start; another one comes at its address. 0: never.
    killed_after_s: float = 0.0


USUAL = RunOptions()


def measure(
    session: Session, hosts: Hosts, run: Run, template: dict[str, Any], options: RunOptions = USUAL
) -> Run:
    """One run of one arm; whatever goes wrong makes it void, with the reason."""
    deadline = time.monotonic() + session.timeout_s
    serving = (
        [*(hosts.ranks if options.colocated else ()), *hosts.servers]
        if run.policy and not options.own_servers
        else []
    )
    servers = [hosts.cluster.process(host, "host.py") for host in serving]
    try:
        addresses: list[str] = []
        for host, server in zip(serving, servers, strict=True):
            server.send(_serving(hosts, host, run, template, options))
            addresses += server.answer(deadline)["servers"]
        ranks = _jobs(session, hosts, {**template, "policy": run.policy, "servers": addresses}, options)
        if options.as_one:
            _meet(ranks, options.local, deadline)
        for process, job in ranks:
            process.send(job)
        run.stretches = change_links(hosts, options.meanwhile)
        if options.killed_after_s:
            time.sleep(options.killed_after_s)
            hosts.cluster.kill(serving[0], "host.py")
            servers[0] = hosts.cluster.process(serving[0], "host.py")
            port = int(addresses[0].rpartition(":")[2])
            servers[0].send({**_serving(hosts, serving[0], run, template, options), "port": port})
            servers[0].answer(deadline)
        answers = [process.answer(deadline) for process, _ in ranks]
        for server in servers:
            server.send({"do": "stop"})
        stopped = [server.answer(deadline) for server in servers]
    except ProcessFailed as why:
        hosts.cluster.drop()
        run.void = str(why)
        return session.record(run)
    run.steps_s = [answer["steps_s"] for answer in answers]
    run.began_s = answers[0]["began_s"] if options.meanwhile else []
    run.as_a_device = all(answer.get("as_a_device", False) for answer in answers)
    run.rank_cpu_s = sum(answer["cpu_s"] for answer in answers)
    # Beside a rank a server's seconds are among the rank's.
    apart = (one for host, one in zip(serving, stopped, strict=True) if host not in hosts.ranks)
    run.server_cpu_s = sum(one["cpu_s"] for one in apart)
    run.pushed_bytes = (
        0 if run.arm == "oracle" else run.step_bytes * sum(answer["rounds"] for answer in answers)
    )
    run.idle = answers[0].get("idle")
    wrong = sum(answer["wrong"] for answer in answers)
    if wrong:
        run.void = f"{wrong} packets had other bits than the sum in rank order"
    pushed = answers[0].get("pushed_ns", {})
    arrived = {number: at for one in stopped for number, at in one["arrived_ns"].items()}
    run.urgent_ms = [(arrived[number] - at) / 1e6 for number, at in pushed.items() if number in arrived]
    return session.record(run)


def _serving(
    hosts: Hosts, host: str, run: Run, template: dict[str, Any], options: RunOptions
) -> dict[str, Any]:
    """What a host that serves is told."""
    colocated = host in hosts.ranks
    return {
        "do": "serve",
        "address": hosts.cluster.addresses[host],
        "port": 0,
        "count": 1 if colocated else options.servers_per_host,
        "colocated": colocated,
        "policy": run.policy,
        "timeline": 200_000 if template.get("urgent") else 0,
        "timeout_s": 30.0,
    }


def _jobs(
    session: Session, hosts: Hosts, template: dict[str, Any], options: RunOptions
) -> list[tuple[Process, dict[str, Any]]]:
    """What each rank is told."""
    session.count += 1
    common = {
        "packet_bytes": packet_bytes(hosts.rate),
        **template,
        "colocated": options.colocated,
        "timeout_s": 30.0,
    }
    places = [(host, number) for host in hosts.ranks for number in range(options.local)]
    world, jobs = len(places) // options.jobs, []
    for place, (host, on_host) in enumerate(places):
        number, rank = divmod(place, world)
        job = {
            **common,
            "job": f"bench-{session.count}-{number}",
            "rank": rank,
            "world": world,
            "seed": session.seed,
            "address": hosts.cluster.addresses[host],
            "local": options.local if options.as_one else 1,
        }
        if options.skew:
            job |= {
                name: [options.skew[place] * one for one in job[name]]
                for name in ("backward", "forward", "update")
            }
        jobs.append((hosts.cluster.process(host, options.program, on_host), job))
    return jobs


def _meet(ranks: list[tuple[Process, dict[str, Any]]], local: int, deadline: float) -> None:
    """Have the first rank of each host listen, and tell the others there where."""
    for at in range(0, len(ranks), local):
        process, job = ranks[at]
        process.send({**job, "do": "listen"})
        leader = process.answer(deadline)["leader"]
        for _, one in ranks[at : at + local]:
            one["leader"] = leader


def change_links(hosts: Hosts, shares: Sequence[float]) -> list[tuple[float, float]]:
    """Give all links these shares of their rate, one after the other; when each stretch began."""
    stretches = []
    full = 8 * bytes_per_s(hosts.rate)
    for share in shares:
        hosts.cluster.shape(dict.fromkeys((*hosts.ranks, *hosts.servers), f"{full * share / 1000.0:.0f}kbit"))
        stretches.append((time.monotonic(), share))
        time.sleep(STRETCH_S)
    if shares:
        hosts.cluster.shape(dict.fromkeys((*hosts.ranks, *hosts.servers), hosts.rate))
    return stretches


@contextlib.contextmanager
def hosts_of(session: Session, name: str, rate: str, ranks: int, servers: int) -> Iterator[Hosts]:
    """Hosts for so many ranks and dedicated servers."""
    rank_names = [f"r{at}" for at in range(ranks)]
    server_names = [f"s{at}" for at in range(servers)]
    with cluster([*rank_names, *server_names], "" if rate == UNSHAPED else rate, session.logs) as made:
        yield Hosts(name, rate, made, rank_names, server_names)
