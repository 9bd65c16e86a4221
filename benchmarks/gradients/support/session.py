# SPDX-License-Identifier: Apache-2.0
"""Run one arm on one workload: send jobs to servers and ranks, and turn their results into a raw line.

The module `parts` decides which arms run where, and how often.
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

from common.hosts import Cluster, Process, ProcessFailed, cluster
from common.report import remove_part, show

from foresee import network

from .runs import Run, Runs, write
from .workloads import UNSHAPED, bytes_per_s, packet_bytes

#: The model's schedule of each arm.
IN_MODEL: dict[str, network.Policy] = {
    "foresee": "mercury",
    "fifo_packet": "fifo_packet",
    "fifo_tensor": "fifo_tensor",
    "barrier": "barrier",
}
#: Folder with the programs of the hosts.
PROGRAMS = Path(__file__).resolve().parents[1]
#: Seconds of each rate, if the links change.
STRETCH_S = 5.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """Size of the measurements."""

    repeats: int
    warmup: int
    rounds: int
    compute_s: float
    #: Wire time of a step over its compute.
    wire_over_compute: float


@dataclasses.dataclass
class Session:
    """State of one call of this program."""

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
        """Start a part, and remove its old lines."""
        self.part = part
        if self.save:
            remove_part(self.save, part)

    @contextlib.contextmanager
    def planned(self, plan: Plan) -> Iterator[None]:
        """Use ``plan`` inside the block."""
        usual, self.plan = self.plan, plan
        try:
            yield
        finally:
            self.plan = usual

    def record(self, run: Run) -> Run:
        """Add a run, save its line, and print its result."""
        run.part = self.part
        run.machine = {**self.about, "load": os.getloadavg(), "time": time.time()}
        self.runs.append(run)
        if self.save:
            write(self.save, run)
        result = f"void: {run.void}" if run.void else f"{1e3 * run.t_iter_s:.1f} ms"
        show(f"{run.workload:<11} {run.cluster:<5} {run.rate:<8} {run.arm:<34} {result}")
        return run

    def predicted(self, hosts: Hosts, step: network.Step) -> dict[str, float]:
        """Return the modelled step of each schedule, or nothing for schedules with unknown bandwidth.

        The bandwidth is the median goodput of `bulk` in this part so far, with sums returned as the schedule returns them.
        Nothing else is fitted.
        """
        runs = Runs(run for run in self.runs if run.part == self.part)
        both_ways = [run.goodput for run in runs.of("bulk", "foresee", hosts.name, hosts.rate)]
        # A round transfers one direction after the other, so its goodput is half that of the link.
        one_way = [2 * run.goodput for run in runs.of("bulk", "fifo_tensor", hosts.name, hosts.rate)]
        found = {arm: one_way if arm == "fifo_tensor" else both_ways for arm in IN_MODEL}
        return {
            arm: network.t_iter(step, policy, statistics.median(found[arm]))
            for arm, policy in IN_MODEL.items()
            if found[arm]
        }


@dataclasses.dataclass
class Hosts:
    """A cluster, with the hosts of ranks and of servers."""

    name: str
    rate: str
    cluster: Cluster
    ranks: list[str]
    servers: list[str]


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of a run."""

    program: str = "host.py"
    #: Servers on each server host, which is the number of connections of a rank to it.
    servers_per_host: int = 1
    #: Whether each rank's process also has a server.
    colocated: bool = False
    #: Whether ranks start their servers themselves.
    own_servers: bool = False
    #: Shares of the link rate during the run, one stretch each.
    meanwhile: Sequence[float] = ()
    #: Factors of each rank's compute; empty: all equal.
    skew: Sequence[float] = ()
    #: Number of jobs that share the servers.
    jobs: int = 1
    #: Ranks per host, and whether they exchange through a leader.
    local: int = 1
    as_one: bool = False
    #: Seconds after which the first server is killed and replaced at its address; 0: never.
    killed_after_s: float = 0.0


USUAL = RunOptions()


def measure(
    session: Session, hosts: Hosts, run: Run, template: dict[str, Any], options: RunOptions = USUAL
) -> Run:
    """Run one arm once; a failure makes the run void, with the reason."""
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
    # The CPU time of a colocated server is part of its rank's.
    dedicated = (one for host, one in zip(serving, stopped, strict=True) if host not in hosts.ranks)
    run.server_cpu_s = sum(one["cpu_s"] for one in dedicated)
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
    """Return the job of a host that serves."""
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
    """Return the process and the job of each rank."""
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
    """Start the leader of each host, and add its address to the jobs of that host."""
    for at in range(0, len(ranks), local):
        process, job = ranks[at]
        process.send({**job, "do": "listen"})
        leader = process.answer(deadline)["leader"]
        for _, one in ranks[at : at + local]:
            one["leader"] = leader


def change_links(hosts: Hosts, shares: Sequence[float]) -> list[tuple[float, float]]:
    """Set all links to shares of their rate, one after the other; return the start of each stretch."""
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
    """Create hosts for ranks and dedicated servers."""
    rank_names = [f"r{at}" for at in range(ranks)]
    server_names = [f"s{at}" for at in range(servers)]
    shaped = "" if rate == UNSHAPED else rate
    with cluster([*rank_names, *server_names], shaped, session.logs, PROGRAMS) as made:
        yield Hosts(name, rate, made, rank_names, server_names)
