# SPDX-License-Identifier: Apache-2.0
"""Transfers between the tensors of a model and the memory that an exchange sends from and receives into.

``Transfer`` is for tensors in CPU memory, which the exchange reads and writes itself. ``DeviceStaging`` is for tensors
of a device: the device copies a gradient to pinned memory, and a thread pushes the copy once it is complete, so that
neither backward nor the loop waits for the device. Averages are copied back in the device's order. Tensors and ends of
rounds reach the exchange in the order of the calls.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import torch

from foresee.torch._exchange import GradientExchange, TensorSpec, as_tensor
from foresee.torch.gradients._cuda import CudaCopies
from foresee.torch.gradients._plan import copy_in_strides, has_planned_strides

__all__ = ["DeviceStaging", "Transfer", "transfer_for"]

#: Seconds between two checks for Ctrl-C and ``close()`` during a wait for the thread.
_POLL_S = 0.1


class HostCopy(Protocol):
    """A copy of a device's tensor that is in progress."""

    host: torch.Tensor
    """In the strides of its source; valid after ``wait``."""

    def wait(self) -> None:
        """Block until it is complete."""


class DeviceCopies(Protocol):
    """Copies between a device and the host. Only what ``to_host`` and ``record_reads`` return blocks."""

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        """Copy ``tensor`` in the device's order; its memory stays until then."""

    def to_device(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a tensor of ``device`` that has these values for the device's next operations."""

    def record_reads(self) -> Callable[[], None]:
        """Return a function that waits until the device has read everything given to ``to_device`` so far."""

    def close(self) -> None:
        """Release what was registered with the device."""


class Transfer:
    """For tensors in CPU memory."""

    def __init__(self, exchange: GradientExchange) -> None:
        self._exchange = exchange
        self._shared: dict[int, torch.Tensor] = {}
        """Values of buffers that all ranks have, by id; on the rank that pushes them."""
        self._received: dict[int, torch.Tensor] = {}
        """Values of buffers that were received last, by id; on the other ranks."""

    def push(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Push a tensor in the present round: dense, in the strides of the plan. Never blocks."""
        self._exchange.push(spec.id, tensor.data_ptr(), spec.nbytes, tensor)

    def push_changed(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Push a copy of ``tensor``, unless all ranks have its bits. The caller may write to ``tensor`` at once."""
        if not self._is_shared(spec, tensor):
            self._shared[spec.id] = copied = copy_in_strides(spec, tensor)
            self.push(spec, copied)

    def record_shared(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Note that all ranks have these values: ``push_changed`` skips them until they change."""
        self._shared[spec.id] = copy_in_strides(spec, tensor)

    def forget_shared(self) -> None:
        """Forget which values other ranks have."""
        self._shared.clear()

    def record_received(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Note values of another rank, for ``restore``."""
        self._received[spec.id] = tensor.detach().clone()

    def restore(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Copy the values that were received last into ``tensor``, if it has others."""
        received = self._received.get(spec.id)
        if received is not None and not _same_bits(tensor, received, spec):
            tensor.copy_(received)

    def end_round(self) -> None:
        """End a round of this rank. Never blocks."""
        self._exchange.end_round()

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], None]) -> None:
        """As ``GradientExchange.wait``."""
        self._exchange.wait(ids, on_interrupt)

    def average(self, spec: TensorSpec, device: torch.device) -> torch.Tensor:  # noqa: ARG002 - it is the CPU's
        """Return the mean that was received last, in the exchange's own memory."""
        return as_tensor(self._exchange.received(spec.id), spec)

    @contextlib.contextmanager
    def on_host(
        self, tensors: Sequence[tuple[TensorSpec, torch.Tensor]]
    ) -> Iterator[Sequence[tuple[TensorSpec, torch.Tensor]]]:
        """Yield the tensors in CPU memory; what is written to them inside is copied to the tensors."""
        yield tensors

    def close(self) -> None:
        """End the transfers, but not the exchange."""

    def _is_shared(self, spec: TensorSpec, tensor: torch.Tensor) -> bool:
        """Whether all ranks have the bits of ``tensor``."""
        shared = self._shared.get(spec.id)
        return shared is not None and _same_bits(tensor, shared, spec)


def transfer_for(exchange: GradientExchange, tensors: Iterable[torch.Tensor]) -> Transfer:
    """Return the transfer for the memory of these tensors."""
    if any(tensor.device.type == "cuda" for tensor in tensors):
        return DeviceStaging(exchange, CudaCopies())
    return Transfer(exchange)


class DeviceStaging(Transfer):
    """Transfers of device tensors.

    Args:
        exchange: sends from, and receives into, CPU memory.
        copies: to and from the device.
    """

    def __init__(self, exchange: GradientExchange, copies: DeviceCopies) -> None:
        super().__init__(exchange)
        self._copies = copies
        # Jobs get the staging as argument: one that is queued must not keep it alive.
        self._jobs: _Jobs = queue.SimpleQueue()
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
        """Copy the tensor, and push the copy once it is complete. Never blocks."""
        copy = self._copies.to_host(tensor)
        self._submit(lambda staging: staging._push_copy(spec, copy))  # noqa: SLF001

    def push_changed(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Copy the tensor, and push the complete copy unless all ranks have its bits."""
        copy = self._to_host(spec, tensor)
        self._submit(lambda staging: staging._push_copy(spec, copy, changed=True))  # noqa: SLF001

    def record_shared(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Note that all ranks have these values, after all pushes so far."""
        copy = self._to_host(spec, tensor)
        self._submit(lambda staging: staging._record_shared_copy(spec, copy))  # noqa: SLF001

    def forget_shared(self) -> None:
        """Forget which values other ranks have, after all pushes so far."""
        self._submit(Transfer.forget_shared)

    def restore(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Copy the values that were received last into ``tensor``: a comparison would wait for the device."""
        received = self._received.get(spec.id)
        if received is not None:
            tensor.copy_(received)

    def end_round(self) -> None:
        """End a round of this rank, after all pushes so far. Never blocks."""
        wait_for_reads = self._copies.record_reads()
        self._queued_ends += 1
        self._submit(lambda staging: staging._end_round(wait_for_reads))  # noqa: SLF001

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], None]) -> None:
        """Wait until the exchange has ended every queued round, and then as ``GradientExchange.wait``."""
        with self._changed:
            while self._ended < self._queued_ends and self._failure is None:
                self._changed.wait(_POLL_S)
                on_interrupt()
        self._check()
        super().wait(ids, on_interrupt)

    def average(self, spec: TensorSpec, device: torch.device) -> torch.Tensor:
        """Return the mean that was received last, on ``device``."""
        return self._copies.to_device(super().average(spec, device), device)

    @contextlib.contextmanager
    def on_host(
        self, tensors: Sequence[tuple[TensorSpec, torch.Tensor]]
    ) -> Iterator[Sequence[tuple[TensorSpec, torch.Tensor]]]:
        """Yield complete copies, which are copied back afterwards."""
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
        """End the thread; what it has not pushed is dropped."""
        self._jobs.put(None)
        self._copies.close()

    def run(self, job: Callable[[DeviceStaging], None]) -> None:
        """Run one job, unless an earlier one failed. On the thread."""
        if self._failure is None:
            try:
                job(self)
            except BaseException as error:  # noqa: BLE001 - it is raised again at the next call or wait
                self._failure = error
        with self._changed:
            self._changed.notify_all()

    def _submit(self, job: Callable[[DeviceStaging], None]) -> None:
        self._check()
        self._jobs.put(job)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _to_host(self, spec: TensorSpec, tensor: torch.Tensor) -> HostCopy:
        is_planned = has_planned_strides(tensor, spec)
        return self._copies.to_host(tensor.detach() if is_planned else copy_in_strides(spec, tensor))

    # On the thread.

    def _push_copy(self, spec: TensorSpec, copy: HostCopy, *, changed: bool = False) -> None:
        copy.wait()
        if changed:
            if self._is_shared(spec, copy.host):
                return
            self._shared[spec.id] = copy.host
        super().push(spec, copy.host)

    def _record_shared_copy(self, spec: TensorSpec, copy: HostCopy) -> None:
        copy.wait()
        self._shared[spec.id] = copy.host

    def _end_round(self, wait_for_reads: Callable[[], None]) -> None:
        # The exchange may write to the memory of an average after this round's end, also without a push of this rank.
        wait_for_reads()
        super().end_round()
        with self._changed:
            self._ended += 1


_Jobs = queue.SimpleQueue[Callable[[DeviceStaging], None] | None]


def _same_bits(tensor: torch.Tensor, other: torch.Tensor, spec: TensorSpec) -> bool:
    if tensor.stride() != other.stride() or spec.nbytes == 0:
        return spec.nbytes == 0
    flat = [one.detach().as_strided((one.numel(),), (1,)).view(torch.uint8) for one in (tensor, other)]
    return torch.equal(flat[0], flat[1])


def _run_all(staging: weakref.ref[DeviceStaging], jobs: _Jobs) -> None:
    """Run jobs; holds the staging only during a job, so that one that is dropped can be collected."""
    while (job := jobs.get()) is not None:
        alive = staging()
        if alive is None:
            return
        alive.run(job)
        del alive, job
