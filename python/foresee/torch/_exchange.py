# SPDX-License-Identifier: Apache-2.0
"""What the PyTorch side asks of whoever carries gradients between ranks: the protocol ``Exchange``.

Apart from ``gradients`` so that the two sides meet in one small file: there tensors, modules and optimizers,
behind the protocol threads, sockets, packets and sums. Refuses to know either side: nothing here counts steps
or opens a socket.

A *round* is one exchange of all gradients, numbered from 0. Per tensor and round: at most one ``push``, then
the ``round_end`` of this rank, then ``wait``, then ``received``. Rounds of one tensor never overlap on a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RANKS", "Exchange", "ExchangeSettings", "TensorSpec", "Traced", "as_tensor"]

#: In place of an address: a server beside each rank, in its process.
RANKS = "ranks"


@dataclass(frozen=True)
class TensorSpec:
    """What all ranks must agree on before a tensor may travel."""

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
    """May be 0: such a tensor has no packets, but ``used`` still tells whether anybody pushed it."""
    priority: int
    """Class, 0 to 255, 0 first. Where ranks differ, rank 0's wins: order of use may depend on data, shapes may not."""


@runtime_checkable
class Exchange(Protocol):
    """Carries tensors to the servers and their means back.

    Memory is handed over as an address and a keeper. It stays as it is until the exchange lets go of the keeper: after
    the last byte of it has left, or, where a lost server may be replaced, after every rank has everything of the round.

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
        """The first rank that is left, as far as this one has heard: it pushes what one rank alone pushes.

        If it changes between a ``round_end`` and the landing, what the rank before it pushed may be incomplete: do not
        use what landed.
        """

    def agree(self, tensors: Sequence[TensorSpec]) -> None:
        """Make ``tensors`` the plan of all coming rounds. Collective; blocks with the interpreter released.

        Called with nothing in flight: every round so far has been waited for. Ids keep their meaning from plan
        to plan; priorities may change and tensors be added.

        Raises:
            ConfigError: ranks differ in number, name, shape, dtype or strides; the message names the tensor,
                both ranks and both values. Likewise if some rank is doing something else.
        """

    def broadcast(self, tensors: Sequence[tuple[int, int, int]]) -> None:
        """Copy memory of the first rank to all, bit by bit. Collective; blocks with the interpreter released.

        Args:
            tensors: ``(tensor_id, data_ptr, nbytes)`` of writable memory that the caller keeps until the return.

        Raises:
            RankLost: the first rank was lost meanwhile.
        """

    def gather(self, own: bytes, sizes: Mapping[int, int]) -> Mapping[int, bytes]:
        """Give all ranks what some of them have. Collective, with nothing in flight.

        Args:
            own: of this rank; not sent if the rank is not in ``sizes``.
            sizes: bytes by rank, above 0; the same on every rank.

        Returns:
            By rank; without those that were lost.
        """

    def push(self, tensor_id: int, data_ptr: int, nbytes: int, keepalive: object) -> None:
        """Hand this rank's tensor of the present round over. Never blocks: it runs inside ``backward()``.

        Args:
            tensor_id: of the plan; once per round.
            data_ptr: first byte of dense memory in the strides of the plan.
            nbytes: as in the plan.
            keepalive: owner of the memory; see the class.
        """

    def round_end(self, round: int, absent_ids: Sequence[int]) -> None:  # noqa: A002
        """Say that this rank pushes nothing more in ``round``, and what it did not push. Never blocks."""

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], None]) -> None:
        """Block until each of ``ids`` has landed, or is known to have been pushed by nobody.

        It is about the last round that this rank ended. Tensors that landed may be pushed for the next round while
        others are waited for. Any number of times. The interpreter is released.

        Args:
            ids: of the plan; empty returns at once.
            on_interrupt: called with the interpreter held, at least ten times a second; what it raises ends the wait
                and comes out, as does Ctrl-C.

        Raises:
            ForeseeError: a rank or server was lost, or nothing arrived for the exchange's ``timeout``; the
                message names rank, tensor and what is missing.
        """

    def received(self, tensor_id: int) -> object:
        """The mean that landed last: a CPU tensor, or memory with the buffer protocol, of ``nbytes`` bytes.

        In dtype and strides of the plan. The caller may write to it. It stays as it is until this rank's next
        ``push`` of the same id, or its next ``round_end`` with the id among the absent.
        """

    def landed(self, ids: Sequence[int]) -> int:
        """How many of ``ids``, in their order, ``wait`` would not block for."""

    def used(self, tensor_id: int) -> bool:
        """Whether any rank pushed the tensor in the round that landed last; if not, nothing was received."""

    def stats(self) -> Mapping[str, float]:
        """Counters since the start; units are in the names."""

    def close(self) -> None:
        """Leave in peace. Ends a ``wait`` of another thread with an error; a second call does nothing."""


@runtime_checkable
class Traced(Protocol):
    """What an exchange has besides that can tell what its packets do."""

    def timeline(self) -> tuple[Mapping[str, NDArray[Any]], int]:
        """What happened since the last call, in the columns of ``GradientExchange``; how much more had no room."""

    def tensors(self) -> list[tuple[str, int]]:
        """Name of the plan's tensors and the bytes that travel of them, by the numbers that the timeline uses."""


@dataclass(frozen=True)
class ExchangeSettings:
    """What the exchange has to know of the arguments of ``synchronize``."""

    servers: tuple[str, ...]
    """Addresses, ``host:port``; ``RANKS`` may be among them."""
    wire: Literal["f32", "f16", "bf16"] | None
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
    local_average: bool = True
    """Whether ranks of one machine exchange as one."""
    timeline: int = 0
    """Events of a timeline to keep between two looks at it; 0: none."""
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
