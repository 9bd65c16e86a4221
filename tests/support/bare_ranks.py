# SPDX-License-Identifier: Apache-2.0
"""Ranks without torch, which start quickly: they push, wait, and report their results."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from foresee._native import GradientExchange
from foresee.errors import ForeseeError
from support.processes import Child, engine_threads, print_json, resident_bytes
from support.waiting import moment, pause, wait_until

TOKEN = "a secret of 24 characters"
#: Elements of each tensor, in order of first use: less than a packet, a few, many, none.
ELEMENTS = (100, 20_000, 300_000, 0, 7)
PACKET = 16 << 10
#: Seconds after which a silent process is lost; a killed one is noticed at once.
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class RankPlan:
    """The plan of one rank."""

    number: int
    world: int
    servers: tuple[str, ...]
    rounds: int | None = None
    """None: forever."""
    job: str = "bare"
    timeout_s: float = TIMEOUT_S
    elements: tuple[int, ...] = ELEMENTS
    pause_s: float = 0.0
    """Seconds between two rounds."""
    lost: int | None = None
    """The rank that is killed, without which the others continue."""
    recover: bool = False


def rank(
    number: int,
    world: int,
    servers: Sequence[str],
    *,
    rounds: int | None = None,
    job: str = "bare",
    timeout_s: float = TIMEOUT_S,
    elements: Sequence[int] = ELEMENTS,
    pause_s: float = 0.0,
    lost: int | None = None,
    recover: bool = False,
    within: Sequence[str] = (),
) -> Child:
    """Start a rank in its own process; ``within``: see ``Child``.

    Its first line reports its first round. The second reports its end: the error, or when each round ended by the host's
    clock; with ``lost`` also a digest of all averages, and the ranks of the last one. The third reports unreleased memory
    and threads.
    """
    plan = RankPlan(
        number, world, tuple(servers), rounds, job, timeout_s, tuple(elements), pause_s, lost, recover
    )
    source = "from support.bare_ranks import main; main()"
    return Child(source, json.dumps(asdict(plan)), env={"FORESEE_TOKEN": TOKEN}, within=within)


def main() -> None:
    """Run a rank process."""
    plan = RankPlan(**json.loads(sys.argv[1]))
    gradients = [np.full(count, plan.number + 1, np.float32) for count in plan.elements]
    before = resident_bytes()
    try:
        ended = _exchange(plan, gradients)
    except (ForeseeError, AssertionError) as error:
        print_json(error=type(error).__name__, text=str(error), rank=getattr(error, "rank", None))
    else:
        print_json(**ended)
    gc.collect()
    wait_until(lambda: not engine_threads(), what="the end of the threads of a closed exchange")
    print_json(threads=engine_threads(), grown_bytes=resident_bytes() - before)


def _mean(ranks: Sequence[int]) -> np.float32:
    """Return the mean of the numbers plus one, with the bits of the servers."""
    return np.float32(sum(number + 1 for number in ranks)) / np.float32(len(ranks))


def _exchange(plan: RankPlan, gradients: list[np.ndarray]) -> dict[str, object]:
    """Check that every element is the mean of all ranks or of those that are left; returns the final report."""
    all_ranks = range(plan.world)
    left = [number for number in all_ranks if number != plan.lost]
    means = [_mean(all_ranks), _mean(left)]
    exchange = GradientExchange.open(
        list(plan.servers),
        job=plan.job,
        rank=plan.number,
        world=plan.world,
        timeout_s=plan.timeout_s,
        packet_bytes=PACKET,
        recover=plan.recover,
        continue_on_rank_loss=plan.lost is not None,
    )
    try:
        exchange.agree(
            [(f"w{id_}", "float32", [count], [1], id_, "mean") for id_, count in enumerate(plan.elements)]
        )
        ended, digest = [], hashlib.sha256()
        for round_ in itertools.count() if plan.rounds is None else range(plan.rounds):
            if round_:
                pause(plan.pause_s)
            for id_, gradient in reversed(list(enumerate(gradients))):
                exchange.push(id_, gradient.ctypes.data, gradient.nbytes, gradient)
            exchange.end_round()
            for id_ in range(len(gradients)):
                exchange.wait([id_], lambda: None)
                average = exchange.received(id_).view(np.float32)
                assert np.isin(average, means).all(), f"w{id_} in round {round_}"
                digest.update(average.tobytes())
            ended.append(moment())
            if round_ == 0:
                print_json(round=round_)
        if plan.lost is None:
            return {"ended": ended}
        without = bool((exchange.received(0).view(np.float32) == means[1]).all())
        lost, first = exchange.stats()["ranks_lost"], exchange.first
        return {"digest": digest.hexdigest(), "without": without, "ranks_lost": lost, "first": first}
    finally:
        exchange.close()
