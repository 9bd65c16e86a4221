# SPDX-License-Identifier: Apache-2.0
"""Ranks without torch that recover from lost servers and connections, and compare every bit of every average.

Each round has other gradients. The ranks of ``bare_ranks`` end at the first loss instead.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence

import numpy as np

from foresee._native import GradientExchange
from foresee.errors import ForeseeError
from support.processes import Child, print_json

TOKEN = "a secret of 24 characters"
#: Elements of each tensor, in order of first use: less than a packet, a few, many, none.
ELEMENTS = (100, 20_000, 300_000, 0, 7)
PACKET = 16 << 10
#: Seconds after which a silent process is lost; a killed one is noticed at once.
TIMEOUT_S = 20.0


def rank(
    number: int,
    world: int,
    servers: Sequence[str],
    *,
    rounds: int,
    timeout_s: float = TIMEOUT_S,
    within: Sequence[str] = (),
) -> Child:
    """Start a rank in its own process: its first line reports its first round, its second its end.

    ``within``: see ``Child``.
    """
    source = "from support.recovering_ranks import main; main()"
    arguments = (number, world, ",".join(servers), rounds, timeout_s)
    return Child(source, *map(str, arguments), env={"FORESEE_TOKEN": TOKEN}, within=within)


def gradients_of(number: int, round_: int) -> list[np.ndarray]:
    """Return the gradients of a rank in a round, with all magnitudes to detect the order of a sum."""
    draw = np.random.default_rng((number, round_))
    return [
        (draw.standard_normal(count) * 10.0 ** draw.integers(-3, 4)).astype(np.float32) for count in ELEMENTS
    ]


def expected(world: int, rounds: int) -> str:
    """Return the digest of all averages: added in rank order, then divided once."""
    digest = hashlib.sha256()
    for round_ in range(rounds):
        ranks = [gradients_of(number, round_) for number in range(world)]
        for tensors in zip(*ranks, strict=True):
            total = tensors[0]
            for more in tensors[1:]:
                total = total + more
            digest.update((total / np.float32(world)).tobytes())
    return digest.hexdigest()


def main() -> None:
    """Run a rank process."""
    number, world, rounds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4])
    digest = hashlib.sha256()
    try:
        exchange = GradientExchange.open(
            sys.argv[3].split(","),
            job="bare",
            rank=number,
            world=world,
            timeout_s=float(sys.argv[5]),
            packet_bytes=PACKET,
        )
        exchange.agree(
            [(f"w{id_}", "float32", [count], [1], id_, "mean") for id_, count in enumerate(ELEMENTS)]
        )
        for round_ in range(rounds):
            for id_, gradient in reversed(list(enumerate(gradients_of(number, round_)))):
                exchange.push(id_, gradient.ctypes.data, gradient.nbytes, gradient)
            exchange.end_round()
            for id_ in range(len(ELEMENTS)):
                exchange.wait([id_], lambda: None)
                digest.update(exchange.received(id_).tobytes())
            if round_ == 0:
                print_json(round=round_)
        exchange.close()
        stats = exchange.stats()
        print_json(
            digest=digest.hexdigest(), servers_back=stats["servers_back"], reconnects=stats["reconnects"]
        )
    except ForeseeError as error:
        print_json(error=type(error).__name__, text=str(error), rank=getattr(error, "rank", None))
