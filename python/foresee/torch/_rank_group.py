# SPDX-License-Identifier: Apache-2.0
"""Collectives of the ranks that share gradients, built from rounds of one ``GradientExchange``.

They run between training steps: at the start, when the plan changes, and where ranks differ. A broadcast or gather is a
round of its own plan, after which the ranks agree on the previous plan again.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence

import torch

from foresee.errors import RankLost
from foresee.torch._exchange import GradientExchange, TensorSpec

__all__ = ["RankGroup"]

# Any dtype is sent as integers: the sum of one contribution has its bits.
_WORD_BYTES = 4


class RankGroup:
    """All ranks of a job, seen from one of them.

    Args:
        exchange: this rank's; closed with the group.
        start_timeout_s: limit for the first agreement; None: no limit.
    """

    def __init__(self, exchange: GradientExchange, *, start_timeout_s: float | None = None) -> None:
        self.exchange = exchange
        self._start_timeout_s = start_timeout_s
        self._plan: list[TensorSpec] = []

    def agree(self, plan: Sequence[TensorSpec]) -> None:
        """Make ``plan`` the plan of all coming rounds. Collective, with nothing in flight.

        Raises:
            ConfigError: ranks differ; see ``GradientExchange.agree``.
            RankLost: a rank is missing in the first agreement.
        """
        limit_s, self._start_timeout_s = self._start_timeout_s, None
        try:
            self.exchange.agree([spec.planned for spec in plan], limit_s=limit_s)
        except TimeoutError as late:
            assert limit_s is not None, "only the first agreement has a limit"
            # The message has the last reports of the servers.
            named = re.search(r"ranks? (\d+)", str(late))
            raise RankLost(
                f"no start within {limit_s:g} s: {str(late) or 'not all ranks came'}; look at the output there, or "
                "pass a larger start_timeout=",
                rank=int(named[1]) if named else -1,
            ) from None
        self._plan = list(plan)

    def broadcast(self, tensors: Sequence[tuple[TensorSpec, torch.Tensor]]) -> None:
        """Copy the values of the first rank to all ranks, bit by bit. Collective, with nothing in flight.

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
                # A copy: after a failed round the exchange may still read it.
                self._push(id_, memory)
        exchange.end_round()
        exchange.wait(range(len(sent)), _no_op)
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
        """Return bytes of some ranks on all ranks. Collective, with nothing in flight.

        Args:
            own: bytes of this rank; not sent if the rank is not in ``sizes``.
            sizes: number of bytes by rank, above 0; the same on every rank.

        Returns:
            Bytes by rank, without lost ranks.
        """
        exchange, ranks = self.exchange, sorted(sizes)
        exchange.agree([_words(f"bytes of rank {rank}", sizes[rank], 0) for rank in ranks])
        if exchange.rank in sizes:
            self._push(ranks.index(exchange.rank), torch.frombuffer(bytearray(own), dtype=torch.uint8))
        exchange.end_round()
        exchange.wait(range(len(ranks)), _no_op)
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
        sent = torch.zeros(_count_words(memory.numel()) * _WORD_BYTES, dtype=torch.uint8)
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
    """Return the tensor of a plan for a number of bytes."""
    return name, "int32", [_count_words(nbytes)], [1], priority, "sum"


def _count_words(nbytes: int) -> int:
    return -(-nbytes // _WORD_BYTES)


def _bytes_of(spec: TensorSpec, tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a dense tensor with any strides; the caller keeps it alive."""
    return torch.frombuffer((ctypes.c_char * spec.nbytes).from_address(tensor.data_ptr()), dtype=torch.uint8)


def _no_op() -> None:
    """Signals interrupt a wait without it."""
