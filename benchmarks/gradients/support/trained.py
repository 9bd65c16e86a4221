# SPDX-License-Identifier: Apache-2.0
"""Real training on the CPU: over dedicated servers, over colocated servers, and with torch's own all-reduce."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

from foresee import network
from foresee.network import trace

from .links import run_bulk, run_links
from .runs import Run
from .session import Hosts, RunOptions, Session, hosts_of, measure
from .workloads import UNSHAPED

TRAINING = RunOptions(program="training.py")
#: Ranks start colocated servers through the public API.
COLOCATED = RunOptions(program="training.py", own_servers=True)
#: Bucket sizes of DDP; the default of torch is 25.
BUCKETS_MB = (1, 25, 100)
#: The rows of part `ranks`: the number of hosts, each with a rank and a colocated server, and the link rate.
RANKS_LINKS = [(ranks, rate) for rate in ("200mbit", "1gbit", UNSHAPED) for ranks in (2, 4)]
#: Warm-up and measured steps on unshaped links, where a step takes a tenth of the time of one on a shaped link. Foresee
#: observes parameter uses at steps whose number is a power of two, and none of these is measured.
WARMED = (33, 30)
#: The row that also measures a compiled model.
COMPILED = (2, "200mbit")
#: Ports of torch's process group, a new one for each run.
PORTS = itertools.count(29_000)


def run_training(session: Session, hosts: Hosts, model: str) -> None:
    """Measure training alone, over dedicated servers, and with DDP at three bucket sizes."""
    # Steps are long, so half the rounds suffice.
    template = {"model": model, "warmup": session.plan.warmup // 2, "rounds": session.plan.rounds // 2}
    step = traced(session, hosts, model)
    for _ in range(session.plan.repeats):
        run_links(session, hosts)
        oracle = run_oracle(session, hosts, step, template)
        if oracle.void:
            return
        run_ours(session, hosts, oracle, step, template)
        for bucket_mb in BUCKETS_MB:
            run_ddp(session, hosts, step, template, bucket_mb)


def run_ranks(session: Session, ranks: int, rate: str) -> None:
    """Measure colocated servers, as many dedicated ones, and DDP with its best bucket size, interleaved."""
    warmup, rounds = WARMED if rate == UNSHAPED else (3, session.plan.rounds // 2)
    template = {"model": "blocks", "warmup": warmup, "rounds": rounds}
    with hosts_of(session, f"{ranks}+{ranks}", rate, ranks, ranks) as hosts:
        alone = dataclasses.replace(hosts, name=f"{ranks}+0", servers=[])
        step = traced(session, alone, "blocks")
        trial = dataclasses.replace(session, save=None, runs=[])
        tried = {mb: run_ddp(trial, alone, step, template, mb) for mb in BUCKETS_MB}
        session.count = trial.count
        best_mb = min((mb for mb in tried if not tried[mb].void), key=lambda mb: tried[mb].t_iter_s)
        for _ in range(session.plan.repeats):
            oracle = run_oracle(session, alone, step, template)
            if oracle.void:
                return
            if rate != UNSHAPED:
                run_bulk_of(session, alone)
                run_bulk_of(session, hosts)
            run_ddp(session, alone, step, template, best_mb)
            run_ours(session, alone, oracle, step, template)
            run_ours(session, hosts, oracle, step, template)
        if (ranks, rate) == COMPILED:
            run_compiled(session, alone, step, {**template, "compiled": True})


def run_compiled(session: Session, hosts: Hosts, step: network.Step, template: dict[str, Any]) -> None:
    """Measure a model compiled as a whole, whose gradients exist only after the whole backward pass."""
    for _ in range(session.plan.repeats):
        run_oracle(session, hosts, step, template)
        run_ddp(session, hosts, step, template, 25)
        ours = Run(workload(template), hosts.name, hosts.rate, "foresee", "foresee", [], step.total_bytes)
        measure(session, hosts, ours, {**template, "do": "colocated", "meeting": meeting(hosts)}, COLOCATED)


def run_quick_ranks(session: Session) -> None:
    """Measure two hosts at 200 Mbit/s with a smaller model of the same ratio of wire to compute time."""
    template = {"model": "blocks_small", "warmup": 3, "rounds": session.plan.rounds}
    with hosts_of(session, "2+0", "200mbit", 2, 0) as hosts:
        step = traced(session, hosts, "blocks_small")
        for _ in range(session.plan.repeats):
            oracle = run_oracle(session, hosts, step, template)
            run_ddp(session, hosts, step, template, 25)
            run_ours(session, hosts, oracle, step, template)


def traced(session: Session, hosts: Hosts, model: str) -> network.Step:
    """Trace the times of each tensor of a model while the other ranks are idle."""
    process = hosts.cluster.process(hosts.ranks[0], "training.py")
    process.send({"do": "trace", "model": model, "seed": session.seed, "rank": 0})
    return trace.loads(process.answer(time.monotonic() + session.timeout_s)["trace"]).step()


def run_bulk_of(session: Session, hosts: Hosts) -> None:
    """Measure the goodput with both directions saturated, over colocated servers if there are no others."""
    shares = network.shares(len(hosts.ranks), 0)
    colocated = not hosts.servers
    of_link = shares.of_link if colocated else 1.0
    run_bulk(
        session,
        hosts,
        rounds=10,
        seconds_per_round=0.5,
        of_link=of_link,
        options=RunOptions(colocated=colocated),
    )


def run_oracle(session: Session, hosts: Hosts, step: network.Step, template: dict[str, Any]) -> Run:
    """Train on all ranks at once, without communication."""
    oracle = Run(workload(template), hosts.name, hosts.rate, "oracle", "", [], step.total_bytes)
    return measure(session, hosts, oracle, {**template, "do": "oracle"}, TRAINING)


def run_ours(
    session: Session, hosts: Hosts, oracle: Run, step: network.Step, template: dict[str, Any]
) -> Run:
    """Train over dedicated servers, or over colocated ones if there are no others."""
    ours = Run(workload(template), hosts.name, hosts.rate, "foresee", "foresee", [], step.total_bytes)
    ours.model_s = session.predicted(hosts, stretched(step, oracle))
    if hosts.servers:
        return measure(session, hosts, ours, {**template, "do": "foresee"}, TRAINING)
    return measure(
        session, hosts, ours, {**template, "do": "colocated", "meeting": meeting(hosts)}, COLOCATED
    )


def run_ddp(
    session: Session, hosts: Hosts, step: network.Step, template: dict[str, Any], bucket_mb: int
) -> Run:
    """Train with torch's own all-reduce."""
    ddp = Run(workload(template), hosts.name, hosts.rate, f"ddp {bucket_mb} MB", "", [], step.total_bytes)
    job = {**template, "do": "ddp", "bucket_mb": bucket_mb, "meeting": meeting(hosts)}
    return measure(session, hosts, ddp, job, TRAINING)


def workload(template: dict[str, Any]) -> str:
    """Return the name of a run's workload in the tables."""
    return f"{template['model']}, compiled" if template.get("compiled") else str(template["model"])


def meeting(hosts: Hosts) -> str:
    """Return the rendezvous address of a process group."""
    return f"{hosts.cluster.addresses[hosts.ranks[0]]}:{next(PORTS)}"


def stretched(step: network.Step, oracle: Run) -> network.Step:
    """Scale the traced step of a single rank to the length that it has while all ranks compute."""
    share = oracle.t_iter_s / step.oracle
    return network.Step(
        step.bytes,
        backward=step.backward * share,
        forward=step.forward * share,
        update=step.update * share,
    )
