#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the exchange of gradients as PROTOCOL.md says.

``--quick`` measures at least half of the acceptance lines within a minute; without it every arm runs on every workload,
which takes hours. Builds and downloads nothing: ``make setup`` and ``make bench-setup`` do. Needs root, for hosts of
its own.

Exit status: 0 measured (whether or not the lines hold), 2 bad arguments, 3 the environment lacks something (named).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import machine, verdicts  # noqa: E402 - found beside this folder
from common.report import as_object, results_file, show  # noqa: E402
from support import table  # noqa: E402
from support.cluster import Cluster, Process, Silent, Unavailable, cluster  # noqa: E402
from support.lines import judge  # noqa: E402
from support.runs import Run, Runs, forget, read, write  # noqa: E402
from support.workloads import MODELS, TRAINED, Sleeps, bulk, bytes_per_s, packet_bytes, sleeps  # noqa: E402

from foresee.models import network  # noqa: E402

ROOT = HERE.parents[1]
SUM_BENCH = ROOT / ".tools" / "bin" / "foresee-sum-bench"

#: Settings of `partition`: size, credit in partitions, with and without our window.
GRID = [
    f"partition,size={size},credit={size * credit}{window}"
    for size in (64 << 10, 256 << 10, 1 << 20, 4 << 20)
    for credit in (1, 2, 4)
    for window in ("", ",window=interface")
]
#: Names of arms and what ranks and servers are told; `partition` has its grid.
POLICIES = {
    "foresee": "foresee",
    "mercury": "mercury",
    "mercury_windowed": "mercury_windowed",
    "mercury_interface": "mercury_interface",
    "fifo_packet": "fifo_packet",
    "fifo_tensor": "fifo_tensor",
    "partition_4096000": "partition_unbounded",
}
#: In the quick run: one setting of `partition` that is good there.
QUICK_PARTITION = "partition,size=65536,credit=262144,window=interface"
QUICK_ARMS = ("oracle", "foresee", "mercury", "fifo_packet", "fifo_tensor", "partition")
#: The parts of the full run.
PARTS = ("two", "sleeps", "training", "changing")
RATES = ("200mbit", "100mbit", "50mbit")
#: What the model calls the schedule of an arm.
IN_MODEL: dict[str, network.Policy] = {
    "foresee": "mercury",
    "fifo_packet": "fifo_packet",
    "fifo_tensor": "fifo_tensor",
}
#: Shares of the full rate, one after the other; a seed draws the rest of a run's.
SHARES = (1.0, 0.1, 0.5, 0.25, 0.75)
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


FULL = Plan(repeats=5, warmup=5, rounds=30, compute_s=0.2, wire_over_compute=1.0)
QUICK = Plan(repeats=2, warmup=2, rounds=8, compute_s=0.15, wire_over_compute=1.0)
#: To choose a setting of `partition`.
TRIAL = {"repeats": 1, "warmup": 2, "rounds": 6}


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
            forget(self.save, part)

    def keep(self, run: Run) -> Run:
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
        """What the model says of each schedule it knows: its bandwidth is the goodput of `bulk` in this run, nothing else is
        fitted. Nothing where that is not known.
        """
        bulks = Runs(self.runs).of("bulk", "foresee", hosts.name, hosts.rate)
        if not bulks:
            return {}
        bandwidth = max(run.goodput for run in bulks)
        return {arm: network.t_iter(step, policy, bandwidth) for arm, policy in IN_MODEL.items()}


@dataclasses.dataclass
class Hosts:
    """A cluster, with who does what on it."""

    name: str
    rate: str
    cluster: Cluster
    ranks: list[str]
    servers: list[str]

    def jobs(
        self, session: Session, program: str, given: dict[str, Any], addresses: list[str]
    ) -> list[tuple[Process, dict[str, Any]]]:
        """What each rank is told."""
        session.count += 1
        common = {
            **given,
            "servers": addresses,
            "job": f"bench-{session.count}",
            "world": len(self.ranks),
            "timeout_s": 30.0,
            "packet_bytes": packet_bytes(self.rate),
            "seed": session.seed,
        }
        return [
            (self.cluster.process(host, program), {**common, "rank": rank})
            for rank, host in enumerate(self.ranks)
        ]


def measure(
    session: Session,
    hosts: Hosts,
    run: Run,
    given: dict[str, Any],
    *,
    program: str = "host.py",
    servers_per_host: int = 1,
    meanwhile: Sequence[float] = (),
) -> Run:
    """One run of one arm; whatever goes wrong makes it void, with the reason.

    ``meanwhile``: shares of the rate, each for a stretch, while it runs.
    """
    deadline = time.monotonic() + session.timeout_s
    servers = [hosts.cluster.process(host, "host.py") for host in hosts.servers] if run.policy else []
    try:
        addresses: list[str] = []
        for host, server in zip(hosts.servers, servers, strict=False):
            told = {
                "do": "serve",
                "address": hosts.cluster.addresses[host],
                "count": servers_per_host,
                "policy": run.policy,
                "timeline": 200_000 if given.get("urgent") else 0,
                "timeout_s": 30.0,
            }
            server.ask(told)
            addresses += server.answer(deadline)["servers"]
        ranks = hosts.jobs(session, program, {**given, "policy": run.policy}, addresses)
        for process, job in ranks:
            process.ask(job)
        run.stretches = change_links(hosts, meanwhile)
        answers = [process.answer(deadline) for process, _ in ranks]
        for server in servers:
            server.ask({"do": "stop"})
        stopped = [server.answer(deadline) for server in servers]
    except Silent as why:
        hosts.cluster.drop()
        run.void = str(why)
        return session.keep(run)
    run.steps_s = [answer["steps_s"] for answer in answers]
    run.began_s = answers[0]["began_s"] if meanwhile else []
    run.rank_cpu_s = sum(answer["cpu_s"] for answer in answers)
    run.server_cpu_s = sum(answer["cpu_s"] for answer in stopped)
    run.pushed_bytes = run.step_bytes * sum(answer["rounds"] for answer in answers) if run.policy else 0
    wrong = sum(answer["wrong"] for answer in answers)
    if wrong:
        run.void = f"{wrong} packets had other bits than the sum in rank order"
    pushed = answers[0].get("pushed_ns", {})
    arrived = {number: at for one in stopped for number, at in one["arrived_ns"].items()}
    run.urgent_ms = [(arrived[number] - at) / 1e6 for number, at in pushed.items() if number in arrived]
    return session.keep(run)


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


def told_of(work: Sleeps, plan: Plan, do: str, **more: Any) -> dict[str, Any]:
    """What a rank is told of a workload."""
    return {
        "do": do,
        "elements": work.elements,
        "classes": work.classes,
        "backward": work.backward,
        "forward": work.forward,
        "update": work.update,
        "warmup": plan.warmup,
        "rounds": plan.rounds,
        **more,
    }


def run_bulk(session: Session, hosts: Hosts, *, rounds: int, seconds_per_round: float) -> None:
    """Both directions full: what the link gives to our transport."""
    work = bulk(int(bytes_per_s(hosts.rate) * seconds_per_round))
    plan = dataclasses.replace(session.plan, warmup=2, rounds=rounds)
    run = Run("bulk", hosts.name, hosts.rate, "foresee", "foresee", [], work.bytes)
    measure(session, hosts, run, told_of(work, plan, "bulk", urgent=False))


def run_urgent(session: Session, hosts: Hosts, arm: str, connections: int, rounds: int) -> None:
    """A small urgent tensor in each round behind bulk over so many connections."""
    work = bulk(int(bytes_per_s(hosts.rate) * 0.1))
    # One packet of 30 KB before all others.
    work.names.insert(0, "urgent")
    work.elements.insert(0, 7_500)
    plan = dataclasses.replace(session.plan, warmup=2, rounds=rounds)
    given = told_of(work, plan, "bulk", urgent=True)
    given["classes"] = [0] + [255] * (len(work.elements) - 1)
    run = Run("urgent", hosts.name, hosts.rate, arm, POLICIES[arm], [], work.bytes, connections=connections)
    measure(session, hosts, run, given, servers_per_host=connections)


def run_sleeps(session: Session, hosts: Hosts, model: str, arm: str, policy: str) -> Run:
    """A model whose layers sleep; without a policy nothing is sent."""
    plan = session.plan
    wire_s = plan.compute_s * plan.wire_over_compute
    work = sleeps(model, compute_s=plan.compute_s, wire_s=wire_s, bytes_per_s=bytes_per_s(hosts.rate))
    run = Run(model, hosts.name, hosts.rate, arm, policy, [], work.bytes)
    run.model_s = session.predicted(hosts, work.step())
    return measure(session, hosts, run, told_of(work, plan, "train"))


def best_partition(session: Session, hosts: Hosts, model: str) -> str:
    """The quickest setting of `partition` there, each tried once; what it took is not kept."""
    plan = dataclasses.replace(session.plan, **TRIAL)
    trial = dataclasses.replace(session, plan=plan, seed=session.seed + 1, save=None, runs=list(session.runs))
    tried = [run_sleeps(trial, hosts, model, "partition", policy) for policy in GRID]
    session.count = trial.count
    return min((run for run in tried if not run.void), key=lambda run: run.t_iter_s).policy


def run_changing(session: Session, hosts: Hosts, arm: str, policy: str) -> None:
    """VGG-16 while the links change."""
    dice = random.Random(session.seed)
    shares = [*SHARES, *dice.sample(SHARES, len(SHARES))]
    work = sleeps("vgg16", compute_s=0.2, wire_s=0.2, bytes_per_s=bytes_per_s(hosts.rate))
    # At the mean rate the steps outlast the stretches by a little.
    rounds = int(1.2 * STRETCH_S * len(shares) / 0.4)
    plan = dataclasses.replace(session.plan, warmup=0, rounds=rounds)
    run = Run("changing", hosts.name, hosts.rate, arm, policy, [], work.bytes)
    measure(session, hosts, run, told_of(work, plan, "train"), meanwhile=shares)


def run_training(session: Session, hosts: Hosts, model: str) -> None:
    """Real training: alone, over servers, with DDP at three sizes of its buckets."""
    given = {"model": model, "warmup": session.plan.warmup, "rounds": session.plan.rounds}
    tracing = hosts.cluster.process(hosts.ranks[0], "training.py")
    tracing.ask({**given, "do": "trace", "seed": session.seed, "rank": 0})
    tensors = tracing.answer(time.monotonic() + session.timeout_s)["tensors"]
    step = network.Step(
        [tensor["bytes"] for tensor in tensors],
        **{name: [tensor[f"{name}_s"] for tensor in tensors] for name in ("backward", "forward", "update")},
    )
    for number in range(session.plan.repeats):
        oracle = Run(model, hosts.name, hosts.rate, "oracle", "", [], step.total_bytes)
        measure(session, hosts, oracle, {**given, "do": "oracle"}, program="training.py")
        if oracle.void:
            return
        # The shares of a rank that has the machine to itself, the length of one among its neighbours.
        share = oracle.t_iter_s / step.oracle
        stretched = network.Step(
            step.bytes,
            backward=step.backward * share,
            forward=step.forward * share,
            update=step.update * share,
        )
        ours = Run(model, hosts.name, hosts.rate, "foresee", "foresee", [], step.total_bytes)
        ours.model_s = session.predicted(hosts, stretched)
        measure(session, hosts, ours, {**given, "do": "foresee"}, program="training.py")
        for at, bucket_mb in enumerate((1, 25, 100)):
            ddp = Run(model, hosts.name, hosts.rate, f"ddp {bucket_mb} MB", "", [], step.total_bytes)
            meeting = f"{hosts.cluster.addresses[hosts.ranks[0]]}:{29_000 + 3 * number + at}"
            told = {**given, "do": "ddp", "bucket_mb": bucket_mb, "meeting": meeting}
            measure(session, hosts, ddp, told, program="training.py")


@contextlib.contextmanager
def hosts_of(session: Session, name: str, rate: str, ranks: int, servers: int) -> Iterator[Hosts]:
    """Hosts for so many ranks and dedicated servers."""
    rank_names = [f"r{at}" for at in range(ranks)]
    server_names = [f"s{at}" for at in range(servers)]
    with cluster([*rank_names, *server_names], rate, session.logs) as made:
        yield Hosts(name, rate, made, rank_names, server_names)


def quick(session: Session) -> None:
    """Two hosts at 1 Gbit/s, then four ranks and four servers on one model."""
    with hosts_of(session, "two", "1gbit", 1, 1) as hosts:
        run_bulk(session, hosts, rounds=12, seconds_per_round=0.2)
        run_urgent(session, hosts, "foresee", 8, rounds=20)
    with hosts_of(session, "four", "100mbit", 4, 4) as hosts:
        run_bulk(session, hosts, rounds=6, seconds_per_round=0.25)
        settings = {"oracle": "", "partition": QUICK_PARTITION, **POLICIES}
        for _ in range(session.plan.repeats):
            for arm in QUICK_ARMS:
                run_sleeps(session, hosts, "vgg16", arm, settings[arm])


def full(session: Session, parts: Sequence[str], rates: Sequence[str], models: Sequence[str]) -> None:
    """The parts, rates and models of choice."""
    if "two" in parts:
        session.begin("two")
        with hosts_of(session, "two", "1gbit", 1, 1) as hosts:
            for _ in range(session.plan.repeats):
                run_bulk(session, hosts, rounds=20, seconds_per_round=0.5)
                for connections in (1, 4, 8):
                    for arm in ("foresee", "mercury"):
                        run_urgent(session, hosts, arm, connections, rounds=50)
    for rate in rates if "sleeps" in parts else ():
        session.begin(f"sleeps, {rate}")
        with hosts_of(session, "four", rate, 4, 4) as hosts:
            run_bulk(session, hosts, rounds=10, seconds_per_round=0.5)
            for model in models:
                settings = {"oracle": "", **POLICIES, "partition": best_partition(session, hosts, model)}
                for _ in range(session.plan.repeats):
                    for arm, policy in settings.items():
                        run_sleeps(session, hosts, model, arm, policy)
    if "training" in parts:
        session.begin("training")
        with hosts_of(session, "four", "200mbit", 4, 4) as hosts:
            run_bulk(session, hosts, rounds=10, seconds_per_round=0.5)
            for model in TRAINED:
                run_training(session, hosts, model)
    if "changing" in parts:
        session.begin("changing")
        with hosts_of(session, "four", "200mbit", 4, 4) as hosts:
            for _ in range(session.plan.repeats):
                run_changing(session, hosts, "foresee", "foresee")
                # Each setting is an arm of its own: which one is best depends on the stretch.
                for policy in GRID:
                    run_changing(session, hosts, policy, policy)


def sum_rates() -> dict[str, float] | None:
    """Bytes per second of the server's sum and of a STREAM-add, one core each; None where the bench is not built."""
    if not SUM_BENCH.exists():
        return None
    made = subprocess.run([str(SUM_BENCH)], capture_output=True, text=True, check=True)
    rates: dict[str, float] = json.loads(made.stdout)
    return rates


def instead(name: str, factor: float = 1) -> str:
    """Of what a number of the command line takes the place."""
    usual, quickly = (factor * getattr(plan, name) for plan in (FULL, QUICK))
    return f"instead of {usual:g}, and of {quickly:g} in the quick run"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure the exchange of gradients as PROTOCOL.md says.")
    parser.add_argument("--quick", action="store_true", help="few arms, one model, under a minute")
    parser.add_argument("--json", action="store_true", help="print one object with all acceptance lines")
    parser.add_argument(
        "--seed", type=int, default=20_000, help="of checks and changes (default %(default)s)"
    )
    parser.add_argument("--repeats", type=int, help=instead("repeats"))
    parser.add_argument("--rounds", type=int, help=f"measured rounds of a run, {instead('rounds')}")
    parser.add_argument(
        "--compute-ms", type=float, help=f"compute of a step that sleeps, {instead('compute_s', 1e3)}"
    )
    parser.add_argument(
        "--wire-over-compute",
        type=float,
        help=f"wire time of a step over its compute, {instead('wire_over_compute')}",
    )
    parser.add_argument(
        "--timeout", type=float, default=120, help="of one run, seconds (default %(default)s)"
    )
    parser.add_argument(
        "--parts", nargs="*", choices=PARTS, default=PARTS, help="of the full run; only these"
    )
    parser.add_argument(
        "--rates", nargs="*", default=RATES, help="of the links of eight hosts (default: all three)"
    )
    parser.add_argument("--models", nargs="*", choices=MODELS, default=MODELS, help="that sleep; only these")
    parser.add_argument(
        "--save", type=Path, help="append raw lines here (full run: results/gradients_*.jsonl)"
    )
    parser.add_argument("--table", type=Path, help="print the table of these raw lines and end")
    return parser.parse_args()


def chosen_plan(given: argparse.Namespace) -> Plan:
    """How much of everything, with what the command line changes."""
    wanted = {
        "repeats": given.repeats,
        "rounds": given.rounds,
        "compute_s": None if given.compute_ms is None else given.compute_ms / 1e3,
        "wire_over_compute": given.wire_over_compute,
    }
    base = QUICK if given.quick else FULL
    return dataclasses.replace(base, **{name: value for name, value in wanted.items() if value is not None})


def main() -> int:
    """Measure, judge, print."""
    given = parse()
    if given.table:
        runs = read(given.table)
        print(verdicts.markdown(judge(runs)), table.markdown(runs), sep="\n", end="")
        return 0
    began = time.monotonic()
    about = {**machine.describe(), "sum_rates": sum_rates()}
    save = given.save
    if save is None and not given.quick:
        save = results_file(HERE / "results", "gradients", about)
    with tempfile.TemporaryDirectory(prefix="foresee-bench-") as logs:
        session = Session(given.seed, given.timeout, chosen_plan(given), about, save, Path(logs))
        try:
            if given.quick:
                quick(session)
            else:
                full(session, given.parts, given.rates, given.models)
        except Unavailable as missing:
            show(f"run.py: {missing}")
            return 3
    lines = judge(Runs(session.runs))
    if given.json:
        seconds = time.monotonic() - began
        print(as_object("gradients", lines, seconds=seconds, seed=given.seed, machine=about))
        return 0
    print(verdicts.markdown(lines), table.markdown(Runs(session.runs)), sep="\n", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
