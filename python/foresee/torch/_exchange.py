# SPDX-License-Identifier: Apache-2.0
"""``GradientExchange``, the contract of one rank's exchange, and its data.

The class of the same name in ``foresee._native`` implements it over servers, and tests implement it within one process.

A *round* is one exchange of all gradients of the plan. Per tensor and round: at most one ``push``, then the
``end_round`` of this rank, then ``wait``, then ``received``. Rounds of one tensor never overlap on a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "COLOCATED",
    "ExchangeSettings",
    "GradientExchange",
    "PlannedTensor",
    "TensorSpec",
    "TracedExchange",
    "as_tensor",
]

#: In place of an address: a server in the process of each rank.
COLOCATED = "colocated"

#: A tensor of a plan without torch: name, dtype, shape, strides in elements, class, and ``mean`` or ``sum``.
PlannedTensor = tuple[str, str, Sequence[int], Sequence[int], int, str]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the plan, the same on all ranks."""

    id: int
    """Position in the plan, from 0 without gaps; the same tensor has the same id on every rank."""
    name: str
    """Name of ``named_parameters()``, for errors."""
    kind: Literal["gradient", "buffer", "bucket"]
    """``gradient`` and ``bucket``: averaged over ranks. ``buffer``: pushed by one rank, so its sum is a copy."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements. Memory is dense: ``nbytes`` bytes without gaps or overlap."""
    nbytes: int
    """If 0, the tensor has no packets, and ``used`` still reports whether a rank pushed it."""
    priority: int
    """Class, 0 to 255, 0 first. Rank 0's applies where ranks differ: the order of use may depend on data."""

    @property
    def planned(self) -> PlannedTensor:
        """The tensor for ``GradientExchange.agree``."""
        dtype = str(self.dtype).removeprefix("torch.")
        op = "sum" if self.kind == "buffer" else "mean"
        return self.name, dtype, list(self.shape), list(self.strides), self.priority, op


@runtime_checkable
class GradientExchange(Protocol):
    """Sends a rank's tensors to the servers and receives their means.

    Pushed memory must not change until the exchange drops its owner: after the last byte was sent, or, with recovery,
    after every rank has everything of the round.

    Every method may raise the loss of a rank or a server, or the effect of ``close()``. A failed exchange stays failed.
    Calls come from one thread at a time, except ``push``, which comes from autograd's threads.
    """

    @property
    def rank(self) -> int:
        """This rank, 0 to ``world - 1``."""

    @property
    def world(self) -> int:
        """Number of ranks, 1 or more, including lost ones."""

    @property
    def first(self) -> int:
        """The first rank that is left, which pushes what only one rank pushes.

        If it changes between an ``end_round`` and the last ``wait`` of the round, the pushes of the previous one may be
        incomplete: do not use what was received.
        """

    def agree(self, tensors: Sequence[PlannedTensor], *, limit_s: float | None = None) -> None:
        """Make ``tensors`` the plan of all coming rounds. Collective; blocks with the interpreter released.

        Nothing may be in flight: all rounds so far were waited for. The id of a tensor in other calls is its position
        here. Ids stay from plan to plan; priorities may change and tensors be added.

        Args:
            tensors: the same on every rank, except for priorities.
            limit_s: seconds after which the wait for other ranks, and the exchange, end; None: no limit.

        Raises:
            ConfigError: ranks differ in number, name, shape, dtype or strides; the message names the tensor, both ranks
                and both values. Also if another rank is in another collective.
            TimeoutError: ``limit_s`` passed; the message names the missing ranks.
        """

    def push(self, tensor_id: int, data_ptr: int, nbytes: int, keepalive: object) -> None:
        """Push this rank's tensor of the present round. Never blocks: it runs inside ``backward()``.

        Args:
            tensor_id: of the plan; once per round.
            data_ptr: first byte of dense memory in the strides of the plan.
            nbytes: as in the plan.
            keepalive: owner of the memory; see the class.
        """

    def end_round(self) -> int:
        """End this rank's pushes of the present round; returns its number in the plan.

        Does not block if everything of the previous round was waited for.
        """

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], object]) -> None:
        """Block until each of ``ids`` of the last ended round was received, or no rank pushed it.

        Received tensors may be pushed for the next round while others are waited for. The interpreter is released.

        Args:
            ids: of the plan; empty returns at once.
            on_interrupt: called with the interpreter at least ten times a second; its errors, and Ctrl-C, end the wait.

        Raises:
            ForeseeError: a rank or server was lost, or nothing arrived for the exchange's ``timeout``; the message
                names rank, tensor and what is missing.
        """

    def count_received(self, ids: Sequence[int]) -> int:
        """Return the number of leading ``ids`` for which ``wait`` would not block."""

    def received(self, tensor_id: int) -> object:
        """Return the mean that was received last: a CPU tensor, or ``nbytes`` bytes with the buffer protocol.

        It has the dtype and strides of the plan, and is writable. It is valid until this rank's next ``push`` of the
        same id, or its next ``end_round`` without one.
        """

    def used(self, tensor_id: int) -> bool | None:
        """Whether any rank pushed the tensor in the round that ended last; None while unknown."""

    def stats(self) -> Mapping[str, float]:
        """Return counters since the start; names have the units."""

    def close(self) -> None:
        """Leave the exchange. A ``wait`` of another thread raises; a second call does nothing."""


@runtime_checkable
class TracedExchange(Protocol):
    """Additional methods of an exchange that logs events of packets."""

    def timeline(self) -> tuple[Mapping[str, NDArray[Any]], int]:
        """Return events since the last call, as columns of ``_native.GradientExchange``, and the number dropped."""

    def tensors(self) -> list[tuple[str, int]]:
        """Return name and bytes on the network of the plan's tensors, in the order of their numbers in the timeline."""


@dataclass(frozen=True)
class ExchangeSettings:
    """Arguments of ``synchronize`` that concern the exchange."""

    servers: tuple[str, ...]
    """Addresses, ``host:port``; ``COLOCATED`` may be among them."""
    comm_dtype: Literal["f32", "f16", "bf16"] | None
    """Dtype of 32-bit floats on the network; None: unchanged."""
    on_rank_loss: Literal["raise", "continue"]
    timeout_s: float
    """Above 0."""
    job: str
    """Name of the exchange in its process; the same on every rank."""
    secret_file: str | None = None
    """File with the job's secret; None: ``FORESEE_TOKEN``, or the secret in the job's store."""
    policy: str = "foresee"
    """Order of packets, the same as on the servers. Others than ``foresee`` are for comparison."""
    hierarchical: bool = True
    """Whether the ranks of one node exchange as one."""
    timeline: int = 0
    """Events that the exchange retains between two calls of ``timeline()``; 0: none."""
    start_timeout_s: float = 1800.0
    """Limit for the wait of ranks for each other before the first round; above 0."""
    recover: bool = True
    """Whether gradients are retained until every rank has their round, to reconnect and replace lost servers."""


def as_tensor(memory: object, spec: TensorSpec) -> torch.Tensor:
    """Return the tensor of ``spec`` over ``memory`` without a copy; it keeps ``memory`` alive."""
    if spec.nbytes == 0:
        return torch.empty(spec.shape, dtype=spec.dtype)
    dtype = spec.dtype
    flat = memory.view(dtype) if isinstance(memory, torch.Tensor) else torch.frombuffer(memory, dtype=dtype)
    assert flat.nbytes == spec.nbytes, f"{spec.name}: {flat.shape} is not {spec.nbytes} bytes"
    return flat.as_strided(spec.shape, spec.strides)
