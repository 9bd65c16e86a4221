# SPDX-License-Identifier: Apache-2.0
"""Between the tensors of a model and the memory that an exchange sends from and lands in.

``Courier`` is for tensors in CPU memory, where both are the same and nothing is copied. ``StagedCourier`` is for
tensors of a device: a gradient leaves it by a copy that the device makes when it gets there, and a thread hands the
copy on once it is whole, so that neither backward nor the loop ever waits for the device; an average goes back by a
copy that the device's own order waits for.

Apart from the rounds, which know which tensor is in which state, and from ``_cuda``, which knows a device. Refuses to
change the order in which tensors and ends of rounds were handed over.

    gradient --copy--> pinned memory --thread--> exchange ...      exchange --copy--> average, in the device's order
"""

from __future__ import annotations

import functools
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from foresee.torch._exchange import Exchange, TensorSpec, as_tensor
from foresee.torch.gradients._cuda import CudaCopies
from foresee.torch.gradients._plan import in_strides, same_memory

__all__ = ["Copies", "Courier", "Leaving", "StagedCourier", "courier_for"]

#: How often whoever waits for the thread looks after Ctrl-C and ``close()``.
_LOOK_S = 0.1


class Leaving(Protocol):
    """A copy on its way from a device."""

    host: torch.Tensor
    """Where it will be, in the strides of its source. Not to be read before ``wait``."""

    def wait(self) -> None:
        """Block until it is there."""


class Copies(Protocol):
    """What a device can do. Nothing here blocks but what ``leave`` and ``arrivals`` return."""

    def leave(self, tensor: torch.Tensor) -> Leaving:
        """Copy ``tensor`` as it is when the device gets there; its memory stays until then."""

    def arrive(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A tensor of ``device`` that has these values for whatever the device does next."""

    def arrivals(self) -> Callable[[], None]:
        """What waits until the device has read all that was given to ``arrive`` so far."""

    def close(self) -> None:
        """Let go of what was registered with the device."""


class Courier:
    """For tensors in CPU memory."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._known: dict[int, torch.Tensor] = {}
        """Of those that are pushed where they changed, what all ranks have, by id."""
        self._kept: dict[int, torch.Tensor] = {}
        """Of those that others push, what landed last, where the model has it."""

    def push(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Hand a tensor over for the present round: dense, in the strides of the plan. Never blocks."""
        self._exchange.push(spec.id, tensor.data_ptr(), spec.nbytes, tensor)

    def push_changed(self, spec: TensorSpec, tensor: torch.Tensor) -> bool:
        """Hand over a copy of ``tensor``, unless all ranks have its bits; False: the caller has to call it absent.

        The caller may write to ``tensor`` at once.
        """
        if self._knows(spec, tensor):
            return False
        self._known[spec.id] = sent = in_strides(spec, tensor)
        self.push(spec, sent)
        return True

    def remember(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """All ranks have these values: nothing need be pushed until they change."""
        self._known[spec.id] = in_strides(spec, tensor)

    def forget(self) -> None:
        """Nobody knows any more what all ranks have."""
        self._known.clear()

    def keep(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Another rank has these values: those to come back to."""
        self._kept[spec.id] = tensor.detach().clone()

    def restore(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Come back to them, if this rank has others."""
        kept = self._kept.get(spec.id)
        if kept is not None and not _same_bits(tensor, kept, spec):
            tensor.copy_(kept)

    def round_end(self, round_: int, absent: Sequence[int]) -> None:
        """Say that this rank pushes nothing more in a round. Never blocks."""
        self._exchange.round_end(round_, absent)

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], None]) -> None:
        """Block until each of ``ids`` has landed; as ``Exchange.wait``."""
        self._exchange.wait(ids, on_interrupt)

    def landed(self, ids: Sequence[int]) -> int:
        """How many of ``ids``, in their order, need not be waited for."""
        return self._exchange.landed(ids)

    def average(self, spec: TensorSpec, device: torch.device) -> torch.Tensor:  # noqa: ARG002 - it is the CPU's
        """The mean that landed last, over the exchange's own memory."""
        return as_tensor(self._exchange.received(spec.id), spec)

    def broadcast(self, tensors: Sequence[tuple[TensorSpec, torch.Tensor]]) -> None:
        """Copy the first rank's values to all, bit by bit. Collective."""
        self._exchange.broadcast([(spec.id, tensor.data_ptr(), spec.nbytes) for spec, tensor in tensors])

    def close(self) -> None:
        """Nothing follows. The exchange is closed by its owner."""

    def _knows(self, spec: TensorSpec, tensor: torch.Tensor) -> bool:
        """Whether all ranks have the bits of ``tensor``."""
        known = self._known.get(spec.id)
        return known is not None and _same_bits(tensor, known, spec)


def courier_for(exchange: Exchange, tensors: Iterable[torch.Tensor]) -> Courier:
    """The one for where these are."""
    if any(tensor.device.type == "cuda" for tensor in tensors):
        return StagedCourier(exchange, CudaCopies())
    return Courier(exchange)


class StagedCourier(Courier):
    """For tensors of a device.

    Args:
        exchange: sends from, and lands in, CPU memory.
        copies: to and from the device.
    """

    def __init__(self, exchange: Exchange, copies: Copies) -> None:
        super().__init__(exchange)
        self._copies = copies
        self._jobs: queue.SimpleQueue[Callable[[StagedCourier], None] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._handed = self._ended = 0
        """Rounds whose end was handed over, and those whose end the exchange has."""
        self._failure: BaseException | None = None
        self._same: list[int] = []
        """Tensors of the present round that turned out not to have changed. The thread's own, as is what it knows."""
        thread = threading.Thread(
            target=_carry_all, args=(weakref.ref(self), self._jobs), name="foresee-stage", daemon=True
        )
        thread.start()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def push(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Have the tensor copied, and handed over once it is. Never blocks."""
        self._check()
        self._jobs.put(functools.partial(_push, spec, self._copies.leave(tensor)))

    def push_changed(self, spec: TensorSpec, tensor: torch.Tensor) -> bool:
        """Have it copied; whether it has changed is known, and acted on, when the copy is there."""
        self._check()
        self._jobs.put(functools.partial(_push_changed, spec, self._leave(spec, tensor)))
        return True

    def remember(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Behind all that was pushed."""
        self._check()
        self._jobs.put(functools.partial(_remember, spec, self._leave(spec, tensor)))

    def forget(self) -> None:
        """Behind all that was pushed."""
        self._check()
        self._jobs.put(StagedCourier.forget_now)

    def restore(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Come back to them: whether this rank has others only the device knows, which is not waited for."""
        kept = self._kept.get(spec.id)
        if kept is not None:
            tensor.copy_(kept)

    def round_end(self, round_: int, absent: Sequence[int]) -> None:
        """Behind all that was pushed. Never blocks."""
        self._check()
        self._handed += 1
        self._jobs.put(functools.partial(_end, round_, list(absent), self._copies.arrivals()))

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], None]) -> None:
        """Block until the last end that was handed over is the exchange's, and then as it does."""
        with self._changed:
            while self._ended < self._handed and self._failure is None:
                self._changed.wait(_LOOK_S)
                on_interrupt()
        self._check()
        self._exchange.wait(ids, on_interrupt)

    def average(self, spec: TensorSpec, device: torch.device) -> torch.Tensor:
        """The mean that landed last, on ``device``."""
        return self._copies.arrive(as_tensor(self._exchange.received(spec.id), spec), device)

    def broadcast(self, tensors: Sequence[tuple[TensorSpec, torch.Tensor]]) -> None:
        """By way of CPU memory; blocks."""
        hosts = []
        for spec, tensor in tensors:
            leaving = self._copies.leave(tensor.detach())
            leaving.wait()
            hosts.append((spec, leaving.host))
        super().broadcast(hosts)
        with torch.no_grad():
            for (_, host), (_, tensor) in zip(hosts, tensors, strict=True):
                tensor.copy_(host)

    def close(self) -> None:
        """End the thread; what it has not handed on stays."""
        self._jobs.put(None)
        self._copies.close()

    # What the thread does, in the order in which it was asked for.

    def carry(self, job: Callable[[StagedCourier], None]) -> None:
        """Do one thing, unless one before it has failed."""
        if self._failure is None:
            try:
                job(self)
            except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits
                self._failure = error
        with self._changed:
            self._changed.notify_all()

    def push_now(self, spec: TensorSpec, host: torch.Tensor) -> None:
        """Give the exchange a copy that is whole."""
        super().push(spec, host)

    def push_if_changed(self, spec: TensorSpec, host: torch.Tensor) -> None:
        """The same, unless all ranks have it already."""
        if self._knows(spec, host):
            self._same.append(spec.id)
            return
        self._known[spec.id] = host
        super().push(spec, host)

    def remember_now(self, spec: TensorSpec, host: torch.Tensor) -> None:
        """All ranks have a copy that is whole."""
        self._known[spec.id] = host

    def forget_now(self) -> None:
        """From here on nothing is known."""
        super().forget()

    def end_now(self, round_: int, absent: list[int]) -> None:
        """End a round of the exchange."""
        absent, self._same = absent + self._same, []
        super().round_end(round_, absent)
        with self._changed:
            self._ended += 1

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _leave(self, spec: TensorSpec, tensor: torch.Tensor) -> Leaving:
        return self._copies.leave(tensor.detach() if same_memory(tensor, spec) else in_strides(spec, tensor))


def _push(spec: TensorSpec, leaving: Leaving, courier: StagedCourier) -> None:
    leaving.wait()
    courier.push_now(spec, leaving.host)


def _push_changed(spec: TensorSpec, leaving: Leaving, courier: StagedCourier) -> None:
    leaving.wait()
    courier.push_if_changed(spec, leaving.host)


def _remember(spec: TensorSpec, leaving: Leaving, courier: StagedCourier) -> None:
    leaving.wait()
    courier.remember_now(spec, leaving.host)


def _end(round_: int, absent: list[int], arrived: Callable[[], None], courier: StagedCourier) -> None:
    # A tensor that is absent lands again without this rank's push, so nothing else says that its last average was read.
    arrived()
    courier.end_now(round_, absent)


def _same_bits(tensor: torch.Tensor, other: torch.Tensor, spec: TensorSpec) -> bool:
    if tensor.stride() != other.stride() or spec.nbytes == 0:
        return spec.nbytes == 0
    flat = [one.detach().as_strided((one.numel(),), (1,)).view(torch.uint8) for one in (tensor, other)]
    return torch.equal(flat[0], flat[1])


def _carry_all(
    courier: weakref.ref[StagedCourier], jobs: queue.SimpleQueue[Callable[[StagedCourier], None] | None]
) -> None:
    """Body of the thread: holds the courier only while there is work, so that a dropped one can go."""
    while (job := jobs.get()) is not None:
        alive = courier()
        if alive is None:
            return
        alive.carry(job)
        del alive, job
