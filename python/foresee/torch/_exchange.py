# SPDX-License-Identifier: Apache-2.0
"""``GradientExchange``, the contract of one rank's exchange, and the data that passes through it.

The class of the same name in ``foresee._native`` fulfils it over servers, and tests fulfil it inside of one process.
The contract has a file of its own so that ``gradients`` and the network do not import one another.

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
    "Traced",
    "as_tensor",
]

#: In place of an address: a server beside each rank, in its process.
COLOCATED = "colocated"

#: A tensor of a plan, without torch: name, dtype, shape, strides in elements, class, and ``mean`` or ``sum``.
PlannedTensor = tuple[str, str, Sequence[int], Sequence[int], int, str]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the plan, as all ranks must have it."""

    id: int
    """Position in the plan, from 0 without gaps; the same tensor has the same id on every rank."""
    name: str
    """As ``named_parameters()`` has it; what errors say."""
    kind: Literal["gradient", "buffer", "bucket"]
    """``gradient`` and ``bucket``: the mean over ranks. ``buffer``: pushed by one rank, so its sum is a copy."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements. Memory is dense: ``nbytes`` bytes from the first element, without gaps or overlap."""
    nbytes: int
    """May be 0: such a tensor has no packets, but ``used`` still says whether a rank pushed it."""
    priority: int
    """Class, 0 to 255, 0 first. Where ranks differ, rank 0's wins: order of use may depend on data, shapes may not."""

    @property
    def planned(self) -> PlannedTensor:
        """For ``GradientExchange.agree``. One rank pushes a buffer: its sum is a copy, whatever gradients travel as."""
        dtype = str(self.dtype).removeprefix("torch.")
        op = "sum" if self.kind == "buffer" else "mean"
        return self.name, dtype, list(self.shape), list(self.strides), self.priority, op


@runtime_checkable
class GradientExchange(Protocol):
    """Sends a rank's tensors to the servers and receives their means.

    Memory is handed over as an address and its owner, and must not change until the exchange drops the owner: after
    the last byte was sent, or, where a lost server may be replaced, after every rank has everything of the round.

    Every method may raise what the exchange has lost: a rank, a server, its own ``close()``. A failed exchange
    stays failed. Calls come from one thread at a time, except ``push``, which comes from autograd's threads.
    """

    @property
    def rank(self) -> int:
        """This rank, 0 to ``world - 1``."""

    @property
    def world(self) -> int:
        """How many ranks there are, 1 or more; also those that were lost."""

    @property
    def first(self) -> int:
        """The first rank that is left, as far as this one knows: it pushes what one rank alone pushes.

        If it changes between an ``end_round`` and the last ``wait`` of the round, what the rank before it pushed may
        be incomplete: do not use what was received.
        """

    def agree(self, tensors: Sequence[PlannedTensor], *, limit_s: float | None = None) -> None:
        """Make ``tensors`` the plan of all coming rounds. Collective; blocks with the interpreter released.

        Called with nothing in flight: every round so far has been waited for. Calls name a tensor by its place here,
        its id. Ids keep their meaning from plan to plan; priorities may change and tensors be added.

        Args:
            tensors: the same on every rank, priorities excepted.
            limit_s: seconds after which the wait for other ranks, and the exchange, end; None: as long as it takes.

        Raises:
            ConfigError: ranks differ in number, name, shape, dtype or strides; the message names the tensor,
                both ranks and both values. Likewise if some rank is doing something else.
            TimeoutError: ``limit_s`` passed; the message names the ranks that are missing.
        """

    def push(self, tensor_id: int, data_ptr: int, nbytes: int, keepalive: object) -> None:
        """Hand this rank's tensor of the present round over. Never blocks: it runs inside ``backward()``.

        Args:
            tensor_id: of the plan; once per round.
            data_ptr: first byte of dense memory in the strides of the plan.
            nbytes: as in the plan.
            keepalive: owner of the memory; see the class.
        """

    def end_round(self) -> int:
        """End the present round, in which this rank pushes nothing more; returns its number in the plan.

        Does not block if everything of the round before was waited for.
        """

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], object]) -> None:
        """Block until each of ``ids`` was received, or is known to have been pushed by no rank.

        It is about the last round that this rank ended. Tensors that were received may be pushed for the next round
        while others are waited for. Any number of times. The interpreter is released.

        Args:
            ids: of the plan; empty returns at once.
            on_interrupt: called with the interpreter held, at least ten times a second; what it raises ends the wait
                and comes out, as does Ctrl-C.

        Raises:
            ForeseeError: a rank or server was lost, or nothing arrived for the exchange's ``timeout``; the
                message names rank, tensor and what is missing.
        """

    def count_received(self, ids: Sequence[int]) -> int:
        """How many of ``ids``, in their order, ``wait`` would not block for."""

    def received(self, tensor_id: int) -> object:
        """The mean that was received last: a CPU tensor, or memory with the buffer protocol, of ``nbytes`` bytes.

        In dtype and strides of the plan. The caller may write to it. It stays as it is until this rank's next
        ``push`` of the same id, or its next ``end_round`` without one.
        """

    def used(self, tensor_id: int) -> bool | None:
        """Whether any rank pushed the tensor in the round that ended last; None while that is not known."""

    def stats(self) -> Mapping[str, float]:
        """Counters since the start; units are in the names."""

    def close(self) -> None:
        """Leave in peace. Ends a ``wait`` of another thread with an error; a second call does nothing."""


@runtime_checkable
class Traced(Protocol):
    """Additional methods of an exchange that logs what its packets do."""

    def timeline(self) -> tuple[Mapping[str, NDArray[Any]], int]:
        """Events since the last call, in the columns of ``_native.GradientExchange``; how many more had no room."""

    def tensors(self) -> list[tuple[str, int]]:
        """Name of the plan's tensors and the bytes that travel of them, by the numbers that the timeline uses."""


@dataclass(frozen=True)
class ExchangeSettings:
    """Arguments of ``synchronize`` that concern the exchange."""

    servers: tuple[str, ...]
    """Addresses, ``host:port``; ``COLOCATED`` may be among them."""
    comm_dtype: Literal["f32", "f16", "bf16"] | None
    """Dtype of 32-bit floats on the network; None: as they are."""
    on_rank_loss: Literal["raise", "continue"]
    timeout_s: float
    """Above 0."""
    job: str
    """Tells apart several exchanges of one process; the same on every rank."""
    secret_file: str | None = None
    """File with the job's secret; None: ``FORESEE_TOKEN``, or what the job's store carries."""
    policy: str = "foresee"
    """Which packet goes first; as on the servers. The others are for comparison."""
    hierarchical: bool = True
    """Whether the ranks of one node exchange as one."""
    timeline: int = 0
    """Events of a timeline to keep between two calls of ``timeline()``; 0: none."""
    start_timeout_s: float = 1800.0
    """How long ranks wait for each other before the first round; above 0."""
    recover: bool = True
    """Keep gradients until every rank has all of their round, so that a lost server can be replaced."""


def as_tensor(memory: object, spec: TensorSpec) -> torch.Tensor:
    """The tensor of ``spec`` over ``memory``, without a copy; it keeps ``memory`` alive."""
    if spec.nbytes == 0:
        return torch.empty(spec.shape, dtype=spec.dtype)
    flat = memory if isinstance(memory, torch.Tensor) else torch.frombuffer(memory, dtype=torch.uint8)
    if flat.dtype != spec.dtype:
        flat = flat.view(spec.dtype)
    assert flat.numel() * flat.element_size() == spec.nbytes, (
        f"{spec.name}: {flat.shape} is not {spec.nbytes} bytes"
    )
    return flat.as_strided(spec.shape, spec.strides)
