# SPDX-License-Identifier: Apache-2.0
"""Ranks without torch, which start in no time: they push and wait for ever, and say what happens to them."""

from __future__ import annotations

import itertools
import sys

import numpy as np

from foresee._native import GradientExchange
from foresee.errors import ForeseeError
from support.processes import Child, say

TOKEN = "a secret of 24 characters"
#: Elements of each tensor, in order of first use: less than a packet, a few, many, none.
ELEMENTS = (100, 20_000, 300_000, 0, 7)
PACKET = 16 << 10
#: Seconds; whoever is killed is noticed at once, whoever is silent after this.
TIMEOUT_S = 20.0


def rank(number: int, world: int, servers: list[str]) -> Child:
    """A rank in a process of its own: its first line is of its first round, its second of its end."""
    source = "from support.bare_ranks import main; main()"
    return Child(source, str(number), str(world), ",".join(servers), env={"FORESEE_TOKEN": TOKEN})


def main() -> None:
    """Of a rank process."""
    number, world = int(sys.argv[1]), int(sys.argv[2])
    gradients = [np.full(count, number + 1, np.float32) for count in ELEMENTS]
    mean = np.float32(sum(range(1, world + 1))) / np.float32(world)
    try:
        exchange = GradientExchange.open(
            sys.argv[3].split(","),
            job="bare",
            rank=number,
            world=world,
            timeout_s=TIMEOUT_S,
            packet_bytes=PACKET,
        )
        exchange.agree(
            [(f"w{id_}", "float32", [count], [1], id_, "mean") for id_, count in enumerate(ELEMENTS)]
        )
        for round_ in itertools.count():
            for id_, gradient in reversed(list(enumerate(gradients))):
                exchange.push(id_, gradient.ctypes.data, gradient.nbytes, gradient)
            exchange.round_end()
            for id_ in range(len(gradients)):
                exchange.wait([id_], lambda: None)
                assert (exchange.received(id_).view(np.float32) == mean).all(), f"w{id_} in round {round_}"
            if round_ == 0:
                say(round=round_)
    except (ForeseeError, AssertionError) as error:
        say(error=type(error).__name__, text=str(error), rank=getattr(error, "rank", None))
