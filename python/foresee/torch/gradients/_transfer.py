# SPDX-License-Identifier: Apache-2.0
"""Transfers between the tensors of a model and the memory that an exchange sends from and receives into.

``Transfer`` is for tensors in CPU memory, where both are the same and nothing is copied. ``DeviceStaging`` is for
tensors of a device: the device copies a gradient to pinned memory in its own order, and a thread pushes the copy once
it is complete, so that neither backward nor the loop waits for the device; an average is copied back in the device's
order. Tensors and ends of rounds reach the exchange in the order in which they were handed over.

    gradient --copy--> pinned memory --thread--> exchange ...      exchange --copy--> average, in the device's order
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import torch

from foresee.torch._exchange import GradientExchange, TensorSpec, as_tensor
from foresee.torch.gradients._cuda import CudaCopies
from foresee.torch.gradients._plan import in_strides, same_memory

__all__ = ["DeviceCopies", "DeviceStaging", "HostCopy", "Transfer", "transfer_for"]

#: How often a wait for the thread checks for Ctrl-C and ``close()``.
_POLL_S = 0.1


class HostCopy(Protocol):
    """A copy of a device's tensor that is being made."""

    host: torch.Tensor
    """Its memory, in the strides of its source. Not to be read before ``wait``."""

    def wait(self) -> None:
        """Block until it is complete."""


class DeviceCopies(Protocol):
    """Copies between a device and the host. Only what ``to_host`` and ``record_reads`` return blocks."""

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        """Copy ``tensor`` as it is when the device gets there; its memory stays until then."""

    def to_device(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A tensor of ``device`` that has these values for whatever the device does next."""

    def record_reads(self) -> Callable[[], None]:
        """A function that waits until the device has read all that was given to ``to_device`` so far."""

    def close(self) -> None:
        """Release what was registered with the device."""


class Transfer:
    """For tensors in CPU memory."""

    def __init__(self, exchange: GradientExchange) -> None:
        self._exchange = exchange
        self._shared: dict[int, torch.Tensor] = {}
        """Of buffers that this rank pushes where they changed: the values that all ranks have, by id."""
        self._received: dict[int, torch.Tensor] = {}
        """Of buffers that another rank pushes: the values that were received last, where the model has them."""

    def push(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Push a tensor in the present round: dense, in the strides of the plan. Never blocks."""
        self._exchange.push(spec.id, tensor.data_ptr(), spec.nbytes, tensor)

    def push_changed(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Push a copy of ``tensor``, unless all ranks have its bits. The caller may write to ``tensor`` at once."""
        if not self._is_shared(spec, tensor):
            self._shared[spec.id] = copied = in_strides(spec, tensor)
            self.push(spec, copied)

    def record_shared(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """All ranks have these values: nothing is pushed until they change."""
        self._shared[spec.id] = in_strides(spec, tensor)

    def forget_shared(self) -> None:
        """It is not known any more what other ranks have."""
        self._shared.clear()

    def record_received(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """These values came from another rank; ``restore`` returns to them."""
        self._received[spec.id] = tensor.detach().clone()

    def restore(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Return to the values that were received, if this rank has others."""
        received = self._received.get(spec.id)
        if received is not None and not _same_bits(tensor, received, spec):
            tensor.copy_(received)

    def end_round(self) -> None:
        """End a round of this rank. Never blocks."""
        self._exchange.end_round()

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], None]) -> None:
        """Block until each of ``ids`` was received; as ``GradientExchange.wait``."""
        self._exchange.wait(ids, on_interrupt)

    def average(self, spec: TensorSpec, device: torch.device) -> torch.Tensor:  # noqa: ARG002 - it is the CPU's
        """The mean that was received last, over the exchange's own memory."""
        return as_tensor(self._exchange.received(spec.id), spec)

    @contextlib.contextmanager
    def on_host(
        self, tensors: Sequence[tuple[TensorSpec, torch.Tensor]]
    ) -> Iterator[Sequence[tuple[TensorSpec, torch.Tensor]]]:
        """The tensors in CPU memory; values that are written to them inside are the tensors' afterwards."""
        yield tensors

    def close(self) -> None:
        """End the transfers. The exchange is closed by its owner."""

    def _is_shared(self, spec: TensorSpec, tensor: torch.Tensor) -> bool:
        """Whether all ranks have the bits of ``tensor``."""
        shared = self._shared.get(spec.id)
        return shared is not None and _same_bits(tensor, shared, spec)


def transfer_for(exchange: GradientExchange, tensors: Iterable[torch.Tensor]) -> Transfer:
    """The transfer for the memory of these tensors."""
    if any(tensor.device.type == "cuda" for tensor in tensors):
        return DeviceStaging(exchange, CudaCopies())
    return Transfer(exchange)


class DeviceStaging(Transfer):
    """For tensors of a device.

    Args:
        exchange: sends from, and receives into, CPU memory.
        copies: to and from the device.
    """

    def __init__(self, exchange: GradientExchange, copies: DeviceCopies) -> None:
        super().__init__(exchange)
        self._copies = copies
        self._jobs: queue.SimpleQueue[Callable[[DeviceStaging], None] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._queued_ends = self._ended = 0
        """Rounds whose end was queued, and those that the exchange has ended."""
        self._failure: BaseException | None = None
        thread = threading.Thread(
            target=_run_all, args=(weakref.ref(self), self._jobs), name="foresee-stage", daemon=True
        )
        thread.start()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def push(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Have the tensor copied, and pushed once the copy is complete. Never blocks."""
        self._check()
        self._jobs.put(functools.partial(_push, spec, self._copies.to_host(tensor)))

    def push_changed(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Have it copied; whether it changed is known when the copy is complete."""
        self._check()
        self._jobs.put(functools.partial(_push_changed, spec, self._to_host(spec, tensor)))

    def record_shared(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Behind all that was pushed."""
        self._check()
        self._jobs.put(functools.partial(_record_shared, spec, self._to_host(spec, tensor)))

    def forget_shared(self) -> None:
        """Behind all that was pushed."""
        self._check()
        self._jobs.put(Transfer.forget_shared)

    def restore(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Return to them: only the device knows whether this rank has others, and it is not waited for."""
        received = self._received.get(spec.id)
        if received is not None:
            tensor.copy_(received)

    def end_round(self) -> None:
        """Behind all that was pushed. Never blocks."""
        self._check()
        self._queued_ends += 1
        self._jobs.put(functools.partial(_end_round, self._copies.record_reads()))

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], None]) -> None:
        """Block until the exchange has ended every round whose end was queued, and then as it does."""
        with self._changed:
            while self._ended < self._queued_ends and self._failure is None:
                self._changed.wait(_POLL_S)
                on_interrupt()
        self._check()
        super().wait(ids, on_interrupt)

    def average(self, spec: TensorSpec, device: torch.device) -> torch.Tensor:
        """The mean that was received last, on ``device``."""
        return self._copies.to_device(super().average(spec, device), device)

    @contextlib.contextmanager
    def on_host(
        self, tensors: Sequence[tuple[TensorSpec, torch.Tensor]]
    ) -> Iterator[Sequence[tuple[TensorSpec, torch.Tensor]]]:
        """Copies, which are waited for, and are copied back afterwards."""
        hosts = []
        for spec, tensor in tensors:
            copy = self._copies.to_host(tensor.detach())
            copy.wait()
            hosts.append((spec, copy.host))
        yield hosts
        with torch.no_grad():
            for (_, host), (_, tensor) in zip(hosts, tensors, strict=True):
                tensor.copy_(host)

    def close(self) -> None:
        """End the thread; what it has not pushed stays."""
        self._jobs.put(None)
        self._copies.close()

    def run(self, job: Callable[[DeviceStaging], None]) -> None:
        """Run one job of the queue, unless one before it has failed. On the thread."""
        if self._failure is None:
            try:
                job(self)
            except BaseException as error:  # noqa: BLE001 - it is raised again at the next call or wait
                self._failure = error
        with self._changed:
            self._changed.notify_all()

    def push_copy(self, spec: TensorSpec, host: torch.Tensor) -> None:
        """Push a copy that is complete. On the thread."""
        super().push(spec, host)

    def push_changed_copy(self, spec: TensorSpec, host: torch.Tensor) -> None:
        """The same, unless all ranks have its bits."""
        if not self._is_shared(spec, host):
            self._shared[spec.id] = host
            super().push(spec, host)

    def record_shared_copy(self, spec: TensorSpec, host: torch.Tensor) -> None:
        """All ranks have the values of a copy that is complete. On the thread."""
        self._shared[spec.id] = host

    def end_round_now(self) -> None:
        """End a round of the exchange. On the thread."""
        super().end_round()
        with self._changed:
            self._ended += 1

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _to_host(self, spec: TensorSpec, tensor: torch.Tensor) -> HostCopy:
        dense = tensor.detach() if same_memory(tensor, spec) else in_strides(spec, tensor)
        return self._copies.to_host(dense)


def _push(spec: TensorSpec, copy: HostCopy, staging: DeviceStaging) -> None:
    copy.wait()
    staging.push_copy(spec, copy.host)


def _push_changed(spec: TensorSpec, copy: HostCopy, staging: DeviceStaging) -> None:
    copy.wait()
    staging.push_changed_copy(spec, copy.host)


def _record_shared(spec: TensorSpec, copy: HostCopy, staging: DeviceStaging) -> None:
    copy.wait()
    staging.record_shared_copy(spec, copy.host)


def _end_round(wait_for_reads: Callable[[], None], staging: DeviceStaging) -> None:
    # A tensor that is absent is received again without this rank's push, so nothing else says that its last average was
    # read.
    wait_for_reads()
    staging.end_round_now()


def _same_bits(tensor: torch.Tensor, other: torch.Tensor, spec: TensorSpec) -> bool:
    if tensor.stride() != other.stride() or spec.nbytes == 0:
        return spec.nbytes == 0
    flat = [one.detach().as_strided((one.numel(),), (1,)).view(torch.uint8) for one in (tensor, other)]
    return torch.equal(flat[0], flat[1])


def _run_all(
    staging: weakref.ref[DeviceStaging], jobs: queue.SimpleQueue[Callable[[DeviceStaging], None] | None]
) -> None:
    """Body of the thread: holds the staging only while there is work, so that a dropped one can be collected."""
    while (job := jobs.get()) is not None:
        alive = staging()
        if alive is None:
            return
        alive.run(job)
        del alive, job
