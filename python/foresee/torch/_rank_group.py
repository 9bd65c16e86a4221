# SPDX-License-Identifier: Apache-2.0
"""Collectives of the ranks that share gradients, built from the rounds of one ``GradientExchange``.

They run between training steps: at the start, when the plan changes, and where ranks differ. The steps themselves use
the exchange of the group directly. A broadcast or gather is a round of a plan of its own, after which the plan before
it is agreed on again.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence

import torch

from foresee.errors import RankLost
from foresee.torch._exchange import GradientExchange, TensorSpec

__all__ = ["RankGroup"]

# Any dtype travels as integers: the sum of one contribution is that contribution, in every bit.
_WORD_BYTES = 4


class RankGroup:
    """All ranks of a job, as one of them reaches them.

    Args:
        exchange: this rank's; closed with the group.
        start_timeout_s: how long the first agreement waits for other ranks; None: as long as it takes.
    """

    def __init__(self, exchange: GradientExchange, *, start_timeout_s: float | None = None) -> None:
        self.exchange = exchange
        self._start_timeout_s = start_timeout_s
        self._plan: list[TensorSpec] = []

    def agree(self, plan: Sequence[TensorSpec]) -> None:
        """Make ``plan`` the plan of all coming rounds. Collective, with nothing in flight.

        Raises:
            ConfigError: ranks differ; see ``GradientExchange.agree``.
            RankLost: a rank did not come to the first agreement.
        """
        limit_s, self._start_timeout_s = self._start_timeout_s, None
        try:
            self.exchange.agree([spec.planned for spec in plan], limit_s=limit_s)
        except TimeoutError as late:
            assert limit_s is not None, "only the first agreement has a limit"
            raise _missing(str(late), limit_s) from None
        self._plan = list(plan)

    def broadcast(self, tensors: Sequence[tuple[TensorSpec, torch.Tensor]]) -> None:
        """Copy the values of the first rank to all, bit by bit. Collective, with nothing in flight.

        Args:
            tensors: dense, in CPU memory, of ``nbytes`` bytes each.

        Raises:
            RankLost: the first rank was lost meanwhile.
        """
        exchange = self.exchange
        if exchange.world == 1 or not tensors:
            return
        sent = [(spec, _bytes_of(spec, tensor)) for spec, tensor in tensors if spec.nbytes]
        exchange.agree([_words(spec.name, spec.nbytes, spec.priority) for spec, _ in sent])
        first = exchange.first
        if exchange.rank == first:
            for id_, (_, memory) in enumerate(sent):
                # A copy: if the round fails, the exchange may go on to read it after the caller has moved on.
                self._push(id_, memory)
        exchange.end_round()
        exchange.wait(range(len(sent)), _nothing)
        if exchange.first != first:
            raise RankLost(
                f"rank {first} was lost while its values were copied to the others; start the job again",
                rank=first,
            )
        if exchange.rank != first:
            for id_, (_, memory) in enumerate(sent):
                memory.copy_(self._received(id_)[: memory.numel()])
        self.agree(self._plan)

    def gather(self, own: bytes, sizes: Mapping[int, int]) -> Mapping[int, bytes]:
        """Give all ranks what some of them have. Collective, with nothing in flight.

        Args:
            own: of this rank; not sent if the rank is not in ``sizes``.
            sizes: bytes by rank, above 0; the same on every rank.

        Returns:
            By rank; without those that were lost.
        """
        exchange, ranks = self.exchange, sorted(sizes)
        exchange.agree([_words(f"bytes of rank {rank}", sizes[rank], 0) for rank in ranks])
        if exchange.rank in sizes:
            self._push(ranks.index(exchange.rank), torch.frombuffer(bytearray(own), dtype=torch.uint8))
        exchange.end_round()
        exchange.wait(range(len(ranks)), _nothing)
        found = {
            rank: bytes(self._received(id_)[: sizes[rank]].tolist())
            for id_, rank in enumerate(ranks)
            if exchange.used(id_)
        }
        self.agree(self._plan)
        return found

    def close(self) -> None:
        """Leave the exchange; a second call does nothing."""
        self.exchange.close()

    def _push(self, id_: int, memory: torch.Tensor) -> None:
        """Push a copy, in whole words."""
        sent = torch.zeros(_words_of(memory.numel()) * _WORD_BYTES, dtype=torch.uint8)
        sent[: memory.numel()].copy_(memory)
        self.exchange.push(id_, sent.data_ptr(), sent.numel(), sent)

    def _received(self, id_: int) -> torch.Tensor:
        memory = self.exchange.received(id_)
        return (
            memory.view(torch.uint8)
            if isinstance(memory, torch.Tensor)
            else torch.frombuffer(memory, dtype=torch.uint8)
        )


def _words(name: str, nbytes: int, priority: int) -> tuple[str, str, list[int], list[int], int, str]:
    """Bytes as a tensor of a plan."""
    return name, "int32", [_words_of(nbytes)], [1], priority, "sum"


def _words_of(nbytes: int) -> int:
    return -(-nbytes // _WORD_BYTES)


def _bytes_of(spec: TensorSpec, tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a dense tensor, whatever its strides; its owner keeps it alive."""
    return torch.frombuffer((ctypes.c_char * spec.nbytes).from_address(tensor.data_ptr()), dtype=torch.uint8)


def _missing(waits: str, limit_s: float) -> RankLost:
    """The error for ranks that did not come; ``waits``: the last reports of the servers."""
    named = re.search(r"ranks? (\d+)", waits)
    who = waits or "not all ranks came"
    return RankLost(
        f"no start within {limit_s:g} s: {who}; look at the output of what is missing, or pass a larger start_timeout=",
        rank=int(named[1]) if named else -1,
    )


def _nothing() -> None:
    """Nothing interrupts; signals are handled without it."""
