# SPDX-License-Identifier: Apache-2.0
"""Ranks without torch, which start in no time: they push and wait, and say what happens to them."""

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
from support.processes import Child, engine_threads, resident_bytes, say
from support.waiting import moment, pause, wait_until

TOKEN = "a secret of 24 characters"
#: Elements of each tensor, in order of first use: less than a packet, a few, many, none.
ELEMENTS = (100, 20_000, 300_000, 0, 7)
PACKET = 16 << 10
#: Seconds; whoever is killed is noticed at once, whoever is silent after this.
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Part:
    """What a rank does."""

    number: int
    world: int
    servers: tuple[str, ...]
    rounds: int | None = None
    """None: for ever."""
    job: str = "bare"
    timeout_s: float = TIMEOUT_S
    elements: tuple[int, ...] = ELEMENTS
    pause_s: float = 0.0
    """Between two rounds: what the rank computes."""
    lost: int | None = None
    """Who will be killed, after which the others go on."""
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
    """A rank in a process of its own; ``within``: see ``Child``.

    Its first line is of its first round, the second of its end: the error, or when each round ended, by the machine's
    clock; where one is lost also a digest of all averages, and who was in the last. The third tells what it has not
    given back.
    """
    part = Part(
        number, world, tuple(servers), rounds, job, timeout_s, tuple(elements), pause_s, lost, recover
    )
    source = "from support.bare_ranks import main; main()"
    return Child(source, json.dumps(asdict(part)), env={"FORESEE_TOKEN": TOKEN}, within=within)


def main() -> None:
    """Of a rank process."""
    part = Part(**json.loads(sys.argv[1]))
    gradients = [np.full(count, part.number + 1, np.float32) for count in part.elements]
    before = resident_bytes()
    try:
        ended = _exchange(part, gradients)
    except (ForeseeError, AssertionError) as error:
        say(error=type(error).__name__, text=str(error), rank=getattr(error, "rank", None))
    else:
        say(**ended)
    gc.collect()
    wait_until(lambda: not engine_threads(), what="the end of the threads of a closed exchange")
    say(threads=engine_threads(), grown_bytes=resident_bytes() - before)


def _mean(ranks: Sequence[int]) -> np.float32:
    """Of the numbers plus one, in every bit as servers add and divide."""
    return np.float32(sum(number + 1 for number in ranks)) / np.float32(len(ranks))


def _exchange(part: Part, gradients: list[np.ndarray]) -> dict[str, object]:
    """Every element of an average is the mean of all ranks, or of those that are left; what to say at the end."""
    everybody = range(part.world)
    left = [number for number in everybody if number != part.lost]
    means = [_mean(everybody), _mean(left)]
    exchange = GradientExchange.open(
        list(part.servers),
        job=part.job,
        rank=part.number,
        world=part.world,
        timeout_s=part.timeout_s,
        packet_bytes=PACKET,
        recover=part.recover,
        survives=part.lost is not None,
    )
    try:
        exchange.agree(
            [(f"w{id_}", "float32", [count], [1], id_, "mean") for id_, count in enumerate(part.elements)]
        )
        ended, digest = [], hashlib.sha256()
        for round_ in itertools.count() if part.rounds is None else range(part.rounds):
            if round_:
                pause(part.pause_s)
            for id_, gradient in reversed(list(enumerate(gradients))):
                exchange.push(id_, gradient.ctypes.data, gradient.nbytes, gradient)
            exchange.end_round()
            for id_ in range(len(gradients)):
                exchange.wait([id_], lambda: None)
                got = exchange.received(id_).view(np.float32)
                assert np.isin(got, means).all(), f"w{id_} in round {round_}"
                digest.update(got.tobytes())
            ended.append(moment())
            if round_ == 0:
                say(round=round_)
        if part.lost is None:
            return {"ended": ended}
        without = bool((exchange.received(0).view(np.float32) == means[1]).all())
        lost, first = exchange.stats()["ranks_lost"], exchange.first
        return {"digest": digest.hexdigest(), "without": without, "ranks_lost": lost, "first": first}
    finally:
        exchange.close()
