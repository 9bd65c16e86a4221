# SPDX-License-Identifier: Apache-2.0
"""Measure the goodput of the links without compute, which is an input of the model."""

from __future__ import annotations

import dataclasses
from typing import Any

from .lines import limit
from .runs import Run
from .session import USUAL, Hosts, Plan, RunOptions, Session, measure
from .workloads import Sleeps, bulk, bytes_per_s

#: Policies of ranks and servers by arm; `partition` has a grid instead.
POLICIES = {
    "foresee": "foresee",
    "mercury": "mercury",
    "mercury_windowed": "mercury_windowed",
    "mercury_interface": "mercury_interface",
    "fifo_packet": "fifo_packet,window=interface",
    "fifo_tensor": "fifo_tensor,window=interface",
    "fifo_packet_socket": "fifo_packet",
    "fifo_tensor_socket": "fifo_tensor",
    "partition_4096000": "partition_unbounded",
}


def job_template(work: Sleeps, plan: Plan, do: str, **more: Any) -> dict[str, Any]:
    """Return the fields of a rank's job that are the same for all ranks."""
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


def run_bulk(
    session: Session,
    hosts: Hosts,
    *,
    rounds: int,
    seconds_per_round: float,
    of_link: float = 1.0,
    options: RunOptions = USUAL,
) -> None:
    """Measure the goodput with both directions saturated; ``of_link`` is the share of the link that a rank can use."""
    work = bulk(int(bytes_per_s(hosts.rate) * of_link * seconds_per_round))
    plan = dataclasses.replace(session.plan, warmup=2, rounds=rounds)
    run = Run("bulk", hosts.name, hosts.rate, "foresee", "foresee", [], work.bytes)
    run.model_s = {"foresee": work.bytes / (limit(hosts.rate) * of_link)}
    measure(session, hosts, run, job_template(work, plan, "bulk", urgent=False), options)


def run_bulk_whole(session: Session, hosts: Hosts) -> None:
    """Measure the goodput of one direction at a time: a tensor returns after all of it has arrived."""
    work = bulk(int(bytes_per_s(hosts.rate) * 0.5), tensors=1)
    plan = dataclasses.replace(session.plan, warmup=1, rounds=3)
    run = Run("bulk", hosts.name, hosts.rate, "fifo_tensor", POLICIES["fifo_tensor"], [], work.bytes)
    measure(session, hosts, run, job_template(work, plan, "bulk", urgent=False))


def run_links(session: Session, hosts: Hosts) -> None:
    """Measure the goodput of both directions at once, and of one direction at a time."""
    run_bulk(session, hosts, rounds=10, seconds_per_round=0.5)
    run_bulk_whole(session, hosts)
